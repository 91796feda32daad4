"""The prover: rewrites both sides of every goal to their normal forms and writes down each step.

In: a program and a muGraph. Out: a `Proof`, already replayed by the checker, or `Unproved` with the reason. The
innermost term that a rule applies to goes first; equal terms of both sides are rewritten at once. It gives up after
a time, never says what is false, and need not find every proof.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from mirage_nb.errors import OptionError, ProofError
from mirage_nb.ir import COMPARISONS, InIterAttrs, KernelGraph, OpKind
from mirage_nb.ir.sizes import size_of
from mirage_nb.typed import typed
from mirage_nb.verify.fields.lax import all_ops
from mirage_nb.verify.proof.axes import BY_NUMBER, fixed_extents
from mirage_nb.verify.proof.axioms import PROPERTY_NAMES, Properties
from mirage_nb.verify.proof.checker import (
    MAX_WORK,
    State,
    applied,
    begun,
    check_goals,
    check_steps,
    equation,
    owing,
    rewritten,
)
from mirage_nb.verify.proof.elements import element_goals
from mirage_nb.verify.proof.known import Known
from mirage_nb.verify.proof.lattice import as_largest
from mirage_nb.verify.proof.properties import refuted_property
from mirage_nb.verify.proof.rules import next_steps, steps_before
from mirage_nb.verify.proof.steps import MAX_STEPS, Proof, Step
from mirage_nb.verify.proof.terms import BINDERS, NO_EXTENTS, Term, counted, counts, metered, opened
from mirage_nb.verify.proof.translate import Goal, Needs, translate

MAX_PAIRINGS = 24
MAX_GOAL_NODES, MAX_PIECES_NODES = 20_000, 2_500
DEFINED = frozenset({
    OpKind.SILU, OpKind.SIGMOID, OpKind.GELU, OpKind.RELU, OpKind.CLAMP, OpKind.APPLY, OpKind.WHERE, *COMPARISONS,
})  # fmt: skip
"""Operators that stand for others."""
CHOSEN = frozenset({OpKind.RELU, OpKind.CLAMP, OpKind.MAXIMUM, OpKind.APPLY, OpKind.WHERE, *COMPARISONS})
"""Operators that may be one thing or another."""


@dataclass(frozen=True, slots=True)
class Unproved:
    """No proof was found, which says nothing about the muGraph; `reason` says where it ended.

    `forms` are the normal forms of the program's and the muGraph's side that differ, if it came to that.
    """

    reason: str
    forms: tuple[str, str] | None = None

    def __str__(self) -> str:
        return f"not proved: {self.reason}"


class _Differ(ProofError):
    """Nothing more can be rewritten, and the two sides of a goal are not the same."""

    def __init__(self, state: State) -> None:
        also = f", and {owing(state.owed[0])}" if state.owed else ""
        super().__init__(f"the normal forms of the program and the muGraph differ{also}")
        self.forms = (str(state.left), str(state.right))
        self.sized = counts(state.left) or counts(state.right)


@typed
def prove(
    program: KernelGraph,
    mugraph: KernelGraph,
    *,
    seconds: float = 5.0,
    outputs: tuple[int, ...] | None = None,
    properties: Mapping[str, Iterable[str]] = MappingProxyType({}),
    these_sizes: bool = False,
) -> Proof | Unproved:
    """A proof that the muGraph computes what the program does, for all sizes of all parts of its axes.

    Args:
        seconds: what the search for a proof, and its replay, may take.
        outputs: the muGraph's output for each of the program's, as in `Verdict.outputs`; without it, all pairings
            of outputs of the same types are tried.
        properties: what else is known of functions, such as `{"leak": {"homogeneous"}}`. Random numbers are tried on
            them; where these do not refute one, it is taken on the caller's word, and the proof names it.
        these_sizes: whether a proof for the sizes of these graphs is looked for where there is none for all: for those
            of some axes, as where a mean is the sum times a number; or of partitions that do not nest, if the graphs
            are small and no size is known at launch only.

    Raises:
        OptionError: a property that there is none of, one that numbers refute, or no time.
        GraphError: a graph breaks Definition 2.1.
        NamedSizeError: a graph does not compute elements along a size that is known at launch apart from each other.
    """
    known = MappingProxyType({function: frozenset(names) for function, names in properties.items()})
    for name in sorted(frozenset().union(*known.values()) - PROPERTY_NAMES):
        raise OptionError(f"unknown property {name}", hint=f"one of {', '.join(sorted(PROPERTY_NAMES))}")
    if wrong := refuted_property(known, program, mugraph):
        raise OptionError(wrong, hint="from a property that does not hold, anything can be proved")
    if not seconds > 0:
        raise OptionError(f"{seconds} seconds: more than 0")
    tries = _Tries(program, mugraph, known, these_sizes, time.monotonic() + seconds)
    for pairing in _pairings(program, mugraph) if outputs is None else [outputs]:
        tries.read = tries.sized = False
        for attempt in filter(tries.wanted, _attempts(program, mugraph)):
            found = tries.proof(pairing, attempt)
            if found is not None:
                return found
            if time.monotonic() > tries.end:
                return Unproved(f"no proof within {seconds:g} s")
    return tries.failure


@dataclass(frozen=True, slots=True)
class _Attempt:
    """How a proof is looked for: of elements, with constants as they are, with definitions unfolded, by cases, or with
    the extents of parts as numbers."""

    elements: bool = False
    literal: bool = False
    definitions: bool = False
    pieces: bool = False
    extents: bool = False


def _attempts(program: KernelGraph, mugraph: KernelGraph) -> Iterator[_Attempt]:
    """The most general proof first."""
    kinds = {op.kind for graph in (program, mugraph) for op in all_ops(graph)}
    defined = bool(kinds & DEFINED)
    yield _Attempt()
    if defined:
        yield _Attempt(definitions=True)
    if OpKind.CONST in kinds:
        yield _Attempt(literal=True, definitions=defined)
    if kinds & CHOSEN:
        yield _Attempt(literal=True, definitions=True, pieces=True)
    yield _Attempt(literal=True, definitions=defined, extents=True)
    yield _Attempt(elements=True, literal=True, definitions=defined)


@dataclass(slots=True)
class _Tries:
    """What was tried of two graphs: whether terms could be read, whether these ask for extents, and how it ended."""

    program: KernelGraph
    mugraph: KernelGraph
    properties: Properties
    these_sizes: bool
    end: float
    read: bool = False
    sized: bool = False
    failure: Unproved = Unproved("the outputs have other types than the program's")

    def wanted(self, attempt: _Attempt) -> bool:
        """Whether an attempt may find what those before it did not: elements where there are no terms for all sizes, or
        these do not know numbers of elements or how many lie beyond an end."""
        if attempt.pieces:
            return self.failure.forms is not None
        if attempt.extents:
            return self.these_sizes and self.sized
        if attempt.elements:
            ops = [op for graph in (self.program, self.mugraph) for op in all_ops(graph)]
            told = any(op.kind in BY_NUMBER or (isinstance(op.attrs, InIterAttrs) and op.attrs.tile) for op in ops)
            return self.these_sizes and (told or not self.read) and size_of(self.program) is None
        return True

    def proof(self, pairing: tuple[int, ...], attempt: _Attempt) -> Proof | None:
        """A proof, already replayed by the checker; None where there is none, with the reason in `failure`."""
        try:
            return self._elements(pairing, attempt) if attempt.elements else self._terms(pairing, attempt)
        except ProofError as error:
            self.failure = Unproved(error.message, error.forms if isinstance(error, _Differ) else None)
            self.sized |= isinstance(error, _Differ) and error.sized
        except RecursionError:
            self.failure = Unproved("a term that is nested too deeply")
        return None

    def _elements(self, pairing: tuple[int, ...], attempt: _Attempt) -> Proof:
        goals = element_goals(self.program, self.mugraph, pairing)
        proof = Proof(self._shown(goals, attempt), pairing, True, self.properties, these_sizes=True)
        with metered(MAX_WORK):
            check_goals(proof, self.program, goals)
        return proof

    def _terms(self, pairing: tuple[int, ...], attempt: _Attempt) -> Proof:
        extents: Mapping[str, int] = NO_EXTENTS
        if attempt.extents:  # all that are known, then those that were asked for
            first = translate(self.program, self.mugraph, pairing, literal=True)
            extents = fixed_extents(first.scopes)
            translation = translate(self.program, self.mugraph, pairing, literal=True, extents=extents)
            used = _counted(self._shown(translation.goals, attempt))
            extents = {name: extent for name, extent in extents.items() if counted(name, extent) in used}
        translation = translate(self.program, self.mugraph, pairing, literal=attempt.literal, extents=extents)
        self.read = True
        steps = self._shown(translation.goals, attempt)
        proof = Proof(steps, pairing, attempt.literal, self.properties, extents=MappingProxyType(extents))
        with metered(MAX_WORK):
            check_steps(proof, translation)
        return proof

    def _shown(self, goals: tuple[Goal, ...], attempt: _Attempt) -> tuple[Step, ...]:
        """The steps that show the goals. Raises ProofError."""
        states = begun(goals)
        steps = _steps(states, Known(self.properties, attempt.definitions, attempt.pieces), self.end)
        return _needed(states, steps, self.properties, self.end)


def _counted(steps: Iterable[Step]) -> frozenset[str]:
    """The parts whose extents the steps count."""
    replicas = (dict(step.bindings)["V"] for step in steps if step.axiom == "sum_replica")
    return frozenset(sort for indices in replicas if isinstance(indices, tuple) for sort, _ in indices)


def _pairings(program: KernelGraph, mugraph: KernelGraph) -> Iterator[tuple[int, ...]]:
    """For every output of the program one of the muGraph's, of the same type; the first ways to do so."""
    wanted, found = program.output_types, mugraph.output_types

    def longer(chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(chosen) == len(wanted):
            yield chosen
            return
        for other, its_type in enumerate(found):
            if its_type == wanted[len(chosen)] and other not in chosen:
                yield from longer((*chosen, other))

    return itertools.islice(longer(()) if Counter(wanted) == Counter(found) else iter(()), MAX_PAIRINGS)


def _steps(states: tuple[State, ...], known: Known, end: float) -> list[Step]:
    """The steps after which nothing remains to be shown. Raises ProofError."""
    steps: list[Step] = []
    normal: list[_Normal] = [(set(), set()) for _ in states]
    before = _sides(states)
    seen = {before}
    while not all(state.closed for state in states):
        found = _next(states, known, normal)
        if not found:
            raise _failure(next(state for state in states if not state.closed))
        for step in found:
            states = rewritten(states, *equation(step, known.properties))
        steps += found
        sides = _sides(states)
        if sides != before and sides in seen:  # what one side asks for undoes what the other one does
            raise _failure(next(state for state in states if not state.closed))
        seen.add(sides)
        before = sides
        if time.monotonic() > end:
            raise ProofError("out of time")
        nodes = sum(state.left.nodes + state.right.nodes for state in states)
        if len(steps) > MAX_STEPS or nodes > (MAX_PIECES_NODES if known.pieces else MAX_GOAL_NODES):
            raise ProofError("the terms grow too large")
    return steps


def _sides(states: tuple[State, ...]) -> tuple[Term, ...]:
    return tuple(side for state in states for side in (state.left, state.right))


def _failure(state: State) -> ProofError:
    return _Differ(state) if state.left != state.right else ProofError(owing(state.owed[0]))


def _needed(states: tuple[State, ...], steps: list[Step], properties: Properties, end: float) -> tuple[Step, ...]:
    """The steps without those that a proof can do without, such as one that rewrote both sides alike."""
    equations = [equation(step, properties) for step in steps]
    before = [states]
    for step in equations:
        before.append(rewritten(before[-1], *step))
    kept = list(range(len(steps)))
    for number in reversed(range(len(steps))):
        if time.monotonic() > end:
            break
        later = kept[kept.index(number) + 1 :]
        if _closes(before[number], [equations[place] for place in later]):
            kept.remove(number)
    return tuple(steps[number] for number in kept)


def _closes(states: tuple[State, ...], equations: Iterable[tuple[Term, Term, Needs]]) -> bool:
    """Whether nothing remains to be shown after these steps, each of which changes something."""
    try:
        for step in equations:
            before, states = states, applied(states, *step)
            if not any(new.differs(old) for old, new in zip(before, states, strict=True)):
                return False
    except ProofError:
        return False
    return all(state.closed for state in states)


_Normal = tuple[set[Term], set[Term]]
"""Terms that ask for no step: by the rules for maxima, and by those for pieces."""


def _next(states: tuple[State, ...], known: Known, normal: list[_Normal]) -> tuple[Step, ...]:
    """The steps that the innermost term of the first goal that is left asks for, if any; terms in `normal` ask for
    none. What other goals ask for changes nothing of that one."""
    rows = ((state, done) for state, done in zip(states, normal, strict=True) if not state.closed)
    return next((_of_goal(state, replace(known, facts=state.facts), done) for state, done in rows), ())


def _of_goal(state: State, known: Known, normal: _Normal) -> tuple[Step, ...]:
    """The next steps for one goal; signs are those of maxima, before these become pieces."""
    done = normal[known.pieces]
    found = _of_owed(state, known, normal[False]) if known.pieces else ()
    for term in (state.left, state.right) if state.left != state.right else ():
        found = found or _inside(term, known, done)
    for _, term in state.facts.given():
        if not found and (found := _inside(term, known, done)):
            done.clear()  # of what is known in another form, more may follow
    return found or _of_owed(state, known, normal[False])


def _of_owed(state: State, known: Known, done: set[Term]) -> tuple[Step, ...]:
    """The next steps for what the muGraph needs."""
    known = replace(known, pieces=False)
    for need, term in state.owed:
        if found := _inside(term, known, done) or as_largest(known, need, term):
            done.clear()
            return found
    return ()


def _inside(term: Term, known: Known, normal: set[Term]) -> tuple[Step, ...]:
    if term in normal:
        return ()
    found = steps_before(known, term)
    for arg in opened(term)[1] if term.kind in BINDERS else term.args:
        found = found or _inside(arg, known, normal)
    found = found or next_steps(known, term)
    if not found:
        normal.add(term)
    return found
