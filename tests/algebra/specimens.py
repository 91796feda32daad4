"""Expressions shaped like real programs, and what they can be combined to.

In: an algebra. Out: `Specimen`s: the target expression of a program and the leaves that a search would
start from. Every summed axis has three parts (grid, loop, tile), as in the search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mirage_nb.algebra.atoms import Expr
from mirage_nb.algebra.normal_form import Algebra
from mirage_nb.algebra.oracle import ADD, DIV_AB, DIV_BA, MUL, Oracle

PARTS = ("g", "l", "t")


@dataclass(frozen=True, slots=True)
class Specimen:
    """A target, the leaves it is made of, the scalars among them, and its opaque functions."""

    target: Expr
    leaves: tuple[Expr, ...]
    scalars: tuple[Expr, ...] = ()
    functions: tuple[str, ...] = ()


def parts(axis: str) -> tuple[tuple[str, str], ...]:
    """The three parts of a summed axis."""
    return tuple((axis, part) for part in PARTS)


def tensor(algebra: Algebra, name: str, free: str, summed: str = "") -> Expr:
    """An input with one-letter axes: `free` ones have one part, `summed` ones three."""
    axes: list[tuple[str, ...]] = [(axis,) for axis in free]
    for axis in summed:
        axes += parts(axis)
    return algebra.symbol(name, axes)


def matmul(algebra: Algebra, axis: str, a: Expr, b: Expr) -> Expr:
    """The sum over `axis` of a * b."""
    return algebra.sum(parts(axis), algebra.mul(a, b))


def rms(algebra: Algebra, axis: str, x: Expr) -> Expr:
    """x over the root of the mean of its squares along `axis`."""
    mean = algebra.mul(matmul(algebra, axis, x, x), algebra.constant(f"1/{axis}"))
    return algebra.div(x, algebra.sqrt(mean))


def rmsnorm(algebra: Algebra) -> Specimen:
    """rms(X) @ W"""
    x, w = tensor(algebra, "X", "m", "k"), tensor(algebra, "W", "n", "k")
    return Specimen(matmul(algebra, "k", rms(algebra, "k", x), w), (x, w), (algebra.constant("1/k"),))


def gated_mlp(algebra: Algebra) -> Specimen:
    """silu(X @ W1) * (X @ W2)"""
    x = tensor(algebra, "X", "m", "k")
    w1, w2 = tensor(algebra, "W1", "n", "k"), tensor(algebra, "W2", "n", "k")
    gate = algebra.function("silu", matmul(algebra, "k", x, w1))
    return Specimen(algebra.mul(gate, matmul(algebra, "k", x, w2)), (x, w1, w2), functions=("silu",))


def lora(algebra: Algebra) -> Specimen:
    """X @ W + (X @ A) @ C"""
    x, w = tensor(algebra, "X", "m", "k"), tensor(algebra, "W", "n", "k")
    a, c = tensor(algebra, "A", "", "kr"), tensor(algebra, "C", "n", "r")
    low_rank = matmul(algebra, "r", matmul(algebra, "k", x, a), c)
    return Specimen(algebra.add(matmul(algebra, "k", x, w), low_rank), (x, w, a, c))


def _attention(algebra: Algebra, score: Expr, v: Expr, shifted: bool) -> Expr:
    if shifted:
        score = algebra.add(score, algebra.function("max", score))
    weight = algebra.exp(score)
    return matmul(algebra, "j", algebra.div(weight, algebra.sum(parts("j"), weight)), v)


def _qkv(algebra: Algebra, summed_features: str = "") -> tuple[Expr, Expr, Expr]:
    free = "b" if summed_features else "be"
    v = tensor(algebra, "V", free, "j" + summed_features)
    return tensor(algebra, "Q", "bi", "d"), tensor(algebra, "K", "b", "dj"), v


def attention(algebra: Algebra) -> Specimen:
    """softmax(Q @ K) @ V without the shift"""
    q, k, v = _qkv(algebra)
    return Specimen(_attention(algebra, matmul(algebra, "d", q, k), v, shifted=False), (q, k, v))


def attention_safe(algebra: Algebra) -> Specimen:
    """softmax(c * (Q @ K)) @ V with the running maximum subtracted"""
    q, k, v = _qkv(algebra)
    scale = algebra.constant("d**-0.5")
    score = algebra.mul(matmul(algebra, "d", q, k), scale)
    return Specimen(_attention(algebra, score, v, shifted=True), (q, k, v), (scale,), ("max",))


def qknorm(algebra: Algebra) -> Specimen:
    """attention with rms(Q) and rms(V) over their last axes"""
    q, k, v = _qkv(algebra, "e")
    score = matmul(algebra, "d", rms(algebra, "d", q), k)
    target = _attention(algebra, score, rms(algebra, "e", v), shifted=False)
    return Specimen(target, (q, k, v), (algebra.constant("1/d"), algebra.constant("1/e")))


def qknorm_k(algebra: Algebra) -> Specimen:
    """attention with rms(Q) and rms(K) over the feature axis"""
    q, k, v = _qkv(algebra)
    score = matmul(algebra, "d", rms(algebra, "d", q), rms(algebra, "d", k))
    return Specimen(_attention(algebra, score, v, shifted=False), (q, k, v), (algebra.constant("1/d"),))


def ntrans(algebra: Algebra) -> Specimen:
    """rms(X + A * (rms(H) + X))"""
    x, h, a = (tensor(algebra, name, "m", "k") for name in "XHA")
    mixed = algebra.add(x, algebra.mul(a, algebra.add(rms(algebra, "k", h), x)))
    return Specimen(rms(algebra, "k", mixed), (x, h, a), (algebra.constant("1/k"),))


SPECIMENS: dict[str, Callable[[Algebra], Specimen]] = {
    f.__name__: f for f in (rmsnorm, gated_mlp, lora, attention, attention_safe, qknorm, qknorm_k, ntrans)
}


def part_axes(algebra: Algebra, e: Expr) -> Iterable[tuple[tuple[str, ...], ...]]:
    """For each summed axis of e, the parts of it that e still depends on."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for axis in algebra.free_axes(e):
        if isinstance(axis, tuple) and len(axis) == 2:
            found.setdefault(axis[0], []).append(axis)
    return (tuple(sorted(found[name])) for name in sorted(found))


def saturate(algebra: Algebra, oracle: Oracle, specimen: Specimen, limit: int) -> tuple[list[Expr], bool]:
    """All expressions that the leaves can be combined to and that still reach the target.

    Returns:
        The expressions, at most `limit`, and whether these are all.
    """
    known = dict.fromkeys(e for e in specimen.leaves if oracle.reaches(e))
    order = list(known)
    for i, e in enumerate(order):  # grows while it is read
        fresh = [*unary(algebra, specimen, e), *binary(algebra, oracle, e, order[: i + 1])]
        for new in fresh:
            if new not in known and oracle.reaches(new):
                if len(order) >= limit:
                    return order, False
                known[new] = None
                order.append(new)
    return order, True


def unary(algebra: Algebra, specimen: Specimen, e: Expr) -> Iterable[Expr]:
    """What one operator makes of one expression."""
    yield algebra.exp(e)
    yield algebra.sqrt(e)
    for scalar in specimen.scalars:
        yield algebra.mul(e, scalar)
    for name in specimen.functions:
        yield algebra.function(name, e)
    for axes in part_axes(algebra, e):
        for chosen in range(1, 1 << len(axes)):
            yield algebra.sum([axis for i, axis in enumerate(axes) if chosen >> i & 1], e)


def binary(algebra: Algebra, oracle: Oracle, e: Expr, others: Iterable[Expr]) -> Iterable[Expr]:
    """What one operator makes of e and one of `others`, as far as it reaches the target."""
    for other in others:
        flags = oracle.pair(e, other)
        if flags & MUL:
            yield algebra.mul(e, other)
        if flags & ADD:
            yield algebra.add(e, other)
        if flags & DIV_AB:
            yield algebra.div(e, other)
        if flags & DIV_BA:
            yield algebra.div(other, e)
