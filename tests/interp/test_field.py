"""Modular arithmetic against Python integers, and the field interpreter against identities it must keep."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.errors import GraphError, ShapeError
from mirage_nb.interp import field
from mirage_nb.interp.field import FieldAlgebra, FieldInstance, FieldTensor, random_inputs
from mirage_nb.interp.instance import LARGE_TENSOR, Device, FieldStack
from mirage_nb.interp.modular import Moduli, Modulus, mix
from mirage_nb.interp.primes import PRIMES, Pool
from mirage_nb.ir import AccumKind, DimAttrs, OpKind, PowAttrs, RepeatAttrs
from tests.elsewhere import BOTH_WAYS, Elsewhere
from tests.mugraphs import Case, Kernel, cases
from tests.shares import examples

SMALL = Pool("21-bit primes", 2**20, 2**21)
POOLS = pytest.mark.parametrize("pool", [SMALL, PRIMES], ids=lambda pool: pool.name)
WORST = [Modulus(2097143), Modulus(2147483647), Modulus(PRIMES.high - 1), Modulus(SMALL.pairs[0][1])]


@pytest.mark.parametrize("modulus", WORST, ids=str)
@pytest.mark.parametrize("inner", [1, 7, 2048, 2049, 5000])
def test_matmul_is_exact(modulus: Modulus, inner: int) -> None:
    rng = np.random.default_rng(inner)
    x, y = (rng.integers(0, modulus.value, shape, dtype=np.uint64) for shape in ((2, inner), (inner, 3)))
    x[0] = y[:, 0] = modulus.value - 1  # the largest sum of products that there is
    exact = [[sum(int(a) * int(b) for a, b in zip(r, c, strict=True)) % modulus.value for c in y.T] for r in x]
    assert modulus.matmul(x, y).tolist() == exact
    assert modulus.matmul(np.stack([x, x]), y)[1].tolist() == exact


@pytest.mark.parametrize("modulus", WORST[:3], ids=str)
@given(st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 2**31)), min_size=1, max_size=8))
@examples(30)
def test_elementwise_arithmetic_is_exact(modulus: Modulus, pairs: list[tuple[int, int]]) -> None:
    m = modulus.value
    pairs = [(a % m, b % m) for a, b in [*pairs, (m - 1, m - 1), (0, m - 1)]]
    x, y = (np.array(column, np.uint64) for column in zip(*pairs, strict=True))
    assert modulus.add(x, y).tolist() == [(a + b) % m for a, b in pairs]
    assert modulus.sub(x, y).tolist() == [(a - b) % m for a, b in pairs]
    assert modulus.mul(x, y).tolist() == [a * b % m for a, b in pairs]
    assert modulus.power(x, 13).tolist() == [pow(a, 13, m) for a, _ in pairs]
    assert modulus.sum(x, 0).tolist() == [sum(a for a, _ in pairs) % m]


@POOLS
def test_roots_and_inverses(pool: Pool) -> None:
    instance = FieldInstance.draw(5, pool)
    for modulus in (instance.p, instance.q):
        x = np.arange(1, 200, dtype=np.uint64)
        assert set(modulus.mul(x, modulus.inverse(x)).tolist()) == {1}
        square = modulus.mul(x, x)
        root = modulus.root(square)
        assert modulus.mul(root, root).tolist() == square.tolist()


@POOLS
def test_exponentials_are_powers_of_the_root(pool: Pool) -> None:
    instance = FieldInstance.draw(6, pool)
    assert pow(instance.root, instance.q.value, instance.p.value) == 1
    x = np.array([0, 1, 2, 1023, 1024, 65536, instance.q.value - 1], np.uint64) % instance.q.value
    assert instance.exp(x).tolist() == [pow(instance.root, int(n), instance.p.value) for n in x]


def test_instances_follow_from_the_seed() -> None:
    one, same, other = (FieldInstance.draw(seed) for seed in (7, 7, 8))
    assert one == same != other
    assert (one.random("X", (4,)).p == same.random("X", (4,)).p).all()
    assert (one.random("X", (4,)).p != one.random("Y", (4,)).p).any()


def test_mix_is_a_permutation() -> None:
    words = np.arange(100_000, dtype=np.uint64)
    assert len(np.unique(mix(words, 3))) == len(words)
    assert (mix(words, 3) != mix(words, 4)).all()


@POOLS
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_hand_built_mugraphs_equal_their_programs(case: Case, pool: Pool) -> None:
    compared = 0
    for seed in range(12):
        instance = FieldInstance.draw(seed, pool)
        inputs = random_inputs(case.program, instance)
        want, got = (field.evaluate(g, inputs, instance)[0] for g in (case.program, case.candidate))
        both = want.defined & got.defined
        assert (want.p[both] == got.p[both]).all()
        compared += int(both.sum())
    assert compared or case.name == "qknorm"  # there all of the rows of V need a root at once


def test_a_wrong_graph_differs() -> None:
    k = Kernel(X=(2, 2), W=(2, 2))
    program, wrong = k.op(OpKind.MATMUL, 0, 1), k.op(OpKind.MATMUL, 1, 0)
    instance = FieldInstance.draw(1)
    a, b = field.evaluate(k.returning(program, wrong), random_inputs(k.graph, instance), instance)
    assert (a.p != b.p).all() and (a.q != b.q).all()


def run(k: Kernel, *outputs: int, seed: int = 1, **arrays: list[int]) -> tuple[FieldTensor, ...]:
    instance = FieldInstance.draw(seed)
    inputs = {i.name: instance.random(i.name, i.type.shape) for i in k.graph.inputs}
    for name, values in arrays.items():
        part = np.array(values, np.uint64).reshape(inputs[name].shape)
        inputs[name] = FieldTensor(part, part)
    return field.evaluate(k.returning(*outputs), inputs, instance)


def test_division_by_zero_is_marked_and_spreads() -> None:
    k = Kernel(X=(2, 2), Y=(2, 2))
    quotient = k.op(OpKind.DIV, 0, 1)
    by_row = k.sum(quotient, 1)
    product = k.op(OpKind.MATMUL, 0, quotient)
    q, s, m = run(k, quotient, by_row, product, Y=[1, 0, 2, 3])
    assert q.defined.tolist() == [[True, False], [True, True]]
    assert s.defined.tolist() == [[False], [True]]
    assert m.defined.tolist() == [[True, False], [True, False]]


def test_roots_of_non_squares_are_marked() -> None:
    k = Kernel(X=(3,), Y=(3,))
    root = k.op(OpKind.SQRT, 0)
    zero = k.op(OpKind.MUL, root, k.op(OpKind.SUB, 1, 1))
    r, z = run(k, root, zero, X=[4, SMALL.pairs[0][1] - 1, 9])
    assert r.defined[[0, 2]].all() and z.defined[[0, 2]].all()
    assert (r.p[0] ** 2, r.p[2] ** 2) != (0, 0)
    k2 = Kernel(X=(64,))
    (r2,) = run(k2, k2.op(OpKind.SQRT, 0))
    assert 2 < r2.defined.sum() < 40  # about a quarter: squares modulo both primes


def test_a_constant_without_inverse_is_marked() -> None:
    instance = FieldInstance.draw(1)
    k = Kernel(X=(2,))
    y = k.op(OpKind.MUL, 0, k.const(Fraction(1, instance.p.value)))
    (out,) = field.evaluate(k.returning(y), random_inputs(k.graph, instance), instance)
    assert not out.defined.any()


def test_a_second_exponential_has_no_value() -> None:
    for kind in (OpKind.EXP, OpKind.SILU, OpKind.SIGMOID):
        k = Kernel(X=(2,))
        e = k.op(OpKind.EXP, 0)
        assert run(k, e)[0].q is None
        assert not run(k, k.op(OpKind.ADD, k.op(kind, e), 0))[0].defined.any()


def test_silu_is_x_times_sigmoid() -> None:
    k = Kernel(X=(5,))
    e = k.op(OpKind.EXP, k.op(OpKind.SUB, k.op(OpKind.SUB, 0, 0), 0))
    by_hand = k.op(OpKind.DIV, 0, k.op(OpKind.ADD, k.const(1), e))
    a, b, c = run(k, k.op(OpKind.SILU, 0), k.op(OpKind.MUL, 0, k.op(OpKind.SIGMOID, 0)), by_hand)
    assert a.p.tolist() == b.p.tolist() == c.p.tolist()


@pytest.mark.parametrize("exponent", [Fraction(3), Fraction(-2), Fraction(1, 2), Fraction(-3, 2)])
def test_powers_are_products_quotients_and_roots(exponent: Fraction) -> None:
    k = Kernel(X=(40,))
    power = k.op(OpKind.POW, 0, attrs=PowAttrs(exponent))
    base = k.op(OpKind.SQRT, 0) if exponent.denominator == 2 else 0
    product = base
    for _ in range(abs(exponent.numerator) - 1):
        product = k.op(OpKind.MUL, product, base)
    other = k.op(OpKind.DIV, k.const(1), product) if exponent < 0 else product
    a, b = run(k, power, other)
    assert a.defined.tolist() == b.defined.tolist() and a.defined.any()
    assert a.p[a.defined].tolist() == b.p[b.defined].tolist()


def test_uninterpreted_operators_are_functions() -> None:
    k = Kernel(X=(4,))
    relu, again = k.op(OpKind.RELU, 0), k.op(OpKind.RELU, k.op(OpKind.ADD, 0, k.const(0)))
    third = k.op(OpKind.POW, 0, attrs=PowAttrs(Fraction(1, 3)))
    a, b, c = run(k, relu, again, third)
    assert a.p.tolist() == b.p.tolist() != c.p.tolist()
    assert (a.p != a.q).any()


def test_max_is_a_function_of_the_set() -> None:
    """One pass, max of maxima, another order, a running maximum, repeated tiles through a new grouping."""
    k = Kernel(X=(2, 12))
    whole = k.max(0, 1)
    b = k.block((0,), (3,), 2)
    b.save(b.accum(b.max(b.read(0, (1,), 1), 1), kind=AccumKind.MAX), (1,))
    running = k.max(k.launch((0,), b), 1)
    c = k.block((0,), (2,), 3)
    c.save(c.max(c.accum(c.read(0, (0,), 1), kind=AccumKind.MAX), 1), (0,))
    late = k.launch((0,), c)
    d = k.block((0,), (1,), 4)
    d.save(d.max(d.accum(d.read(0, (None,), 1), kind=AccumKind.CONCAT, dim=1), 1), (None,))
    joined = k.launch((0,), d)
    a, *others = run(k, whole, running, late, joined)
    for other in others:
        assert other.p.tolist() == a.p.tolist() and other.q.tolist() == a.q.tolist()


def test_max_of_another_set_is_another_value() -> None:
    k = Kernel(X=(4, 6), Y=(4, 6))
    b = k.block((0,), (2,), 2)
    b.save(b.accum(b.max(b.read(0, (None,), 1), 1), kind=AccumKind.MAX), (0,))
    tall = k.launch((0,), b)  # both blocks see all rows
    assert k.graph.types[tall].shape == (8, 1)
    a, other, halved = run(k, k.max(0, 1), k.max(1, 1), k.max(0, 0))
    assert (a.p != other.p).all()
    assert halved.shape == (1, 6)


def test_max_of_one_element_is_that_element() -> None:
    k = Kernel(X=(4, 1))
    a, x = run(k, k.max(0, 1), k.op(OpKind.ADD, 0, k.const(0)))
    assert a.p.tolist() == x.p.tolist()


def test_join_and_repeat_carry_marks_and_sets() -> None:
    k = Kernel(X=(2, 2), Y=(2, 2))
    quotient = k.op(OpKind.DIV, 0, 1)
    twice = k.op(OpKind.REPEAT, quotient, attrs=RepeatAttrs(1, 2))
    beside = k.op(OpKind.CONCAT, quotient, 0, attrs=DimAttrs(0))
    maxima = k.max(k.op(OpKind.CONCAT, k.max(0, 1), k.max(1, 1), attrs=DimAttrs(1)), 1)
    direct = k.max(k.op(OpKind.CONCAT, 0, 1, attrs=DimAttrs(1)), 1)
    t, c, m, n = run(k, twice, beside, maxima, direct, Y=[1, 0, 2, 3])
    assert t.defined.tolist() == [[True, False, True, False], [True] * 4]
    assert c.defined.tolist() == [[True, False], [True, True], [True, True], [True, True]]
    assert m.p.tolist() == n.p.tolist()


def test_symbols_are_unknowns() -> None:
    k = Kernel(X=(2,))
    scaled = [
        k.op(OpKind.MUL, 0, k.const(value, symbol))
        for value, symbol in ((Fraction(1, 8), ""), (Fraction(1, 8), "a"), (Fraction(1, 8), "a"), (1, "a"))
    ]
    plain, a, same, other = (tuple(t.p.tolist()) for t in run(k, *scaled))
    assert a == same and len({plain, a, other}) == 3


def test_hold_and_wrong_inputs() -> None:
    k = Kernel(X=(4,))
    b = k.block((0,), (1,), 2)
    b.save(b.accum(b.read(0, (None,), 0), kind=AccumKind.HOLD), (None,))
    graph = k.returning(k.launch((0,), b))
    instance = FieldInstance.draw(0)
    with pytest.raises(GraphError, match="hold"):
        field.evaluate(graph, random_inputs(graph, instance), instance)
    with pytest.raises(ShapeError, match="no array for input X"):
        field.evaluate(graph, {}, instance)
    with pytest.raises(ShapeError, match="X has shape"):
        field.evaluate(graph, [instance.random("X", (5,))], instance)


def test_only_the_parts_asked_for() -> None:
    instance = FieldInstance.draw(0)
    x = instance.random("X", (2,), p=False)
    algebra = FieldAlgebra(instance)
    assert x.p is None and algebra.apply(OpKind.EXP, [x], None, 0).q is None
    y = FieldTensor(instance.random("Y", (2,)).p, None)
    assert not algebra.apply(OpKind.ADD, [x, y], None, 0).defined.any()
    assert not algebra.union(x, y).defined.any()


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_values_are_the_same_on_another_device(case: Case) -> None:
    device = Device("elsewhere", *BOTH_WAYS)
    here = FieldInstance.draw(5)
    there = replace(here, device=device)
    inputs = random_inputs(case.program, here)
    moved = [x.moved(device.to) for x in inputs]
    for graph in (case.program, case.candidate):
        for a, b in zip(field.evaluate(graph, inputs, here), field.evaluate(graph, moved, there), strict=True):
            assert isinstance(b.p, Elsewhere) and np.array_equal(a.p, b.p.held)
            assert np.array_equal(a.defined, device.back(b.defined))


@POOLS
@pytest.mark.parametrize("inner", [1, 4, 16, 40, 5000])
def test_several_primes_side_by_side(pool: Pool, inner: int) -> None:
    rng = np.random.default_rng(inner)
    primes = pool.draw(rng)[0], pool.draw(rng)[0], pool.draw(rng)[1]
    side = Moduli(primes)
    x, y = (
        np.stack([rng.integers(p - 3, p, shape, dtype=np.uint64) for p in primes]) for shape in ((2, inner), (inner, 3))
    )
    z = np.stack([rng.integers(0, p, (2, inner), dtype=np.uint64) for p in primes])
    found = {
        "matmul": side.matmul(x, y), "add": side.add(x, z), "sub": side.sub(x, z), "mul": side.mul(x, z),
        "inverse": side.inverse(z), "root": side.root(z), "power": side.power(z, 5), "sum": side.sum(x, 1),
    }  # fmt: skip
    for n, one in enumerate(Modulus(prime) for prime in primes):
        expected = {
            "matmul": one.matmul(x[n], y[n]), "add": one.add(x[n], z[n]), "sub": one.sub(x[n], z[n]),
            "mul": one.mul(x[n], z[n]), "inverse": one.inverse(z[n]), "root": one.root(z[n]),
            "power": one.power(z[n], 5), "sum": one.sum(x[n], 0),
        }  # fmt: skip
        for name, array in expected.items():
            assert np.array_equal(found[name][n], array), name
        product = [
            [sum(map(int.__mul__, row, column)) % one.value for column in y[n].T.tolist()] for row in x[n].tolist()
        ]
        assert expected["matmul"].tolist() == product


def test_a_stack_draws_and_scatters_as_its_instances() -> None:
    instances = [FieldInstance.draw(seed) for seed in (1, 2, 3)]
    stack = FieldStack(instances)
    drawn = stack.random("X", (4, 2))
    for n, one in enumerate(instances):
        alone = one.random("X", (4, 2))
        assert np.array_equal(drawn.p[n], alone.p) and np.array_equal(drawn.q[n], alone.q)
        assert np.array_equal(stack.exp(drawn.q)[n], one.exp(alone.q))
        assert np.array_equal(stack.mixed(drawn.p, "ReLU", "p")[n], one.mixed(alone.p, "ReLU", "p"))


def test_large_tensors_are_drawn_whole_and_computed_with_as_others() -> None:
    instance = FieldInstance.draw(8)
    large = instance.random("X", (LARGE_TENSOR // 4 + 1, 4), q=False).p
    assert large.dtype == np.uint32 and large.max() < PRIMES.low <= instance.p.value
    assert abs(large.mean() / PRIMES.low - 0.5) < 1e-3 and len(np.unique(large[-1000:])) > 3000
    part, same = large[:50], large[:50].astype(np.uint64)
    for operation in (instance.p.mul, instance.p.add, instance.p.sub):
        assert np.array_equal(operation(part, part[::-1]), operation(same, same[::-1]))
    assert np.array_equal(instance.p.matmul(part.T, part), instance.p.matmul(same.T, same))
    assert np.array_equal(instance.p.power(part, 77), instance.p.power(same, 77))
    assert np.array_equal(instance.p.inverse(part), instance.p.inverse(same))
    assert np.array_equal(instance.p.sum(part, 0), instance.p.sum(same, 0))
