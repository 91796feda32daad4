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
from dataclasses import dataclass
from types import MappingProxyType

from mirage_nb.errors import OptionError, ProofError
from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.verify.lax import all_ops
from mirage_nb.verify.proof.axioms import PROPERTY_NAMES, Properties
from mirage_nb.verify.proof.checker import check, equation, replay, rewritten
from mirage_nb.verify.proof.properties import refuted_property
from mirage_nb.verify.proof.rules import Rules
from mirage_nb.verify.proof.steps import MAX_STEPS, Proof, Step
from mirage_nb.verify.proof.terms import BINDERS, Term, opened
from mirage_nb.verify.proof.translate import Goal, translate

MAX_PAIRINGS = 24
MAX_GOAL_NODES = 20_000


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

    def __init__(self, goal: Goal) -> None:
        super().__init__("the normal forms of the program and the muGraph differ")
        self.forms = (str(goal.left), str(goal.right))


def prove(
    program: KernelGraph,
    mugraph: KernelGraph,
    *,
    seconds: float = 5.0,
    outputs: tuple[int, ...] | None = None,
    properties: Mapping[str, Iterable[str]] = MappingProxyType({}),
) -> Proof | Unproved:
    """A proof that the muGraph computes what the program does, for all sizes of all parts of its axes.

    Args:
        seconds: what the search for a proof, and its replay, may take.
        outputs: the muGraph's output for each of the program's, as in `Verdict.outputs`; without it, all pairings
            of outputs of the same types are tried.
        properties: what else is known of functions, such as `{"leak": {"homogeneous"}}`. Random numbers are tried on
            them; where these do not refute one, it is taken on the caller's word, and the proof names it.

    Raises:
        OptionError: a property that there is none of, one that numbers refute, or no time.
        GraphError: a graph breaks Definition 2.1.
    """
    known = MappingProxyType({function: frozenset(names) for function, names in properties.items()})
    for name in sorted(frozenset().union(*known.values()) - PROPERTY_NAMES):
        raise OptionError(f"unknown property {name}", hint=f"one of {', '.join(sorted(PROPERTY_NAMES))}")
    if wrong := refuted_property(known, program, mugraph):
        raise OptionError(wrong, hint="from a property that does not hold, anything can be proved")
    if not seconds > 0:
        raise OptionError(f"{seconds} seconds: more than 0")
    end = time.monotonic() + seconds
    failure = Unproved("the outputs have other types than the program's")
    for pairing in _pairings(program, mugraph) if outputs is None else [outputs]:
        for literal, definitions in _attempts(program, mugraph):
            try:
                goals = translate(program, mugraph, pairing, literal=literal)
                steps = _needed(goals, _steps(goals, Rules(known, definitions), end), known, end)
                proof = Proof(steps, pairing, literal, known)
                check(proof, program, mugraph, seconds=max(1.0, end - time.monotonic()))
            except ProofError as error:
                failure = Unproved(error.message, error.forms if isinstance(error, _Differ) else None)
            except RecursionError:
                failure = Unproved("a term that is nested too deeply")
            else:
                return proof
            if time.monotonic() > end:
                return Unproved(f"no proof within {seconds:g} s")
    return failure


def _attempts(program: KernelGraph, mugraph: KernelGraph) -> Iterator[tuple[bool, bool]]:
    """Whether constants are meant literally, and whether definitions are unfolded: the most general proof first."""
    kinds = {op.kind for graph in (program, mugraph) for op in all_ops(graph)}
    defined = bool(kinds & {OpKind.SILU, OpKind.SIGMOID})
    yield False, False
    if defined:
        yield False, True
    if OpKind.CONST in kinds:
        yield True, defined


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


def _steps(goals: tuple[Goal, ...], rules: Rules, end: float) -> list[Step]:
    """The steps after which both sides are the same. Raises ProofError."""
    steps: list[Step] = []
    normal: set[Term] = set()
    while any(goal.left != goal.right for goal in goals):
        step = _next(goals, rules, normal)
        if step is None:
            raise _Differ(next(goal for goal in goals if goal.left != goal.right))
        goals = rewritten(goals, *equation(step, rules.properties))
        steps.append(step)
        if time.monotonic() > end:
            raise ProofError("out of time")
        if len(steps) > MAX_STEPS or sum(goal.left.nodes + goal.right.nodes for goal in goals) > MAX_GOAL_NODES:
            raise ProofError("the terms grow too large")
    return steps


def _needed(goals: tuple[Goal, ...], steps: list[Step], properties: Properties, end: float) -> tuple[Step, ...]:
    """The steps without those that a proof can do without, such as one that rewrote both sides alike."""
    before = [goals]
    for step in steps:
        before.append(rewritten(before[-1], *equation(step, properties)))
    for number in reversed(range(len(steps))):
        if time.monotonic() > end:
            break
        later = steps[number + 1 :]
        try:
            done = replay(before[number], tuple(later), properties, end - time.monotonic())
        except ProofError:
            continue
        if all(goal.left == goal.right for goal in done):
            steps = [*steps[:number], *later]
    return tuple(steps)


def _next(goals: tuple[Goal, ...], rules: Rules, normal: set[Term]) -> Step | None:
    """The step that the innermost term asks for; terms in `normal` ask for none."""
    for goal in goals:
        if goal.left != goal.right:
            found = _inside(goal.left, rules, normal) or _inside(goal.right, rules, normal)
            if found is not None:
                return found
    return None


def _inside(term: Term, rules: Rules, normal: set[Term]) -> Step | None:
    if term in normal:
        return None
    args = opened(term)[1] if term.kind in BINDERS else term.args
    for arg in args:
        found = _inside(arg, rules, normal)
        if found is not None:
            return found
    step = rules.step(term)
    if step is None:
        normal.add(term)
    return step
