"""Resident programs: what is planned is valid and right over floats and residues, what is changed is not."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from html import escape

import pytest

from mirage_nb.codegen import Options, emit, register_resident
from mirage_nb.errors import EmitError
from mirage_nb.ir import DType, Input, KernelGraph, Op, OpKind, ReshapeAttrs, RunningAttrs, SliceAttrs
from mirage_nb.targets import TARGETS
from mirage_nb.tile.lines import line_of, lines_of
from mirage_nb.tile.planned import Planned
from mirage_nb.tile.resident.program import Access, Each, Load, ResidentProgram, Task
from mirage_nb.tile.resident.validate import validate
from mirage_nb.tile.roles.program import flat
from mirage_nb.tile.rules.placement import Place
from mirage_nb.verify.tiles import Level, compare
from mirage_nb.viz.schedule import schedule_html
from tests.codegen.mugraphs import ntrans, split_safe_attention
from tests.codegen.test_register_resident import columns, gained, normed, rope, rows_and_columns, softmax, windows
from tests.codegen.test_windows import read_by_a_kernel
from tests.mugraphs import Block, one_kernel, tensor
from tests.shares import shared_out
from tests.tile.lines import RESIDENT, parse
from tests.tile.resident_mutants import mutants
from tests.tile.running import assert_caught, right, right_over_residues

H200 = TARGETS["h200"]
FEW = replace(H200, multiprocessors=2)


def running(shape: tuple[int, ...], dim: int, backward: bool, exclusive: bool) -> KernelGraph:
    """exp of the running sums of X * X."""
    b = Block((tensor(shape),), (1,))
    x = b.read(0, (None,))
    sums = b.op(OpKind.RUNNING_SUM, b.op(OpKind.MUL, x, x), attrs=RunningAttrs(dim, backward, exclusive))
    b.save(b.op(OpKind.EXP, b.op(OpKind.SUB, sums, x)), (None,))
    return one_kernel("X", b)


def line() -> KernelGraph:
    """Results of rows, reshaped to lie along a line with what is added to them."""
    b = Block((tensor((8, 512), DType.BF16), tensor((1, 8)), tensor((1, 512), DType.BF16)), (4,))
    w, r, x = b.read(0, (0,)), b.read(1, (1,)), b.read(2, (None,))
    total = b.op(OpKind.RESHAPE, b.sum(b.op(OpKind.MUL, w, x), 1), attrs=ReshapeAttrs((1, 2)))
    b.save(b.op(OpKind.MUL, b.op(OpKind.ADD, total, r), r), (1,))
    return one_kernel("W R X", b)


def shorter() -> KernelGraph:
    """Sums of rows, and of shorter ones beside them, with vectors that lie along a line and upright; elements of such
    rows are saved, too."""
    types = (tensor((8, 1024), DType.BF16), tensor((1, 1024)), tensor((8, 24), DType.BF16), tensor((24, 1)))
    b = Block(types, (4,))
    w, x, c, t = b.read(0, (0,)), b.read(1, (None,)), b.read(2, (0,)), b.read(3, (None,))
    low = b.op(OpKind.MUL, c, b.op(OpKind.RESHAPE, t, attrs=ReshapeAttrs((24,))))
    b.save(b.op(OpKind.ADD, b.sum(b.op(OpKind.MUL, w, x), 1), b.sum(low, 1)), (0,))
    b.save(b.op(OpKind.MUL, low, b.sum(low, 1)), (0,))
    return one_kernel("W X C T", b)


def early() -> KernelGraph:
    """X + R, and that by its sum of squares: one waits for no reduction."""
    b = Block((tensor((4, 256)), tensor((4, 256))), (4,))
    s = b.op(OpKind.ADD, b.read(0, (0,)), b.read(1, (0,)))
    b.save(b.op(OpKind.DIV, s, b.sum(b.op(OpKind.SQR, s), 1)), (0,))
    b.save(s, (0,))
    return one_kernel("X R", b)


def norm_of_all() -> KernelGraph:
    """A tile of one dimension, and the root of its sum of squares."""
    b = Block((tensor((4096,), DType.F32),), (1,))
    x = b.read(0, (None,))
    b.save(b.op(OpKind.SQRT, b.sum(b.op(OpKind.SQR, x), 0)), (None,))
    return one_kernel("X", b)


def viewed() -> KernelGraph:
    """Pieces of columns, each less its sum."""
    b = Block((tensor((64, 8)),), (1,))
    x = b.op(OpKind.RESHAPE, b.read(0, (None,)), attrs=ReshapeAttrs((8, 8, 8)))
    b.save(b.op(OpKind.SUB, x, b.sum(x, 0)), (None,))
    return one_kernel("X", b)


def pointwise() -> KernelGraph:
    b = Block((tensor((3, 1200)), tensor((1200,))), (3,))
    b.save(b.op(OpKind.SIGMOID, b.op(OpKind.ADD, b.read(0, (0,)), b.read(1, (None,)))), (0,))
    return one_kernel("X B", b)


def hanging() -> KernelGraph:
    """X + B and X * B, tiles of which hang over the end of X."""
    b = Block((tensor((100, 64)), tensor((64,))), (4,))
    x, bias = b.read(0, (0,), tile=(32, 64)), b.read(1, (None,))
    b.save(b.op(OpKind.ADD, x, bias), (0,), (100, 64))
    b.save(b.op(OpKind.MUL, x, bias), (0,), (100, 64))
    return one_kernel("X B", b)


NAMED: dict[str, tuple[KernelGraph, Options]] = {
    "warps": (softmax((8, 256), 4, DType.F16), Options(4)),
    "teams": (softmax((4, 1000), 2, DType.F16), Options(4)),
    "one team, behind": (softmax((2, 1792), 1, DType.F32), Options(8, chained=True)),
    "ragged": (softmax((4, 33), 1, DType.BF16), Options(2)),
    "rows and columns": (rows_and_columns(4, 512, DType.F16), Options()),
    "rows of one warp, and columns": (rows_and_columns(3, 96, DType.F32), Options()),
    "two sums": (ntrans(16, 512, 2), Options(8)),
    "shorter rows": (shorter(), Options(4)),
    "early": (early(), Options(4, chained=True)),
    "asked for late": (gained(3), Options(2, chained=True)),
    "computed anew": (normed((2, 90000), DType.F16), Options()),
    "columns": (columns((16, 8, 64), 0, DType.F16, weighted=False), Options(4)),
    "columns, rescaled": (columns((64, 33), 0, DType.F32, weighted=True), Options(4)),
    "columns of teams": (columns((512, 8), 0, DType.F16, weighted=False), Options(4)),
    "columns of teams, rescaled": (columns((1, 100, 32), 1, DType.F32, weighted=True), Options(4, chained=True)),
    "windows": (windows((4, 3, 2, 16, 2), (2, 4), DType.F32), Options(4)),
    "running rows": (running((2, 1000), 1, backward=False, exclusive=True), Options(4)),
    "running columns": (running((100, 16), 0, backward=True, exclusive=False), Options(4)),
    "running alone": (running((8, 600), 0, backward=True, exclusive=True), Options(4)),
    "line": (line(), Options(4)),
    "one dimension": (norm_of_all(), Options(4)),
    "viewed": (viewed(), Options(4)),
    "turns": (rope((1, 2, 3, 4, 0), 0), Options(4)),
    "halves of sums": (rope((1, 2, 0, 3, 4), 0, 64, summed=True), Options(4)),
    "pointwise": (pointwise(), Options(4, chained=True)),
    "hanging": (hanging(), Options(4)),
    "splits": (split_safe_attention(loop=4), Options(4)),
}


@cache
def planned(name: str) -> tuple[Planned, ...]:
    graph, options = NAMED[name]
    target = FEW if name == "asked for late" else H200
    return tuple(p for p in emit(graph, target, options).programs if isinstance(p.program, ResidentProgram))


def programs(name: str) -> list[ResidentProgram]:
    return [p.program for p in planned(name) if isinstance(p.program, ResidentProgram)]


@pytest.mark.parametrize("name", NAMED)
def test_the_text_form(name: str) -> None:
    assert programs(name)
    for program in programs(name):
        assert parse(lines_of(program), RESIDENT) == program


@pytest.mark.parametrize("name", NAMED)
def test_planned_programs_are_valid_and_right(name: str) -> None:
    for whole, program in zip(planned(name), programs(name), strict=True):
        assert validate(program, H200) == ()
        assert right(program, program)
        assert right_over_residues(program)
        assert compare(whole, H200, 3) == (Level.RESIDUES, ())


@shared_out
def test_mutants_are_caught(share: int) -> None:
    """A thread that has another element, a value asked for too late, scratch of another fold."""
    named = (program for name in NAMED for program in programs(name))
    assert_caught(((p, *one) for p in named for one in list(mutants(p))[::share]), 1500 // share)


@pytest.mark.parametrize(("name", "what"), [
    ("teams", "Fold combine warps -1"), ("two sums", "Task lost"), ("columns of teams", "layout: lanes -1"),
    ("columns of teams", "Fold combine sets -1"), ("columns of teams", "Fold combine vectors +1"),
    ("line", "Save not first"), ("running columns", "layout: not blocked"), ("running rows", "Running not backward"),
    ("running rows", "Running combine warps -1"), ("running alone", "Running not exclusive"), ("ragged", "Fold alone"),
    ("windows", "layout: tile[2] +1"), ("computed anew", "layout: slots -1"), ("two sums", "Save output +1"),
    ("shorter rows", "layout: lanes +1"),
])  # fmt: skip
def test_threads_are_followed(name: str, what: str) -> None:
    """Values come out wrong, whatever the validator says."""
    (program,) = programs(name)
    found = [changed for called, changed in mutants(program) if called == what]
    assert found and not all(right(changed, program) for changed in found)


@pytest.mark.parametrize(("name", "what", "finding"), [
    ("warps", "Load lost", "read before it is there"),
    ("warps", "Load doubled", "there already"),
    ("warps", "Load value +1", "there already|no operand"),
    ("warps", "Load width +1", "vectors of"),
    ("ragged", "Load access ONCE", "read again"),
    ("one team, behind", "Depend lost", "before the kernel in front has ended"),
    ("pointwise", "Depend and Each exchanged", "before the kernel in front has ended"),
    ("two sums", "Fold combine scratch +1", "begins anywhere"),
    ("columns of teams", "Fold combine scratch -1", "share scratch|taken"),
    ("teams", "scratch -1", "floats of scratch"),
    ("teams", "Fold combine barrier -1", "no such barriers"),
    ("teams", "Fold combine barrier +1", "share a barrier"),
    ("teams", "Fold alone", "do not combine"),
    ("computed anew", "Forget values[0] +1", "in no registers"),
    ("early", "Save lost", "not saved"),
    ("early", "Save doubled", "saved twice"),
    ("halves of sums", "Save not first", "saved by all threads"),
    ("turns", "Save less", "not saved"),
    ("running columns", "Running lost", "before its sums run"),
    ("running columns", "layout: not blocked", "lie together"),
    ("line", "form of %1 [0] 1", "in no such tile"),
    ("columns", "layout: width +1", "do not fit"),
    ("columns", "layout: slots -1", "vectors each"),
])  # fmt: skip
def test_findings_by_name(name: str, what: str, finding: str) -> None:
    """One of the mutants of this kind, at least, is found for this reason."""
    found = [validate(changed, H200) for program in programs(name) for w, changed in mutants(program) if w == what]
    assert any(re.search(finding, text) for texts in found for text in texts), found


def test_a_thread_has_registers_for_what_it_asks_for() -> None:
    """Rows that are asked for behind the reductions, asked for before them."""
    (program,) = programs("computed anew")
    loads = [statement for statement in program.code if isinstance(statement, Load)]
    others = [statement for statement in program.code if not isinstance(statement, Load)]
    assert any("registers for what" in text for text in validate(replace(program, code=(*loads, *others)), H200))


def test_what_all_that_is_saved_asks_is_asked_once() -> None:
    """All loads wait for one jump."""
    (program,), (graph, options) = programs("hanging"), NAMED["hanging"]
    (each,) = program.code
    assert isinstance(each, Each) and each.asked == ("block_x * 32 + i0 < 100",)
    source = emit(graph, H200, options).source
    assert source.count(f"if ({each.asked[0]}) {{") == source.count("< 100") == 1


@pytest.mark.parametrize(
    ("first", "step", "access"),
    [
        (0, 1, "ONCE"), (8, 1, "ONCE"), (1, 1, "AROUND"), (1, 2, "AROUND"), (30, -1, "AROUND"), (1, 1, "EACH"),
        (0, 5, "EACH"),
    ],
)
def test_programs_say_how_vectors_are_read(first: int, step: int, access: str) -> None:
    """Of windows: whole ones, the aligned ones around them, or their elements one by one, where every row begins
    elsewhere, or they lie far apart."""
    graph = KernelGraph.start(Input("X", tensor((64, 63 if (access, step) == ("EACH", 1) else 96))))
    graph = read_by_a_kernel(graph.append(Op(OpKind.SLICE, (0,), SliceAttrs(1, first, 16, step))))
    (program,) = (p.program for p in emit(graph, H200).programs)
    assert isinstance(program, ResidentProgram)
    (load,) = (s for s in flat(program.code) if isinstance(s, Load))
    assert load.access is Access[access] and load.width > 1
    said = "its elements are their places, or are not"
    found = validate(replace(program, places=(Place.COUNTED, *program.places[1:])), H200)
    assert any(said in text for text in found) and validate(program, H200) == ()


def test_barriers_of_teams_are_as_many_as_a_block_has() -> None:
    (program,) = programs("teams")

    def first(barrier: int) -> ResidentProgram:
        text = [line.replace("barrier=1)", f"barrier={barrier})") for line in lines_of(program)]
        changed: ResidentProgram = parse(text, RESIDENT)
        return changed

    assert first(1) == program and validate(first(14), H200) == ()
    assert "no such barriers" in validate(first(15), H200)[0] and "no such barriers" in validate(first(0), H200)[0]


def test_what_is_not_valid_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, options = NAMED["teams"]
    (program,) = programs("teams")
    lost = replace(program, code=program.code[1:])
    monkeypatch.setattr("mirage_nb.codegen.kernel.resident_program", lambda *_: lost)
    with pytest.raises(EmitError, match=r"kernel0 is not printed.*read before it is there"):
        emit(graph, H200, options)


def test_the_explorer_lists_every_statement() -> None:
    (program,) = programs("early")
    html = schedule_html(0, None, program)  # type: ignore[arg-type]
    for statement in flat(program.code):
        task = isinstance(statement, Task)
        assert escape(register_resident.comment(program.block, statement) if task else line_of(statement)) in html
