"""Proofs about tiles that hang over the ends of axes: what is masked is proved, what is masked wrongly never is."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter

import numpy as np
import pytest

from mirage_nb.errors import MirageError, ProofError
from mirage_nb.interp import reference
from mirage_nb.ir import KernelGraph
from mirage_nb.ir.text import parse_graph
from mirage_nb.lang import parse
from mirage_nb.verify.proof import Proof, Unproved, check, prove
from mirage_nb.verify.proof.checker import equation
from mirage_nb.verify.proof.steps import Step
from mirage_nb.verify.proof.terms import Kind, bind, entry, exp, fn, inside, mul, num, top
from mirage_nb.verify.trials import verify
from tests.verify.mutant_table import equal_in_reals
from tests.verify.mutants import is_legal, mutants
from tests.verify.term_values import World

BLOCK = """mugraph 1
input %0 X f32[3, 7]
%1 = Const value=1 : f32[]
%2 = Reshape(%1) shape=[1]
%3 = Repeat(%2) dim=0 times=7
%4 = Graph(%0, %3) grid=[1] loop=2 {
  %0 = InIter arg=0 imap=[*] fmap=1 tile=[3, 4]
  %1 = InIter arg=1 imap=[*] fmap=0 tile=[4]
BODY
}
output %4 O
"""
"""Columns of X in two tiles of four, of which the last one hangs over, beside a mask that ends with them."""
PLAIN = "\n".join(line for line in BLOCK.replace("%4", "%1").replace("(%0, %3)", "(%0)").split("\n")
                  if not line.strip().startswith(("%1 = C", "%2", "%3", "%1 = InIter")))  # fmt: skip
"""The same without the mask."""
FOLDED = {
    "sum": ("sum(X, 1, keepdims=True)", "%1 = Sum(%0) dim=1\n%2 = Accum(%1) kind=sum\nOutSaver(%2) omap=[*]"),
    "sum of squares": (
        "sum(X * X, 1, keepdims=True)",
        "%1 = Sqr(%0)\n%2 = Sum(%1) dim=1\n%3 = Accum(%2) kind=sum\nOutSaver(%3) omap=[*]",
    ),
    "root mean square": (
        "sqrt(mean(X * X, 1, keepdims=True) + 1)",
        "%1 = Sqr(%0)\n%2 = Sum(%1) dim=1\n%3 = Accum(%2) kind=sum\n%4 = Const value=1/7 : f32[]\n%5 = EwMul(%3, %4)\n"
        "%6 = Const value=1 : f32[]\n%7 = EwAdd(%5, %6)\n%8 = Sqrt(%7)\nOutSaver(%8) omap=[*]",
    ),
    "sum of exponentials": (
        "sum(exp(X), 1, keepdims=True)",
        "%2 = EwExp(%0)\n%3 = EwMul(%2, %1)\n%4 = Sum(%3) dim=1\n%5 = Accum(%4) kind=sum\nOutSaver(%5) omap=[*]",
    ),
    "mean of sigmoids": (
        "mean(sigmoid(X), 1, keepdims=True)",
        "%2 = Sigmoid(%0)\n%3 = EwMul(%2, %1)\n%4 = Sum(%3) dim=1\n%5 = Accum(%4) kind=sum\n"
        "%6 = Const value=1/7 : f32[]\n%7 = EwMul(%5, %6)\nOutSaver(%7) omap=[*]",
    ),
    "maximum": (
        "max(X, 1, keepdims=True)",
        "%2 = Where(%1, %0) infinite=-1\n%3 = Max(%2) dim=1\n%4 = Accum(%3) kind=max\nOutSaver(%4) omap=[*]",
    ),
    "maximum of squares": (
        "max(X * X, 1, keepdims=True)",
        "%1 = Sqr(%0)\n%2 = Max(%1) dim=1\n%3 = Accum(%2) kind=max\nOutSaver(%3) omap=[*]",
    ),
    "logsumexp": (
        "logsumexp(X, 1, keepdims=True)",
        "%2 = Where(%1, %0) infinite=-1\n%3 = Max(%2) dim=1\n%4 = EwSub(%2, %3)\n%5 = EwExp(%4)\n%6 = Sum(%5) dim=1\n"
        "%7 = Accum(%3) kind=max\n%8 = Accum(%6, %3) kind=rescale\n%9 = Apply(%8) name=log formula=\"log(x)\"\n"
        "%10 = EwAdd(%9, %7)\nOutSaver(%10) omap=[*]",
    ),
    "lowered logsumexp": (
        "logsumexp(X, 1, keepdims=True)",
        "%2 = Const value=170141183460469231731687303715884105728 : f32[]\n%3 = EwMul(%1, %2)\n%4 = EwSub(%3, %2)\n"
        "%5 = EwAdd(%0, %4)\n%6 = Max(%5) dim=1\n"
        "%7 = EwSub(%5, %6)\n%8 = EwExp(%7)\n%9 = EwMul(%8, %1)\n%10 = Sum(%9) dim=1\n%11 = Accum(%6) kind=max\n"
        "%12 = Accum(%10, %6) kind=rescale\n%13 = Apply(%12) name=log formula=\"log(x)\"\n%14 = EwAdd(%13, %11)\n"
        "OutSaver(%14) omap=[*]",
    ),
    "denominator": (
        "sum(exp(X - max(X, 1, keepdims=True)), 1, keepdims=True)",
        "%2 = Where(%1, %0) infinite=-1\n%3 = Max(%2) dim=1\n%4 = EwSub(%2, %3)\n%5 = EwExp(%4)\n%6 = Sum(%5) dim=1\n"
        "%7 = Accum(%6, %3) kind=rescale\nOutSaver(%7) omap=[*]",
    ),
}  # fmt: skip
WRONG = {
    "the mask ends one earlier": ("times=7", "times=6"),
    "the mask ends one later": ("times=7", "times=8"),
    "the mask is added": ("EwMul(%2, %1)", "EwAdd(%2, %1)"),
    "what lies beyond is finite": ("infinite=-1", "other=-10000"),
    "what lies beyond is zero": ("infinite=-1", "other=0"),
    "everything is zero beyond": ("Where(%1, %0) infinite=-1", "EwMul(%0, %1)"),
    "the largest of sums": ("kind=sum", "kind=max"),
    "zeros become ones": ("Sqr(%0)", "EwExp(%0)"),
}


def pair(name: str) -> tuple[KernelGraph, str]:
    text, body = FOLDED[name]
    lines = "\n".join(f"  {line}" for line in body.split("\n"))
    return parse(f"X: f32[3, 7]\nreturn {text}").graph, (PLAIN if body[:2] == "%1" else BLOCK).replace("BODY", lines)


def inputs(graph: KernelGraph) -> list[list[np.ndarray]]:
    """Numbers of all sizes: rows far below what masks may be filled with, all alike, or with one that stands out."""
    rng = np.random.default_rng(0)
    shapes = [i.type.shape for i in graph.inputs]
    drawn = [[scale * rng.normal(size=shape) + shift for shape in shapes] for scale, shift in itertools.product(
        (0.1, 3.0, 50.0), (0.0, -5.0, 5.0, -2e4, -1e6))]  # fmt: skip
    return [*drawn, *([rng.integers(-2, 3, shape).astype(float) for shape in shapes] for _ in range(4))]


def differ(program: KernelGraph, mugraph: KernelGraph) -> bool:
    """Whether float64 tells them apart at some inputs, by more than it rounds."""
    for arrays in inputs(program):
        with np.errstate(all="ignore"):
            every = [reference.evaluate(graph, arrays) for graph in (program, mugraph)]
        for ours, theirs in zip(*every, strict=True):
            defined = np.isfinite(ours)
            if not np.allclose(theirs[defined], ours[defined], rtol=1e-7, atol=1e-7):
                return True
    return False


@pytest.mark.parametrize("name", FOLDED)
def test_folds_of_what_is_masked_are_proved_for_all_sizes(name: str) -> None:
    program, text = pair(name)
    mugraph = parse_graph(text)
    proof = prove(program, mugraph)
    assert isinstance(proof, Proof), proof
    assert not proof.these_sizes and not differ(program, mugraph)
    check(Proof.from_json(proof.to_json()), program, mugraph)
    for before, after in (("7]", "19]"), ("times=7", "times=19"), ("4]", "10]"), ("1/7", "1/19")):
        text = text.replace(before, after)
    longer = parse(f"X: f32[3, 19]\nreturn {FOLDED[name][0]}").graph, parse_graph(text)
    check(proof, *longer)


@pytest.mark.parametrize("name", FOLDED)
def test_what_is_masked_wrongly_is_never_proved(name: str) -> None:
    program, text = pair(name)
    proof, wrong = prove(program, parse_graph(text)), 0
    assert isinstance(proof, Proof)
    for change in WRONG.values():
        mutant = text.replace(*change)
        if mutant == text:
            continue
        mugraph = parse_graph(mutant)
        found = prove(program, mugraph)
        if differ(program, mugraph):
            wrong += 1
            assert isinstance(found, Unproved), change
            assert not verify(program, mugraph, seed=0).accepted, change
            with pytest.raises(ProofError):
                check(proof, program, mugraph)
    assert wrong


SQUARE = """mugraph 1
input %0 X f32[7, 7]
%1 = Const value=1 : f32[]
%2 = Reshape(%1) shape=[1]
%3 = Repeat(%2) dim=0 times=7
%4 = Graph(%0, %3) grid=[2] loop=2 {
  %0 = InIter arg=0 imap=[0] fmap=1 tile=[4, 4]
  %1 = InIter arg=1 imap=[DIM] fmap=LOOP tile=[4]
  %2 = Reshape(%1) shape=SHAPE
  %3 = EwExp(%0)
  %4 = EwMul(%3, %2)
  %5 = Sum(%4) dim=1
  %6 = Accum(%5) kind=sum
  OutSaver(%6) omap=[0] shape=[7, 1]
}
output %4 O
"""


@pytest.mark.parametrize(("dim", "loop", "shape", "right"), [
    ("*", "0", "[1, 4]", True), ("0", "*", "[4, 1]", False), ("0", "*", "[1, 4]", False), ("*", "0", "[4, 1]", False),
])  # fmt: skip
def test_a_mask_is_that_of_the_axis_that_is_folded(dim: str, loop: str, shape: str, right: bool) -> None:
    program = parse("X: f32[7, 7]\nreturn sum(exp(X), 1, keepdims=True)").graph
    mugraph = parse_graph(SQUARE.replace("DIM", dim).replace("LOOP", loop).replace("SHAPE", shape))
    assert isinstance(prove(program, mugraph, these_sizes=True), Proof) == right == (not differ(program, mugraph))


ROWS = """mugraph 1
input %0 X f32[5, 3]
%1 = Graph(%0) grid=[3] loop=1 {
  %0 = InIter arg=0 imap=[0] tile=[2, 3]
  %1 = EwExp(%0)
  %2 = Sum(%1) dim=1
  %3 = EwDiv(%1, %2)
  OutSaver(%3) omap=[0] shape=[5, 3]
  OutSaver(%2) omap=[0] shape=[5, 1]
}
"""


def test_rows_may_hang_over() -> None:
    """What is computed of them beyond the end is saved nowhere; but has a value, or else so has nothing beside it."""
    program = parse("X: f32[5, 3]\nreturn exp(X) / sum(exp(X), 1, keepdims=True)").graph
    text = ROWS.replace("%1 = Graph", "%1, %2 = Graph") + "output %1 O\n"
    proof = prove(program, parse_graph(text))
    assert isinstance(proof, Proof) and not proof.these_sizes
    squares = parse("X: f32[5, 3]\nreturn X * X / sum(X * X, 1, keepdims=True)").graph
    assert isinstance(prove(squares, parse_graph(text.replace("EwExp", "Sqr"))), Proof)
    assert isinstance(prove(program, parse_graph(text.replace("EwExp", "Sqr"))), Unproved)


def test_an_axis_that_another_kernel_has_saved_ends_there() -> None:
    """Sums of rows that hung over when they were saved."""
    text = ROWS.replace("%1 = Graph", "%1, %2 = Graph") + "%3 = Sum(%2) dim=0\noutput %3 O\n"
    text = text.replace("  %3 = EwDiv(%1, %2)\n  OutSaver(%3) omap=[0] shape=[5, 3]\n", "").replace("%1, %2 =", "%1 =")
    text = text.replace("%3 = Sum(%2)", "%2 = Sum(%1)").replace("output %3", "output %2")
    program = parse("X: f32[5, 3]\nreturn sum(sum(exp(X), 1, keepdims=True), 0, keepdims=True)").graph
    assert isinstance(prove(program, parse_graph(text)), Proof)
    again = text.replace("%2 = Sum(%1) dim=0", """%2 = Graph(%1) grid=[1] loop=2 {
  %0 = InIter arg=0 imap=[*] fmap=0 tile=[TILE, 1]
  %1 = Sum(%0) dim=0
  %2 = Accum(%1) kind=sum
  OutSaver(%2) omap=[*]
}""")
    for tile in (3, 4):  # whose tiles are not those of the other kernel
        assert isinstance(prove(program, parse_graph(again.replace("TILE", str(tile)))), Unproved)
        assert isinstance(prove(program, parse_graph(again.replace("TILE", str(tile))), these_sizes=True), Proof)


CLASSES = """mugraph 1
input %0 X f32[4, 8]
input %1 W f32[7, 8]
%2 = Const value=340 : f32[]
%3 = Reshape(%2) shape=[1]
%4 = Repeat(%3) dim=0 times=7
%5 = Const value=1 : f32[]
%6 = Reshape(%5) shape=[1]
%7 = Repeat(%6) dim=0 times=7
%8, %9 = Graph(%0, %1, %4, %7) grid=[2, 2] loop=2 {
  %0 = InIter arg=0 imap=[*, 0] fmap=1
  %1 = InIter arg=1 imap=[0, *] fmap=1 tile=[4, 4]
  %2 = Transpose(%1) perm=[1, 0]
  %3 = Matmul(%0, %2)
  %4 = Accum(%3) kind=sum
  %5 = InIter arg=2 imap=[0, *] tile=[4]
  %6 = Accum(%5) kind=hold
  %7 = Const value=340 : f32[]
  %8 = EwSub(%6, %7)
  %9 = EwAdd(%4, %8)
  %10 = Max(%9) dim=1
  %11 = EwSub(%9, %10)
  %12 = EwExp(%11)
  %13 = InIter arg=3 imap=[0, *] tile=[4]
  %14 = Accum(%13) kind=hold
  %15 = EwMul(%12, %14)
  %16 = Sum(%15) dim=1
  %17 = Reshape(%10) shape=[1, 2, 1]
  OutSaver(%17) omap=[0, 1]
  %18 = Reshape(%16) shape=[1, 2, 1]
  OutSaver(%18) omap=[0, 1]
}
%10 = Graph(%8, %9) grid=[2] loop=1 {
  %0 = InIter arg=0 imap=[1]
  %1 = InIter arg=1 imap=[1]
  %2 = Max(%0) dim=0
  %3 = RescaledSum(%1, %0) dim=0
  %4 = Apply(%3) name=log formula="log(x)"
  %5 = EwAdd(%2, %4)
  %6 = Reshape(%5) shape=[2]
  OutSaver(%6) omap=[0]
}
output %10 O
"""
"""Columns of a product on the grid, each tile with its own largest and its sum; another kernel joins them."""
CONTRAST = """mugraph 1
input %0 X f32[7, 8]
input %1 Y f32[7, 8]
%2 = Const value=1 : f32[]
%3 = Reshape(%2) shape=[1]
%4 = Repeat(%3) dim=0 times=7
%5 = Graph(%0, %1, %4) grid=[1] loop=2 {
  %0 = InIter arg=0 imap=[*]
  %1 = InIter arg=1 imap=[*] fmap=0 tile=[4, 8]
  %2 = InIter arg=1 imap=[*]
  %3 = InIter arg=2 imap=[*] fmap=0 tile=[4]
  %4 = Transpose(%1) perm=[1, 0]
  %5 = Matmul(%0, %4)
  %6 = Max(%5) dim=1
  %7 = EwSub(%5, %6)
  %8 = EwExp(%7)
  %9 = EwMul(%8, %3)
  %10 = Sum(%9) dim=1
  %11 = Accum(%6) kind=max
  %12 = Accum(%10, %6) kind=rescale
  %13 = Apply(%12) name=log formula="log(x)"
  %14 = EwAdd(%13, %11)
  %15 = Accum(%0) kind=hold
  %16 = Accum(%2) kind=hold
  %17 = EwMul(%15, %16)
  %18 = Sum(%17) dim=1
  %19 = EwSub(%14, %18)
  %20 = Sum(%19) dim=0
  OutSaver(%20) omap=[*]
}
output %5 O
"""
"""Scores of all pairs, a tile of columns in each iteration; what is beside them reads both whole."""
PRODUCTS = {
    "classes": ("X: f32[4, 8]\nW: f32[7, 8]\nreturn logsumexp(X @ W.T, 1)", CLASSES),
    "contrast": ("X: f32[7, 8]\nY: f32[7, 8]\nS = X @ Y.T\nL = logsumexp(S, 1, keepdims=True)\n"
                 "return sum(L - sum(X * Y, 1, keepdims=True), 0, keepdims=True)", CONTRAST),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_folds_of_columns_of_products_are_proved_for_all_sizes(name: str) -> None:
    text, tiles = PRODUCTS[name]
    program = parse(text).graph
    proof = prove(program, parse_graph(tiles))
    assert isinstance(proof, Proof) and not proof.these_sizes
    assert not differ(program, parse_graph(tiles))
    for change in (("times=7", "times=6"), ("times=7", "times=8"), ("%15 = EwMul(%12, %14)", "%15 = EwAdd(%12, %14)"),
                   ("%9 = EwMul(%8, %3)", "%9 = EwAdd(%8, %3)"), ("%16 = Sum", "%16 = Max")):  # fmt: skip
        if change[0] in tiles:
            mutant = parse_graph(tiles.replace(*change))
            assert differ(program, mutant) and isinstance(prove(program, mutant), Unproved), change


LOWEST = "170141183460469231731687303715884105728"


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 17])
def test_mutants_are_proved_only_where_they_are_right(every: int) -> None:
    """Beyond the end something small stands for what is very low, with which float64 tells other shifts apart."""
    pairs = [(program, text.replace(LOWEST, "40")) for program, text in map(pair, FOLDED)]
    pairs += [(parse(text).graph, tiles.replace("340", "40")) for text, tiles in PRODUCTS.values()]
    changed = [(p, change, m) for p, text in pairs for change, m in mutants(parse_graph(text)) if is_legal(m)]
    tally = Counter[bool]()
    for program, change, mutant in changed[::every]:
        if isinstance(prove(program, mutant), Proof):
            assert equal_in_reals(program, mutant), change
            tally[True] += 1
        else:
            tally[False] += 1
    assert tally[False] > 2 * tally[True] > 20 / every


def random_pair(rng: random.Random) -> tuple[KernelGraph, KernelGraph]:
    """A fold of what is computed of X, and tiles of it that hang over, masked in one of many ways, or not."""
    extent, tile = rng.choice([(5, 3), (7, 4), (7, 3), (8, 3), (6, 4), (9, 4)])
    parts = -(-extent // tile)
    maximum = rng.random() < 0.5
    said, inside = rng.choice([
        ("X", ()), ("X * X", ("Sqr(%{0})",)), ("exp(X)", ("EwExp(%{0})",)), ("relu(X)", ("ReLU(%{0})",)),
        ("silu(X)", ("SiLU(%{0})",)), ("sigmoid(X)", ("Sigmoid(%{0})",)), ("abs(X)", ("Sqr(%{0})", "Sqrt(%{0})")),
    ])  # fmt: skip
    masks = ["EwMul(%{0}, %1)", "Where(%1, %{0}) infinite=-1", "Where(%1, %{0}) other=0", "Where(%1, %{0}) other=-9",
             "EwAdd(%{0}, %1)", "EwSub(%{0}, %1)"]  # fmt: skip
    first, last = rng.choice([None, *masks]), rng.choice([None, *masks])
    if first is last is None:
        first = masks[0]
    lines, value = [], 0
    for number, line in enumerate(filter(None, [first, *inside, last]), start=2):
        lines.append(f"%{number} = {line.format(value)}")
        value = number
    fold, kind = ("Max", "max") if maximum else ("Sum", "sum")
    end = f"%{value + 1} = {fold}(%{value}) dim=1\n%{value + 2} = Accum(%{value + 1}) kind={kind}"
    body = "\n".join([*lines, end, f"OutSaver(%{value + 2}) omap=[*]"])
    mask = max(1, min(extent + rng.choice([0, 0, 0, -1, 1]), parts * tile))
    text = BLOCK.replace("BODY", body).replace("7]", f"{extent}]").replace("times=7", f"times={mask}")
    text = text.replace("loop=2", f"loop={parts}").replace("4]", f"{tile}]")
    return parse(f"X: f32[3, {extent}]\nreturn {kind}({said}, 1, keepdims=True)").graph, parse_graph(text)


@pytest.mark.parametrize("rounds", [pytest.param(12, marks=pytest.mark.slow), 1])
def test_what_is_proved_of_random_masks_is_so(rounds: int) -> None:
    rng, proved, right = random.Random(3), 0, 0
    for _ in range(40 * rounds):
        try:
            program, mugraph = random_pair(rng)
        except MirageError:  # a mask whose tiles do not cover it
            continue
        same = not differ(program, mugraph)
        found = prove(program, mugraph)
        assert same or isinstance(found, Unproved), str(mugraph)
        right += same
        proved += isinstance(found, Proof)
    assert right >= proved >= 3 * rounds


def test_bits_beside_others_are_ones() -> None:
    """`bit_beside` for terms with binders, by brute force; what a binder binds is no bit beside it."""
    rng = np.random.default_rng(0)
    k, other = ("k", -1), ("k", -2)
    bit, its = inside("k", (k,)), inside("k", (other,))
    x = entry("X", ((other,), (k,)))
    terms = [exp(mul(bit, x)), top(mul(bit, x), num(0)), fn("Where", bit, x), mul(exp(bit), exp(its))]
    terms += [bind(Kind.MAX, (other,), mul(its, exp(mul(bit, x)))), bind(Kind.SUM, (other,), mul(bit, its, x))]
    choose = {"Where": lambda condition, x: np.where(condition != 0, x, 0)}
    for term in terms:
        old, new, _ = equation(Step("bit_beside", (("a", bit), ("f", term), ("r", x))), {})
        for _ in range(3):
            arrays = {"X": rng.normal(size=(4, 4)), "inside k": rng.integers(0, 2, 4).astype(float)}
            world = World({"k": 4}, arrays, functions=choose)
            np.testing.assert_allclose(world.value(old, (k, other)), world.value(new, (k, other)))
    with pytest.raises(ProofError, match="condition"):
        equation(Step("bit_beside", (("a", x), ("f", terms[0]), ("r", num(1)))), {})


def test_no_input_is_called_as_what_tells_where_axes_end() -> None:
    program, text = pair("sum")
    named = text.replace(" X ", ' "inside X" ')
    renamed = dataclasses.replace(program, inputs=(dataclasses.replace(program.inputs[0], name="inside X"),))
    assert isinstance(prove(renamed, renamed), Unproved) and named != text
