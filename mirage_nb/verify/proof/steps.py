"""Proofs as data: steps, what they rest on, and their JSON and text forms.

In: steps from a prover, or a JSON text from anywhere. Out: a frozen `Proof`. A proof alone says nothing: `check`
holds it against two graphs. In the JSON form all terms stand once, in a table, each after its parts; reading it
takes bounded work and memory whatever the text is, and raises FormatError or ProgramSizeError for what is no proof.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from mirage_nb.errors import FormatError, ProgramSizeError, ProofError
from mirage_nb.ir.fields import MAX_LIST, fraction, listed, name, record, shown, whole
from mirage_nb.typed import typed
from mirage_nb.verify.proof.axioms import AXIOMS, Properties
from mirage_nb.verify.proof.terms import (
    BINDERS,
    NO_EXTENTS,
    NODES,
    Digit,
    Kind,
    Term,
    Var,
    bind,
    entry,
    fn,
    metered,
    num,
    opened,
    sym,
)

SCHEMA, VERSION = "mirage proof", 1
FIELDS = ("schema", "version", "outputs", "literal", "properties", "terms", "steps")
MAX_TEXT = 2_000_000
MAX_TERMS = 50_000
MAX_STEPS = 20_000
MAX_INDEX = 10_000_000
"""The largest number of an index, but for its sign."""
MAX_LABEL = 250
"""Characters of the name of a part of an axis: the name of an input and a number."""
MAX_NESTING = 8
MAX_WORK = 300_000
"""What the terms of a file may take, in units of `metered`; those of a long proof take a tenth."""

Binding = Term | tuple[Var, ...] | str
DEFINED = (
    "real numbers, at every input where the program is defined, and the muGraph then is, too; "
    "nothing is said of infinite inputs and of rounding"
)


@dataclass(frozen=True, slots=True)
class Step:
    """One rewriting: an axiom, which way it is read, and what its letters stand for (sorted by letter)."""

    axiom: str
    bindings: tuple[tuple[str, Binding], ...]
    backward: bool = False

    def __str__(self) -> str:
        row = AXIOMS.get(self.axiom)
        text = "unknown axiom" if row is None else row.text
        bound = "; ".join(f"{letter} = {_shown(value)}" for letter, value in self.bindings)
        return f"{self.axiom}{' read backwards' if self.backward else ''}: {text}\n    {bound}"


def _shown(value: Binding) -> str:
    if isinstance(value, tuple):
        return " ".join(f"{sort}{number}" for sort, number in value) or "none"
    return str(value)


@dataclass(frozen=True, slots=True)
class Proof:
    """That a muGraph equals a program for all sizes: both become the same terms by these steps.

    `outputs[i]` is the muGraph's output for output i of the program; `literal`: constants are meant as they are, not
    as unknowns; `properties`: what the user says of functions, beyond the table of the axioms; `these_sizes`: it is
    about the elements of these very graphs, and not about others; `extents`: parts of axes that it is about at these
    extents only, as the mean of 16 numbers is a sixteenth of their sum.
    """

    steps: tuple[Step, ...]
    outputs: tuple[int, ...] = (0,)
    literal: bool = False
    properties: Properties = field(default_factory=lambda: MappingProxyType({}))
    these_sizes: bool = False
    extents: Mapping[str, int] = field(default_factory=lambda: NO_EXTENTS)

    @property
    def axioms(self) -> tuple[str, ...]:
        """The names of the axioms that the proof uses, sorted."""
        return tuple(sorted({step.axiom for step in self.steps}))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the proof takes for granted, besides the axioms."""
        return (DEFINED, *self.said)

    @property
    def said(self) -> tuple[str, ...]:
        """What the proof takes on its user's word: properties of functions, which numbers can only refute."""
        return tuple(f"{function} is {', '.join(sorted(names))}" for function, names in sorted(self.properties.items()))

    def __repr__(self) -> str:
        scope = "these constants" if self.literal else "all constants"
        return f"<Proof in {self.length}, {self.sizes} and {scope}>"

    @property
    def length(self) -> str:
        """How many steps from how many axioms, in words."""
        steps, axioms = len(self.steps), len(self.axioms)
        return f"{steps} step{'s' * (steps != 1)} from {axioms} axiom{'s' * (axioms != 1)}"

    @property
    def sizes(self) -> str:
        """For which sizes it holds, in words."""
        if self.these_sizes:
            return "for these sizes only"
        few = ", ".join(f"{part} = {extent}" for part, extent in sorted(self.extents.items()))
        return f"for {few} and all other sizes" if few else "for all sizes"

    def __str__(self) -> str:
        sizes = self.sizes.removeprefix("for ")
        scope = f"for these constants and {sizes}" if self.literal else f"for {sizes}, and all values of constants"
        scope = self.sizes if self.these_sizes else scope
        lines = [f"proof in {self.length}, {scope}", f"  over the {DEFINED}"]
        lines += [f"  assumes: {text}" for text in self.said]
        lines += [f"{number:4}. {step}" for number, step in enumerate(self.steps)]
        return "\n".join(lines)

    def to_json(self) -> str:
        """The proof as a JSON text."""
        table = _Table()
        steps = [
            {
                "axiom": step.axiom,
                "backward": step.backward,
                "bindings": {letter: table.written(value) for letter, value in step.bindings},
            }
            for step in self.steps
        ]
        plain = {
            "schema": SCHEMA,
            "version": VERSION,
            "outputs": list(self.outputs),
            "literal": self.literal,
            "properties": {function: sorted(names) for function, names in self.properties.items()},
            "terms": table.rows,
            "steps": steps,
        }
        also = {"these_sizes": self.these_sizes, "extents": dict(self.extents)}
        return json.dumps(plain | {name: value for name, value in also.items() if value})

    @staticmethod
    @typed
    def from_json(text: str) -> Proof:
        """The proof in a JSON text. Raises FormatError, ProgramSizeError."""
        if len(text) > MAX_TEXT:
            raise ProgramSizeError(f"a proof of {len(text)} characters; at most {MAX_TEXT}")
        try:
            plain = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"no proof, not JSON: {shown(str(error))}", hint="as Proof.to_json writes it") from error
        top = {"these_sizes": False, "extents": {}, **_mapping(plain, "a proof")}
        record(top, "a proof", (*FIELDS, "these_sizes", "extents"))
        if (top["schema"], top["version"]) != (SCHEMA, VERSION) or isinstance(top["version"], bool):
            raise FormatError(f"schema {shown(top['schema'])} {shown(top['version'])}; this reads {SCHEMA} {VERSION}")
        try:
            with metered(MAX_WORK):
                terms = _terms(top["terms"])
        except ProofError as error:
            raise FormatError(error.message, hint=error.hint) from error
        steps = tuple(_step(item, terms) for item in listed(top["steps"], "steps", MAX_STEPS))
        properties = {
            name(function): frozenset(map(name, listed(names, "properties")))
            for function, names in _mapping(top["properties"], "properties").items()
        }
        outputs = tuple(map(whole, listed(top["outputs"], "outputs")))
        extents = {name(part): whole(extent) for part, extent in _mapping(top["extents"], "extents").items()}
        return Proof(
            steps, outputs, _flag(top["literal"]), MappingProxyType(properties), _flag(top["these_sizes"]),
            MappingProxyType(extents),
        )  # fmt: skip


class _Table:
    """Terms written once each, parts first."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.places: dict[Term, int] = {}

    def written(self, value: Binding) -> Any:
        """A binding: the place of a term in the table, a list of indices, or a function's name."""
        if isinstance(value, Term):
            return self.place(value)
        return value if isinstance(value, str) else [list(var) for var in value]

    def place(self, term: Term) -> int:
        if term not in self.places:
            data: Any = term.data
            args = term.args
            if term.kind in BINDERS:
                data, args = opened(term)
            elif term.kind is Kind.NUM:
                data = str(data)
            row = [term.kind.value, data, *map(self.place, args)]
            self.places[term] = len(self.rows)
            self.rows.append(row)
        return self.places[term]


def _terms(plain: object) -> list[Term]:
    found: list[Term] = []
    depths: list[int] = []
    kinds = {kind.value: kind for kind in Kind}
    for row in listed(plain, "terms", MAX_TERMS):
        kind, data, *places = (
            listed(row, "a term") if isinstance(row, list) and len(row) > 1 else (None, None)
        )
        if not isinstance(kind, str) or kind not in kinds:
            raise FormatError(f"{shown(row)} is not a term")
        if any(not 0 <= whole(place) < len(found) for place in places):
            raise FormatError(f"the term {shown(row)} has parts that are not before it")
        depths.append(1 + max((depths[place] for place in places), default=0))
        if depths[-1] > MAX_DEPTH:
            raise ProgramSizeError(f"a term that is nested more than {MAX_DEPTH} deep")
        found.append(_term(kinds[kind], data, tuple(found[place] for place in places)))
    return found


MAX_DEPTH = 200
ARITIES = {Kind.INV: 1, Kind.EXP: 1, Kind.SQRT: 1, Kind.SUM: 1, Kind.MAX: 1, Kind.RESCALED: 2, Kind.WITHIN: 2}
ARITIES |= {Kind.NUM: 0, Kind.SYM: 0, Kind.IN: 0}


def _term(kind: Kind, data: object, args: tuple[Term, ...]) -> Term:
    if len(args) != ARITIES.get(kind, len(args)) or (kind in (Kind.ADD, Kind.MUL, Kind.TOP) and len(args) < 2):
        raise FormatError(f"{len(args)} parts of a term {kind.value}")
    match kind:
        case Kind.NUM:
            return num(_numeral(data))
        case Kind.SYM:
            label, sign = _pair(data, "a symbol")
            return sym(name(label), _flag(sign))
        case Kind.IN:
            label, index = _pair(data, "an element")
            return entry(name(label), tuple(_digits(digits, 0) for digits in listed(index, "an index")))
        case Kind.FN:
            return fn(_text(data), *args)
        case Kind.SUM | Kind.MAX | Kind.RESCALED | Kind.WITHIN:
            return bind(kind, _indices(data), *args)
    if data is not None:
        raise FormatError(f"{shown(data)} beside a term {kind.value}")
    return NODES[kind](*args)


def _numeral(data: object) -> Fraction:
    if not isinstance(data, str):
        raise FormatError(f"{shown(data)} is not a numeral")
    return fraction(data)


def _text(data: object) -> str:
    if not isinstance(data, str) or len(data) > MAX_LIST:
        raise FormatError(f"{shown(data)} is not a function's name")
    return data


def _digits(plain: object, depth: int) -> tuple[Digit, ...]:
    if depth > MAX_NESTING:
        raise ProgramSizeError(f"an index that is nested more than {MAX_NESTING} deep")
    found: list[Digit] = []
    for item in listed(plain, "digits"):
        label, rest = _pair(item, "a digit")
        if isinstance(rest, list):
            if label not in ("L", "R", "T"):
                raise FormatError(f"{shown(label)} is not a side")
            found.append((label, _digits(rest, depth + 1)))
        else:
            found.append(_index(item))
    return tuple(found)


def _indices(plain: object) -> tuple[Var, ...]:
    return tuple(_index(item) for item in listed(plain, "indices"))


def _index(item: object) -> Var:
    label, number = _pair(item, "an index")
    if not isinstance(label, str) or len(label) > MAX_LABEL:
        raise FormatError(f"{shown(label)} is not a part of an axis")
    if not 0 < -whole(number) <= MAX_INDEX:
        raise FormatError(f"the index {shown(item)} is not free, or its number is beyond {MAX_INDEX}")
    return label, number


def _step(item: object, terms: list[Term]) -> Step:
    held = record(item, "a step", ("axiom", "backward", "bindings"))
    bindings: list[tuple[str, Binding]] = []
    for letter, value in sorted(_mapping(held["bindings"], "bindings").items()):
        if isinstance(value, str):
            bindings.append((letter, _text(value)))
        elif isinstance(value, list):
            bindings.append((letter, _indices(value)))
        elif 0 <= whole(value) < len(terms):
            bindings.append((letter, terms[value]))
        else:
            raise FormatError(f"{letter} is bound to term {shown(value)} of {len(terms)}")
    return Step(name(held["axiom"]), tuple(bindings), _flag(held["backward"]))


def _flag(plain: object) -> bool:
    if not isinstance(plain, bool):
        raise FormatError(f"{shown(plain)} is neither true nor false")
    return plain


def _pair(plain: object, what: str) -> list[Any]:
    if len(found := listed(plain, what)) != 2:
        raise FormatError(f"{what}: {shown(plain)} is not a list of two")
    return found


def _mapping(plain: object, what: str) -> Mapping[str, Any]:
    if len(found := record(plain, what, optional=None)) > MAX_LIST:
        raise ProgramSizeError(f"{what}: {len(found)} entries; at most {MAX_LIST}")
    return found
