"""Programs with one thing changed that are valid and run right are printed right, too: nothing that is printed goes
unseen by those who look at programs."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from mirage_nb.codegen import Emitted, emit, kernel
from mirage_nb.errors import CompileError, EmitError
from mirage_nb.tile.planned import Planned
from mirage_nb.tile.resident.program import ResidentProgram
from mirage_nb.tile.staged.program import StagedProgram
from tests.codegen.running import WAYS, draw, errors, run
from tests.tile import resident_mutants, staged_mutants, test_resident, test_staged
from tests.tile.running import H200, right

TRIED = 40
NAMED = {**test_staged.NAMED, **test_resident.NAMED}
Programs = StagedProgram | ResidentProgram


def changed(program: Programs) -> Iterator[Programs]:
    """Mutants that nobody finds, in any order."""
    found: list[Programs]
    if isinstance(program, StagedProgram):
        found = [mutant for _, mutant in staged_mutants.mutants(program)]
    else:
        found = [mutant for _, mutant in resident_mutants.mutants(program)]
    random.Random(0).shuffle(found)
    return (m for m in found if not Planned(program.block, m).findings(H200) and right(m, program))


def printed(monkeypatch: pytest.MonkeyPatch, name: str, program: Programs, instead: Programs) -> Emitted | None:
    """What is emitted with a program in the place of another one; None where it is refused."""
    graph, options = NAMED[name]
    for function in ("staged_program", "resident_program"):
        plan = getattr(kernel, function)

        def replaced(*asked: object, plan: object = plan) -> object:
            made = plan(*asked)  # type: ignore[operator]
            return instead if made == program else made

        monkeypatch.setattr(kernel, function, replaced)
    try:
        return emit(graph, H200, options)
    except (EmitError, AssertionError):
        return None
    finally:
        monkeypatch.undo()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_what_is_valid_and_right_is_printed_right(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    graph, options = NAMED[name]
    whole, inputs = emit(graph, H200, options), draw(graph, scale=0.1)
    off = [max(1e-6, 4 * error) for error in errors(graph, whole, inputs, run(whole, inputs))]
    texts = {whole.source}
    for planned in whole.programs:
        if not isinstance(planned.program, StagedProgram | ResidentProgram):
            continue
        for mutant in changed(planned.program):
            emitted = printed(monkeypatch, name, planned.program, mutant)
            if emitted is None or emitted.source in texts or len(texts) > TRIED:
                continue
            texts.add(emitted.source)
            for way in WAYS:
                try:
                    found = errors(graph, emitted, inputs, run(emitted, inputs, **way))
                except CompileError:  # nor does it run anywhere
                    break
                assert all(error < most for error, most in zip(found, off, strict=True)), mutant
