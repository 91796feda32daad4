"""The CPU edition names the mistakes of wrong kernels: races, waits, bounds, divergence, deadlock, time."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from mirage_nb.errors import LaunchError
from mirage_nb.runtime.execution.emulate import CpuModule
from tests.emulation import CASES, HEAD, MODES, floats, launch, run
from tests.launches import Case, compare

MATMUL, RING = CASES["matmul by cp.async, f16"], CASES["matmul by TMA"]
WGMMA = CASES["wgmma 64 f16, a MN, b MN"]


def outcome(case: Case, options: tuple[str, ...], *, checked: bool, **mode: Any) -> str:
    """ "right", "wrong", or what the run reported."""
    module = CpuModule(case.source, (*case.options, *options), checked=checked)
    try:
        outputs = launch(module, case, **mode)
    except LaunchError as error:
        return str(error)
    try:
        for out, found in outputs:
            compare(out, found)
    except AssertionError:
        return "wrong"
    return "right"


@pytest.mark.parametrize("hole", ["SYNC_LOADED", "SYNC_READ"])
def test_a_missing_barrier_is_a_race(hole: str) -> None:
    options = (f"-D{hole}=(void)0",)
    message = outcome(MATMUL, options, checked=True)
    assert message.startswith("race: ") and "no barrier orders the two" in message
    # Without the watch it shows in the numbers, in some order.
    modes: list[dict[str, Any]] = [{"deferred": d, "order": o} for d, o in MODES]
    assert "wrong" in {outcome(MATMUL, options, checked=False, **mode) for mode in modes}


def test_a_wrong_wait_count_shows_when_copies_are_deferred() -> None:
    assert outcome(MATMUL, ("-DPENDING=2",), checked=False, deferred=True) == "wrong"


@pytest.mark.parametrize("hole", ["WAIT_FULL", "WAIT_EMPTY"])
def test_a_missing_wait_in_the_ring_is_a_race(hole: str) -> None:
    options = (f"-D{hole}=(void)0",)
    message = outcome(RING, options, checked=True)
    assert message.startswith("race: ") and "the copy engine" in message
    assert outcome(RING, options, checked=False, deferred=True) != "right"


def test_a_slot_is_released_behind_a_fence() -> None:
    """Loads may be on their way when the arrival behind them is seen: on a GPU the slot was overwritten too early."""
    message = outcome(RING, ("-DFENCE_SLOT=(void)0",), checked=True)
    assert message.startswith("race: ") and "no fence_proxy_async came after the read" in message


@pytest.mark.parametrize(("expected", "missing"), [(20480, "10240 bytes to come"), (4096, "-6144 bytes to come")])
def test_wrong_expected_bytes_are_a_deadlock_that_names_the_mbarrier(expected: int, missing: str) -> None:
    message = outcome(RING, (f"-DEXPECTED={expected}",), checked=False)
    assert message.startswith("deadlock: ") and "mbarrier_wait parity 0" in message and missing in message
    assert "WAIT_FULL;" in message  # the line of the kernel is quoted


def test_the_wrong_parity_of_a_ring_is_a_deadlock() -> None:
    message = outcome(RING, ("-DWAIT_EMPTY=mbarrier_wait(&empty[s],0)",), checked=False)
    assert message.startswith("deadlock: ") and "4 of 4 arrivals" in message


def test_products_that_nobody_waits_for_are_not_there() -> None:
    options = ("-DWAIT_PRODUCTS=(void)0",)
    assert outcome(WGMMA, options, checked=False) == "right"  # eager products are done at once
    assert outcome(WGMMA, options, checked=False, deferred=True) == "wrong"


def test_wgmma_needs_the_proxy_fence_after_ordinary_stores() -> None:
    body = """(float* D) {
  MIRAGE_DYNAMIC_SHARED(tile);
  for (int i = thread_index(); i < 8192; i += 128) tile[i] = 0;
  FENCE;
  block_sync();
  float d[32] = {};
  const uint64_t t = wgmma_descriptor<Major::K>(tile);
  wgmma_fence(d);
  wgmma_m64k16<64, f16, Major::K, Major::K>(d, t, t);
  wgmma_commit();
  wgmma_wait<0>(d);
  D[thread_index()] = d[0];
}"""
    fenced = body.replace("FENCE", "fence_proxy_async()")
    run(fenced, [floats(128)], threads=128, shared=8192, checked=True)
    with pytest.raises(LaunchError, match=r"race: .*no fence_proxy_async came after the write"):
        run(body.replace("FENCE", ""), [floats(128)], threads=128, shared=8192, checked=True)


def test_three_warps_are_no_warpgroup() -> None:
    body = """(float* D) {
  MIRAGE_DYNAMIC_SHARED(tile);
  const uint64_t t = wgmma_descriptor<Major::K>(tile);
  float d[32] = {};
  if (warp_index() < 3) wgmma_m64k16<64, f16, Major::K, Major::K>(d, t, t);
  D[thread_index()] = d[0];
}"""
    with pytest.raises(LaunchError, match="not called by all four warps of warpgroup 0"):
        run(body, [floats(128)], threads=128, shared=8192)


def test_a_descriptor_for_the_other_major_index_is_refused() -> None:
    body = """(float* D) {
  MIRAGE_DYNAMIC_SHARED(tile);
  const uint64_t t = wgmma_descriptor<Major::MN>(tile);
  float d[32] = {};
  wgmma_m64k16<64, f16, Major::K, Major::K>(d, t, t);
}"""
    with pytest.raises(LaunchError, match="disagree about the major index"):
        run(body, [floats(128)], threads=128, shared=8192)


@pytest.mark.parametrize(
    ("threads", "body", "pattern"),
    [
        (32, "if (lane_index() < 16)\n  y[0] = warp_sum(1.0f);",
         r"divergence: .*warp 0 .*lanes 0-15 at shuffle_xor, line 5; lanes 16-31 ended"),
        (32, "if (lane_index() == 3)\n  block_sync();\n else\n  block_sync();",
         r"divergence: .*lanes 0-2,4-31 at block_sync, line 7; lane 3 at block_sync, line 5"),
        (32, "if (lane_index() < 8)\n  warp_sync();\n else\n  block_sync();", "divergence: "),
        (32, "if (lane_index() == 0) return;\n barrier_sync(1, 32);", "divergence: .*lane 0 ended"),
        (128, "if (warp_index() == 0)\n  barrier_sync(3, 64);",
         r"(?s)deadlock: .*warp 0: all lanes at barrier_sync\(3, 64\), line 5 \(32 of 64 threads arrived\)"),
        (96, "barrier_sync(3, 64);", r"(?s)deadlock: .*warp [02]: all lanes at barrier_sync\(3, 64\)"),
        (96, "barrier_sync(3, warp_index() == 1 ? 64 : 96);", "barrier 3 is awaited with 96 and with 64"),
        (32, "barrier_sync(16, 32);", "barrier 16 does not exist"),
        (64, "barrier_sync(1, 48);", "not a multiple of 32"),
        (64, "if (warp_index() == 0) block_sync();\n else barrier_sync(1, 96);", "within the block"),
        (16, "shuffle(1.0f, 20);", "reads lane 20 of a warp of 16"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("order", ["forward", "reversed"])
def test_divergence_and_deadlock_are_named(threads: int, body: str, pattern: str, order: str) -> None:
    with pytest.raises(LaunchError, match=pattern):
        run(f"(float* y) {{\n {body}\n}}", [floats()], threads=threads, order=order)


def test_warps_that_wait_for_the_same_are_told_together() -> None:
    body = "(float* y) {\n if (warp_index() != 2) barrier_sync(1, 160);\n}"
    with pytest.raises(LaunchError, match=r"(?s)deadlock: .*warps 0-1,3-4: all lanes at barrier_sync\(1, 160\)"):
        run(body, [floats()], threads=160)


def test_a_block_barrier_waits_for_the_warps_that_have_not_ended() -> None:
    body = "(float* y) {\n if (warp_index() == 1) return;\n block_sync();\n y[thread_index()] = 1;\n}"
    for order in ("forward", "reversed"):
        y = floats(96)
        run(body, [y], threads=96, order=order)
        np.testing.assert_array_equal(np.isnan(y), np.arange(96) // 32 == 1)


BAR = "(float* y, const float* x) {\n MIRAGE_SHARED(uint64_t, bar, 1);\n MIRAGE_SHARED(float, tile, 32);\n"
READY = "mbarrier_init(bar, 1); fence_mbarrier_init();"


@pytest.mark.parametrize(
    ("rest", "pattern"),
    [
        ("mbarrier_arrive(bar);", "mbarrier_arrive on an mbarrier that was never initialised"),
        ("mbarrier_wait(bar, 0);", "mbarrier_wait on an mbarrier that was never initialised"),
        (f"{READY} mbarrier_init(bar, 1);", "mbarrier_init of an mbarrier in use"),
        ("mbarrier_init(bar, 0);", "mbarrier_init with 0 arrivals"),
        (f"{READY} mbarrier_wait(bar, 2);", "parity 2, not 0 or 1"),
        (f"{READY} mbarrier_wait(bar, 0);", "deadlock: .*1 of 1 arrivals and 0 bytes to come"),
        (f"{READY} mbarrier_arrive_expect_tx(bar, 8); mbarrier_arrive(bar);",
         "more arrivals in one phase than the 1"),
        ("mbarrier_init(bar, 1); bulk_load(tile, x, 128, bar);", "not followed by fence_mbarrier_init"),
        (f"{READY} bulk_load(tile, x, 100, bar);", "bulk_load of 100 bytes"),
        (f"{READY} bulk_load(tile, x + 1, 16, bar);", "multiple of 16"),
        (f"{READY} bulk_load(tile, x, 256, bar);",
         "bulk_load of 256 bytes touches memory 127 bytes past the end of shared array tile"),
        (f"{READY} bulk_load(tile + 4, x + 28, 32, bar);",
         "bulk_load of 32 bytes touches memory 15 bytes past the end of argument 1"),
    ],
)  # fmt: skip
def test_misuse_of_mbarriers_and_bulk_copies_is_named(rest: str, pattern: str) -> None:
    with pytest.raises(LaunchError, match=f"(?s){pattern}"):
        run(f"{BAR} {rest}\n}}", [floats(), np.zeros(32, np.float32)], threads=1)


def test_a_copy_must_not_outlive_its_block() -> None:
    rest = f"{READY}\n bulk_load(tile, x, 128, bar);\n}}"
    with pytest.raises(LaunchError, match="ended while a copy from line 7 was on its way"):
        run(f"{BAR} {rest}", [floats(), np.zeros(32, np.float32)], threads=1, deferred=True)


@pytest.mark.parametrize(
    ("statement", "pattern"),
    [
        ("tile[64 + threadIdx.x] = 1;", "memory 0 bytes past the end of shared array tile .256 bytes."),
        ("tile[-1] = 1;", "bounds: memory 4 bytes before shared array tile was written by block .0,0,0."),
        ("y[0] = tile[600];", "crash: the kernel touches memory 2144 bytes past the end of shared"),
        ("y[64] = 1;", "crash: the kernel touches memory 0 bytes past the end of argument 0 .256 bytes."),
        ("y[0] = x[32];", "crash: the kernel touches memory 0 bytes past the end of argument 1"),
        ("y[-1] = 1;", "bounds: memory 4 bytes before argument 0 was written"),
        ("*(volatile float*)64 = 1;", "crash: the kernel touches the address 0x40, which is in no argument"),
        ("volatile int zero = 0; y[0] = 100 / zero;", "crash: the kernel divides an integer by zero"),
        ("y[0] = load<4>(x + 1)[0];", "alignment: an access of 16 bytes at byte 4 of argument 1"),
        ("store(tile + 2, Vec<float, 4>{});", "alignment: .* 16 bytes at byte 8 of shared array tile"),
        ("uint32_t r[4]; ldmatrix_x4(r, tile + 2 * threadIdx.x);", "ldmatrix needs .* multiple of 16"),
        ("uint32_t r[4]; ldmatrix_x4(r, tile + 4 * threadIdx.x);", "ldmatrix of 16 bytes touches memory 0"),
        ("uint32_t r[2]; ldmatrix_x2(r, x);", "ldmatrix of 16 bytes touches memory that is not shared"),
        ("cp_async<16>(tile, x + 30);", "cp_async needs an address that is a multiple of 16"),
        ("cp_async<16>(tile + 64, x);", "cp_async of 16 bytes touches memory 0 bytes past the end of shared"),
        ("cp_async<16>(tile, x + 32);", "cp_async of 16 bytes touches memory 0 bytes past the end of arg"),
        ("cp_async<16>(tile, x, 17);", "cp_async of 16 bytes with 17 valid ones"),
        ("volatile char big[1 << 20]; for (int i = 0; i < 1 << 20; i++) big[i] = 1;", "more stack"),
    ],
)  # fmt: skip
def test_wrong_accesses_are_named_with_their_place(statement: str, pattern: str) -> None:
    fill = "MIRAGE_SHARED(float, tile, 64);\n tile[threadIdx.x] = x[threadIdx.x];"
    with pytest.raises(LaunchError, match=pattern):
        run(f"(float* y, const float* x) {{\n {fill}\n {statement}\n}}", [floats(), np.zeros(32, np.float32)])


@pytest.mark.parametrize(
    ("statement", "pattern"),
    [
        ("tile[15 + threadIdx.x % 2] = 1;", "bounds: the kernel writes memory 3 bytes past the end of sh"),
        ("y[0] = tile[-1];", "bounds: the kernel reads memory 4 bytes before shared array tile"),
        ("y[-1] = 1;", "bounds: the kernel writes memory 4 bytes before argument 0; thread .0,0,0., warp 0"),
        ("y[0] = x[-1];", "bounds: the kernel reads memory 4 bytes before argument 1"),
        ("const_cast<float*>(x)[0] = 1;", "bounds: the kernel writes argument 1, an input"),
    ],
)  # fmt: skip
def test_checked_kernels_name_every_access_outside(statement: str, pattern: str) -> None:
    body = f"(float* y, const float* x) {{\n MIRAGE_SHARED(float, tile, 16);\n {statement}\n}}"
    with pytest.raises(LaunchError, match=pattern):
        run(body, [floats(33), np.zeros(33, np.float32)], checked=True)


def test_shared_memory_starts_as_nan_in_every_block() -> None:
    source = f"""{HEAD}extern "C" __global__ void k(float* y) {{
  MIRAGE_SHARED(float, one, 1);
  MIRAGE_DYNAMIC_SHARED(bytes);
  y[2 * blockIdx.x] = one[0];
  y[2 * blockIdx.x + 1] = to_float(reinterpret_cast<f16*>(bytes)[1]);
  one[0] = 1;
  bytes[2] = bytes[3] = 0;
}}"""
    y = np.zeros(6, np.float32)
    CpuModule(source).launch("k", (3, 1, 1), (1, 1, 1), 4, [y])
    assert np.isnan(y).all()


ENDLESS = "(float* y) {\n volatile int i = 0;\n while (i == 0) y[0] += 1;\n}"


def test_an_endless_kernel_ends_with_its_time() -> None:
    with pytest.raises(LaunchError, match=r"timeout: still running after 0\.25 s, in block \(0,0,0\)") as told:
        run(ENDLESS, [floats()], timeout=0.25)
    assert "endless loop" in told.value.hint


def test_a_kernel_that_begins_late_is_not_said_to_be_endless() -> None:
    module = CpuModule(f'{HEAD}extern "C" __global__ void k{ENDLESS}', seconds=60)
    module._until = time.monotonic() + 0.2
    with pytest.raises(LaunchError, match="timeout: still running") as told:
        module.launch("k", (1, 1, 1), (1, 1, 1), 0, [floats()])
    assert "extend" in told.value.hint and "endless" not in told.value.hint


def test_a_failed_launch_leaves_the_arrays_alone() -> None:
    y = floats()
    with pytest.raises(LaunchError):
        run("(float* y) {\n y[0] = 1;\n y[64] = 1;\n}", [y])
    assert np.isnan(y).all()
