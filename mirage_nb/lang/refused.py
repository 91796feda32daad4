"""What Python has and programs have not: the error for an expression that is none of the language.

In: a syntax node. Out: an error, with its place and what to write instead.
"""

from __future__ import annotations

import ast

from mirage_nb.errors import MirageError, ProgramSyntaxError
from mirage_nb.ir.dtypes import DTYPE_NAMES
from mirage_nb.lang import sequences
from mirage_nb.lang.arguments import Arguments
from mirage_nb.lang.hints import NAMES
from mirage_nb.lang.names import CONSTANTS, WHOLE


class Refused(Arguments):
    """Refuses expressions."""

    def foreign(self, node: ast.expr) -> MirageError:
        """The error for an expression that Python has and programs have not."""
        message, hint = "this is not an expression of the language", "%mirage help lists the language"
        match node:
            case ast.Attribute(value=inner, attr=name) if self.family(inner) is not None:
                constants = ", ".join(c for c in CONSTANTS if c not in {*DTYPE_NAMES, *WHOLE})
                hint = f"there are functions, and {constants}, and element types"
                message, hint = f"there is no {name} here", NAMES.get(name, hint)
            case ast.Attribute(attr=name):
                message, hint = f"tensors have no attribute {name}", f"they have {', '.join(sequences.PROPERTIES)}"
            case ast.Call(func=ast.Call(func=ast.Attribute() as made)) if self.family(made.value) is not None:
                message, hint = "programs make no modules", f"F.{made.attr.lower()}(x), with its weights as inputs"
                hint = NAMES.get(made.attr, hint if made.attr[:1].isupper() else "call the function itself")
            case ast.Call(func=ast.Call(func=ast.Name(id=name))):
                hint = "a product is written with *; a function that a call gives has a name first: f = make(2)"
                message, hint = "this is not a function", NAMES.get(name, hint)
            case ast.Call():
                message, hint = "this is not a function", "a product is written with *"
            case ast.Subscript(value=ast.Name(id=name)) if name in DTYPE_NAMES:
                message, hint = "a tensor type stands behind a colon", "an input is declared as X: f16[2, 3]"
            case ast.Subscript(value=ast.Name() as inner):
                self.term(inner)
            case ast.Tuple() | ast.List():
                message, hint = "a sequence is not a tensor", "stack([A, B]) and concat([A, B], axis=0) make one"
            case ast.Constant(value=value):
                message, hint = f"{value!r} is neither a tensor nor a number", "only options are True, False or None"
            case ast.Compare(ops=[_, _, *_]):
                message, hint = "one comparison at a time", "(0 < X) & (X < 1) is true where both are"
            case ast.Compare():
                message, hint = "this is no comparison of tensors", "comparisons are == != >= > <= <"
            case ast.Dict() | ast.Set():
                message, hint = "braces hold results only", 'return {"name": Y}; several values stand in [ ] or ( )'
            case ast.Starred():
                message, hint = "this * unpacks nothing", "f(*x.shape) and (n, *x.shape) unpack sequences"
            case ast.NamedExpr():
                message, hint = "this assignment is made again and again", "assign on a line of its own, with ="
            case ast.Lambda():
                message, hint = "this lambda has no name", "write f = lambda x: x + 1 in a line of its own"
        return ProgramSyntaxError(message, hint=hint, span=self.source.of(node))
