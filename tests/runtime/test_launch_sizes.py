"""What is done at launch with a size: winners, saved plans and operators of PyTorch take any extent of the range."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from mirage_nb.codegen import Emitted, emit
from mirage_nb.errors import ShapeError
from mirage_nb.ir import KernelGraph
from mirage_nb.ir.sizes import resized
from mirage_nb.lang import parse
from mirage_nb.pipeline import Session, superoptimize
from mirage_nb.runtime.contest.trial import tried
from mirage_nb.runtime.execution.buffers import draw_sample
from mirage_nb.runtime.execution.execute import CpuExecutable
from mirage_nb.runtime.execution.torch_operator import torch_operator
from mirage_nb.runtime.kernel.plan import KernelError, read_plan, write_plan
from mirage_nb.runtime.kernel.saved import load_kernel, lower, write_file
from mirage_nb.search import EFFORTS, configurations, instances, prepare
from mirage_nb.targets import TARGETS
from tests.search.explored import explored

H200 = TARGETS["h200"]
NORM = "B: size(16)\nX: f16[2*B, 128]\nW: f16[128, 64]\nreturn rms_norm(X) @ W"


@cache
def norm() -> tuple[KernelGraph, Emitted]:
    """The program, and a muGraph of it of one kernel, emitted."""
    program = parse(NORM).graph
    prepared = prepare(program)
    effort = EFFORTS["quick"]
    first = next(c for c in configurations(prepared, effort) if c.cut is None)
    result = explored(prepared, first, effort)
    made = instances(result.structures[0], prepared, H200, 8, frozenset())
    return program, emit(made[0].graph, H200)


def test_a_plan_at_an_extent_is_the_plan_of_what_is_launched_there() -> None:
    program, kernels = norm()
    for emitted in (kernels, emit(program, H200)):  # the second one: operators of the library alone
        plan = lower(emitted, program, arch="sm_90a")
        assert read_plan(write_plan(plan)) == plan and plan.size is not None
        for extent in (1, 5, 16):
            there = lower(emitted.at(extent), resized(program, extent), arch="sm_90a")
            here = plan.sized(extent)
            assert [t.shape for t in here.tensors] == [t.shape for t in there.tensors]
            assert [getattr(s, "grid", None) for s in here.steps] == [getattr(s, "grid", None) for s in there.steps]
            assert [getattr(s, "args", None) for s in here.steps] == [getattr(s, "args", None) for s in there.steps]
            assert here.extent == there.extent == extent


def test_a_saved_kernel_takes_every_extent(tmp_path: Path) -> None:
    program, kernels = norm()
    path = write_file(lower(kernels, program, arch="sm_90a", about={"name": "norm"}), tmp_path / "norm.py")
    kernel = load_kernel(path)
    rng = np.random.default_rng(0)
    w = rng.standard_normal((128, 64))
    for extent in (1, 7):
        x = rng.standard_normal((2 * extent, 128))
        right = x / np.sqrt((x * x).mean(axis=1, keepdims=True)) @ w
        assert np.allclose(kernel.reference(x, w), right)
    for rows, told in ((34, "B is 17, not a number from 1 to 16"), (3, "B is 3/2, not a number"), (0, "B is 0, not")):
        with pytest.raises(KernelError, match=told):
            kernel.reference(np.zeros((rows, 128)), w)
    with pytest.raises(KernelError, match=r"shape \[64, 128\] for W"):
        kernel.reference(np.zeros((2, 128)), w.T)
    assert "size" not in write_plan(lower(kernels.at(4), resized(program, 4), arch="sm_90a"))


HOSTILE = {
    "no numbers": ("size", ["B", 1, "16"]),
    "none left": ("size", ["B", 5, 4]),
    "not theirs": ("size", ["B", 1, 7]),
    "gone": ("size", None),
    "too many": ("size", ["B", 1, 16, 17]),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_plans_whose_sizes_do_not_hold_together_are_refused(how: str) -> None:
    program, kernels = norm()
    plain = write_plan(lower(kernels, program, arch="sm_90a"))
    key, value = HOSTILE[how]
    broken = {k: v for k, v in plain.items() if k != key} | ({} if value is None else {key: value})
    with pytest.raises(KernelError):
        read_plan(broken)
    for wrong in ([0, 0, 1], [3, 1, 1], [0, 1], "x"):
        steps = [{**s, "cut": wrong} if "kernel" in s else s for s in plain["steps"]]
        with pytest.raises(KernelError):
            read_plan({**plain, "steps": steps})


def test_first_runs_try_other_extents() -> None:
    """A kernel that is right at the largest one only is found out: here one that is launched with a block too few."""
    program, kernels = norm()
    sample = draw_sample(program, 1)
    assert [name for name, _ in sample.others] == ["B = 1", "B = 6"]
    assert tried(CpuExecutable(kernels), kernels, sample, []).report.ok

    class Broken(CpuExecutable):
        def run(self, inputs: list[np.ndarray], **how: object) -> list[np.ndarray]:  # type: ignore[override]
            found = super().run(inputs)
            return found if inputs[0].shape[0] == 32 else [f * np.nan for f in found]

    report = tried(Broken(kernels), kernels, sample, []).report
    assert not report.ok and report.note.startswith("B = 1: ")


def test_pytorch_sees_the_extent() -> None:
    torch = pytest.importorskip("torch")
    program, kernels = norm()
    executable = CpuExecutable(kernels)
    operator = torch_operator(program, "sized_norm", on_cpu=executable, on_cuda=executable)
    w = torch.randn(128, 64).half()
    for extent in (1, 3, 16):
        x = torch.randn(2 * extent, 128).half()
        right = x.float() / x.float().pow(2).mean(1, keepdim=True).sqrt() @ w.float()
        assert torch.allclose(operator(x, w).float(), right, atol=2e-1, rtol=2e-2)
        fake = torch.empty(2 * extent, 128, dtype=torch.float16, device="meta")
        assert operator(fake, w.to("meta")).shape == (2 * extent, 64)
    with pytest.raises(ShapeError, match="with B from 1 to 16"):
        executable(torch.zeros(34, 128).half(), w)


def test_a_session_serves_its_ranges() -> None:
    """Extents from 1 to 4 by a kernel of their own; one that is not there leaves them to the next."""
    text = NORM.replace("size(16)", "size(4, 16)")
    session: Session = superoptimize(text, name="norm", effort="quick", budget=20, target="h200")
    session.result()
    assert session.smaller is not None and session.smaller.name == "norm B from 1 to 4"
    assert session.at(4) is session.at(1) is session.smaller and session.at(5) is session
    assert session.best.graph.inputs[0].type.shape == (32, 128)
    assert session.at(2).best.graph.inputs[0].type.shape == (8, 128)
    rng = np.random.default_rng(0)
    w = rng.standard_normal((128, 64)).astype(np.float16)
    for extent in (1, 9, 16):
        x = rng.standard_normal((2 * extent, 128)).astype(np.float16)
        wide = x.astype(np.float64)
        right = wide / np.sqrt((wide * wide).mean(axis=1, keepdims=True)) @ w
        assert np.allclose(session(x, w), right, atol=0.1)
        assert session.best.prepare(x, w)().shape == right.shape
    with pytest.raises(ShapeError, match="B from 1 to 16"):
        session(np.zeros((34, 128), np.float16), w)
    for extent in (0, 17):
        with pytest.raises(ShapeError, match=f"B = {extent}: B from 1 to 16"):
            session.at(extent)
    assert str(session.best.candidate.verdict).startswith("proved")
    session.smaller._passes._winners.clear()
    assert session.at(1) is session
