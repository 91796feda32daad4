"""Expressions and oracle for searches with fewer axioms than the normal form honours.

In: the axioms in force. Out: `algebra_for` and `oracle_for`, which give the plain algebra and oracle where the normal
form can do without the axioms that are off, and else `Strict` and `StrictOracle`: an expression is then the plain one
together with a marked one for each `Model`, and it reaches a target if it does so in every model. Invariant: as of the
oracle, a part that some rewriting under the axioms in force has is never cut.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from mirage_nb.algebra.atoms import Expr, SubAxis
from mirage_nb.algebra.axioms import BY_NAME
from mirage_nb.algebra.models import MODELS, Model
from mirage_nb.algebra.normal_form import Algebra
from mirage_nb.algebra.options import AlgebraOptions
from mirage_nb.algebra.oracle import ADD, DIV_AB, DIV_BA, MUL, Oracle

_PLAIN_PLACES = ("an exponent", "a radicand", "a denominator")


def algebra_for(options: AlgebraOptions) -> Expressions:
    """The algebra in which just the axioms of `options` hold, or as many of the others as the models cannot avoid."""
    return Strict(options) if options.off & MODELS.keys() else Algebra(options)


def oracle_for(algebra: Expressions, targets: Iterable[Expr]) -> Pruner:
    """The oracle that belongs to an algebra."""
    return StrictOracle(algebra, targets) if isinstance(algebra, Strict) else Oracle(algebra, targets)


class Strict:
    """Expressions in several models at once. Not shared between threads; may be pickled."""

    def __init__(self, options: AlgebraOptions) -> None:
        self.options = options
        self.plain = Algebra(options)
        self.names = tuple(name for name in MODELS if name in options.off)
        self.models: tuple[Model, ...] = tuple(MODELS[name](self.plain) for name in self.names)
        self._known: dict[tuple[Expr, ...], Expr] = {}
        self.views: list[tuple[Expr, ...]] = []
        self._made: dict[tuple[Hashable, ...], Expr] = {}

    def symbol(self, name: str, axes: Iterable[SubAxis] = ()) -> Expr:
        """An input tensor. Raises ValueError as `Algebra.symbol` does."""
        return self._alike(self.plain.symbol(name, axes))

    def constant(self, key: Hashable) -> Expr:
        """A scalar."""
        return self._alike(self.plain.constant(key))

    def add(self, a: Expr, b: Expr) -> Expr:
        """a + b."""
        return self._binary("add", self.plain.add, a, b)

    def negate(self, e: Expr) -> Expr:
        """-e."""
        return self._intern(tuple(self.plain.negate(view) for view in self.views[e]))

    def mul(self, a: Expr, b: Expr) -> Expr:
        """a * b."""
        return self._binary("mul", self.plain.mul, a, b)

    def div(self, a: Expr, b: Expr) -> Expr:
        """a / b."""
        key = ("div", a, b)
        if key not in self._made:
            (over, *marked), below = self.views[a], self.views[b][0]
            made = (model.div(e, below) for model, e in zip(self.models, marked, strict=True))
            self._made[key] = self._intern((self.plain.div(over, below), *made))
        return self._made[key]

    def exp(self, e: Expr) -> Expr:
        """exp(e)."""
        return self._alike(self.plain.exp(self.views[e][0]))

    def sqrt(self, e: Expr) -> Expr:
        """The square root of e."""
        return self._alike(self.plain.sqrt(self.views[e][0]))

    def sum(self, axes: Iterable[SubAxis], e: Expr) -> Expr:
        """The sum of e over some axes."""
        axes = tuple(axes)
        key = ("sum", axes, e)
        if key not in self._made:
            plain, *marked = self.views[e]
            made = (model.sum(axes, one) for model, one in zip(self.models, marked, strict=True))
            self._made[key] = self._intern((self.plain.sum(axes, plain), *made))
        return self._made[key]

    def function(self, name: str, e: Expr) -> Expr:
        """An opaque unary function of e."""
        return self._intern(tuple(self.plain.function(name, view) for view in self.views[e]))

    def free_axes(self, e: Expr) -> frozenset[SubAxis]:
        """The axes that e depends on."""
        return self.plain.free_axes(self.views[e][0])

    def show(self, e: Expr) -> str:
        """The plain normal form as text."""
        return self.plain.show(self.views[e][0])

    def _binary(self, name: str, plain: Callable[[Expr, Expr], Expr], a: Expr, b: Expr) -> Expr:
        key = (name, a, b) if a < b else (name, b, a)
        if key not in self._made:
            views = zip(self.models, self.views[a][1:], self.views[b][1:], strict=True)
            made = (getattr(model, name)(x, y) for model, x, y in views)
            self._made[key] = self._intern((plain(self.views[a][0], self.views[b][0]), *made))
        return self._made[key]

    def _alike(self, plain: Expr) -> Expr:
        return self._intern((plain,) * (1 + len(self.models)))

    def _intern(self, views: tuple[Expr, ...]) -> Expr:
        e = self._known.get(views)
        if e is None:
            e = self._known[views] = len(self.views)
            self.views.append(views)
        return e


class StrictOracle:
    """Decides for one set of targets, in every model."""

    def __init__(self, algebra: Strict, targets: Iterable[Expr]) -> None:
        targets = tuple(targets)
        self.algebra = algebra
        views = [algebra.views[e] for e in targets]
        self.plain = Oracle(algebra.plain, [view[0] for view in views])
        self.marked = [Oracle(algebra.plain, [view[i] for view in views]) for i in range(1, 1 + len(algebra.models))]
        levels = enumerate(self.plain.levels)
        self._inner = frozenset(i for i, level in levels if any(place in level.place for place in _PLAIN_PLACES))
        self._missing: dict[Expr, str] = {}

    def reaches(self, e: Expr) -> bool:
        """Whether e can still become a part of some target."""
        if not self.plain.reaches(self.algebra.views[e][0]):
            return False
        return not self.missing(e)

    def missing(self, e: Expr) -> str:
        """The name of an axiom that is off without which e is no part; empty if there is none."""
        found = self._missing.get(e)
        if found is None:
            plain, *marked = self.algebra.views[e]
            found = ""
            if not self.plain.reaches_level(plain, self._inner):
                each = zip(self.algebra.names, self.algebra.models, self.marked, marked, strict=True)
                found = next((name for name, model, oracle, view in each if not model.reaches(oracle, view)), "")
            self._missing[e] = found
        return found

    def pair(self, a: Expr, b: Expr) -> int:
        """Which results of a and b can reach a target: MUL | ADD | DIV_AB | DIV_BA."""
        algebra = self.algebra
        flags = self.plain.pair(algebra.views[a][0], algebra.views[b][0])
        results = (MUL, algebra.mul, a, b), (ADD, algebra.add, a, b), (DIV_AB, algebra.div, a, b)
        for flag, operator, x, y in (*results, (DIV_BA, algebra.div, b, a)):
            if flags & flag and self.missing(operator(x, y)):
                flags ^= flag
        return flags

    def adds(self, a: Expr, b: Expr) -> bool:
        """Whether the sum of a and b can reach a target."""
        views = self.algebra.views
        return self.plain.adds(views[a][0], views[b][0]) and not self.missing(self.algebra.add(a, b))

    def parts(self) -> int:
        """As `Oracle.parts`."""
        return self.plain.parts()

    def explain(self, e: Expr) -> str:
        """Why e is kept or cut, in one or two lines."""
        plain = self.algebra.views[e][0]
        if not self.plain.reaches(plain) or not self.missing(e):
            return self.plain.explain(plain)
        axiom = BY_NAME[self.missing(e)]
        shown = self.algebra.show(e)
        return f"{shown}\n  cut: a part of the target only by the axiom {axiom.name}, {axiom.says}; it is off"


Expressions = Algebra | Strict
Pruner = Oracle | StrictOracle
"""What the search asks, whichever axioms are in force."""
