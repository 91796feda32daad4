"""What NumPy's functions of elements have beside the plain call: np.add.reduce, np.multiply.outer, where=, out= and
initial=.

In: calls. Out: results. Invariant: what where= leaves out is what out= holds there, or of a sum, a product and the like
what changes nothing.
"""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Mapping

from mirage_nb.errors import ProgramSyntaxError
from mirage_nb.lang.builder import Extremes, Infinity, Result, is_tensor
from mirage_nb.lang.constants import Number
from mirage_nb.lang.loops import Loops
from mirage_nb.lang.lowering import add, cast, maximum, minimum, multiply
from mirage_nb.lang.masks import Choice, where
from mirage_nb.lang.views import expand, reshaped, stacked

REDUCED = {
    "reduce": {
        "add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "logical_and": "all", "logical_or": "any",
    },
    "accumulate": {"add": "cumsum", "multiply": "cumprod", "maximum": "cummax", "minimum": "cummin"},
}  # fmt: skip
"""What np.add.reduce(x) and its like are, which go over the first axis."""
NEUTRAL = {"sum": 0, "prod": 1, "any": 0, "all": 1}
"""What stands in reductions for what where= leaves out."""
FROM = {
    "sum": add, "prod": multiply, "max": maximum, "amax": maximum, "min": minimum, "amin": minimum,
}  # fmt: skip
"""What reductions do with initial=."""


class Ufuncs(Loops):
    """Reads calls of NumPy's functions of elements."""

    @abstractmethod
    def called(self, node: ast.Call) -> Result:
        """What a call stands for."""

    def ufunc(self, node: ast.Call) -> Result | None:
        """A call that is more than one of its function; None for any other one."""
        words = {k.arg: k.value for k in node.keywords if k.arg in ("where", "out", "initial") and k.arg}
        match node.func:
            case ast.Attribute(value=ast.Attribute(value=inner, attr=name), attr="outer") if (
                self.family(inner) is not None and len(node.args) == 2
            ):
                return self._outer(node, ast.copy_location(ast.Attribute(inner, name), node))
            case ast.Attribute(value=ast.Attribute(value=inner, attr=name), attr="reduce" | "accumulate" as how) if (
                self.family(inner) is not None and name in REDUCED[how]
            ):
                first_axis = [] if node.args[1:] or node.keywords else [ast.copy_location(ast.Constant(0, "0"), node)]
                reducing = ast.copy_location(ast.Attribute(inner, REDUCED[how][name]), node)
                found = self.result(node.args[0])
                if isinstance(found, tuple) and not isinstance(found, Extremes):  # of several tensors
                    found = self.lowered(node, "", stacked, found, 0)
                rows = self._standing(found, node.args[0])
                call = ast.Call(reducing, [rows, *node.args[1:], *first_axis], node.keywords)
                return self.called(ast.copy_location(call, node))
            case ast.Attribute(value=inner, attr=name) if "initial" in words and name in FROM:
                return self._begun(node, inner, name, words)
            case ast.Attribute(value=inner, attr=name) if "where" in words and "out" not in words and name in NEUTRAL:
                return self._reduced(node, inner, name, words["where"], Number.of(NEUTRAL[name]))
            case ast.Attribute(value=inner) if "initial" not in words and words and self.family(inner) is not None:
                return self._chosen(node, words)
        return None

    def _outer(self, node: ast.Call, function: ast.expr) -> Result:
        """Of all pairs of elements."""
        x, y = map(self.term, node.args)
        if is_tensor(x) and is_tensor(y):
            x = reshaped(self.builder, x, (*self.builder.shape(x), *(1 for _ in self.builder.shape(y))))
        args = [self._standing(one, at) for one, at in zip((x, y), node.args, strict=True)]
        return self.called(ast.copy_location(ast.Call(function, args, node.keywords), node))

    def _begun(self, node: ast.Call, inner: ast.expr, name: str, words: Mapping[str, ast.expr]) -> Result:
        """A reduction that begins with a number; where= leaves that of maxima and minima."""
        initial = self.result(words["initial"])
        if not isinstance(initial, Infinity) or FROM[name] is not (maximum if initial.sign < 0 else minimum):
            initial = self.term_of(initial, words["initial"])
        rest = [k for k in node.keywords if k.arg != "initial"]
        call = ast.copy_location(ast.Call(node.func, node.args, rest), node)
        if "where" in words and name not in NEUTRAL:
            made = self._reduced(call, inner, name, words["where"], initial)
        else:
            made = self.called(call)
        return made if isinstance(initial, Infinity) else self.lowered(node, "", FROM[name], made, initial)

    def _reduced(self, node: ast.Call, inner: ast.expr, name: str, mask: ast.expr, other: Choice) -> Result:
        """A reduction of the elements where a mask is; what stands for the others."""
        first = inner if self.family(inner) is None else node.args[0]
        chosen = self.lowered(node, "", where, self.term(mask), self.term(first), other)
        standing, rest = self._standing(chosen, first), [k for k in node.keywords if k.arg != "where"]
        args = node.args if first is inner else [standing, *node.args[1:]]
        function = ast.copy_location(ast.Attribute(standing if first is inner else inner, name), node)
        return self.called(ast.copy_location(ast.Call(function, args, rest), node))

    def _chosen(self, node: ast.Call, words: Mapping[str, ast.expr]) -> Result:
        """f(x, out=y, where=m): what f makes of x where the mask is, and y elsewhere, in the type and shape of y."""
        rest = [k for k in node.keywords if k.arg not in words]
        made = self.term(ast.copy_location(ast.Call(node.func, node.args, rest), node))
        if "out" not in words:
            hint = "out=np.zeros_like(x) says what stands elsewhere"
            raise ProgramSyntaxError("where= leaves elements undefined", hint=hint, span=self.source.of(node))
        out = self.builder.tensor(self.term(words["out"]), "out=")
        made = made if isinstance(made, Number) else expand(self.builder, made, self.builder.shape(out))
        if "where" in words:
            made = where(self.builder, self.builder.tensor(self.term(words["where"]), "where="), made, out)
        return self.lowered(node, "", cast(self.builder.dtype(out)), made)
