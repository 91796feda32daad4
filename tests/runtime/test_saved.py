"""Saved muGraphs: files that stand alone, plans that survive the way, strangers' files that stay data."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mirage_nb.bench.workloads import WORKLOADS, workload
from mirage_nb.codegen import Emitted, emit
from mirage_nb.errors import FormatError, StoreError
from mirage_nb.interp import evaluate
from mirage_nb.ir import OPS, DType, KernelGraph, Level, OpKind, formula
from mirage_nb.ir.fields import FIELDS
from mirage_nb.lang import parse
from mirage_nb.runtime.execution import buffers
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.runtime.kernel import call as kernel
from mirage_nb.runtime.kernel import saved
from mirage_nb.runtime.kernel.call import Kernel
from mirage_nb.runtime.kernel.driver import compiled
from mirage_nb.runtime.kernel.operators import OPERATORS, PRIMITIVES, decode, encode
from mirage_nb.runtime.kernel.plan import ATTRS, KINDS, Apply, KernelError, Launch, Plan, Tensor, read_plan, write_plan
from mirage_nb.runtime.kernel.saved import file_text, flattened, load_kernel, lower, write_file
from mirage_nb.targets import find_target
from mirage_nb.verify.reals.ranges import Range, within
from tests.bench.test_workloads import shrink
from tests.clock import cpu_limit
from tests.codegen import mugraphs

H200 = find_target("h200")
RMS = "X: f16[8, 1024]\nW: f16[1024, 512]\nreturn rms_norm(X) @ W"


def program(text: str = RMS) -> KernelGraph:
    return parse(text).graph


@pytest.fixture(scope="module")
def emitted() -> Emitted:
    return emit(mugraphs.rmsnorm(8, 1024, 512, 16, 8), H200)


@pytest.fixture(scope="module")
def plan(emitted: Emitted) -> Plan:
    cubin = compile_cubin(emitted.source, "sm_90a")
    about = {"name": "rms '''\" \\", "program": RMS}
    return lower(emitted, program(), arch="sm_90a", cubin=cubin.data, about=about, scale=0.5)


def run(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As on a machine that has NumPy and nothing of ours: isolated, in another folder."""
    code = [sys.executable, "-I", str(path), *arguments]
    return subprocess.run(code, capture_output=True, text=True, timeout=60, cwd=path.parent)


def test_a_file_says_what_it_is_and_needs_no_package(plan: Plan, tmp_path: Path) -> None:
    path = write_file(plan, tmp_path / "rms.py")
    shown = run(path, "--show")
    assert shown.returncode == 0 and "rms_norm(X) @ W" in shown.stdout and "X: f16[8, 1024]" in shown.stdout
    assert run(path, "--help").returncode == 0
    assert run(path, "--frobnicate").returncode == 2
    source = run(path, "--source")
    assert "__global__" in source.stdout and '#include "' not in source.stdout
    text = path.read_text()
    assert not re.search(r"^\s*(from|import) mirage_nb", text, re.MULTILINE)
    loaded = {n.split(".")[0] for n in re.findall(r"^(?:from|import) ([\w.]+)", text, re.MULTILINE)}
    assert loaded <= {*sys.stdlib_module_names, "numpy"}  # CuPy inside functions: once something runs


def test_without_a_gpu_it_says_so(plan: Plan, tmp_path: Path) -> None:
    found = run(write_file(plan, tmp_path / "rms.py"))
    if "right:" in found.stdout:
        pytest.skip("there is a GPU here")
    assert found.returncode == 2 and found.stderr == ""
    assert "not checked: this runs on a GPU" in found.stdout and "usage: python FILE" in found.stdout


def test_an_imported_file_computes_the_reference(plan: Plan, tmp_path: Path) -> None:
    write_file(plan, tmp_path / "saved_rms.py")
    rng = np.random.default_rng(0)
    shapes = {"x": (8, 1024), "w": (1024, 512)}
    arrays = {name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
    np.savez(tmp_path / "arrays.npz", **arrays)
    code = (
        "import sys; sys.path.insert(0, '.'); import numpy as np; from saved_rms import KERNEL, run\n"
        "a = np.load('arrays.npz'); print(KERNEL); np.save('out.npy', KERNEL.reference(a['x'], a['w']))\n"
        "try: run(a['x'])\nexcept Exception as error: print(type(error).__name__, error)\n"
        "assert not [m for m in sys.modules if m.startswith(('mirage_nb', 'cupy', 'torch'))]"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "KernelError 1 arrays; the inputs are X: f16[8, 1024], W: f16[1024, 512]" in done.stdout
    (exact,) = evaluate(program(), [arrays["x"], arrays["w"]])
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), exact, rtol=1e-12)


def test_a_plan_survives_the_way(plan: Plan, tmp_path: Path) -> None:
    assert read_plan(json.loads(json.dumps(write_plan(plan)))) == plan
    kernel = load_kernel(write_file(plan, tmp_path / "x.py"))
    assert isinstance(kernel, Kernel) and kernel.plan == plan and "rms" in repr(kernel)


@pytest.mark.parametrize("make", [mugraphs.split_attention, mugraphs.split_safe_attention])
def test_launches_of_two_kernels_are_all_there(make: Any) -> None:
    emitted = emit(make(), H200)
    plan = lower(emitted, arch="sm_90a")
    assert [s.kernel for s in plan.steps if isinstance(s, Launch)] == [s.kernel for s in emitted.launches]
    assert any(s.overlaps for s in plan.steps if isinstance(s, Launch))
    spaces = [t for t in plan.tensors if t.place == "workspace"]
    assert emitted.temporaries
    assert {(t.at, t.nbytes) for t in spaces} >= {(t.offset, t.type.nbytes) for t in emitted.temporaries}
    for step, launch in zip(plan.steps, emitted.launches, strict=True):
        assert isinstance(step, Launch)
        for mine, theirs in zip(step.args, launch.args, strict=True):
            assert plan.tensors[mine.tensor].shape == emitted.graph.types[theirs.value].shape


def test_executing_nothing_while_loading(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "evil.py"
    mark = tmp_path / "executed"
    path.write_text(f"open({str(mark)!r}, 'w').write('x')\n" + file_text(plan) + f"\nopen({str(mark)!r}, 'w')\n")
    assert load_kernel(path).plan == plan
    assert not mark.exists()


def test_files_that_cannot_be_loaded(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        load_kernel(tmp_path / "missing.py")
    with pytest.raises(StoreError, match="cannot be written"):
        write_file(plan, tmp_path / "no" / "such.py")
    for name, text, message in (
        ("empty.py", "", "holds no plan"),
        ("cut.py", file_text(plan)[:-3000], "holds no plan"),
        ("json.py", file_text(plan).replace('"format"', "format"), "Expecting property name"),
        ("binary.py", "\udcff", "is no text"),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8", errors="surrogateescape")
        with pytest.raises(FormatError, match=message):
            load_kernel(tmp_path / name)


def edits() -> list[tuple[str, Any, str]]:
    """Where a plan is changed, into what, and what is said of it."""
    return [
        ("format", "other", "this is no mirage_nb kernel"),
        ("version", 2, "version 2 of the format"),
        ("tensors/0/dtype", "f8", "tensor 0"),
        ("tensors/0/shape", [8, -1], r"shape\[1\] is -1, not from 1"),
        ("tensors/0/at", 1, "the numbers of the inputs"),
        ("tensors/0/place", "elsewhere", "tensor 0"),
        ("tensors", 3, "tensors has to be a list"),
        ("steps/0/grid", [1, 1], "2 entries instead of 3"),
        ("steps/0/grid", [1, 1, True], r"grid\[2\] has to be a whole number"),
        ("steps/0/threads", 2048, "threads is 2048"),
        ("steps/0/shared_bytes", -1, "shared_bytes is -1"),
        ("steps/0/args/0/tensor", 99, "tensors only"),
        ("steps/0/overlaps", 1, "true or false"),
        ("program/0/operator", "os.system", "unknown operator 'os.system'"),
        ("program/0/inputs", [77], "out of turn"),
        ("results", [1000], "the results of the program"),
        ("scale", 0, "scale"),
        ("scale", 10**400, "scale is a number of more than 19 digits"),
        ("tolerance", float("nan"), "tolerance is nan"),
        ("workspace_bytes", 10**4000, "workspace_bytes is a number of more than 19 digits"),
        ("about", {"name": [[]]}, r"about\[0\]\[1\] has to be a text"),
        ("tensors", [{}] * 5000, "5000 entries"),
        ("tensors/0/dtype", "f" * 10**6, r"f\.\.\."),
        ("program/0/attrs", {"times": 2**40}, "the attribute times"),
        ("program/0/attrs", {"value": "1e999999999"}, "the attribute value"),
        ("program/0/attrs", {"value": f"1{'0' * 400}"}, "the attribute value"),
        ("program/0/attrs", {"value": "1/0"}, "the attribute value"),
        ("program/0/attrs", {"shape": [1] * 100}, "the attribute shape"),
        ("program/0/attrs", {"dim": "x"}, "the attribute dim"),
        ("program/0/attrs", {"out": "x"}, "the attribute out"),
        ("program/0/attrs", {"formula": ["system", "x"]}, "the attribute formula"),
        ("program/0/scalars", [[0, 10**400]], r"scalars\[0\]\[1\] is a number of more"),
        ("program/0/scalars", [[0, [1]]], r"scalars\[0\]\[1\] has to be a number"),
        ("program/0/scalars", [[-1, 1.0]], r"scalars\[0\]\[0\] is -1"),
        ("cubin", "AAAA", "the cubin"),
        ("cubin_sha256", "0" * 64, "the cubin is damaged"),
    ]


@pytest.mark.parametrize(("where", "value", "message"), edits())
def test_plans_that_do_not_hold_together(plan: Plan, where: str, value: Any, message: str) -> None:
    data = json.loads(json.dumps(write_plan(plan)))
    *path, last = where.split("/")
    place: Any = data
    for key in path:
        place = place[int(key)] if isinstance(place, list) else place[key]
    place[int(last) if isinstance(place, list) else last] = value
    with pytest.raises(KernelError, match=message):
        read_plan(data)


def test_a_bomb_is_not_unpacked(plan: Plan) -> None:
    data = write_plan(replace(plan, source=" " * (2**26 + 10)))
    with pytest.raises(KernelError, match="more than"):
        read_plan(data)


def test_a_nested_formula_is_refused(plan: Plan) -> None:
    data = write_plan(plan)
    deep: Any = "x"
    for _ in range(900):
        deep = ["exp", deep]
    data["program"][0]["attrs"] = {"formula": deep}
    with pytest.raises(KernelError, match="the attribute formula"):
        read_plan(data)


def test_every_attribute_is_checked_when_it_is_read() -> None:
    kernels = [spec.attrs for spec in OPS.values() if Level.KERNEL in spec.levels and spec.attrs is not None]
    assert {name for attrs in kernels for name in FIELDS[attrs]} <= ATTRS.keys()


def test_a_file_of_many_beginnings_is_read_once(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "many.py"
    head = f"\n{saved.BEGIN}---\nPLAN = r'''\n"
    path.write_text(head * 200_000)
    with cpu_limit(4.0), pytest.raises(FormatError, match="holds no plan"):
        load_kernel(path)


def test_a_program_that_does_not_fit_its_tensors_is_a_mistake_in_the_file(plan: Plan) -> None:
    data = json.loads(json.dumps(write_plan(plan)))
    for attrs in ({}, {"dim": 9}, {"shape": [3]}, {"perm": [0, 0, 0]}):
        for operator in ("Sum", "Reshape", "Transpose", "Repeat", "EwAdd"):
            data["program"][0].update(operator=operator, attrs=attrs)
            stranger = Kernel(read_plan(data))
            with pytest.raises(KernelError, match="cannot be computed"):
                stranger.reference(*(np.ones(t.shape) for t in stranger.inputs))


def test_a_map_has_the_elements_of_its_tensor(plan: Plan) -> None:
    data = json.loads(json.dumps(write_plan(plan)))
    mapped = [a for s in data["steps"] for a in s.get("args", ()) if "shape" in a]
    assert mapped, "the TMA ring takes tensor maps"
    mapped[0]["shape"][0] *= 2
    with pytest.raises(KernelError, match="a map of"):
        read_plan(data)


def test_a_map_of_a_part_lies_in_its_tensor(plan: Plan) -> None:
    step = next(s for s in plan.steps if isinstance(s, Launch))
    place = next(n for n, a in enumerate(step.args) if a.shape is not None)
    arg = step.args[place]
    assert arg.shape is not None
    rows, columns = arg.shape

    def given(**part: Any) -> dict[str, Any]:
        args = (*step.args[:place], replace(arg, **part), *step.args[place + 1 :])
        steps = tuple(replace(s, args=args) if s is step else s for s in plan.steps)
        written: dict[str, Any] = json.loads(json.dumps(write_plan(replace(plan, steps=steps))))
        return written

    half = given(shape=(rows, columns // 2), first=columns // 2, pitch=columns)
    assert half["version"] == 3 and write_plan(read_plan(half)) == {**half, "cubin": write_plan(plan)["cubin"]}
    for part in ({"first": 8}, {"pitch": 2 * columns}, {"pitch": columns // 2}, {"first": rows * columns}):
        with pytest.raises(KernelError, match="a map of"):
            read_plan(given(**part))


def test_the_flattened_source_compiles_to_the_same(emitted: Emitted, plan: Plan) -> None:
    assert len(compiled(flattened(emitted.source), "sm_90a")) == len(plan.cubin)  # names of files differ
    with pytest.raises(KernelError, match="NVRTC rejects"):
        compiled("this is no C++", "sm_90a")


def test_a_large_cubin_is_left_out(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "MAX_CUBIN", 10)
    assert load_kernel(write_file(plan, tmp_path / "x.py")).plan == replace(plan, cubin=b"")


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_reference_of_every_workload(name: str) -> None:
    graph = program(shrink(workload(name)))
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(i.type.shape) * 0.4 for i in graph.inputs]
    plan = Plan({}, "sm_90a", _tensors(graph), (), 0, tuple(saved._operators(graph)), graph.outputs, 1.0, 1e-3, "", b"")
    found = Kernel(plan).reference(*arrays)
    np.testing.assert_allclose(found, evaluate(graph, arrays)[0], rtol=1e-12)


def _tensors(graph: KernelGraph) -> Any:
    inputs = [Tensor(i.name, i.type.dtype.value, i.type.shape, "input", n) for n, i in enumerate(graph.inputs)]
    outputs = [Tensor(f"o{n}", t.dtype.value, t.shape, "output", n) for n, t in enumerate(graph.output_types)]
    return (*inputs, *outputs)


def test_every_pre_defined_operator_has_a_row() -> None:
    structural = {OpKind.IN_ITER, OpKind.OUT_SAVER, OpKind.ACCUM, OpKind.GRAPH, OpKind.FUSED}
    wanted = {kind.value for kind, spec in OPS.items() if Level.KERNEL in spec.levels and kind not in structural}
    assert wanted == OPERATORS.keys(), "an operator without a row in kernel_operators.OPERATORS"
    assert formula.PRIMITIVES == PRIMITIVES.keys()


FORMULAS = ("x * tanh(log(1 + exp(x)))", "minimum(abs(x), 0.25) ** 2 - erf(-x)", "sigmoid(sin(x)) / 3")


@pytest.mark.parametrize("body", FORMULAS)
def test_functions_that_a_program_defines(body: str) -> None:
    graph = program(f"def f(x): return {body}\nX: f16[8, 16]\nreturn f(X)")
    x = np.random.default_rng(0).standard_normal((8, 16))
    (step,) = [s for s in saved._operators(graph) if s.operator == "Apply"]
    np.testing.assert_allclose(OPERATORS["Apply"](np, step.attrs, x), evaluate(graph, [x])[0], rtol=1e-12)


def test_operators_between_kernels_keep_their_numbers() -> None:
    text = "X: f16[8, 16]\nY: f16[16, 4]\nreturn exp(X @ Y * 0.5)"
    plan = lower(emit(program(text), H200), program(text), arch="sm_90a")
    assert all(isinstance(s, Apply) for s in plan.steps)
    scaled = next(s for s in plan.steps if isinstance(s, Apply) and s.operator == "EwMul")
    assert scaled.scalars == ((1, 0.5),) and len(scaled.inputs) == 1
    assert read_plan(write_plan(plan)) == plan


def test_bf16_is_rounded_to_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -3.3895e38, 0.0, 1e-30], np.float32)
    import torch

    exact = torch.from_numpy(values).bfloat16()
    assert np.array_equal(encode(values, "bf16"), exact.view(torch.uint16).numpy())
    assert np.array_equal(decode(encode(values, "bf16"), "bf16"), exact.double().numpy())


def test_copied_modules_share_no_names() -> None:
    """They stand in one file, so a name that two of them define would mean the second one's everywhere."""
    seen: dict[str, str] = {}
    for name in saved.COPIED:
        for node in ast.parse(Path(str(find_spec(name).origin)).read_text()).body:
            names = [node.name] if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else []
            if isinstance(node, ast.Assign):
                names = [n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)]
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names = [node.target.id]
            for defined in names:
                assert seen.setdefault(defined, name) == name, defined


class OnCard:
    """An array on a GPU, as far as anybody looks."""

    def __init__(self, shape: tuple[int, ...], typestr: str = "<f2", at: int = 4096, **said: Any) -> None:
        self.shape = shape
        self.device = SimpleNamespace(id=said.pop("gpu", 0))
        self.__cuda_array_interface__ = {"shape": shape, "typestr": typestr, "data": (at, False), "version": 3, **said}


class NeedsGradients(OnCard):
    """What torch says of such a tensor."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__cuda_array_interface__":
            raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad.")
        return super().__getattribute__(name)


@pytest.fixture
def stranger(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """A saved kernel whose card takes everything and does nothing."""
    found = load_kernel(write_file(plan, tmp_path / "x.py"))
    card = SimpleNamespace(Device=lambda number: nullcontext(), runtime=SimpleNamespace(deviceSynchronize=lambda: None))
    cupy = SimpleNamespace(cuda=card, empty=lambda shape, dtype: np.empty(shape, dtype), asarray=np.asarray)
    monkeypatch.setattr(kernel, "gpu", lambda: cupy)
    monkeypatch.setattr(Kernel, "_load", lambda self, cupy: SimpleNamespace(device=0))
    return found


X, W = (8, 1024), (1024, 512)
STRANGE: dict[str, tuple[tuple[Any, ...], str]] = {
    "too few": ((OnCard(X),), "1 arrays; the inputs are X: f16"),
    "another shape": ((OnCard(X), OnCard((512, 1024))), r"shape \[512, 1024\] for W: f16\[1024, 512\]"),
    "another type": ((OnCard(X, "<f4"), OnCard(W)), r"X: f16\[8, 1024\] got float32\[8, 1024\]; f16 is float16"),
    "not contiguous": ((OnCard(X, strides=(2, 16)), OnCard(W)), r"X.* got an array that is not contiguous"),
    "another card": ((OnCard(X), OnCard(W, gpu=1)), "W.* got an array on GPU 1; the kernels are on GPU 0"),
    "in the middle": ((OnCard(X, at=4098), OnCard(W)), "X.* starts at no multiple of 16 bytes"),
    "a list": (([[0.0] * 1024] * 8, OnCard(W)), "X.* got a list that is not on the GPU"),
    "with gradients": ((NeedsGradients(X), OnCard(W)), "X.* got a NeedsGradients that cannot be read: .*requires grad"),
    "mixed": ((np.zeros(X), OnCard(W)), "W.* got an array on the GPU, others are NumPy's"),
    "complex": ((np.zeros(X, complex), np.zeros(W)), "X.* got complex128, which are no real numbers"),
    "texts": ((np.zeros(X), np.full(W, "a")), "W.* got <U1, which are no real numbers"),
}


@pytest.mark.parametrize("how", STRANGE)
def test_arrays_that_do_not_fit_are_named(how: str, stranger: Kernel) -> None:
    arrays, told = STRANGE[how]
    with pytest.raises(KernelError, match=told):
        stranger(*arrays)


def test_the_bits_of_bf16_are_taken_as_such() -> None:
    """As the reference takes them, and as a winner does that was not saved."""
    bits, tensor = np.array([0x3F80, 0x4049], np.uint16), Tensor("X", "bf16", (2,), "input", 0)
    assert np.array_equal(kernel._stored(bits, tensor), bits)
    assert np.array_equal(kernel._stored(decode(bits, "bf16"), tensor), bits)


def test_inputs_of_one_byte_are_read_as_they_are_stored() -> None:
    """By the reference of a self-check; what arrays of other types hold is rounded to them."""
    dtypes = ("i8", "u8", "bool", "f8e4m3", "f8e5m2")
    lines = [*(f"{dtype.upper()}: {dtype}[4, 6]" for dtype in dtypes), f"return {' + '.join(map(str.upper, dtypes))}"]
    graph = program("\n".join(lines))
    saved_kernel = Kernel(read_plan(write_plan(lower(emit(graph, H200), graph, arch="sm_90a"))))
    stored = saved_kernel.sample()
    (exact,) = evaluate(graph, [decode(a, dtype) for a, dtype in zip(stored, dtypes, strict=True)])
    np.testing.assert_array_equal(saved_kernel.reference(*stored), exact)
    wide = np.array([-1e9, -2.6, -0.3, 0.0, 0.3, 7.6, 1e9])
    for dtype in dtypes:
        found = kernel._stored(wide, Tensor("X", dtype, (7,), "input", 0))
        np.testing.assert_array_equal(found, buffers.encode(wide, DType(dtype)))


@pytest.mark.parametrize("wanted", Range)
def test_a_self_check_draws_as_sessions_do(wanted: Range) -> None:
    drawn = np.random.default_rng(0).standard_normal(100, np.float32)
    np.testing.assert_array_equal(KINDS[wanted.name.lower()](drawn), within(drawn, wanted))


def test_outputs_that_do_not_fit_are_named(stranger: Kernel) -> None:
    arrays = OnCard(X), OnCard(W)
    for outputs, told in (
        ((), r"0 arrays to write to; the outputs are .*\[8, 512\]"),
        ((OnCard((8, 511)),), r"f16\[8, 512\] got float16\[8, 511\]"),
    ):
        with pytest.raises(KernelError, match=told):
            stranger.prepare(*arrays, outputs=outputs)


def test_without_cupy_it_says_how_to_get_it(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(KernelError, match=r"with CuPy \(pip install cupy-cuda13x\)"):
        Kernel(plan)(OnCard(X), OnCard(W))


@pytest.mark.parametrize("text", [
    "X: f32[6, 8]\ny: i64[6]\nreturn F.cross_entropy(X, y)",
    "X: f32[6, 8]\nD: i32[6]\nE: i32[8]\nreturn softmax(where(D[:, None] == E, X, -inf))",
    "X: f32[6, 8]\nreturn log(X) + sqrt(X)",
    "X: f32[6, 8]\nM: bool[6, 8]\nreturn where(M, log(X), 0)",
])  # fmt: skip
def test_a_self_check_draws_what_the_program_has_values_for(text: str) -> None:
    """Of normal numbers no two are equal, and half have no logarithm: a right kernel was wrong there, or any right."""
    graph = program(text)
    (right,) = Kernel(found := read_plan(write_plan(lower(emit(graph, H200), graph, arch="sm_90a")))).outputs
    for seed in range(4):
        given = Kernel(found).sample(seed)
        wanted = Kernel(found).reference(*given)
        assert kernel.distance(wanted, wanted, right) == 0 and kernel.distance(wanted * np.nan, wanted, right) == np.inf
        if len(given) > 1 and "y" in text:
            assert np.isin(given[1], [*range(8), -100]).all() and np.isin(given[1], range(8)).any()
    with pytest.raises(KernelError, match="the program has no value for"):
        kernel.distance(wanted, wanted * np.nan, right)
    with pytest.raises(KernelError, match="ways to draw"):
        read_plan(write_plan(replace(found, drawn=found.drawn * 2)))
