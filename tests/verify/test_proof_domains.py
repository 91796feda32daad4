"""Where a proof says that a muGraph has a value: wherever its program has; and what is proved of roots and maxima."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_nb.errors import NamedSizeError, ProofError
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import parse
from mirage_nb.verify.defined.domain import Need
from mirage_nb.verify.proof import Proof, Unproved, check, prove
from mirage_nb.verify.proof.signs import Facts
from mirage_nb.verify.proof.terms import Kind, add, bind, entry, exp, inv, mul, num, sqrt, sym, top

HEAD = """def magnitude(x): return maximum(x, -x)
def guarded(x): return log(x * x + 1)
def unguarded(x): return log(x * x)
def reciprocal(x): return 1 / x
X: f32[4, 6]
Y: f32[4, 6]
R: f32[4, 1]
"""


def graph(body: str) -> KernelGraph:
    return parse(HEAD + f"return {body}").graph


LESS = {
    "a quotient by a ReLU": ("2*Y", "2*Y*relu(X+3)/relu(X+3)"),
    "a root that counts nothing": ("2*Y", "2*Y + 0*sqrt(X+10)"),
    "a quotient that counts nothing": ("2*Y", "2*Y + 0*(1/X)"),
    "a logarithm that counts nothing": ("2*Y", "2*Y + 0*unguarded(X)"),
    "a difference of logarithms": ("2*Y", "2*Y + unguarded(X) - unguarded(X)"),
    "a root that is squared": ("X*Y", "sqrt(X)*sqrt(X)*Y"),
    "a root of a maximum, root by root": ("sqrt(max(X, axis=1))", "max(sqrt(X), axis=1)"),
    "roots of factors": ("sqrt(X*Y)", "sqrt(X)*sqrt(Y)"),
    "a root of what is 0 where the other factor is": ("sqrt(X*X*Y)", "magnitude(X)*sqrt(Y)"),
    "quotients of quotients": ("X/Y", "1/(Y/X)"),
    "a reciprocal of a reciprocal": ("2*X", "2*reciprocal(reciprocal(X))"),
    "a cancelled factor": ("X + 1", "(X*X - 1)/(X - 1)"),
    "a power of a root": ("2*X", "2*pow(pow(X, 0.2), 5)"),
    "a negative power": ("2*Y", "2*Y*X*X*X*pow(X, -3)"),
    "more than the program divides by": ("Y/X", "Y*(X+1)/(X*X+X)"),
    "what the program divides by elsewhere": ("Y/R", "Y/R + 0/sum(R, axis=0, keepdims=True)"),
    "all elements for one": ("Y/X", "Y/X + 0*sum(1/X, axis=1, keepdims=True)"),
    "a maximum that may be 0": ("2*Y", "2*Y*max(X*X, axis=1, keepdims=True)/max(X*X, axis=1, keepdims=True)"),
    "a sum of squares that may be 0": ("2*Y", "2*Y/sum(X*X, axis=1, keepdims=True)*sum(X*X, axis=1, keepdims=True)"),
    "a root in a sum": ("sum(2*X, axis=1)", "sum(2*X + 0*sqrt(X), axis=1)"),
    "a root below a ReLU": ("relu(X)", "relu(sqrt(X)*sqrt(X))"),
}
"""The muGraph has no value where the program has one, or it has another one there."""
WRONG = {
    "nothing is defined": ("X*(X-X)/(X-X)", "Y*(X-X)/(X-X)"),
    "nothing is defined, hidden": ("X/relu(-(Y*Y))", "(X+1)/relu(-(Y*Y)) - Y"),
    "nothing is defined, by a root": ("X + 0*sqrt(-(Y*Y) - 1)", "Y + 0*sqrt(-(Y*Y) - 1)"),
    "a root of a square is not the number": ("2*sqrt(X*X)", "2*X"),
    "a ReLU of a product": ("relu(X*Y)", "relu(X)*relu(Y)"),
    "a maximum of a negative multiple": ("max(-2*X, axis=1)", "-2*max(X, axis=1)"),
    "a clamp the other way round": ("clamp(clamp(X, 0, 6), 7, 8)", "clamp(X, 0, 8)"),
    "relu and a shift": ("relu(X - Y) + Y", "relu(Y - X) + Y"),
    "gelu is not odd": ("gelu(X) + gelu(-X)", "0*X"),
    "the exponential of a minimum": ("exp(-max(X, axis=1))", "max(exp(-X), axis=1)"),
    "a power taken apart": ("pow(X*Y, 0.2)", "pow(X, 0.2)*pow(Y, 0.2)"),
    "a power of an even power": ("2*pow(pow(X, 10), 0.1)", "2*X"),
}
"""Not equal, or nothing to be equal to."""
RIGHT = {
    "a factor that the program divides by": ("2*Y*relu(X+3)/relu(X+3)", "2*Y"),
    "what the program takes a root of": ("sqrt(X)*sqrt(X)*Y", "X*Y"),
    "what the program divides by, in other words": ("Y/(2*X + 6)", "Y/(X + 3)/2"),
    "a factor of what the program divides by": ("Y/(X*X + X)", "Y/(X + 1)/X"),
    "a square and a constant": ("Y/(X*X + 1)", "1/(X*X + 1)*Y"),
    "one and an exponential": ("2*Y", "2*Y*(1 + exp(X))/(1 + exp(X))"),
    "roots of sums of squares": ("2*Y", "2*Y*sqrt(X*X + Y*Y + 1)/sqrt(X*X + Y*Y + 1)"),
    "a sum of exponentials": ("2*Y", "2*Y/sum(exp(X), axis=1, keepdims=True)*sum(exp(X), axis=1, keepdims=True)"),
    "a guarded logarithm": ("2*Y", "2*Y + 0*guarded(X)"),
    "a root that the program needs": ("1/sqrt(X)", "sqrt(1/X)"),
    "a quotient that is a root": ("X/sqrt(X)", "sqrt(X)"),
    "more is defined": ("2*sqrt(X)*sqrt(X)/X*Y", "2*Y"),
    "the absolute value": ("relu(X)", "(X + sqrt(X*X))/2"),
    "the absolute value, defined": ("relu(X)", "(X + magnitude(X))/2"),
    "relu is even and odd": ("2*X", "2*relu(X) - 2*relu(-X)"),
    "gelu is even and odd": ("2*X", "2*gelu(X) - 2*gelu(-X)"),
    "silu is even and odd": ("2*X", "2*silu(X) - 2*silu(-X)"),
    "the maximum of exp": ("max(exp(X), axis=1)", "exp(max(X, axis=1))"),
    "the maximum of roots": ("max(sqrt(X), axis=1)", "sqrt(max(X, axis=1))"),
    "a root with a sign": ("X*X + 1", "sqrt((X*X + 1)*(X*X + 1))"),
    "a root of some squares": ("sqrt(X*X*(Y*Y + 1))", "magnitude(X)*sqrt(Y*Y + 1)"),
    "a clamp from below": ("relu(X)", "clamp(X, 0)"),
    "clamps in clamps": ("clamp(clamp(X, 0, 6), -1, 8)", "clamp(X, 0, 6)"),
    "narrower clamps in clamps": ("clamp(clamp(X, 0, 6), 2, 3)", "clamp(X, 2, 3)"),
    "clamps beside clamps": ("clamp(clamp(X, 0, 6), 7, 8)", "clamp(0*X, 7, 8)"),
    "a ReLU of a clamp": ("relu(clamp(X, -1, 6))", "clamp(X, 0, 6)"),
    "two one-sided clamps": ("clamp(clamp(X, -1), None, 6)", "clamp(X, -1, 6)"),
    "the larger of two": ("relu(X - Y) + Y", "relu(Y - X) + X"),
    "a ReLU of a ReLU": ("relu(relu(X) + 1)", "relu(X) + 1"),
    "a power of a power": ("pow(pow(X, 0.3), 0.5)", "pow(X, 0.15)"),
    "a power that ends a root": ("2*pow(pow(X, 0.2), 5)", "2*X"),
    "a third power": ("pow(X, 3)", "X*X*X"),
    "one and a half": ("pow(X, 1.5)", "X*sqrt(X)"),
}


@pytest.mark.parametrize("name", [*LESS, *WRONG])
def test_not_proved(name: str):
    """Neither found, nor taken if somebody claims that no step is needed."""
    program, candidate = map(graph, (LESS | WRONG)[name])
    found = prove(program, candidate)
    assert isinstance(found, Unproved), name
    with pytest.raises(ProofError):
        check(Proof(()), program, candidate)
    other_way = prove(candidate, program)
    if isinstance(other_way, Proof):  # more is defined there, and the same steps do not do here
        with pytest.raises(ProofError):
            check(other_way, program, candidate)


@pytest.mark.parametrize("name", LESS)
def test_the_reason_is_told(name: str):
    found = prove(*map(graph, LESS[name]))
    assert "may be undefined where the program is not" in str(found)


@pytest.mark.parametrize("name", RIGHT)
def test_proved(name: str):
    program, candidate = map(graph, RIGHT[name])
    found = prove(program, candidate)
    assert isinstance(found, Proof), found
    check(Proof.from_json(found.to_json()), program, candidate)


def test_what_a_proof_does_not_speak_of():
    found = prove(graph("X + Y"), graph("Y + X"))
    assert "nothing is said of infinite inputs" in str(found)


X, Y = (entry(name, ((("X.0", -1),),)) for name in "XY")
K = ("k", -1001)
ROW = entry("Z", ((K,),))


@pytest.mark.parametrize(
    ("term", "need", "held"),
    [
        (add(mul(X, X), num(1)), Need.POSITIVE, True),
        (mul(X, X), Need.NONNEGATIVE, True),
        (mul(X, X), Need.POSITIVE, False),
        (add(mul(X, X), exp(Y)), Need.POSITIVE, True),
        (add(mul(X, X), mul(num(-1), exp(Y))), Need.NONZERO, False),
        (mul(num(-1), add(num(1), exp(X))), Need.NONZERO, True),
        (bind(Kind.SUM, (K,), exp(ROW)), Need.POSITIVE, True),
        (bind(Kind.SUM, (K,), mul(ROW, ROW)), Need.POSITIVE, False),
        (bind(Kind.SUM, (K,), mul(num(-1), exp(ROW))), Need.NONZERO, True),
        (bind(Kind.MAX, (K,), ROW), Need.NONNEGATIVE, False),
        (top(X, num(0)), Need.NONNEGATIVE, True),
        (top(X, num(2)), Need.POSITIVE, True),
        (mul(num(-1), top(X, num(2))), Need.NONZERO, True),
        (sqrt(X), Need.NONNEGATIVE, True),
        (sqrt(X), Need.NONZERO, False),
        (inv(add(num(1), exp(X))), Need.POSITIVE, True),
        (inv(X), Need.NONZERO, False),
        (sym("c", positive=True), Need.POSITIVE, True),
        (sym("c"), Need.NONZERO, False),
        (num(0), Need.NONZERO, False),
        (mul(X, X, X), Need.NONNEGATIVE, False),
    ],
    ids=str,
)
def test_signs_by_form(term, need, held):
    assert Facts().holds(need, term) is held


def test_signs_by_facts():
    """Of factors, inverses and roots; up to numerals and names of indices that stand for all; never more."""
    nonzero = Facts([(Need.NONZERO, mul(num(2), X, sqrt(Y)))])
    assert nonzero.holds(Need.NONZERO, X) and nonzero.holds(Need.POSITIVE, Y) and nonzero.holds(Need.NONZERO, inv(X))
    assert not nonzero.holds(Need.POSITIVE, X) and not nonzero.holds(Need.NONZERO, add(X, Y))
    scaled = Facts([(Need.POSITIVE, add(mul(num(-2), X), num(6)))])
    assert scaled.holds(Need.NONZERO, add(X, num(-3))) and not scaled.holds(Need.POSITIVE, add(X, num(-3)))
    assert scaled.holds(Need.POSITIVE, add(num(3), mul(num(-1), X)))
    everywhere = Facts([(Need.NONZERO, ROW)])
    assert everywhere.holds(Need.NONZERO, entry("Z", ((("k", -1007),),)))
    assert not everywhere.holds(Need.NONZERO, entry("Z", ((("l", -1001),),)))
    here = Facts([(Need.NONZERO, X)])
    assert not here.holds(Need.NONZERO, entry("X", ((("X.0", -1001),),)))  # of one row, and of all
    with pytest.raises(ProofError, match="nowhere"):
        Facts([(Need.NONZERO, mul(num(0), X))]).known()
    zero = Facts([(Need.POSITIVE, mul(X, Y)), (Need.NONNEGATIVE, X), (Need.NONNEGATIVE, mul(num(-1), X))])
    with pytest.raises(ProofError, match="nowhere"):  # X is 0, so its product with Y, too
        zero.holds(Need.NONZERO, top(mul(X, Y), sym("c")))


def test_proofs_are_of_graphs_with_the_same_sizes_known_at_launch() -> None:
    """What is equal at eight rows need not be at five, where a graph adds up its rows, or has always eight."""
    rows, sized = "X: f32[8, 4]\n", "B: size(8)\nX: f32[B, 4]\n"
    plain, doubled, summed = (
        parse(rows + text).graph
        for text in ("return 2 * X", "return X + X", "S = sum(X, axis=0, keepdims=True)\nreturn 2 * X + S - S")
    )
    program = parse(f"{sized}return 2 * X").graph
    for mugraph, error in ((doubled, ProofError), (replace(summed, inputs=program.inputs), NamedSizeError)):
        proof = prove(plain, replace(mugraph, inputs=plain.inputs))
        assert isinstance(proof, Proof)
        with pytest.raises(error):
            check(proof, program, mugraph)


@pytest.mark.parametrize("columns", [8, 1024, 4096])
@pytest.mark.parametrize("rows", [4, 4096])
def test_what_has_no_value_at_its_own_sizes_is_not_proved_for_all(rows: int, columns: int) -> None:
    """It is divided by how many columns there are, less as many: no proof for all sizes knows that."""
    count = "sum(0*X + 1, axis=1, keepdims=True)"

    def pair(less: int) -> list[KernelGraph]:
        bodies = f"X / ({count} - {less})", f"2*X / (2*{count} - {2 * less})"
        return [parse(f"X: f32[{rows}, {columns}]\nreturn {body}").graph for body in bodies]

    proof = prove(*pair(columns + 1))
    assert isinstance(proof, Proof)
    found = prove(*pair(columns))
    assert isinstance(found, Unproved) and "at these sizes output 0 of the program has a value at none" in str(found)
    with pytest.raises(ProofError, match="at these sizes"):
        check(Proof(()), *pair(columns)[:1] * 2)
