"""The oracle on programs: it keeps what the known good muGraphs compute, and cuts what they cannot use."""

from __future__ import annotations

import pickle
from random import Random

import pytest

from mirage_nb.algebra import ADD, DIV_AB, DIV_BA, MUL, QUICK, STANDARD, THOROUGH, Algebra, AlgebraOptions, Oracle
from mirage_nb.algebra.atoms import Expr
from tests.algebra.exhaustive import MIXES, SYMBOLS, random_term
from tests.algebra.rewriting import Rewriter, build, subterms
from tests.algebra.specimens import SPECIMENS, matmul, parts
from tests.shares import shared_out

PRESETS = {"quick": QUICK, "standard": STANDARD, "thorough": THOROUGH}
every_preset = pytest.mark.parametrize("options", PRESETS.values(), ids=PRESETS)


class Program:
    """A specimen with its oracle, and shorthands."""

    def __init__(self, options: AlgebraOptions, name: str) -> None:
        self.algebra = Algebra(options)
        self.specimen = SPECIMENS[name](self.algebra)
        self.oracle = Oracle(self.algebra, [self.specimen.target])

    def in_parts(self, axis: str, e: Expr) -> list[Expr]:
        """e summed over the tile, then the loop, then the grid part of an axis: every stage."""
        stages = [e]
        for part in reversed(parts(axis)):
            stages.append(self.algebra.sum([part], stages[-1]))
        return stages

    def keeps(self, *expressions: Expr) -> None:
        for e in expressions:
            assert self.oracle.reaches(e), self.oracle.explain(e)

    def cuts(self, *expressions: Expr) -> None:
        for e in expressions:
            assert not self.oracle.reaches(e), self.oracle.explain(e)


@every_preset
def test_rmsnorm(options: AlgebraOptions) -> None:
    p = Program(options, "rmsnorm")
    a, (x, w), (mean,) = p.algebra, p.specimen.leaves, p.specimen.scalars
    square, product = a.mul(x, x), a.mul(x, w)
    p.keeps(x, w, *p.in_parts("k", square), *p.in_parts("k", product))
    root = a.sqrt(a.mul(matmul(a, "k", x, x), mean))
    p.keeps(root, a.div(x, root), a.div(w, root), a.div(product, root), a.div(matmul(a, "k", x, w), root))
    p.keeps(a.mul(square, mean), a.sqrt(a.sum(parts("k"), a.mul(square, mean))))
    p.cuts(*p.in_parts("k", x)[1:], *p.in_parts("k", w)[1:])  # a sum over k needs both factors
    p.cuts(a.sqrt(square), a.sqrt(a.sum(parts("k")[1:], square)))  # the root of a partial sum
    p.cuts(a.mul(w, w), a.add(x, w), a.div(w, x), a.exp(x), a.mul(square, w), a.div(root, x))
    p.cuts(a.mul(matmul(a, "k", x, w), mean), a.sum([("m",)], product), a.sum([("n",)], w))


@every_preset
def test_safe_attention(options: AlgebraOptions) -> None:
    p = Program(options, "attention_safe")
    a, (q, k, v), (scale,) = p.algebra, p.specimen.leaves, p.specimen.scalars
    score = a.mul(matmul(a, "d", q, k), scale)
    peak = a.function("max", score)
    weight = a.exp(a.add(score, peak))
    p.keeps(score, peak, a.mul(q, scale), a.mul(k, scale), matmul(a, "d", q, a.mul(k, scale)))
    p.keeps(weight, *p.in_parts("j", weight), *p.in_parts("j", a.mul(weight, v)))
    total = a.sum(parts("j"), weight)
    p.keeps(a.div(weight, total), a.div(v, total), a.div(a.mul(weight, v), total))
    p.keeps(a.exp(score), a.exp(peak))  # exp(a + b) = exp(a) exp(b)
    p.cuts(*p.in_parts("j", a.exp(score))[1:])  # the shift comes before the sum
    p.cuts(a.sum(parts("j")[1:], peak), a.mul(weight, q), a.div(v, a.sum(parts("j")[1:], weight)))
    p.cuts(a.exp(a.add(score, score)), a.mul(score, scale), a.function("max", q), a.exp(weight))


@every_preset
def test_qknorm_keeps_the_norms_apart(options: AlgebraOptions) -> None:
    p = Program(options, "qknorm_k")
    a, (q, k, _), (mean,) = p.algebra, p.specimen.leaves, p.specimen.scalars
    norm_q, norm_k = (a.sqrt(a.mul(matmul(a, "d", x, x), mean)) for x in (q, k))
    p.keeps(norm_q, norm_k, a.mul(norm_q, norm_k), a.div(q, norm_k), a.div(a.div(matmul(a, "d", q, k), norm_q), norm_k))
    p.cuts(a.mul(a.mul(q, q), k), a.mul(norm_q, norm_q), a.mul(norm_q, q), a.add(norm_q, norm_k))
    # One root over both norms is a rewrite of two roots only with sqrt(x) sqrt(y) = sqrt(x y).
    both = a.mul(matmul(a, "d", q, q), matmul(a, "d", k, k))
    assert p.oracle.reaches(both) is (options == THOROUGH)
    p.cuts(a.mul(a.mul(q, q), a.mul(k, k)))  # never one sum over both


@every_preset
def test_ntrans_and_lora_keep_sums_before_products(options: AlgebraOptions) -> None:
    p = Program(options, "lora")
    a, (x, w, down, up) = p.algebra, p.specimen.leaves
    low_rank = matmul(a, "r", down, up)
    p.keeps(low_rank, a.add(w, low_rank), matmul(a, "k", x, a.add(w, low_rank)))
    p.cuts(a.add(w, down), a.add(x, w), a.mul(w, down), a.add(w, w))
    p = Program(options, "ntrans")
    a, (x, h, alpha), (mean,) = p.algebra, p.specimen.leaves, p.specimen.scalars
    normed = a.div(h, a.sqrt(a.mul(matmul(a, "k", h, h), mean)))
    mixed = a.add(x, a.mul(alpha, a.add(normed, x)))
    p.keeps(normed, a.add(normed, x), a.mul(alpha, x), mixed, *p.in_parts("k", a.mul(mixed, mixed)))
    p.cuts(a.add(h, x), a.mul(a.mul(h, h), h), a.add(alpha, x), a.sum(parts("k"), mixed))


@every_preset
@pytest.mark.parametrize("name", SPECIMENS)
def test_pair_says_what_reaches_says(name: str, options: AlgebraOptions, rng: Random) -> None:
    p = Program(options, name)
    a, oracle = p.algebra, p.oracle
    known = [level.expr for level in oracle.levels] if options != QUICK else [p.specimen.target]
    known += [*p.specimen.leaves, *p.specimen.scalars]
    for _ in range(150):
        x, y = rng.choice(known), rng.choice(known)
        flags = oracle.pair(x, y)
        answers = {MUL: a.mul(x, y), ADD: a.add(x, y), DIV_AB: a.div(x, y), DIV_BA: a.div(y, x)}
        for flag, e in answers.items():
            assert bool(flags & flag) == oracle.reaches(e), oracle.explain(e)
            if flags & flag:
                known.append(e)
        for axis in sorted(a.free_axes(x), key=str):
            e = a.sum([axis], x)
            if oracle.reaches(e):
                known.append(e)


@shared_out
@every_preset
@pytest.mark.parametrize("mix", MIXES)
def test_parts_of_kept_terms_are_kept(options: AlgebraOptions, mix: str, share: int, rng: Random) -> None:
    """Also when the kept term is no part of any rewrite: the search relies on it to prune prefixes."""
    axes = SYMBOLS["crossed"]
    rewriter = Rewriter((), axes)
    checked = 0
    for _ in range(0, 300, share):
        algebra, known = Algebra(options), {}
        oracle = Oracle(algebra, [build(algebra, random_term(rng, 4, rewriter, MIXES[mix]), axes, known)])
        for _ in range(40):
            term = random_term(rng, 2, rewriter, MIXES[mix])
            if oracle.reaches(build(algebra, term, axes, known)):
                for part in subterms([term])[1:]:
                    checked += 1
                    assert oracle.reaches(known[part]), oracle.explain(known[part])
    assert checked > 120 // share


def test_one_bound_axis_is_not_another_of_its_name() -> None:
    """In (sum_k x) * (sum_k y) the product x * y never occurs; in x * sum_k y it does not either."""
    algebra = Algebra()
    x, y = algebra.symbol("X", "k"), algebra.symbol("Y", "k")
    for target in (algebra.mul(algebra.sum("k", x), algebra.sum("k", y)), algebra.mul(x, algebra.sum("k", y))):
        assert not Oracle(algebra, [target]).reaches(algebra.mul(x, y))
    inner = algebra.sqrt(algebra.mul(x, x))
    target = algebra.mul(inner, algebra.sqrt(algebra.sum("k", x)))
    oracle = Oracle(algebra, [target])
    assert oracle.reaches(algebra.sum("k", x)) and oracle.reaches(inner)
    assert not oracle.reaches(algebra.sum("k", inner))


def test_summands_must_fit_in_one_place() -> None:
    algebra = Algebra()
    x, y, z, w = (algebra.symbol(n) for n in "xyzw")
    oracle = Oracle(algebra, [algebra.add(algebra.mul(x, z), algebra.mul(y, w))])
    assert oracle.reaches(x) and oracle.reaches(y)
    assert not oracle.reaches(algebra.add(x, y))
    same = Oracle(algebra, [algebra.add(algebra.mul(x, z), algebra.mul(y, z))])
    assert same.reaches(algebra.add(x, y))


def test_summands_that_become_equal_after_a_sum() -> None:
    """z * sum w + w * sum z are two terms until they are summed: then they are one, twice."""
    algebra = Algebra()
    z, w = algebra.symbol("z", "j"), algebra.symbol("w", "j")
    total_z, total_w = algebra.sum("j", z), algebra.sum("j", w)
    target = algebra.mul(total_w, algebra.add(total_z, total_z))
    both = algebra.add(algebra.mul(z, total_w), algebra.mul(w, total_z))
    assert algebra.sum("j", both) == target
    assert Oracle(algebra, [target]).reaches(both)


def test_nothing_is_left_over_that_no_term_computes() -> None:
    algebra = Algebra()
    x, y, z = (algebra.symbol(n) for n in "xyz")
    oracle = Oracle(algebra, [algebra.div(x, algebra.div(y, z))])
    assert oracle.reaches(algebra.div(y, z))
    assert not oracle.reaches(algebra.div(x, y))  # what is missing, 1 / (1 / z), is no term
    twice = Oracle(algebra, [algebra.div(x, algebra.add(y, y))])
    assert not twice.reaches(algebra.div(x, y))


def test_several_targets() -> None:
    algebra = Algebra()
    x, y, z = (algebra.symbol(n, "k") for n in "xyz")
    oracle = Oracle(algebra, [algebra.mul(x, y), algebra.sum("k", z)])
    assert oracle.reaches(algebra.mul(x, y)) and oracle.reaches(z) and not oracle.reaches(algebra.mul(y, z))
    assert [level.place for level in oracle.levels] == ["the target", "the target"]


def test_undecided_is_kept_and_said() -> None:
    """A cubic denominator is beyond the factoring: nothing may be concluded from it."""
    algebra = Algebra()
    x, y = algebra.symbol("x"), algebra.symbol("y")
    cubes = [algebra.mul(algebra.mul(s, s), s) for s in (x, y)]
    cubic = algebra.add(*cubes)
    odd = algebra.div(x, cubic)
    assert algebra.is_vague(odd)
    oracle = Oracle(algebra, [x])
    assert oracle.reaches(odd) and not oracle.reaches(y)
    assert "not decided" in oracle.explain(odd)
    open_oracle = Oracle(algebra, [algebra.exp(odd)])
    assert open_oracle.undecided and open_oracle.reaches(algebra.exp(y))
    assert open_oracle.pair(x, y) == MUL | ADD | DIV_AB | DIV_BA
    assert "nothing is cut" in open_oracle.explain(y)


def test_explanations() -> None:
    p = Program(STANDARD, "attention")
    a, (q, k, v) = p.algebra, p.specimen.leaves
    assert p.oracle.explain(p.specimen.target).endswith("kept: it is the target")
    assert p.oracle.explain(a.mul(q, k)).endswith("kept: a part of an exponent, Σd Q·K")
    assert p.oracle.explain(a.mul(v, v)).endswith("cut: no part of the target has all factors of V²: V too many")
    assert "summed axis is still needed" in p.oracle.explain(a.sum(parts("d"), q))
    assert "one by one" in p.oracle.explain(a.add(q, k))


def test_explanations_tell_factors_that_are_apart_from_axes_too_many() -> None:
    """X Z + Y Z of the paper's section 4.3."""
    algebra = Algebra()
    x, y = (algebra.symbol(name, [("m",), ("k",)]) for name in "XY")
    z = algebra.symbol("Z", [("k",), ("n",)])
    products = (algebra.sum([("k",)], algebra.mul(t, z)) for t in (x, y))
    oracle = Oracle(algebra, [algebra.add(*products)])
    assert oracle.explain(algebra.mul(x, y)).endswith("cut: the target has X and Y, but never as factors of one part")
    both = algebra.sum([("k",), ("m",)], algebra.mul(x, z))
    assert oracle.explain(both).endswith("it sums over too many axes")
    assert "kept" in oracle.explain(algebra.add(x, y))


def test_pickled_oracle_answers_the_same() -> None:
    p = Program(QUICK, "ntrans")
    copy = pickle.loads(pickle.dumps(p.oracle))
    for e in range(len(p.algebra)):
        assert copy.reaches(e) == p.oracle.reaches(e)


def test_content_of_one_sum_and_denominator_of_another() -> None:
    """Factored: (c x + c w) * ((y + c) / (x / z)) keeps 1/(1/z) outside of the sum that holds the 1/x."""
    algebra = Algebra(QUICK)
    x, w, y, z, c = (algebra.symbol(n, axes) for n, axes in (("x", "kl"), ("w", "j"), ("y", "l"), ("z", ""), ("c", "")))
    left = algebra.sum("k", algebra.mul(c, algebra.add(x, w)))
    right = algebra.sum("l", algebra.div(algebra.add(y, c), algebra.div(x, z)))
    oracle = Oracle(algebra, [algebra.mul(left, right)])
    for part in (x, w, y, z, c, algebra.sum("k", x), left, right, algebra.add(y, c)):
        assert oracle.reaches(part), oracle.explain(part)


def test_part_of_one_denominator_among_others_in_another_scope() -> None:
    """sum_j (x/y) / (s/(w+w)): 1/y stands inside the sum, the 1/(1/2) of the other divisor outside of it."""
    algebra = Algebra()
    x, y, s, w = (algebra.symbol(n, axes) for n, axes in (("x", "j"), ("y", "jk"), ("s", "k"), ("w", "j")))
    inner = algebra.sum("j", algebra.div(x, y))
    target = algebra.div(inner, algebra.div(s, algebra.add(w, w)))
    oracle = Oracle(algebra, [target])
    for part in (y, w, s, algebra.add(w, w), algebra.div(s, algebra.add(w, w)), inner):
        assert oracle.reaches(part), oracle.explain(part)
