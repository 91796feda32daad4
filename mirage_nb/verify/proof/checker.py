"""The checker: replays a proof step by step. Nothing here searches, and nothing of the prover is used.

In: a `Proof`, a program and a muGraph. Out: nothing, or a ProofError that names the step. The terms are built anew
from the two graphs; each step is an axiom with a term for every letter. Its conditions are tested, its left side
has to occur in the goals, and is replaced by its right side wherever it does; in the end both sides of every goal
have to be the same term. So what `check` accepts holds for all extents of all parts of axes, wherever the program
and the muGraph are both defined over the reals, under the assumptions that `Proof.assumptions` lists.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from mirage_nb.errors import ProofError
from mirage_nb.ir import KernelGraph
from mirage_nb.verify.proof.axioms import (
    AXIOMS,
    PROPERTY_NAMES,
    Axiom,
    Has,
    Pattern,
    Positive,
    Properties,
    Without,
    has_property,
)
from mirage_nb.verify.proof.properties import refuted_property
from mirage_nb.verify.proof.steps import Binding, Proof, Step
from mirage_nb.verify.proof.terms import (
    BINDERS,
    NODES,
    Kind,
    Term,
    Var,
    bind,
    entry,
    fn,
    mul,
    num,
    positive,
    replaced,
    size,
)
from mirage_nb.verify.proof.translate import Goal, translate


def check(proof: Proof, program: KernelGraph, mugraph: KernelGraph, *, seconds: float = 60.0) -> None:
    """Raise ProofError, naming the step, unless the proof holds for these two graphs; GraphError if one is not legal.

    Args:
        seconds: what the replay may take; a proof of the prover takes a fraction of a second.
    """
    for names in proof.properties.values():
        if unknown := sorted(names - PROPERTY_NAMES):
            raise ProofError(f"unknown property {unknown[0]}", hint=f"one of {', '.join(sorted(PROPERTY_NAMES))}")
    if wrong := refuted_property(proof.properties, program, mugraph):
        raise ProofError(f"the proof rests on a property that does not hold: {wrong}")
    try:
        goals = translate(program, mugraph, proof.outputs, literal=proof.literal)
        goals = replay(goals, proof.steps, proof.properties, seconds)
    except RecursionError:
        raise ProofError("a term that is nested too deeply") from None
    for number, goal in enumerate(goals):
        if goal.left != goal.right:
            raise ProofError(f"after all steps the sides of goal {number} are not the same term")


def replay(
    goals: tuple[Goal, ...], steps: tuple[Step, ...], properties: Properties, seconds: float
) -> tuple[Goal, ...]:
    """The goals after all steps. Raises ProofError for the first step that does not hold."""
    end = time.monotonic() + seconds
    for number, step in enumerate(steps):
        if time.monotonic() > end:
            raise ProofError(f"the first {number} of {len(steps)} steps took more than {seconds:g} s")
        try:
            old, new = equation(step, properties)
            changed = rewritten(goals, old, new)
        except ProofError as error:
            raise ProofError(f"step {number} ({step.axiom}): {error.message}") from error
        if changed == goals:
            raise ProofError(f"step {number} ({step.axiom}): what it rewrites is not there")
        goals = changed
    return goals


def rewritten(goals: tuple[Goal, ...], old: Term, new: Term) -> tuple[Goal, ...]:
    """The goals with `new` wherever they have `old`."""
    memo: dict[Term, Term] = {}
    return tuple(
        replace(goal, left=replaced(goal.left, old, new, memo), right=replaced(goal.right, old, new, memo))
        for goal in goals
    )


def equation(step: Step, properties: Properties) -> tuple[Term, Term]:
    """What the step replaces by what. Raises ProofError unless it is an instance of its axiom."""
    axiom = AXIOMS.get(step.axiom)
    if axiom is None:
        raise ProofError("no such axiom")
    if step.backward and not axiom.reversible:
        raise ProofError("this axiom may not be read backwards")
    bindings = dict(step.bindings)
    letters = _letters(axiom.left) | _letters(axiom.right)
    if len(bindings) < len(step.bindings) or bindings.keys() != letters:
        raise ProofError(f"bindings for {', '.join(sorted(bindings))} instead of {', '.join(sorted(letters))}")
    for letter, value in bindings.items():
        _check_binding(letter, value)
    indices = [var for value in bindings.values() if isinstance(value, tuple) for var in value]
    if len(set(indices)) < len(indices):
        raise ProofError("an index is bound twice")
    _check_conditions(axiom, bindings, properties)
    old, new = (axiom.right, axiom.left) if step.backward else (axiom.left, axiom.right)
    _check_visible(old, new, bindings)
    return instance(old, bindings), instance(new, bindings)


def _letters(pattern: Pattern) -> frozenset[str]:
    """The names in a pattern that an instance binds."""
    own = frozenset({pattern.head}) if len(pattern.head) == 1 else frozenset[str]()
    return own.union(*map(_letters, pattern.args))


def _check_binding(letter: str, value: Binding) -> None:
    wanted = str if letter == "g" else tuple if letter.isupper() else Term
    if not isinstance(value, wanted):
        raise ProofError(f"{letter} is not bound to a {wanted.__name__}")
    if isinstance(value, tuple) and any(number >= 0 for _, number in value):
        raise ProofError(f"{letter} has an index that is not free")


def _check_conditions(axiom: Axiom, bindings: Mapping[str, Binding], properties: Properties) -> None:
    for condition in axiom.conditions:
        match condition:
            case Without(term, indices):
                held = _term(term, bindings).free.isdisjoint(_list(indices, bindings))
            case Positive(term):
                held = positive(_term(term, bindings))
            case Has(name):
                held = has_property(_function(bindings), name, properties)
            case _:
                assert_never(condition)
        if not held:
            raise ProofError(f"the condition that {condition} does not hold")


def _term(letter: str, bindings: Mapping[str, Binding]) -> Term:
    value = bindings[letter]
    assert isinstance(value, Term)
    return value


def _list(letter: str, bindings: Mapping[str, Binding]) -> tuple[Var, ...]:
    value = bindings[letter]
    assert isinstance(value, tuple)
    return value


def _function(bindings: Mapping[str, Binding]) -> str:
    value = bindings["g"]
    assert isinstance(value, str)
    return value


def _check_visible(old: Pattern, new: Pattern, bindings: Mapping[str, Binding]) -> None:
    """What the new side brings in stands in the old side, and has not vanished there as a multiple of 0.

    Else a step could bring in a term that is defined nowhere, such as 1/(x - x).
    """
    for letter in sorted(_letters(new)):
        if isinstance(bindings[letter], Term):
            if MARK not in instance(old, {**bindings, letter: entry("", ((MARK,),))}).free:
                raise ProofError(f"{letter} does not occur in what is rewritten")


MARK: Var = ("", -1)


def instance(pattern: Pattern, bindings: Mapping[str, Binding]) -> Term:
    """The term that a pattern stands for."""
    args = pattern.args
    match pattern.head:
        case Kind.NUM:
            return num(pattern.number)
        case Kind.ADD | Kind.MUL | Kind.TOP | Kind.INV | Kind.EXP | Kind.SQRT as kind:
            return NODES[Kind(kind)](*(instance(arg, bindings) for arg in args))
        case "size":
            return mul(*(size(sort) for sort, _ in indices(args[0], bindings)))
        case "g":
            return fn(_function(bindings), *(instance(arg, bindings) for arg in args))
        case head if head in BINDERS:
            bodies = (instance(arg, bindings) for arg in args[1:])
            return bind(Kind(head), indices(args[0], bindings), *bodies)
        case head if args:
            return fn(head, *(instance(arg, bindings) for arg in args))
        case letter:
            return _term(letter, bindings)


def indices(pattern: Pattern, bindings: Mapping[str, Binding]) -> tuple[Var, ...]:
    """The list of indices that V or V + W stands for."""
    return tuple(var for part in pattern.args or (pattern,) for var in _list(part.head, bindings))
