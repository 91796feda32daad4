"""Properties that a user states: right ones are taken, wrong ones are refuted by numbers, and verdicts name them."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType

import pytest

from mirage_nb.__main__ import main
from mirage_nb.errors import OptionError, ProofError
from mirage_nb.ir import ApplyAttrs, ClampAttrs, DimAttrs, KernelGraph, OpKind, PowAttrs
from mirage_nb.verify import Proof, VerdictKind, check, prove, verify_and_prove
from mirage_nb.verify.proof.axioms import PROPERTIES, PROPERTY_NAMES
from mirage_nb.verify.proof.properties import LAWS, refuted_property
from tests.mugraphs import Kernel

HAS = {
    "x / 3": {"linear", "odd", "homogeneous", "monotone"},
    "-x": {"linear", "odd", "homogeneous"},
    "abs(x)": {"even", "homogeneous", "idempotent", "multiplicative"},
    "maximum(x, 1/10 * x)": {"homogeneous", "monotone"},
    "tanh(x)": {"odd", "monotone"},
    "x * x": {"even", "multiplicative"},
    "x * x * x": {"odd", "monotone", "multiplicative"},
    "minimum(maximum(x, 0), 1)": {"idempotent", "monotone"},
    "x + 1": {"monotone"},
    "exp(x)": {"monotone"},
    "x * sigmoid(x)": set(),
    "sin(x)": {"odd"},
    "cos(x)": {"even"},
}


LINEAR = "2 * x * (atan(exp(x)) + atan(exp(-x)))"
"""Linear, which no axiom says."""


def applied(kind: OpKind, attrs: object = None) -> KernelGraph:
    k = Kernel(X=(4, 6))
    return k.returning(k.op(kind, 0, attrs=attrs))


@pytest.mark.parametrize("formula", HAS)
def test_numbers_know_which_properties_hold(formula: str):
    graph = applied(OpKind.APPLY, ApplyAttrs("f", formula))
    found = {name for name in PROPERTY_NAMES if not refuted_property({"f": frozenset({name})}, graph)}
    assert found == HAS[formula]


def test_every_property_has_a_law():
    assert set(LAWS) == PROPERTY_NAMES


def test_the_tables_own_properties_stand():
    ops = {"ReLU": None, "Sigmoid": None, "Clamp": ClampAttrs(Fraction(-1), Fraction(1, 3))}
    for function, names in ((f, names) for f, names in PROPERTIES.items() if f in ops):
        assert not refuted_property({function: names}, applied(OpKind(function), ops[function]))
    assert refuted_property({"ReLU": frozenset({"linear"})}, applied(OpKind.RELU)).startswith("ReLU is not linear: ")
    cube = applied(OpKind.POW, PowAttrs(Fraction(3)))
    assert refuted_property({"Pow": frozenset({"even"})}, cube)
    assert not refuted_property({"Pow(exponent=3)": frozenset({"odd"}), "other": frozenset({"linear"})}, cube)


def sums(name: str, formula: str) -> tuple[KernelGraph, KernelGraph]:
    """f(sum x) and sum(f x)."""
    made = []
    for first in (True, False):
        k = Kernel(X=(4, 6))
        value = 0
        for kind in (OpKind.SUM, OpKind.APPLY) if first else (OpKind.APPLY, OpKind.SUM):
            value = k.op(kind, value, attrs=DimAttrs(1) if kind is OpKind.SUM else ApplyAttrs(name, formula))
        made.append(k.returning(value))
    return made[0], made[1]


def test_a_wrong_property_proves_nothing():
    """f(sum x) = sum(f x) for a linear f; tanh is none, and neither prover nor checker take it for one."""
    program, mugraph = sums("squash", "tanh(x)")
    with pytest.raises(OptionError, match="squash is not linear") as caught:
        prove(program, mugraph, properties={"squash": {"linear"}})
    assert "fails at a = " in str(caught.value)
    verdict, none = verify_and_prove(program, mugraph, properties={"squash": {"linear"}})
    assert verdict.kind is VerdictKind.REFUTED and none is None
    said = {"squash": frozenset({"linear"})}
    right = prove(*sums("squash", LINEAR), properties=said)
    assert isinstance(right, Proof)
    with pytest.raises(ProofError, match="does not hold"):
        check(right, program, mugraph, assume=said)
    said = MappingProxyType({"squash": frozenset({"linear", "even"})})
    smuggled = dataclasses.replace(right, properties=said)
    with pytest.raises(ProofError, match="squash is not even"):
        check(smuggled, *sums("squash", LINEAR), assume=said)


def test_a_verdict_names_what_is_taken_on_a_users_word():
    program, mugraph = sums("scaled", LINEAR)
    plain, none = verify_and_prove(program, mugraph)
    assert none is None and plain.kind is not VerdictKind.PROVED
    verdict, proof = verify_and_prove(program, mugraph, properties={"scaled": ["linear"]})
    assert verdict.kind is VerdictKind.PROVED and proof is not None and proof.said == ("scaled is linear",)
    assert "on the user's word, tried on random numbers: scaled is linear" in verdict.note


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    names = []
    for name, body in (("a", "f(sum(X, -1))"), ("b", "sum(f(X), -1)")):
        names.append(str(tmp_path / name))
        Path(names[-1]).write_text(f"def f(x): return {LINEAR}\nX: f32[4, 6]\nreturn {body}\n")
    assert main(["verify", *names, "--prove"]) == 2
    assert main(["verify", *names, "--prove", "--assume", "f=linear,odd"]) == 0
    assert "f is linear, odd" in capsys.readouterr().out
    assert main(["verify", *names, "--prove", "--assume", "f=even"]) == 2
    assert "f is not even" in capsys.readouterr().err
    kept = str(tmp_path / "proof.json")
    assert main(["verify", *names, "--proof", kept, "--assume", "f=linear"]) == 0
    assert main(["verify", *names, "--check", kept]) == 1
    assert "assumes that f is linear" in capsys.readouterr().err
    assert main(["verify", *names, "--check", kept, "--assume", "g=linear", "--assume", "f=odd"]) == 1
    assert main(["verify", *names, "--check", kept, "--assume", "g=linear", "--assume", "f=linear"]) == 0
    for wrong in ("f", "f=", "=odd", "f=smooth"):
        assert main(["verify", *names, "--prove", "--assume", wrong]) == 2
