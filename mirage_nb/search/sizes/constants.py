"""The constants of the cost model, fitted to what an H200 measured.

Each is of one multiprocessor or one block, or a share of what the target's data says, so that none belongs to one
program or one card. `bench/records` keeps the times that they were fitted to; `bench cost --from` shows how well.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constants:
    """Times in microseconds, of one multiprocessor; sizes in bytes; counts in operations of one lane."""

    panel_us: float = 1.25e-3
    """A row of a bulk copy, of 32 to 128 bytes alike: 384 blocks of 16 columns and 128 of 48 took the same time."""
    touch_us: float = 0.62e-3
    """A line, and a sector of it, that the load units touch: runs of 2 to 32 bytes took 1.1 to 1.5 ns each."""
    port_bytes_us: float = 82e3
    """Bytes per microsecond into one multiprocessor: few blocks with wide tiles reached 80 to 106 KB."""
    l2_speedup: float = 1.9
    """Bandwidth of L2 over that of device memory: weights that 2 to 8 blocks read at once came at 7.5 to 8.5 TB/s."""
    latency_us: float = 0.92
    """From the request of a tile to its arrival: a ring of 4 tiles of 2 KB turned in 0.25 us."""
    tensor_share: float = 0.58
    """Of the tensor rate, what the warps of one block reach."""
    vector_operations: float = 60.0
    """Of the vector rate, for an element from shared memory and back: 256 of them took 25 to 45 ns, many at once."""
    register_operations: float = 7.0
    """The same in fragments, exponentials among them."""
    concurrent: float = 1.35
    """Blocks of a multiprocessor that compute at full pace; more of them share it."""
    gather: float = 1.22
    """How much longer a product takes whose operands are no multiple of 8 wide and are read element by element."""
    barrier_us: float = 0.055
    """A tile written for everybody: the barriers around it."""
    loop_barrier_us: float = 0.11
    """The same in the loop, where they drain pipelines."""
    reduced: float = 0.126
    """What an element that a reduction only reads takes of VECTOR_OPERATIONS."""
    held_operations: float = 6.7
    """As VECTOR_OPERATIONS, in a block that holds its tiles in registers."""
    exchange_us: float = 0.04
    """A reduction of values that threads hold in registers."""


FITTED = Constants()
"""To the records of `bench cost`."""
