"""A second opinion: the same axioms, run by egglog, agree with the oracle on what is a part."""

from __future__ import annotations

from random import Random
from typing import assert_never

import pytest

from mirage_nb.algebra import STANDARD, THOROUGH, Algebra, AlgebraOptions, Oracle
from mirage_nb.algebra.axioms import PARTS, Apply, AxisHole, Hole, Sum, Symbol, Term
from tests.algebra.exhaustive import MIXES, SYMBOLS, random_term
from tests.algebra.rewriting import Rewriter, build, subterms
from tests.shares import shared_out

bindings = pytest.importorskip("egglog.bindings")

ITERATIONS, NODES = 12, 20_000
OPERATORS = {"Add": 2, "Mul": 2, "Div": 2, "Exp": 1, "Sqrt": 1, "Silu": 1}


def text(term: Term) -> str:
    match term:
        case Symbol(name):
            return f'(Symbol "{name}")'
        case Hole(name):
            return name
        case Apply(op, args):
            return f"({op.title()} {' '.join(map(text, args))})"
        case Sum(axis, body):
            name = axis.name if isinstance(axis, AxisHole) else f'"{axis}"'
            return f"(Sum {name} {text(body)})"
        case _:
            assert_never(term)


def theory(options: AlgebraOptions, symbols) -> list[str]:
    """Declarations and rules: the axioms in force, and which term depends on which axis."""
    lines = ["(datatype Term (Symbol String) (Sum String Term)"]
    lines += [f"  ({op} {' '.join(['Term'] * arity)})" for op, arity in OPERATORS.items()]
    lines += [")", "(relation apart (String Term))", "(relation part (Term))"]
    for op, arity in OPERATORS.items():
        names = [f"x{i}" for i in range(arity)]
        apart = " ".join(f"(apart i {name})" for name in names)
        lines.append(f"(rule ((= e ({op} {' '.join(names)})) {apart}) ((apart i e)))")
    lines.append("(rule ((= e (Sum i x))) ((apart i e)))")
    lines.append("(rule ((= e (Sum j x)) (apart i x)) ((apart i e)))")
    every_axis = sorted(frozenset().union(*symbols.values()), key=str)
    for name, axes in symbols.items():
        lines += [f'(apart "{axis}" (Symbol "{name}"))' for axis in every_axis if axis not in axes]
    for axiom in options.equations():
        if isinstance(axiom.rhs, Hole):
            continue  # sum_one: no term here has that axis
        conditions = " ".join(f"(apart {c.axis} {c.term})" for c in axiom.conditions)
        when = f" :when ({conditions})" if conditions else ""
        lines.append(f"(birewrite {text(axiom.lhs)} {text(axiom.rhs)}{when})")
    for axiom in PARTS:
        if axiom.lhs != axiom.rhs:
            lines.append(f"(rule ((part e) (= e {text(axiom.rhs)})) ((part {text(axiom.lhs)})))")
    return lines


class SecondOpinion:
    """The parts of one target, as egglog finds them."""

    def __init__(self, options: AlgebraOptions, symbols, target: Term, candidates: list[Term]) -> None:
        self._graph = bindings.EGraph()
        self._run("\n".join([*theory(options, symbols), f"(part {text(target)})", *map(text, candidates)]))
        self.saturated = False
        for _ in range(ITERATIONS):
            (output,) = self._run("(run 1)")
            if not output.report.updated:
                self.saturated = True
                break
            if sum(int(n) for n in self._sizes()) > NODES:
                break

    def _run(self, program: str):
        return self._graph.run_program(*self._graph.parse_program(program))

    def _sizes(self):
        (output,) = self._run("(print-size)")
        return [size for _, size in output.sizes]

    def is_part(self, term: Term) -> bool:
        try:
            self._run(f"(check (part {text(term)}))")
        except bindings.EggSmolError:
            return False
        return True


def candidates_for(rng: Random, rewriter: Rewriter, target: Term, mix: str) -> list[Term]:
    """Terms near the target: parts of rewrites, and what one operator makes of them."""
    parts = subterms(rewriter.closure(target, 60)[0])
    chosen = rng.sample(parts, min(12, len(parts)))
    for _ in range(14):
        op = rng.choice(["add", "mul", "div"])
        chosen.append(Apply(op, (rng.choice(parts), rng.choice(parts))))
    for part in rng.sample(parts, min(4, len(parts))):
        chosen += [Sum(axis, part) for axis in sorted(rewriter.free_axes(part), key=str)]
    return chosen + [random_term(rng, 2, rewriter, MIXES[mix]) for _ in range(4)]


@shared_out
@pytest.mark.parametrize("options", [STANDARD, THOROUGH], ids=["standard", "thorough"])
@pytest.mark.parametrize("mix", ["all", "polynomials", "quotients"])
def test_egglog_and_the_oracle_agree(options: AlgebraOptions, mix: str, share: int, rng: Random) -> None:
    symbols = SYMBOLS["few"]
    rewriter = Rewriter(options.equations(), symbols)
    confirmed = compared = kept = 0
    for _ in range(0, 10, share):
        target = random_term(rng, 3, rewriter, MIXES[mix])
        candidates = candidates_for(rng, rewriter, target, mix)
        second = SecondOpinion(options, symbols, target, candidates)
        algebra = Algebra(options)
        oracle = Oracle(algebra, [build(algebra, target, symbols)])
        for term in candidates:
            reaches = oracle.reaches(build(algebra, term, symbols))
            if second.is_part(term):
                confirmed += 1
                assert reaches, (target, term)
            elif second.saturated:
                compared += 1
                kept += reaches
    assert confirmed > 50 // share and compared > 50 // share
    assert kept <= compared // 100
