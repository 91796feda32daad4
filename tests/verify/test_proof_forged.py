"""Proofs made to have a wrong muGraph accepted, most of them out of two things that are right by themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from mirage_nb.errors import AssumptionError, ProofError
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import parse
from mirage_nb.verify.proof import Proof, Step, Unproved, check, prove
from mirage_nb.verify.proof.checker import equation
from mirage_nb.verify.proof.steps import Binding
from mirage_nb.verify.proof.terms import Kind, add, bind, entry, fn, inv, mul, num, sqrt
from tests.mugraphs import Kernel

HEAD = "X: f32[4, 6]\nY: f32[4, 6]\n"


def graph(body: str, head: str = "") -> KernelGraph:
    return parse(f"{head}{HEAD}{body}").graph


def refused(program: KernelGraph, candidate: KernelGraph, *steps: tuple[str, Mapping[str, Binding], bool]) -> None:
    """Neither proved, nor by these steps."""
    assert isinstance(prove(program, candidate), Unproved)
    made = tuple(Step(axiom, tuple(sorted(bindings.items())), backward) for axiom, bindings, backward in steps)
    with pytest.raises(ProofError):
        check(Proof(made, tuple(range(len(program.outputs)))), program, candidate)


def element(name: str, *sorts: str) -> object:
    return entry(name, tuple(((sort, -1 - place),) for place, sort in enumerate(sorts)))


X, Y = (element(name, "X.0", "X.1") for name in "XY")
TWICE = mul(num(2), Y)


def test_what_one_output_divides_by_says_nothing_of_another():
    program, candidate = graph("return Y/X, 2*Y"), graph("return Y/X, 2*Y*X/X")
    refused(program, candidate, ("inv_cancel", {"a": X, "r": TWICE}, False))


def test_what_one_part_of_a_concatenation_divides_by_says_nothing_of_the_other():
    program, candidate = (graph(f"return concat(Y/X, {other}, axis=0)") for other in ("2*Y", "2*Y*X/X"))
    refused(program, candidate, ("inv_cancel", {"a": X, "r": TWICE}, False))


def test_what_one_row_divides_by_says_nothing_of_a_transposed_one():
    head = "X: f32[4, 4]\nY: f32[4, 4]\n"
    program, candidate = (parse(f"{head}return {body}").graph for body in ("Y/X", "Y/X + 0/transpose(X, 1, 0)"))
    refused(program, candidate)


def test_a_quotient_is_not_cancelled_inside_of_a_sum():
    """For all elements of a row, where only the sum of the row is known not to be 0."""
    total = "sum(X, axis=1, keepdims=True)"
    refused(graph(f"return 2*Y/{total}"), graph(f"return 2*Y/{total} + 0*sum(X/X, axis=1, keepdims=True)"))


def test_a_root_and_a_quotient():
    """The root of x needs x >= 0, and the quotient by it x > 0."""
    refused(graph("return sqrt(X)"), graph("return X/sqrt(X)"), ("root_quotient", {"a": X, "r": num(1)}, False))


def test_what_is_brought_in_backwards_is_gone_but_not_forgotten():
    """2 y = 2 y x / x needs no x that is not 0 as terms; the muGraph divides by it all the same."""
    refused(graph("return 2*Y"), graph("return 2*Y*X/X"), ("inv_cancel", {"a": X, "r": TWICE}, True))
    refused(graph("return 2*Y"), graph("return 2*Y*X/X"), ("inv_cancel", {"a": X, "r": TWICE}, False))


def test_zero_over_zero_is_zero_for_terms_only():
    """0 * (1/0) is 0 by construction: the program has to have a value somewhere."""
    refused(graph("return X*0/(Y-Y)"), graph("return Y*0/(Y-Y)"))


def test_a_partial_function_has_no_property_whoever_says_so():
    """sqrt(x y) = sqrt(x) sqrt(y) where both have values, and not where both are negative."""
    head = "def f(x): return sqrt(x)\n"
    program, candidate = graph("return f(X*Y)", head), graph("return f(X)*f(Y)", head)
    said = {"f": frozenset({"multiplicative"})}
    assert isinstance(prove(program, candidate, properties=said), Unproved)
    name = "@f(formula=sqrt(x))"
    steps = (Step("multiplicative", (("a", X), ("b", Y), ("g", name))),)
    with pytest.raises(ProofError):
        check(Proof(steps, properties=MappingProxyType(said)), program, candidate, assume=said)
    for partial in ("log", "Pow"):
        with pytest.raises(ProofError, match="condition"):
            equation(Step("odd", (("a", X), ("g", partial))), {partial: frozenset({"odd"})})


def test_a_property_of_another_name():
    """Said of f, and smuggled in under its whole name; and the other way round."""
    head = "def f(x): return x * (atan(exp(x)) + atan(exp(-x)))\n"
    program, candidate = graph("return f(sum(X, axis=1))", head), graph("return sum(f(X), axis=1)", head)
    proof = prove(program, candidate, properties={"f": {"linear"}})
    assert isinstance(proof, Proof)
    (function,) = {value for step in proof.steps for letter, value in step.bindings if letter == "g"}
    for said in ({str(function): frozenset({"linear"})}, {"f": frozenset({"linear", "odd"})}):
        with pytest.raises(AssumptionError):
            check(
                dataclasses.replace(proof, properties=MappingProxyType(said)),
                program,
                candidate,
                assume={"f": ["linear"]},
            )
    with pytest.raises(ProofError, match="condition"):
        check(dataclasses.replace(proof, properties=MappingProxyType({})), program, candidate, assume={"f": ["linear"]})


def test_a_definition_of_another_function():
    head = "def f(x): return 2 * x\n"
    program, candidate = graph("return f(X)", head), graph("return 3*X", "")
    for name in ("@f(formula=3 * x)", "@f(formula=2 * x)(formula=3 * x)", "ReLU", "f"):
        refused(program, candidate, ("definition", {"g": name, "a": X}, False))


def test_a_functions_name_that_looks_like_a_formula():
    """A function called f(formula=x), which is 2 x: its definition is the last one in its name."""
    from mirage_nb.ir import ApplyAttrs, OpKind

    k = Kernel(X=(4, 6))
    program = k.returning(k.op(OpKind.APPLY, 0, attrs=ApplyAttrs("f(formula=x)", "2 * x")))
    k = Kernel(X=(4, 6))
    same = k.returning(k.op(OpKind.MUL, 0, k.const(1)))
    refused(program, same, ("definition", {"g": "@f(formula=x)", "a": X}, False))
    k = Kernel(X=(4, 6))
    assert isinstance(prove(program, k.returning(k.op(OpKind.ADD, 0, 0))), Proof)


def test_an_order_that_is_none():
    """Indices exchanged for others, or one of them twice, with a sum around that hides it."""
    k, m = ("k", -1001), ("k", -1002)
    body = entry("Z", ((k,), (m,)))
    assert equation(Step("sum_order", (("V", (k, m)), ("W", (m, k)), ("f", body))), {})
    for other in ((k, ("k", -1003)), (k,), (k, k), (k, ("l", -1002)), ()):
        with pytest.raises(ProofError):
            equation(Step("sum_order", (("V", (k, m)), ("W", other), ("f", body))), {})


def test_indices_that_are_captured():
    """A sum moved into another that binds an index of its factor; a maximum of what depends on it."""
    k = ("X.1", -1000)
    row = entry("X", ((("X.0", -1),), (k,)))
    total = bind(Kind.SUM, (k,), row)
    for axiom, bindings in {
        "sum_partition": {"V": (("Y.0", -1000),), "W": (k,), "a": row, "f": row},
        "sum_product": {"V": (k,), "W": (("Y.0", -1000),), "f": row, "h": row},
        "sum_replica": {"V": (k,), "W": (), "f": row},
        "max_shift": {"V": (k,), "a": total, "c": row},
        "max_scale": {"V": (k,), "a": total, "c": mul(row, row)},
    }.items():
        with pytest.raises(ProofError, match="condition"):
            equation(Step(axiom, tuple(sorted(bindings.items()))), {})


@pytest.mark.parametrize(
    ("program", "candidate"),
    [
        ("relu(-3*X)", "-3*relu(X)"),
        ("3*X + 5*Y", "5*X + 3*Y"),
        ("sqrt(3*X)", "sqrt(5*X)*sqrt(3/5) + 0*sqrt(-X)"),
        ("max(-3*X, axis=1)", "-3*max(X, axis=1)"),
        ("clamp(X, -1, 1)", "-clamp(X, -1, 1)"),
        ("clamp(X*Y, 0, 6)", "clamp(X, 0, 6)*clamp(Y, 0, 6)"),
        ("relu(X) - relu(Y)", "relu(X - Y)"),
        ("exp(relu(X))", "relu(exp(X))"),
        ("sqrt(relu(X))*sqrt(relu(X))", "sqrt(X)*sqrt(X)"),
        ("gelu(X)/X", "gelu(-X)/(-X)"),
        ("silu(X)/X + silu(-X)/X", "X/X"),
    ],
)
def test_wrong_by_a_sign_or_a_corner(program: str, candidate: str):
    refused(graph(f"return {program}"), graph(f"return {candidate}"))


def test_a_proof_for_equal_constants_is_none_for_others():
    """3 x + 3 y = 3 (x + y), whatever 3 is; not 3 x + 5 y."""
    right = graph("return 3*(X + Y)")
    proof = prove(graph("return 3*X + 3*Y"), right)
    assert isinstance(proof, Proof) and not proof.literal
    check(proof, graph("return 7*X + 7*Y"), graph("return 7*(X + Y)"))
    for wrong in ("3*X + 5*Y", "3*X - 3*Y", "3*X + 2*Y"):
        with pytest.raises(ProofError):
            check(proof, graph(f"return {wrong}"), right)


def test_a_proof_for_these_constants_is_none_for_all():
    left, right = graph("return 3*clamp(X, 2, 3) + 5*clamp(X, 2, 3)"), graph("return 8*clamp(X, 2, 3)")
    proof = prove(left, right)
    assert isinstance(proof, Proof) and proof.literal
    with pytest.raises(ProofError):
        check(dataclasses.replace(proof, literal=False), left, right)
    with pytest.raises(ProofError):
        check(proof, graph("return 3*clamp(X, 2, 3) + 5*clamp(X, 2, 3)"), graph("return 9*clamp(X, 2, 3)"))


def test_terms_that_look_like_others():
    """An input named like a function, a symbol named like an extent, a root applied to two."""
    assert len({fn("sqrt", X), sqrt(X), fn("inv", X), inv(X), fn("sqrt", X, X), add(X, X), mul(X, X)}) == 7
    k = Kernel(**{"|X.0|": (4, 6), "c0": (4, 6)})
    from mirage_nb.ir import OpKind

    program, candidate = (k.returning(k.op(OpKind.MUL, v, k.const(3))) for v in (0, 1))
    refused(program, candidate)


def test_a_repeat_a_root_and_a_property_at_once():
    """Copies that are regrouped wrongly, under a root of squares, with a property for the rest: still refused."""
    head = "def f(x): return x * (atan(exp(x)) + atan(exp(-x)))\nX: f32[2, 2]\nZ: f32[2, 2, 2, 2]\n"
    left = "T = reshape(repeat(reshape(X, 4), 4, axis=0), 2, 2, 2, 2) + Z\nreturn f(2*sqrt(T*T))"
    right = "T = reshape(X, 1, 2, 2, 1) + Z\nreturn 2*f(sqrt(T*T))"
    program, candidate = (parse(f"{head}{body}").graph for body in (left, right))
    assert isinstance(prove(program, candidate, properties={"f": {"linear"}}), Unproved)
    true = parse(f"{head}{right.replace('1, 2, 2, 1', '1, 1, 2, 2')}").graph
    assert isinstance(prove(program, true, properties={"f": {"linear"}}), Proof)
