"""torch.compile with our backend: right outputs whatever comes, regions where they may be, reasons where not."""

from __future__ import annotations

import os
import threading
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mirage_nb.errors import OptionError, TargetError, TraceError
from mirage_nb.frontend import model_report
from mirage_nb.frontend.compiled import graphs, kernels
from mirage_nb.frontend.compiled.graphs import MAX_SIZES, eager
from mirage_nb.frontend.compiled.kernels import NO_TIME
from mirage_nb.frontend.compiled.options import Options
from mirage_nb.runtime.contest.later import Later
from tests.frontend.traced import Backend, Block, Composed

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


class Blocks(nn.Module):
    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)


@torch.no_grad()
def test_layers_that_repeat_are_found_once() -> None:
    backend, model, x = Backend(), Blocks(), torch.randn(4, 32)
    close(torch.compile(model, backend=backend)(x), model(x))
    entries = backend.reports.all().entries
    assert backend.replaced == len(entries) >= 3
    digests = {entry.region.digest for entry in entries}
    assert len(digests) == len(backend.finder.asked) == len(entries) / 3  # three blocks of the same regions


@torch.no_grad()
def test_other_sizes_are_right_and_compile_no_further() -> None:
    backend, model = Backend(), Block()
    compiled = torch.compile(model, backend=backend)
    counts = []
    for rows in (4, 5, 6, 7, 8, 9, 1, 5, 10, 11, 12, 13, 14, 15, 16, 4, 20):
        x = torch.randn(rows, 32)
        close(compiled(x), model(x))
        counts.append(len(backend.reports.all().graphs))
    assert backend.replaced > 5  # sizes of their own for the first ones
    assert counts[-1] <= MAX_SIZES + 2  # then PyTorch's code, compiled once
    assert f"the first {MAX_SIZES} have kernels" in str(backend.reports.all())


@torch.no_grad()
def test_one_kernel_serves_a_range_of_batches() -> None:
    """Batches that come later have no searches of their own: their regions are the same, at another extent."""
    backend, model = Backend(), Block()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    asked = []
    for rows in (5, 6, 7, 20, 33):
        x = torch.randn(rows, 32)
        close(compiled(x), model(x))
        asked.append(len(backend.finder.asked))
    graphs = backend.finder.asked
    assert asked[0] == asked[1] == asked[2] > 0 and asked[4] == asked[3] <= 2 * asked[0]
    assert {i.size.most for g in graphs for i in g.inputs if i.size is not None} == {8, 64}


@torch.no_grad()
def test_a_region_without_a_kernel_stays_and_says_why() -> None:
    backend, model, x = Backend(Composed(broken=lambda graph: True)), Block(), torch.randn(4, 32)
    close(torch.compile(model, backend=backend)(x), model(x))
    assert backend.replaced == 0
    assert "left: there is no kernel" in str(backend.reports.all())


@torch.no_grad()
def test_large_regions_come_first_and_what_there_is_no_time_for_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    for module in (graphs, kernels):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    class Slow(Composed):
        def find(self, *args: Any) -> Any:
            now[0] += 3
            return super().find(*args)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.block(torch.sort(torch.relu(x) * x.sigmoid(), -1).values)
            return made

    backend, model, x = Backend(Slow()), Two(), torch.randn(4, 32)
    backend.kernels._later = Later("one at a time")
    close(torch.compile(model, backend=backend, options={"total": 2})(x), model(x))
    (largest,) = backend.finder.asked
    entries = backend.reports.all().entries
    assert largest.digest() == max((e.region for e in entries), key=lambda region: region.least_bytes).digest
    assert {entry.state for entry in entries} == {"replaced", f"left: {NO_TIME}"}


@torch.no_grad()
def test_kernels_come_in_between_calls_when_nobody_waits() -> None:
    backend, model, x = Backend(), Block(), torch.randn(4, 32)
    compiled = torch.compile(model, backend=backend, options={"wait": False})
    close(compiled(x), model(x))
    for graph in backend.reports.all().entries:
        assert graph.kernel is not None
        graph.kernel.job.wait(60)
    close(compiled(x), model(x))
    assert backend.replaced > 0


@torch.no_grad()
def test_what_was_searched_for_as_a_process_was_forked_is_searched_for_there() -> None:
    class Held(Composed):
        def find(self, *args: Any) -> Any:
            go_on.wait(60)
            return super().find(*args)

    go_on, backend, model, x = threading.Event(), Backend(Held()), Block(), torch.randn(4, 32)
    close(torch.compile(model, backend=backend, options={"wait": False})(x), model(x))
    if not (child := os.fork()):
        try:
            go_on.set()
            torch._dynamo.reset()
            close(torch.compile(model, backend=backend)(x), model(x))
        finally:
            os._exit(0 if backend.replaced else 1)
    _, status = os.waitpid(child, 0)
    go_on.set()
    assert status == 0 and all(entry.kernel and entry.kernel.job.wait(60) for entry in backend.reports.all().entries)


@torch.no_grad()
def test_a_search_may_compile_with_pytorch_while_a_call_waits_for_it() -> None:
    """PyTorch's compiler holds a lock as it compiles: who waited for a search inside of it would wait for ever."""

    class Racing(Composed):
        def find(self, *args: Any) -> Any:
            torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
            return super().find(*args)

    backend, model, x = Backend(Racing()), Block(), torch.randn(4, 32)
    close(torch.compile(model, backend=backend)(x), model(x))
    assert backend.replaced > 0


@torch.no_grad()
def test_a_changed_graph_is_compiled_with_the_settings_of_its_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is left of it as it has to be between kernels of ours, whatever a user set."""
    seen, config = [], torch._inductor.config

    def build(gm: Any, examples: Any, **more: Any) -> Any:
        seen.append((config.max_autotune, config.combo_kernels, config.triton.enable_pdl))
        return eager(gm, examples, **more)

    monkeypatch.setattr(graphs, "compile_fx_inner", build)
    backend, model, x = Backend(), Block(), torch.randn(4, 32)
    options = {"mode": "max-autotune-no-cudagraphs", "remainder": "inductor", "wait": False}
    compiled = torch.compile(model, backend=backend, options=options)
    with config.patch({"triton.enable_pdl": True}):
        close(compiled(x), model(x))
        for entry in backend.reports.all().entries:
            assert entry.kernel is not None
            entry.kernel.job.wait(60)
        close(compiled(x), model(x))
    assert seen == [(True, False, True), (True, True, False)] and backend.replaced > 0
    assert not torch._inductor.config.max_autotune


@torch.no_grad()
def test_who_waits_compiles_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled, and takes time from a search, that is not called."""
    seen = []

    def build(gm: Any, examples: Any, **more: Any) -> Any:
        seen.append([str(node.target) for node in gm.graph.nodes if "mirage_nb" in str(node.target)])
        return eager(gm, examples, **more)

    monkeypatch.setattr(graphs, "compile_fx_inner", build)
    model, x = Block(), torch.randn(4, 32)
    for backend in (Backend(), Backend(Composed(broken=lambda graph: True))):
        torch._dynamo.reset()
        close(torch.compile(model, backend=backend, options={"remainder": "inductor"})(x), model(x))
    assert len(seen) == 2 and seen[0] and not seen[1]


@torch.no_grad()
@pytest.mark.parametrize("grouped", [True, False])
def test_attention_under_a_mask_of_positions_is_one_region(grouped: bool) -> None:
    q, k, v = torch.randn(2, 4, 1, 8), *torch.randn(2, 2, 2 if grouped else 4, 16, 8)

    def attend(q: Any, k: Any, v: Any, position: Any, dead: Any) -> torch.Tensor:
        mask = (torch.arange(16) <= position) & ~dead
        return F.scaled_dot_product_attention(q, k, v, mask[:, None, None], enable_gqa=grouped)

    backend, dead = Backend(), torch.rand(2, 16) < 0.2
    dead[:, 0] = False
    compiled = torch.compile(attend, backend=backend)
    for position in (0, 5, 15):
        inputs = q, k, v, torch.tensor([position]), dead
        close(compiled(*inputs), attend(*inputs))
    (entry,) = backend.reports.all().entries
    assert entry.taken and "attention" in " ".join(entry.region.operators)


@torch.no_grad()
def test_masks_that_are_given_or_come_from_what_has_no_row() -> None:
    def model(x: Any, given: Any, index: Any) -> Any:
        found = torch.where(given, x.sigmoid(), -x)
        found = torch.where(torch.isnan(x) | (index > 2)[:, None], found * 2, found + 1)
        return found.masked_fill(given.logical_not(), 3.0) * x, given & (index > 1)[:, None]

    backend, x = Backend(), torch.randn(5, 6)
    inputs = x, torch.rand(5, 6) < 0.5, torch.arange(5)
    for found, wanted in zip(torch.compile(model, backend=backend)(*inputs), model(*inputs), strict=True):
        assert found.dtype == wanted.dtype
        close(found, wanted)
    assert backend.replaced > 0


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_constants_behind_a_mask_have_the_type_of_the_result(dtype: torch.dtype) -> None:
    """A mask of positions is half precision inside, which holds neither -65536 nor 0.1 as single precision does."""

    def model(x: Any, position: Any) -> Any:
        mask = torch.arange(8) <= position
        zero, low, tenth = (torch.full((), v, dtype=dtype) for v in (0.0, -65536.0, 0.1))
        return torch.softmax(x + torch.where(mask, zero, low), -1), torch.where(mask, tenth, zero) * x

    backend, x = Backend(), torch.randn(3, 8).to(dtype)
    found = torch.compile(model, backend=backend)(x, torch.tensor([4]))
    wide = {torch.float32: 1e-6}.get(dtype, 1e-2)
    torch.testing.assert_close(found, model(x, torch.tensor([4])), rtol=wide, atol=wide)
    assert backend.replaced > 0


@torch.no_grad()
def test_another_device_is_compiled_for_anew() -> None:
    backend = Backend()

    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2 + 1) * y.sigmoid()

    compiled = torch.compile(model, backend=backend)
    x, y = torch.randn(2, 4, 8)
    close(compiled(x, y), model(x, y))
    found = compiled(x.to("meta"), y.to("meta"))
    assert found.device.type == "meta" and found.shape == (4, 8)
    close(compiled(x, torch.tensor(0.5)), model(x, torch.tensor(0.5)))
    with pytest.raises(Exception, match="device"):  # PyTorch's own mistake, not an answer of ours
        compiled(x, y.to("meta"))


@torch.no_grad()
def test_tensors_without_elements_of_a_mode_that_fakes_them() -> None:
    with FakeTensorMode():
        assert torch.compile(Block(), backend=Backend())(torch.empty(4, 32)).shape == (4, 32)


@torch.no_grad()
def test_inputs_that_are_not_contiguous_or_the_same_tensor() -> None:
    model = Block()
    compiled = torch.compile(model, backend=Backend())
    x = torch.randn(32, 4)
    close(compiled(x.T), model(x.T))

    def twice(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(a @ b + a) * b.sigmoid()

    y = torch.randn(8, 8)
    close(torch.compile(twice, backend=Backend())(y, y), twice(y, y))
    close(torch.compile(twice, backend=Backend())(y, y.T), twice(y, y.T))
    wide = torch.randn(8, 16)
    close(torch.compile(twice, backend=Backend())(wide[:, ::2], wide[:, 8:]), twice(wide[:, ::2], wide[:, 8:]))


class Marked(torch.Tensor):
    """A tensor under a name of its own."""


@torch.no_grad()
@pytest.mark.parametrize("dynamic", [False, True])
def test_tensors_of_a_class_that_a_user_names(dynamic: bool) -> None:
    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.silu(x @ w) * x.sigmoid()

    backend, w = Backend(), torch.randn(8, 8)
    compiled = torch.compile(model, backend=backend, dynamic=dynamic)
    for rows in (4, 4, 6):
        x = torch.randn(rows, 8)
        found = compiled(x.as_subclass(Marked), w)  # type: ignore[arg-type]
        assert type(found) is Marked
        close(found.as_subclass(torch.Tensor), model(x, w))
    assert backend.replaced > 0


@torch.no_grad()
def test_mutation_in_place_stays_what_it_is() -> None:
    def step(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        state.mul_(0.5).add_(x.sigmoid() * x)
        x += 1
        return torch.relu(state @ x) * 2 + state

    x, state = torch.randn(6, 6), torch.randn(6, 6)
    ours, theirs = (x.clone(), state.clone()), (x.clone(), state.clone())
    backend = Backend()
    close(torch.compile(step, backend=backend)(*ours), step(*theirs))
    close(ours, theirs)
    assert backend.replaced > 0


def test_what_changes_between_calls_is_seen() -> None:
    """Weights, in place or others, and whether there are gradients."""
    backend, model, x = Backend(), Block(), torch.randn(4, 32)
    compiled = torch.compile(model, backend=backend, dynamic=False)
    with torch.no_grad():
        close(compiled(x), model(x))
        model.down.weight.mul_(-2)
        model.norm.weight.data = torch.rand(32)
        close(compiled(x), model(x))
    found = x.clone().requires_grad_()
    compiled(found).sum().backward()
    wanted = x.clone().requires_grad_()
    model(wanted).sum().backward()
    assert found.grad is not None and wanted.grad is not None
    close(found.grad, wanted.grad)
    assert backend.replaced > 0


@torch.no_grad()
def test_control_flow_that_depends_on_data() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x @ x) * x.sigmoid()
        if y.sum() > 0:
            return y * 2 + x
        return y - x * 3

    compiled = torch.compile(model, backend=Backend())
    for sign in (1, -1):
        x = sign * torch.rand(8, 8)
        close(compiled(x), model(x))


@torch.no_grad()
def test_autocast_and_half_precision() -> None:
    model, x = Block(), torch.randn(4, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, wanted = torch.compile(model, backend=Backend())(x), model(x)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=5e-2, atol=5e-2)
    half = model.half()
    backend = Backend()
    found, wanted = torch.compile(half, backend=backend)(x.half()), half(x.half())
    assert found.dtype == torch.float16 and backend.replaced > 0
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)


@torch.no_grad()
def test_half_precision_that_pytorch_keeps_from_overflowing() -> None:
    """A norm is taken in single precision: its squares pass the largest half."""
    model = nn.Sequential(nn.RMSNorm(32), nn.Linear(32, 16)).half()
    x = (torch.randn(4, 32) * 2000).half()
    found = torch.compile(model, backend=Backend())(x)
    assert found.isfinite().all()
    torch.testing.assert_close(found, model(x), rtol=1e-2, atol=1e-2)


@torch.no_grad()
def test_integers_booleans_and_what_has_no_row() -> None:
    table = torch.randn(10, 16)

    def model(x: torch.Tensor, index: torch.Tensor) -> Any:
        held = table[index] * x.sigmoid() + x
        order = torch.argsort(held, -1)
        return torch.relu(held @ held.T) + 1, order, held > 0

    x, index = torch.randn(5, 16), torch.tensor([1, 9, 3, 3, 0])
    for found, wanted in zip(torch.compile(model, backend=Backend())(x, index), model(x, index), strict=True):
        assert found.dtype == wanted.dtype
        close(found, wanted)


@torch.no_grad()
def test_another_type_of_input_compiles_anew() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2 + 1) * x.sigmoid()

    compiled = torch.compile(model, backend=Backend())
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        x = torch.randn(4, 8).to(dtype)
        found = compiled(x)
        assert found.dtype == dtype
        torch.testing.assert_close(found, model(x), rtol=2e-2, atol=2e-2)


@torch.no_grad()
def test_the_entry_point_is_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, as users say it; without a GPU everything stays with PyTorch, and the report says so."""
    from torch._dynamo.backends import registry

    import mirage_nb

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (name, value), *more = project["entry-points"]["torch_dynamo_backends"].items()
    assert not more
    point = EntryPoint(name, value, "torch_dynamo_backends")
    registry._lazy_import()
    monkeypatch.setitem(registry._BACKENDS, name, point)
    monkeypatch.delitem(registry._COMPILER_FNS, name, raising=False)
    model, x = Block(), torch.randn(4, 32)
    options = {"remainder": "eager", "wait": True}
    close(torch.compile(model, backend="mirage_nb", options=options)(x), model(x))
    report = mirage_nb.frontend.explain()
    if not torch.cuda.is_available():
        last = report.graphs[-1].entries
        assert last and all("left: kernels are for GPUs" in entry.state for entry in last)


@pytest.mark.parametrize(
    ("mode", "options", "said"),
    [
        ("fastest", {}, "no mode 'fastest'"),
        (None, {"efort": "quick"}, "no option 'efort'"),
        (None, {"effort": "some"}, "no effort 'some'"),
        (None, {"seconds": -1}, "positive number"),
        (None, {"seconds": "soon"}, "positive number"),
        (None, {"total": 0}, "total of search"),
        (None, {"wait": 1}, "True or False"),
        (None, {"remainder": "jax"}, "no remainder"),
        (None, {"target": "h10"}, "unknown target 'h10'"),
    ],
)
def test_options_that_there_are_not(mode: str | None, options: dict[str, Any], said: str) -> None:
    with pytest.raises((OptionError, TargetError), match=said):
        Options.of(mode, options)


@pytest.mark.parametrize("inputs", [torch.ones(2, 5), "x", ()])
def test_inputs_that_a_model_does_not_take(inputs: Any) -> None:
    with pytest.raises(TraceError, match=r"the model fails on these inputs: .{9}"):
        model_report(nn.Linear(3, 4), inputs)


def test_modes_say_how_much_is_searched() -> None:
    assert Options.of("max-autotune").seconds == 60 > (Options.of().seconds or 60)
    assert Options.of("max-autotune", {"effort": "exhaustive"}).effort == "exhaustive"
    assert Options.of("max-autotune", {"seconds": 5}).seconds == 5


@torch.no_grad()
@pytest.mark.parametrize(
    ("norm_first", "masked"), [(False, ()), (True, (None, torch.arange(6) > torch.tensor([[3], [6]])))]
)
def test_layers_that_pytorch_has_one_operator_for_are_spelled_out(norm_first: bool, masked: Any) -> None:
    backend, x = Backend(), torch.randn(2, 6, 32)
    model = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=norm_first).eval()
    close(torch.compile(model, backend=backend)(x, *masked), model(x, *masked))
    entries = backend.reports.all().entries
    assert len(entries) > 2 and all(entry.taken for entry in entries), str(backend.reports.all())
