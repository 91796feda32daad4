"""A proof that was tampered with is rejected; a proof in JSON that was written by anybody does no harm."""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import sys
from collections.abc import Iterator
from fractions import Fraction

import pytest

from mirage_nb.errors import FormatError, MirageError, ProgramSizeError, ProofError
from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.lang import parse
from mirage_nb.verify.proof import Proof, Step, check, prove
from mirage_nb.verify.proof.axioms import AXIOMS
from mirage_nb.verify.proof.checker import equation
from mirage_nb.verify.proof.steps import MAX_STEPS, MAX_TERMS, Binding
from mirage_nb.verify.proof.terms import Kind, Term, add, bind, entry, exp, fn, inv, mul, neg, num, sym
from tests import mugraphs
from tests.mugraphs import Kernel
from tests.verify.test_proof_targets import BUILT

CASES = {
    "rmsnorm": mugraphs.rmsnorm,
    "attention_safe": mugraphs.attention_safe,
    "flash_decoding": mugraphs.flash_decoding,
    "qknorm": mugraphs.qknorm,
}


@functools.lru_cache
def proven(name: str) -> tuple[Proof, KernelGraph, KernelGraph]:
    if name in CASES:
        case = CASES[name]()
        program, mugraph = case.program, case.candidate
    else:
        program, mugraph = (make() for make in BUILT[name])
    proof = prove(program, mugraph)
    assert isinstance(proof, Proof)
    return proof, program, mugraph


def with_step(proof: Proof, number: int, step: Step) -> Proof:
    return dataclasses.replace(proof, steps=(*proof.steps[:number], step, *proof.steps[number + 1 :]))


def changed_bindings(proof: Proof, step: Step) -> Iterator[Step]:
    """The step with one letter bound to something else."""
    others: dict[type, list[Binding]] = {Term: [num(2), sym("c0", positive=True)], tuple: [()], str: ["f"]}
    for other in proof.steps:
        for _, value in other.bindings:
            others[type(value)].append(value)
    for place, (letter, value) in enumerate(step.bindings):
        for kind, pool in others.items():
            for found in pool:
                if found != value and (kind is type(value) or found is pool[0]):
                    bound = (*step.bindings[:place], (letter, found), *step.bindings[place + 1 :])
                    yield dataclasses.replace(step, bindings=bound)


def same_equation(change: Step, step: Step) -> bool:
    try:
        return equation(change, {})[:2] == equation(step, {})[:2]
    except ProofError:
        return False


@pytest.mark.parametrize("name", [*CASES, "lora_concat"])
def test_any_changed_field_of_any_step_is_rejected(name: str):
    """Axioms, directions and bindings exchanged for every other one that the proof has: nothing passes."""
    proof, program, mugraph = proven(name)
    rng = random.Random(name)
    tried = 0
    for number, step in enumerate(proof.steps):
        changes = [dataclasses.replace(step, axiom=axiom) for axiom in AXIOMS if axiom != step.axiom]
        changes.append(dataclasses.replace(step, backward=not step.backward))
        bound = list(changed_bindings(proof, step))
        for change in rng.sample(changes, 2) + rng.sample(bound, 2):
            if same_equation(change, step):
                continue  # c for -c in 1 * c + -1 * c, in other words
            try:
                check(with_step(proof, number, change), program, mugraph)
            except ProofError:
                tried += 1
            else:  # what one side of a goal is rewritten to, the other side may be
                assert same_equation(dataclasses.replace(change, backward=step.backward), step)
    assert tried >= 3.8 * len(proof.steps)


def test_a_case_is_no_case_of_what_a_binder_binds():
    """Whether one element is at least 0 says nothing of the others, whatever an index of a sum is called."""
    program, squared = (
        parse(f"X: f32[4]\nS = sum(step(X), axis=0, keepdims=True)\nreturn {text}").graph
        for text in ("S + 0 * X[:1]", "S * S / sum(X - X + 1, axis=0, keepdims=True) + 0 * X[:1]")
    )
    k = ("X.0", -1000)
    one = fn("step", entry("X", (((k),),)))
    whole = bind(Kind.SUM, (k,), one)
    for case in (one, fn("step", entry("X", ((("X.0", -1001),),)))):
        old, new, _ = equation(Step("by_cases", (("a", case), ("f", whole))), {})
        assert (old, new) == (whole, add(mul(case, whole), mul(add(num(1), neg(case)), whole)))
    inside = mul(one, whole)
    new = equation(Step("by_cases", (("a", one), ("f", inside))), {})[1]
    assert new == add(mul(one, whole), mul(add(num(1), neg(one)), num(0)))
    assert not isinstance(prove(program, squared), Proof)


@pytest.mark.parametrize("name", ["attention_safe", "qknorm", "lora_concat"])
def test_a_step_more_or_less_is_rejected(name: str):
    proof, program, mugraph = proven(name)
    for number, step in enumerate(proof.steps):
        twice = dataclasses.replace(proof, steps=(*proof.steps[:number], step, *proof.steps[number:]))
        with pytest.raises(ProofError):
            check(twice, program, mugraph)
        without = dataclasses.replace(proof, steps=(*proof.steps[:number], *proof.steps[number + 1 :]))
        with pytest.raises(ProofError):
            check(without, program, mugraph)


def test_what_is_around_the_steps_counts():
    proof, program, mugraph = proven("attention_safe")
    for outputs in ((), (1,), (0, 0), (-1,)):
        with pytest.raises(ProofError):
            check(dataclasses.replace(proof, outputs=outputs), program, mugraph)
    with pytest.raises(ProofError):
        check(proof, program, mugraphs.attention_safe(2, 4, 4, 16).candidate)
    with pytest.raises(ProofError, match="unknown property"):
        check(dataclasses.replace(proof, properties={"f": frozenset({"nice"})}), program, mugraph)


def test_the_proof_of_one_muGraph_is_none_of_a_wrong_one():
    proof, program, _ = proven("qknorm")
    with pytest.raises(ProofError):
        check(proof, program, mugraphs.qknorm_wrong().candidate)


def doubled() -> tuple[KernelGraph, KernelGraph]:
    """x and 2 * x: whoever proves these equal has broken the checker."""
    k = Kernel(X=(2, 3))
    same = k.returning(k.op(OpKind.ADD, 0, k.const(0)))
    k = Kernel(X=(2, 3))
    return same, k.returning(k.op(OpKind.ADD, 0, 0))


X = entry("X", ((("X.0", -1),), (("X.1", -2),)))
ZERO = add(X, mul(num(-1), X))
FORGERIES = {
    "cancelling a zero": [("inv_cancel", {"a": num(0), "r": X}, False)],
    "bringing in a quotient": [("inv_cancel", {"a": ZERO, "r": X}, True)],
    "bringing in a difference": [("distribute", {"a": num(1), "b": num(-1), "c": mul(ZERO, inv(ZERO)), "r": X}, False)],
    "bringing in an exponential": [("exp_add", {"a": inv(ZERO), "b": num(0), "r": num(0)}, True)],
    "a root of a square": [("sqrt_square", {"a": X, "r": num(1)}, True)],
    "a sum over nothing": [("sum_replica", {"V": (), "W": (), "f": X}, False)],
    "a replica that is used": [("sum_replica", {"V": (("X.1", -2),), "W": (), "f": X}, False)],
    "an axiom of one's own": [("double", {"a": X}, False)],
    "letters too many": [("inv_inv", {"a": X, "z": X}, False)],
    "letters too few": [("distribute", {"a": X}, False)],
    "an index for a term": [("inv_inv", {"a": (("X.0", -1),)}, False)],
    "a bound index": [("sum_replica", {"V": (("X.0", 0),), "W": (), "f": X}, False)],
    "the same index twice": [("sum_partition", {"V": (("k", -9),), "W": (("k", -9),), "a": num(1), "f": X}, False)],
    "a function of one's own": [("linear", {"g": "f", "c": num(2), "a": X}, False)],
    "nothing": [],
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forgeries(name: str):
    steps = tuple(Step(axiom, tuple(sorted(letters.items())), back) for axiom, letters, back in FORGERIES[name])
    with pytest.raises(ProofError):
        check(Proof(steps), *doubled())


def test_capture_is_impossible():
    """The free index of an argument stays free under a binder of that name."""
    one = ("k", -1)
    inner = bind(Kind.SUM, (one,), mul(entry("X", ((one,),)), entry("Y", ((one,),))))
    outer = bind(Kind.SUM, (one,), mul(entry("Y", ((one,),)), inner))
    assert inner.free == outer.free == frozenset()
    assert outer.bound["k"] == 1
    free = bind(Kind.SUM, (one,), mul(entry("X", ((one,),)), entry("Y", ((("k", -2),),))))
    assert free.free == {("k", -2)}
    assert bind(Kind.SUM, (("k", -2),), free) == bind(
        Kind.SUM, (one,), bind(Kind.SUM, (("k", -3),), mul(entry("X", ((("k", -3),),)), entry("Y", ((one,),))))
    )


def test_text_names_steps_axioms_and_assumptions():
    proof, _, _ = proven("attention_safe")
    text = str(proof)
    assert f"{len(proof.steps)} steps" in text and "for all sizes" in text
    for axiom in proof.axioms:
        assert f"{axiom}:" in text or f"{axiom} read backwards:" in text
    for assumption in proof.assumptions:
        assert assumption in text
    assert "c0" in text and "Sum[" in text


def plain(name: str = "attention_safe"):
    return json.loads(proven(name)[0].to_json())


SIDES = functools.reduce(lambda inner, _: [["L", inner]], range(99), [])
HOSTILE = {
    "no JSON": lambda p: "{",
    "nested": lambda p: "[" * 100_000,
    "a list": lambda p: [],
    "another schema": lambda p: p | {"schema": "mugraph"},
    "another version": lambda p: p | {"version": 2},
    "a flag as version": lambda p: p | {"version": True},
    "a key more": lambda p: p | {"x": 1},
    "no steps": lambda p: {key: p[key] for key in p if key != "steps"},
    "a step that is none": lambda p: p | {"steps": [5]},
    "a flag that is none": lambda p: p | {"literal": 1},
    "outputs that are none": lambda p: p | {"outputs": ["0"]},
    "a huge output": lambda p: p | {"outputs": [2**70]},
    "properties that are none": lambda p: p | {"properties": {"f": "odd"}},
    "too many steps": lambda p: p | {"steps": [0] * (MAX_STEPS + 1)},
    "too many terms": lambda p: p | {"terms": [["num", "1"]] * (MAX_TERMS + 1)},
    "a term of itself": lambda p: p | {"terms": [["exp", None, 0]]},
    "a term of a later one": lambda p: p | {"terms": [["exp", None, 1], ["num", "1"]]},
    "a term before all": lambda p: p | {"terms": [["num", "1"], ["exp", None, -1]]},
    "no term": lambda p: p | {"terms": [["num"]]},
    "an unknown term": lambda p: p | {"terms": [["log", None]]},
    "a kind that is none": lambda p: p | {"terms": [[["num"], "1"]]},
    "a numeral over zero": lambda p: p | {"terms": [["num", "1/0"]]},
    "a long numeral": lambda p: p | {"terms": [["num", "9" * 5000]]},
    "a numeral that is none": lambda p: p | {"terms": [["num", 1.5]]},
    "parts of a numeral": lambda p: p | {"terms": [["num", "1"], ["num", "1", 0]]},
    "a sum of one": lambda p: p | {"terms": [["num", "1"], ["add", None, 0]]},
    "a largest of one": lambda p: p | {"terms": [["num", "1"], ["max", None, 0]]},
    "data beside a sum": lambda p: p | {"terms": [["num", "1"], ["add", 7, 0, 0]]},
    "a bound index": lambda p: p | {"terms": [["num", "1"], ["Sum", [["k", 0]], 0]]},
    "an index twice": lambda p: p | {"terms": [["num", "1"], ["Sum", [["k", -1], ["k", -1]], 0]]},
    "many ties": lambda p: p | {"terms": [["num", "1"], ["Sum", [["k", -1 - i] for i in range(20)], 0]]},
    "an index of three": lambda p: p | {"terms": [["in", ["X", [[["k", -1, 2]]]]]]},
    "a side that is none": lambda p: p | {"terms": [["in", ["X", [[["M", []]]]]]]},
    "sides in sides": lambda p: p | {"terms": [["in", ["X", [SIDES]]]]},
    "a long name": lambda p: p | {"terms": [["sym", ["c" * 5000, True]]]},
    "a sign that is none": lambda p: p | {"terms": [["sym", ["c", 1]]]},
    "a deep term": lambda p: p | {"terms": [["num", "2"], *[["inv", None, i] for i in range(1, 5000)]]},
    "a doubling term": lambda p: p | {"terms": [["sym", ["c", True]], *[["mul", None, i, i] for i in range(60)]]},
    "a doubling tree": lambda p: p | {"terms": [["sym", ["c", True]], *[["fn", "f", i, i] for i in range(60)]]},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_json(name: str):
    """Bounded work, and a clear refusal, for whatever is not a proof."""
    made = HOSTILE[name](plain())
    with pytest.raises((FormatError, ProgramSizeError)) as caught:
        Proof.from_json(made if isinstance(made, str) else json.dumps(made))
    assert len(str(caught.value)) < 600


def mutated(rng: random.Random, value, depth: int = 0):
    """The JSON value with one place in it changed."""
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        return value | {key: mutated(rng, value[key], depth + 1)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], mutated(rng, value[at], depth + 1), *value[at + 1 :]]
    return rng.choice([None, True, 0, 1, -1, 7, 2**40, "", "k", "num", "1/2", [], {}, [["k", -1]], value])


@pytest.mark.parametrize("seed", range(4))
def test_mutated_json(seed: int):
    """A change anywhere in the file is refused when it is read or when it is checked, or changes nothing."""
    proof, program, mugraph = proven("attention_safe")
    rng = random.Random(seed)
    original = plain()
    for _ in range(60):
        text = json.dumps(mutated(rng, original))
        try:
            found = Proof.from_json(text)
        except MirageError:
            continue
        if dataclasses.replace(found, literal=False) != proof:  # which constants are meant is a weaker claim, and true
            with pytest.raises(ProofError):
                check(found, program, mugraph)


def test_json_says_the_same_in_every_run():
    proof, _, _ = proven("flash_decoding")
    assert prove(*proven("flash_decoding")[1:]).to_json() == proof.to_json()
    assert len(proof.to_json()) < 50_000


def test_recursion_is_no_crash():
    k = Kernel(X=(2, 3))
    value = 0
    for _ in range(90):
        value = k.op(OpKind.EXP, k.op(OpKind.MUL, value, value)) if value == 0 else k.op(OpKind.EXP, value)
    deep = k.returning(value)
    other = k.returning(k.op(OpKind.ADD, value, 0))
    found = prove(deep, deep)
    assert isinstance(found, Proof)
    limit = sys.getrecursionlimit()
    assert not isinstance(prove(deep, other), Proof)
    assert sys.getrecursionlimit() == limit


def test_numerals_are_exact():
    third = num(Fraction(1, 3))
    assert mul(third, num(3)) == num(1)
    assert exp(num(0)) == num(1)
