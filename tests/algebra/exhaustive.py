"""The guarantee of the oracle, tried on everything: random targets, all their rewrites, every part.

In: options, symbols with their axes, and a seed. Out: a `Survey`, which counts the parts that were asked
about, those that were cut although they are parts (must be none), and, where the rewriting came to an end
so that all parts are known, how many non-parts were kept. Theorem 1 of the paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from mirage_nb.algebra.atoms import Expr
from mirage_nb.algebra.axioms import Apply, Axiom, Sum, Symbol, Term
from mirage_nb.algebra.options import AlgebraOptions
from mirage_nb.algebra.oracle import ADD, DIV_AB, DIV_BA, MUL
from mirage_nb.algebra.strict import Expressions, Pruner, algebra_for, oracle_for
from tests.algebra.rewriting import Rewriter, SymbolAxes, build, subterms

_FLAGS = {"mul": MUL, "add": ADD, "div": DIV_AB}
_ARITY = {"add": 2, "sub": 2, "mul": 2, "div": 2, "exp": 1, "sqrt": 1, "silu": 1}

MIXES: dict[str, tuple[str, ...]] = {
    "all": ("add", "mul", "mul", "div", "exp", "sqrt", "silu", "sum", "sum", "leaf"),
    "polynomials": ("add", "mul", "mul", "sum", "sum"),
    "networks": ("mul", "mul", "mul", "sum", "sum", "sum", "sum"),
    "quotients": ("add", "mul", "div", "div", "sum", "sum"),
    "exponentials": ("add", "mul", "exp", "sum", "sum", "div"),
}
"""Which operators random terms are made of; repeated ones are likelier."""

_K, _L, _J = ("k", "t"), ("k", "l"), ("j", "t")
SYMBOLS: dict[str, SymbolAxes] = {
    "scalars": {
        "x": frozenset({_K, _L}),
        "y": frozenset({_K, _L, _J}),
        "z": frozenset(),
        "w": frozenset({_J}),
        "c": frozenset(),
    },
    "few": {"x": frozenset({_K}), "y": frozenset({_K, _J}), "w": frozenset({_J})},
    "crossed": {
        "x": frozenset({_K, _L}),
        "y": frozenset({_K, _J}),
        "w": frozenset({_J}),
        "z": frozenset({_L, _J}),
    },
}
"""Sets of symbols with the axes that they depend on."""


@dataclass(slots=True)
class Survey:
    """What a survey found. `wrong` must stay empty; `kept` of `asked` non-parts is the precision.

    Attributes:
        parts: how many parts of rewrites were asked about.
        complete: for how many targets all rewrites were found.
        wrong: descriptions of rewrites with another normal form, of parts that were cut, and of operands
            whose pair filter denied a part.
        asked: how many expressions that are no part of any rewrite were asked about, all of them one
            operator away from parts; kept: how many of those the oracle kept.
    """

    targets: int = 0
    parts: int = 0
    complete: int = 0
    asked: int = 0
    kept: int = 0
    wrong: list[str] = field(default_factory=list)


def random_term(rng: Random, depth: int, rewriter: Rewriter, mix: Sequence[str]) -> Term:
    """A random term of at most `depth` operators on a path; sums are over axes that it depends on."""
    op = rng.choice(mix) if depth else "leaf"
    if op == "leaf":
        return Symbol(rng.choice(sorted(rewriter.axes)))
    if op == "sum":
        body = random_term(rng, depth - 1, rewriter, mix)
        axes = sorted(rewriter.free_axes(body), key=str)
        return Sum(rng.choice(axes), body) if axes else body
    return Apply(op, tuple(random_term(rng, depth - 1, rewriter, mix) for _ in range(_ARITY[op])))


def survey(
    options: AlgebraOptions,
    symbols: SymbolAxes,
    mix: Sequence[str],
    *,
    seed: int,
    targets: int,
    depth: int = 4,
    limit: int = 1000,
    pairs: int = 100,
    more: tuple[Axiom, ...] = (),
) -> Survey:
    """Try the oracle on random targets.

    Args:
        options: the axioms in force.
        symbols: the axes of the symbols.
        mix: the operators of the targets (see `MIXES`).
        seed: of all random choices.
        targets: how many targets.
        depth: of the targets.
        limit: of the number of rewrites of one target.
        pairs: how many pairs of parts to combine in search of non-parts, for each complete target.
        more: equations beside those of the options.
    """
    rng, found = Random(seed), Survey()
    for _ in range(targets):
        rewriter = Rewriter(options.equations() + more, symbols, factored=options.products == "factored")
        target = random_term(rng, depth, rewriter, mix)
        examine(options, rewriter, target, found, rng, limit=limit, pairs=pairs)
    return found


def examine(
    options: AlgebraOptions,
    rewriter: Rewriter,
    target: Term,
    found: Survey,
    rng: Random,
    *,
    limit: int,
    pairs: int,
) -> None:
    """Try the oracle on one target and add what comes out to `found` (see `survey`)."""
    rewrites, complete = rewriter.closure(target, limit)
    parts = subterms(rewrites)
    algebra = algebra_for(options)
    known: dict[Term, Expr] = {}
    oracle = oracle_for(algebra, [build(algebra, target, rewriter.axes, known)])
    for rewrite in rewrites:
        if build(algebra, rewrite, rewriter.axes, known) != known[target]:
            found.wrong.append(f"another normal form: {rewrite} of {target}")
    _ask_parts(oracle, target, parts, known, found)
    found.targets += 1
    if complete:
        found.complete += 1
        expressions = {known[part] for part in parts}
        _ask_others(algebra, oracle, sorted(expressions), expressions, rng, pairs, found)


def _ask_parts(oracle: Pruner, target: Term, parts: Iterable[Term], known: dict[Term, Expr], found: Survey) -> None:
    for part in parts:
        found.parts += 1
        if not oracle.reaches(known[part]):
            found.wrong.append(f"cut: {part} of {target}")
        if isinstance(part, Apply) and part.op in _FLAGS:
            a, b = (known[operand] for operand in part.args)
            if not oracle.pair(a, b) & _FLAGS[part.op]:
                found.wrong.append(f"pair denied: {part} of {target}")


def _ask_others(
    algebra: Expressions,
    oracle: Pruner,
    choices: list[Expr],
    parts: set[Expr],
    rng: Random,
    pairs: int,
    found: Survey,
) -> None:
    for _ in range(pairs):
        a, b = rng.choice(choices), rng.choice(choices)
        flags = oracle.pair(a, b)
        answers = {
            algebra.mul(a, b): flags & MUL,
            algebra.add(a, b): flags & ADD,
            algebra.div(a, b): flags & DIV_AB,
            algebra.div(b, a): flags & DIV_BA,
        }
        for axis in sorted(algebra.free_axes(a), key=str):
            e = algebra.sum((axis,), a)
            answers[e] = oracle.reaches(e)
        for e, kept in answers.items():
            if e not in parts:
                found.asked += 1
                found.kept += bool(kept)
