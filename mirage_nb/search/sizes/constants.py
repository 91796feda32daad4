"""The constants of the cost model, fitted to what an H200 measured.

Each is of one multiprocessor or one block, or a share of what the target's data says, so that none belongs to one
program or one card. `bench/records` keeps the times that they were fitted to; `bench cost --from` shows how well.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constants:
    """Times in microseconds, of one multiprocessor; sizes in bytes; counts in operations of one lane."""

    panel_us: float = 0.00125
    """A row of a bulk copy, of 32 to 128 bytes alike: 384 blocks of 16 columns and 128 of 48 took the same time."""
    touch_us: float = 0.000865
    """A line, and a sector of it, that the load units touch: runs of 2 to 32 bytes took 1.1 to 1.5 ns each."""
    port_bytes_us: float = 95e3
    """Bytes per microsecond into one multiprocessor: few blocks with wide tiles reached 80 to 106 KB."""
    near_bytes_us: float = 225e3
    """The same from its L1, where another operand brought them there: 128 in a cycle. Nobody has timed it."""
    l2_speedup: float = 2.45
    """Bandwidth of L2 over that of device memory: weights that 2 to 8 blocks read at once came at 7.5 to 8.5 TB/s."""
    far_speedup: float = 1.94
    """Bandwidth between the halves of L2 over that of device memory: weights that 2 and 4 blocks read at once took
    the same 30 us, and 18 us where each block had its own."""
    latency_us: float = 1.03
    """From the request of a tile to its arrival: a ring of 4 tiles of 2 KB turned in 0.25 us."""
    found_us: float = 0.6
    """From the request of a number to that of what it says: a way to L2 and, mostly, to memory. Nobody has timed it."""
    direct_us: float = 0.5
    """A vector that a thread reads from device memory itself and waits for."""
    begin_us: float = 0.035
    """From the begin of a block to that of the next one: 64 blocks that do nothing took 0.11 us less than 512."""
    follow_us: float = 0.0504
    """What a kernel waits for the results of one before it, beyond its own start."""
    early_us: float = -0.5
    """The same, its start included, of one that streams nothing and so starts while the other runs, before the way of
    its first tile: that one comes from L2. Combining the parts of a softmax took 0.3 to 1.5 us in all."""
    tensor_share: float = 0.635
    """Of the tensor rate, what the warps of one block reach."""
    product_us: float = 0.0142
    """From one step of a product along its depth to the next of the same sums."""
    scalar_us: float = 0.00591
    """A step along the depth, of one result in every thread, where scalar units compute a product."""
    bank_share: float = 0.17
    """How much longer that is where threads read an operand across, for each of them that meets in a bank: 1.1, 1.4,
    2.8 and 5 times as long, of 4, 8, 16 and 32 elements."""
    thread_operations: float = 4.0
    """A multiply-add of a product in a thread graph, with its share of the loads of both operands: where threads and
    tensor cores were timed beside each other, the faster one is estimated faster."""
    patch_operations: float = 5.0
    """As `thread_operations`, an instruction for an element that threads fold in patches: that of a lane counts as two,
    and two or three blocks keep all of these busy. Nobody has timed it."""
    load_operations: float = 8.0
    """A vector of four elements that such threads load, for several results: four passes over the banks."""
    thread_depth: float = 8.0
    deep_operations: float = 9.0
    """The same where more elements are summed: 1024 x 1024 results of 16, 32 and 64 took 4, 6, 20 us beyond a start."""
    across_operations: float = 40.0
    """The same of an operand that is transposed where it lies: threads of a warp read a column each, from one bank of
    shared memory. Such products took 4, 10, 20 and 40 us, of 4, 16, 32 and 64 elements."""
    pass_us: float = 0.047
    """All threads of a block take a vector each from shared memory and back."""
    vector_operations: float = 23.4
    """Of the vector rate, for an element from shared memory and back: 256 of them took 25 to 45 ns, many at once."""
    register_operations: float = 10.2
    """The same in fragments, exponentials among them."""
    concurrent: float = 2.44
    """Blocks of a multiprocessor that compute at full pace; more of them share it."""
    wide_speedup: float = 1.13
    """Of a warp-private body where groups of four warps multiply: scores of 64 x 64 took 16.4 us without, 14.5 with."""
    gather: float = 2.81
    """How much longer a product takes whose operands are no multiple of 8 wide and are read element by element."""
    barrier_us: float = 0.03
    """A tile written for everybody: the barriers around it."""
    loop_barrier_us: float = 0.0964
    """The same in the loop, where they drain pipelines."""
    held_operations: float = 0.341
    """As `vector_operations`, in a block that holds its tiles in registers."""
    lone_operations: float = 5.0
    """The same where it has a multiprocessor for itself, and memory waits for it: an instruction of all lanes counts as
    two operations, an exponential as eighteen, the five operators of a softmax as 28."""
    run_bytes: float = 88.0
    """What a run of device memory takes at least of its bandwidth, where threads hold tiles: a rope in runs of 64, 32
    and 16 bytes took 1.35, 2.75 and 6.3 times as long as in runs of 128."""
    cached_run_bytes: float = 44.0
    """The same where everything fits L2: 1.08, 1.35 and 3.7 times as long."""
    exchange_us: float = 0.12
    """A reduction of values that threads hold in registers."""

    sustained_share: float = 0.86
    """Of the tensor rate, what all multiprocessors keep up: 651 to 681 TFLOP/s of products of 4096 rows and more."""
    alone_share: float = 1.18
    """Of its share of the tensor rate, what a multiprocessor reaches while others are idle: a step of 128 x 256 x 64
    took 0.59 us on 32 of them."""
    stream_bytes_us: float = 125e3
    """Bytes per microsecond into one multiprocessor that only copies and multiplies: 24 KB took 0.197 us."""
    byte_stream_bytes_us: float = 88e3
    """The same beside products of floats of one byte, which take half the time: steps of 64 x 64, 64 x 128 and 128 x 64
    x 128 took 0.18, 0.27 and 0.28 us of the 16 and 24 KB that they copy."""
    widen_us: float = 0.0018
    """A summed element of a product whose right operand is widened in registers, beside what is multiplied and widened:
    words are loaded, and results of the instruction before are waited for."""
    widen_operations: float = 11.0
    """The same for an element that is widened, as `vector_operations`: a step of 64 summed elements and 64 columns took
    0.25, 0.28 and 0.35 us for 32, 64 and 128 rows, of 128 columns 0.34 and 0.37 for 32 and 64."""
    step_us: float = 0.015
    """What a step of products takes beside its products or copies."""
    behind_operations: float = 10.0
    """As `vector_operations`, for an element in the registers of the products."""
    folded_operations: float = 5.0
    """The same where columns are folded there and nothing is stored: an instruction of all lanes counts as two, an
    exponential as eighteen, so that the five operators of a logsumexp come to five each. Nobody has timed it."""
    chained_share: float = 0.99
    """Of the tensor rate, what chained products keep up while exponentials run beside them: an iteration of 128 rows,
    128 keys and a head of 128 took 1.51 us."""
    exponentials_us: float = 16.7e3
    """Scores in a microsecond, from the maximum to the weights: 192 x 128 of them took 1.53 us."""
    chained_step_us: float = 0.1
    """What an iteration of chained products takes beside its products or exponentials."""
    chained_point_us: float = 4.5
    """What stands in front of and behind the iterations of a block's rows: 4.0 to 5.1 us for heads of 64 and 128."""


FITTED = Constants()
"""To the records of `bench cost`."""
