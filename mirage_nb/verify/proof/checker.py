"""The checker: replays a proof step by step. Nothing here searches, and nothing of the prover is used.

In: a `Proof`, a program, a muGraph, and what the caller assumes. Out: nothing, or a ProofError that names the step.
The terms are built anew from the two graphs and held against the walk of the interpreters (`meaning`). Each step is an
axiom with a term for every letter: its conditions are tested, its left side has to occur in the goals, and is replaced
by its right side wherever it does. In the end both sides of every goal have to be the same term, and whatever the
muGraph needs so that it has a value (a denominator that is not 0, a root of what is not negative) has to hold by its
form or wherever the program has a value. So what `check` accepts holds for all extents of all parts of axes, but for
those whose extents the proof names, in the sense of `domain`. Work and memory are bounded, whatever the proof is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import assert_never

from mirage_nb.errors import AssumptionError, ProofError
from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.verify.defined.domain import Need
from mirage_nb.verify.proof import meaning
from mirage_nb.verify.proof.axes import BY_NUMBER
from mirage_nb.verify.proof.axioms import (
    AXIOMS,
    PROPERTY_NAMES,
    Axiom,
    Bit,
    Has,
    Is,
    Pattern,
    Properties,
    Same,
    Vanishes,
    Whole,
    Without,
    has_property,
)
from mirage_nb.verify.proof.elements import element_goals
from mirage_nb.verify.proof.functions import unfolded
from mirage_nb.verify.proof.picked import as_given
from mirage_nb.verify.proof.properties import refuted_property
from mirage_nb.verify.proof.shrunk import hold_extents, shrunk
from mirage_nb.verify.proof.signs import NO_FACTS, Facts, is_bit, vanishes
from mirage_nb.verify.proof.steps import Binding, Proof, Step
from mirage_nb.verify.proof.terms import (
    BINDERS,
    NODES,
    Kind,
    Term,
    Var,
    bind,
    fn,
    given,
    metered,
    mul,
    num,
    replaced,
    size,
    spend,
)
from mirage_nb.verify.proof.translate import Goal, Needs, Translation, translate

MAX_WORK = 1_000_000
"""What reading the graphs and replaying the steps may take, in units of `metered`; a long proof takes a tenth."""


def check(
    proof: Proof,
    program: KernelGraph,
    mugraph: KernelGraph,
    *,
    assume: Mapping[str, Iterable[str]] = MappingProxyType({}),
) -> None:
    """Raise ProofError, naming the step, unless the proof holds for these two graphs; GraphError if one is not legal,
    NamedSizeError as `prove`.

    Args:
        assume: properties of functions that the caller takes for granted; a proof that says more is refused with an
            AssumptionError.
    """
    for function, names in proof.properties.items():
        if unknown := sorted(names - PROPERTY_NAMES):
            raise ProofError(f"unknown property {unknown[0]}", hint=f"one of {', '.join(sorted(PROPERTY_NAMES))}")
        if missing := sorted(names - frozenset(assume.get(function, ()))):
            raise AssumptionError(
                f"the proof assumes that {function} is {', '.join(missing)}",
                hint=f"if you know that it is: --assume {function}={','.join(missing)}",
            )
    if wrong := refuted_property(proof.properties, program, mugraph):
        raise ProofError(f"the proof rests on a property that does not hold: {wrong}")
    try:
        with metered(MAX_WORK):
            if proof.these_sizes:
                check_goals(proof, program, element_goals(program, mugraph, proof.outputs))
            else:
                outputs, literal, extents = proof.outputs, proof.literal, proof.extents
                check_steps(proof, translate(program, mugraph, outputs, literal=literal, extents=extents))
    except RecursionError:
        raise ProofError("a term that is nested too deeply") from None


def check_steps(proof: Proof, translation: Translation) -> None:
    """Raise ProofError unless the steps of a proof show what there is to be shown, and the terms are what they should.

    The outputs, constants and properties of the proof are those of the translation.
    """
    partial = _shown(proof, translation.goals)
    if proof.extents:
        hold_extents(translation)
    meaning.hold(translation)
    if partial:
        _defined_somewhere(
            translation.graphs[0], lambda: shrunk(as_given(translation, BY_NUMBER - {OpKind.ARANGE}))[1][0]
        )


def check_goals(proof: Proof, program: KernelGraph, goals: Sequence[Goal]) -> None:
    """The same where the goals are elements, which the walk itself has made. Raises ProofError."""
    if _shown(proof, goals):
        _defined_somewhere(program)


def _defined_somewhere(program: KernelGraph, smaller: Callable[[], KernelGraph] | None = None) -> None:
    from mirage_nb.verify.defined.somewhere import defined_somewhere  # exact numbers take long to load

    defined_somewhere(program, smaller)


def _shown(proof: Proof, goals: Sequence[Goal]) -> bool:
    """Replay the steps, which have to show every goal; whether the program may have no value anywhere."""
    states = replay(begun(goals), proof.steps, proof.properties)
    for number, state in enumerate(states):
        if state.left != state.right:
            message = f"after all steps the sides of goal {number} are not the same term"
            raise ProofError(message, hint="of these two it is no proof; it may be one of others")
        for owed in undischarged(state.owed, state.facts):
            raise ProofError(owing(owed))
    return not all(NO_FACTS.holds(need, term) for goal in goals for need, term in goal.given)


def owing(owed: tuple[Need, Term]) -> str:
    """What is said of a muGraph that may have no value where the program has one."""
    need, term = owed
    if need is Need.NONZERO and term.kind is Kind.INV:  # as 1/x is, x is
        term = term.args[0]
    return f"the muGraph may be undefined where the program is not: {shortened(term)} has to be {need.value}"


def shortened(term: Term) -> str:
    """The term for a message."""
    if term.nodes > MAX_SHOWN:
        return f"a term of {term.nodes} nodes"
    return str(term)


MAX_SHOWN = 60


@dataclass(frozen=True, slots=True)
class State:
    """A goal after some steps, what the muGraph still needs, and what is known where the program has a value."""

    left: Term
    right: Term
    owed: Needs
    facts: Facts

    @property
    def closed(self) -> bool:
        """Whether nothing remains to be shown."""
        return self.left == self.right and not undischarged(self.owed, self.facts)

    def after(self, old: Term, new: Term, memo: dict[Term, Term]) -> State:
        """The state with `new` wherever it has `old`."""
        left, right = (replaced(term, old, new, memo) for term in (self.left, self.right))
        facts = self.facts.after(old, new)
        owed = tuple((need, replaced(term, old, new, memo)) for need, term in self.owed)
        return State(left, right, owed if owed == self.owed else undischarged(owed, facts), facts)

    def differs(self, before: State) -> bool:
        """Whether a step has changed anything but what is known."""
        return (self.left, self.right, self.owed) != (before.left, before.right, before.owed)


def begun(goals: Iterable[Goal]) -> tuple[State, ...]:
    """The goals before the first step."""
    found = []
    for goal in goals:
        facts, given = Facts((*goal.given, *goal.always)), frozenset(goal.given)
        owed = tuple(need for need in goal.owed if need not in given)
        found.append(State(goal.left, goal.right, undischarged(owed, facts), facts))
    return tuple(found)


def undischarged(owed: Needs, facts: Facts) -> Needs:
    """What does not hold by its form, and is not known."""
    return tuple((need, term) for need, term in owed if not facts.holds(need, term))


def replay(states: tuple[State, ...], steps: Iterable[Step], properties: Properties) -> tuple[State, ...]:
    """The states after all steps. Raises ProofError for the first step that does not hold."""
    for number, step in enumerate(steps):
        try:
            states = rewritten(states, *equation(step, properties))
        except ProofError as error:
            raise ProofError(f"step {number} ({step.axiom}): {error.message}", hint=error.hint) from error
    return states


def rewritten(states: tuple[State, ...], old: Term, new: Term, needs: Needs = ()) -> tuple[State, ...]:
    """The states with `new` wherever they have `old`, as far as what that needs is known there.

    Raises:
        ProofError: it is known nowhere, or nothing changes.
    """
    made = applied(states, old, new, needs)
    changed = any(after.differs(before) for before, after in zip(states, made, strict=True))
    if not changed and all(
        before.facts.given() == after.facts.given() for before, after in zip(states, made, strict=True)
    ):
        raise ProofError("what it rewrites is not there")
    return made


def applied(states: tuple[State, ...], old: Term, new: Term, needs: Needs) -> tuple[State, ...]:
    """As `rewritten`; the states may be the same."""
    spend(sum(state.left.nodes + state.right.nodes for state in states))
    memo: dict[Term, Term] = {}
    able = [all(state.facts.holds(need, term) for need, term in needs) for state in states]
    if not any(able):
        raise ProofError(f"it is not known that {shortened(needs[0][1])} is {needs[0][0].value}")
    return tuple(state.after(old, new, memo) if able else state for state, able in zip(states, able, strict=True))


def equation(step: Step, properties: Properties) -> tuple[Term, Term, Needs]:
    """What the step replaces by what, and which of its conditions do not hold by the form of a term alone.

    Raises ProofError unless it is an instance of its axiom.
    """
    axiom = AXIOMS.get(step.axiom)
    if axiom is None:
        raise ProofError("no such axiom")
    bindings = dict(step.bindings)
    letters = _letters(axiom.left) | _letters(axiom.right)
    if len(bindings) < len(step.bindings) or bindings.keys() != letters:
        raise ProofError(f"bindings for {', '.join(sorted(bindings))} instead of {', '.join(sorted(letters))}")
    for letter, value in bindings.items():
        _check_binding(letter, value)
    needs = _conditions(axiom, bindings, properties)
    old, new = (axiom.right, axiom.left) if step.backward else (axiom.left, axiom.right)
    return instance(old, bindings), instance(new, bindings), needs


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
    if isinstance(value, tuple) and len(set(value)) < len(value):
        raise ProofError("an index is bound twice")


def _conditions(axiom: Axiom, bindings: Mapping[str, Binding], properties: Properties) -> Needs:
    """Test the conditions of an axiom; those that the form of a term does not meet are left to the facts."""
    left: Needs = ()
    for condition in axiom.conditions:
        match condition:
            case Is(term, need):
                if not NO_FACTS.holds(need, _term(term, bindings)):
                    left += ((need, _term(term, bindings)),)
                continue
            case Without(term, indices):
                held = _term(term, bindings).free.isdisjoint(_list(indices, bindings))
            case Same(first, second):
                held = sorted(_list(first, bindings)) == sorted(_list(second, bindings))
            case Vanishes(term, where):
                held = vanishes(_term(term, bindings), _term(where, bindings))
            case Bit(term):
                held = is_bit(_term(term, bindings))
            case Whole(term):
                whole = _term(term, bindings)
                held = whole.kind is Kind.NUM and whole.data.denominator == 1
            case Has(name):
                held = has_property(_function(bindings), name, properties)
            case _:
                assert_never(condition)
        if not held:
            raise ProofError(f"the condition that {condition} does not hold")
    return left


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
        case "given":
            return given(*(instance(arg, bindings) for arg in args))
        case "g" if args:
            return fn(_function(bindings), *(instance(arg, bindings) for arg in args))
        case "unfolded":
            return unfolded(_function(bindings), *(instance(arg, bindings) for arg in args[1:]))
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
