"""Functions of the language that are written in it: what NumPy and PyTorch have beside the rows of `functions`.

In: `prelude.mirage`. Out: `prelude()`: its definitions, as syntax trees. Invariant: each is what its name is known for;
a call stands for its lines, at the place of the call. A name with `torch_`, `numpy_` or `method_` in front is what
modules of that kind, or methods of tensors, have under the rest of it where that differs from the language's own
function.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping
from pathlib import Path

from mirage_nb.ir.syntax import statements
from mirage_nb.lang.arguments import Inlined
from mirage_nb.lang.builder import Nothing, Result, Text
from mirage_nb.lang.constants import Number, literal, negate

TEXT = Path(__file__).with_suffix(".mirage")


def written() -> dict[str, str]:
    """The functions by their names, as they are written."""
    return {found[1]: found[0] for found in re.finditer(r"^def (\w+)\(.*(?:\n    .*)*", TEXT.read_text(), re.M)}


@functools.cache
def prelude() -> Mapping[str, Inlined]:
    """The functions by their names, read when the first program is; numbers keep their text, for they are exact."""
    tree = statements(TEXT.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            node.kind = repr(node.value)
    made = {}
    for function in tree.body:
        assert isinstance(function, ast.FunctionDef)
        names, given = [a.arg for a in function.args.args], function.args.defaults
        defaults = dict(zip(names[len(names) - len(given) :], map(_default, given), strict=True))
        rest = function.args.vararg.arg if function.args.vararg else ""
        keywords = tuple(a.arg for a in function.args.kwonlyargs)
        defaults |= {a: _default(d) for a, d in zip(keywords, function.args.kw_defaults, strict=True) if d is not None}
        made[function.name] = Inlined(function.name, tuple(names), defaults, tuple(function.body), None, rest, keywords)
    return made


def _default(node: ast.expr) -> Result:
    match node:
        case ast.UnaryOp(operand=ast.Constant(kind=str(text))):
            return negate(literal(text))
        case ast.Constant(value=bool(flag)):
            return Number.of(flag)
        case ast.Constant(kind=str(text)):
            return literal(text)
        case ast.Constant(value=str(text)):
            return Text(text)
    return Nothing()
