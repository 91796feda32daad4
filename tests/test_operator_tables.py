"""Every table over operators has the rows that the operator table asks for."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from mirage_nb.codegen import operators
from mirage_nb.interp import field, reference, run
from mirage_nb.ir import OPS, OpKind, Trait
from mirage_nb.runtime.execution import torch_program
from mirage_nb.search.saturation import semantics
from mirage_nb.verify.defined import domain
from mirage_nb.verify.fields import roots
from tests.codegen.test_cuda import ATTRIBUTES

ELEMENTWISE = {kind for kind, spec in OPS.items() if Trait.ELEMENTWISE in spec.traits}
MIXING = {kind for kind in ELEMENTWISE if Trait.VIEW not in OPS[kind].traits}
COMPUTING = {kind for kind, spec in OPS.items() if Trait.STRUCTURAL not in spec.traits}

TABLES: dict[str, tuple[Collection[OpKind], set[OpKind]]] = {
    "the reference interpreter": (reference.TABLE, COMPUTING - run.COMPOSED),
    "the field interpreter": (field.TABLE, COMPUTING - run.COMPOSED),
    "the program in torch": (torch_program.TORCH, COMPUTING),
    "the search, one operand or two": ([*semantics.UNARY, *semantics.BINARY], MIXING),
    "the emitted expressions": (operators.CUDA, ELEMENTWISE),
    "the kernels that tests run": ([kind for kind, _ in ATTRIBUTES], ELEMENTWISE),
    "where operators are defined": ([*domain.TOTAL, *domain.NEEDS, OpKind.POW, OpKind.APPLY], ELEMENTWISE),
    "the operands behind a wrong element": (roots.RULES, COMPUTING - ELEMENTWISE),
}


def missing(rows: Collection[OpKind], wanted: set[OpKind]) -> tuple[list[str], list[str]]:
    """The operators without a row, and the rows without an operator, by name."""
    return sorted(k.value for k in wanted - set(rows)), sorted(k.value for k in set(rows) - wanted)


def test_every_kind_has_a_specification() -> None:
    assert missing(OPS, set(OpKind)) == ([], [])
    assert all(spec.kind is kind for kind, spec in OPS.items())


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_complete(name: str) -> None:
    lacks, extra = missing(*TABLES[name])
    assert not lacks, f"{name} has no row for {', '.join(lacks)}"
    assert not extra, f"{name} has a row too many for {', '.join(extra)}"


def test_the_missing_operator_is_named() -> None:
    rows = {kind: None for kind in COMPUTING if kind is not OpKind.SILU} | {OpKind.GRAPH: None}
    assert missing(rows, COMPUTING) == (["SiLU"], ["Graph"])
