"""Programs that look operands up: what is planned is valid and right, what is changed is refused or found wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from mirage_nb.codegen import emit
from mirage_nb.errors import EmitError
from mirage_nb.ir import InIterAttrs, Op, OpKind
from mirage_nb.tile.lines import line_of, lines_of
from mirage_nb.tile.planned import Planned
from mirage_nb.tile.resident.program import Access, Depend, Find, Load, Numbers, ResidentProgram
from mirage_nb.tile.resident.validate import validate
from mirage_nb.tile.roles.program import flat
from mirage_nb.verify.tiles import Level, compare
from tests.lookups import H200, PROGRAMS, composed
from tests.shares import shared_out
from tests.tile.lines import RESIDENT, parse
from tests.tile.resident_mutants import Mutant, mutants


@cache
def planned(name: str) -> Planned:
    """The kernel of a program that looks something up."""
    return next(one for one in composed(PROGRAMS[name])[1].programs if one.tables)


def program(name: str) -> ResidentProgram:
    found = planned(name).program
    assert isinstance(found, ResidentProgram)
    return found


def findings(name: str, changed: ResidentProgram) -> tuple[str, ...]:
    """What is wrong with a program that stands for another one."""
    return compare(replace(planned(name), program=changed), H200, 3)[1]


def other_tables(original: ResidentProgram) -> Iterator[Mutant]:
    """One number of what an operand is looked up in is another one."""
    for place, table in enumerate(original.tables):
        rows = table.found
        changes = {f"{f} +1": replace(table, **{f: getattr(table, f) + 1}) for f in ("numbers", "offset")}
        for field in ("rows", "step", "first"):
            changes[f"{field} +1"] = replace(table, found=replace(rows, **{field: getattr(rows, field) + 1}))
        for field in ("lines", "line_steps", "inner", "inner_steps"):
            for at, extent in enumerate(held := getattr(rows, field)):
                other = replace(rows, **{field: (*held[:at], extent + 1, *held[at + 1 :])})
                if field not in ("lines", "inner") or at:  # what is outermost is no divisor
                    changes[f"{field}[{at}] +1"] = replace(table, found=other)
        for what, changed in changes.items():
            tables = (*original.tables[:place], changed, *original.tables[place + 1 :])
            yield f"%{table.value}: {what}", replace(original, tables=tables)
    for place, numbers in enumerate(original.numbers):
        for tensors in {numbers.tensors[::-1], tuple((n + 1) % len(numbers.tensors) for n in numbers.tensors)}:
            yield f"numbers {place}: of {tensors}", otherwise(original, place, replace(numbers, tensors=tensors))
        if (formula := numbers.formula) is not None:
            doubled = formula.append(Op(OpKind.ADD, (formula.outputs[0],) * 2)).returning((len(formula.types),))
            yield f"numbers {place}: doubled", otherwise(original, place, replace(numbers, formula=doubled))
            yield f"numbers {place}: as they lie", otherwise(original, place, replace(numbers, formula=None))


def otherwise(original: ResidentProgram, place: int, numbers: Numbers) -> ResidentProgram:
    """A program with other numbers."""
    return replace(original, numbers=(*original.numbers[:place], numbers, *original.numbers[place + 1 :]))


@pytest.mark.parametrize("name", PROGRAMS)
def test_planned_programs_are_valid_and_right(name: str) -> None:
    assert validate(program(name), H200) == ()
    assert compare(planned(name), H200, 3) == (Level.RESIDUES, ())
    assert parse(lines_of(program(name)), RESIDENT) == program(name)


@shared_out
def test_mutants_are_refused_or_found_wrong(share: int) -> None:
    """All that look up otherwise; statements in another order may be as good."""
    seen = 0
    for name in list(PROGRAMS)[:: 1 + (share > 1)]:
        for what, changed in [*other_tables(program(name)), *list(mutants(program(name)))[::share]]:
            wrong = findings(name, changed)
            looks = "exchanged" not in what and ("Find" in what or changed.tables != program(name).tables)
            seen += bool(wrong)
            assert wrong or not looks, (name, what)
    assert seen > 100


def _looked_up(one: ResidentProgram) -> object:
    return one.tables, one.numbers


@pytest.mark.parametrize(("name", "field", "step", "said"), [
    ("two tables", "numbers", 1, "is found by numbers"),
    ("two tables", "numbers", -1, "is found by numbers"),
    ("embedding, position and layer norm", "rows", 1, "of 40 rows"),
    ("embedding, position and layer norm", "rows", 2**30, "of 40 rows"),
    ("one element a row", "rows", -1, "of 30 rows"),
    ("masked by its numbers", "width", 1, "do not fit"),
    ("two tables by the same numbers", "value", 1, "in no table|found already"),
])  # fmt: skip
def test_a_lookup_by_others_or_without_its_bounds_is_refused(name: str, field: str, step: int, said: str) -> None:
    first = next(s for s in flat(program(name).code) if isinstance(s, Find))
    last = [s for s in flat(program(name).code) if isinstance(s, Find)][-1]
    chosen = last if step < 0 else first
    changed = swapped(program(name), chosen, replace(chosen, **{field: getattr(chosen, field) + step}))
    assert any(re.search(said, text) for text in validate(changed, H200))


def swapped(original: ResidentProgram, before: object, behind: object) -> ResidentProgram:
    """A program with another statement."""
    text = [line.replace(line_of(before), line_of(behind)) for line in lines_of(original)]
    changed: ResidentProgram = parse(text, RESIDENT)
    return changed


def test_operands_are_looked_up_as_planned() -> None:
    for name in ("numbers that are computed", "two tables"):
        for what, changed in other_tables(program(name)):
            found = replace(planned(name), program=changed).findings(H200)
            assert changed == program(name) or any("looked up otherwise" in text for text in found), what


def test_rows_are_found_before_they_are_read() -> None:
    name = "embedding, position and layer norm"
    (find,) = (s for s in program(name).code if isinstance(s, Find))
    without = tuple(s for s in program(name).code if s is not find)
    assert any("before it is found" in text for text in validate(replace(program(name), code=without), H200))
    late = replace(program(name), code=(*without, find))
    assert any("before it is found" in text for text in validate(late, H200))
    twice = replace(program(name), code=(find, *program(name).code))
    assert any("found already" in text for text in validate(twice, H200))


def test_numbers_that_a_kernel_in_front_writes_are_waited_for() -> None:
    name = "numbers of a kernel"
    early = replace(program(name), code=tuple(s for s in program(name).code if not isinstance(s, Depend)))
    reads = {values[0]: op.attrs for op, values in early.block.definitions() if isinstance(op.attrs, InIterAttrs)}
    assert {reads[table.value].arg for table in early.tables} <= early.late and early.behind
    assert any(re.search(r"Find.*before the kernel in front has ended", text) for text in validate(early, H200))


@pytest.mark.parametrize(("name", "access", "said"), [
    ("bias of relative positions", Access.LOAD, "in more than one row"),
    ("embedding and norm of wide rows", Access.NOW, "is looked up"),
    ("embedding and norm of wide rows", Access.ONCE, "is read again"),
])  # fmt: skip
def test_vectors_lie_within_rows(name: str, access: Access, said: str) -> None:
    (load,) = (s for s in flat(program(name).code) if isinstance(s, Load) and program(name).table(s.value))
    assert load.width > 1
    changed = swapped(program(name), load, replace(load, access=access))
    assert any(said in text for text in validate(changed, H200))


def test_several_numbers_of_a_vector_are_asked_for() -> None:
    name = "bias of relative positions"
    (find,) = (s for s in flat(program(name).code) if isinstance(s, Find))
    assert find.each
    changed = swapped(program(name), find, replace(find, each=False))
    assert any("have one number" in text for text in validate(changed, H200))


def test_a_program_that_looks_up_otherwise_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "embedding, position and layer norm"
    find = next(s for s in program(name).code if isinstance(s, Find))
    unbound = swapped(program(name), find, replace(find, rows=2**31 - 1))
    graph = composed(PROGRAMS[name])[1].graph
    monkeypatch.setattr("mirage_nb.codegen.kernel.resident_program", lambda *_: unbound)
    with pytest.raises(EmitError, match="is not printed"):
        emit(graph, H200)
