"""Declarations: the inputs of a program, their types and sizes.

In: `X: f16[2*B, D]` and what it is known by already. Out: inputs of the builder. Invariant: an input is declared once,
outside of loops and functions; one size at most is known at launch only, and it is an outermost dimension.
"""

from __future__ import annotations

import ast
import keyword
import re
from abc import abstractmethod
from collections.abc import Mapping

from mirage_nb.errors import (
    DTypeError,
    DuplicateNameError,
    MirageError,
    NamedSizeError,
    ProgramSizeError,
    ProgramSyntaxError,
    ShapeError,
)
from mirage_nb.ir.dtypes import DTYPE_NAMES, DType, TensorType
from mirage_nb.ir.ops import show_shape
from mirage_nb.ir.syntax import expression
from mirage_nb.lang.bindings import Binding, Memory
from mirage_nb.lang.builder import Builder, Result, Truth, Value, is_tensor
from mirage_nb.lang.constants import Number, shorten
from mirage_nb.lang.expressions import Expressions
from mirage_nb.lang.hints import dtype_hint
from mirage_nb.lang.names import WHOLE
from mirage_nb.lang.remarks import behind
from mirage_nb.lang.sizes import SIZE, Ends, read_size

DECLARE = "an input is declared as X: f16[2, 3]"
DEFAULT = "dtype"
"""The name in the line that says the element type of inputs without one."""
_EXTENT = r" *([1-9]\d*|[A-Za-z]\w*) *"
_QUOTED = re.compile(rf"[A-Za-z]\w*(\[{_EXTENT}(,{_EXTENT})*\])?", re.ASCII)


_WORDS = re.compile(r"\w+", re.ASCII)
KEYWORDS = frozenset(keyword.kwlist)


class Declarations:
    """Reads declarations."""

    builder: Builder
    expressions: Expressions
    sizes: Mapping[str, Number | Ends]
    _default: DType | None
    _types: dict[str, ast.expr]
    _size: tuple[Ends, Binding] | None
    _known_sizes: dict[str, int]

    @abstractmethod
    def _inside(self) -> bool:
        """Whether a loop or a function is being run."""

    @abstractmethod
    def _error(self, kind: type[MirageError], message: str, hint: str, node: ast.expr | ast.stmt) -> MirageError:
        """A mistake at a node."""

    @abstractmethod
    def _bind(
        self, name: str, target: ast.expr | ast.stmt, term: Result, is_input: bool = False, memory: Memory | None = None
    ) -> None:
        """Give a name to a result."""

    def _declare(self, name: str, target: ast.expr, annotation: ast.expr) -> None:
        """`X: f16[2*B, D]`, `X: [2*B, D]` of the default type, or the line that says that type."""
        if self._inside():
            hint = "inputs are declared once, before they are used"
            raise self._error(ProgramSyntaxError, "an input is declared in a loop or a function", hint, target)
        if (binding := self.expressions.bindings.get(name)) is not None:
            hint = f"the first definition is in line {binding.place.line}"
            raise self._error(DuplicateNameError, f"{name} is already defined", hint, target)
        annotation = self._type(annotation)
        if isinstance(annotation, ast.Constant):
            raise self._error(ProgramSyntaxError, "this is not a tensor type", f"a constant is {name} = 4", annotation)
        if name == DEFAULT and isinstance(annotation, ast.Name):
            self._default = self._dtype(annotation)
            return
        match annotation:
            case ast.Name(id=word) | ast.Call(func=ast.Name(id=word)) if word == SIZE:
                size = self.sizes.get(name) or read_size(name, annotation, self.expressions)
                return self._bind_size(name, target, size)
            case ast.List(elts=extents):
                if self._default is None:
                    hint = f"write {name}: f16[2, 3], or say dtype: f16 before"
                    raise self._error(DTypeError, f"{name} has no element type", hint, annotation)
                dtype = self._default
            case ast.Subscript(value=ast.Name() as written, slice=inside):
                dtype = self._dtype(written)
                extents = inside.elts if isinstance(inside, ast.Tuple) else [inside]
            case ast.Name():
                dtype, extents = self._dtype(annotation), [ast.copy_location(ast.Constant(1, "1"), annotation)]
            case _:
                raise self._error(ProgramSyntaxError, "this is not a tensor type", DECLARE, annotation)
        if not extents:
            raise self._error(ShapeError, "a tensor has at least one dimension", DECLARE, annotation)
        outer = self._extent(extents[0])
        batch = self._size[0].size if self._size is not None and self._depends_on_size() else None
        if batch is not None and outer % batch.most:
            hint = f"write {name}: {dtype.value}[{batch.name}, ...], or a multiple such as 2*{batch.name}"
            raise self._error(NamedSizeError, f"this extent is no multiple of {batch.name}", hint, extents[0])
        tensor = TensorType((outer, *map(self._inner_extent, extents[1:])), dtype)
        try:
            value = self.builder.declare(name, tensor, tuple(map(_called, extents)), batch)
        except ProgramSizeError as error:
            raise self._error(ProgramSizeError, error.message, error.hint, annotation) from None
        if isinstance(annotation, ast.Subscript | ast.Name) and _word(annotation) in WHOLE:
            self.builder.whole.add(value)
            if _word(annotation) == "bool":
                self.builder.masks.add(value)
                self.builder.truths.add(value)
                value = Value(Truth(value))
        self._bind(name, target, value, is_input=True)

    def _as_told(self, annotation: ast.Subscript, found: Result, value: ast.expr) -> Result:
        """`Y: f16[2, 3] = expression`: the result, which is such a tensor; other libraries' types say nothing here."""
        written = annotation.value
        if not isinstance(written, ast.Name) or written.id not in {*DTYPE_NAMES, *WHOLE}:
            return found
        if not is_tensor(found) or self.builder.definition(found) is None:
            raise self._error(ProgramSyntaxError, "an input has no value of its own", DECLARE, value)
        inside = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        told, held = tuple(map(self._extent, inside)), self.builder.shape(found)
        if told != held or (self._dtype(written) is not self.builder.dtype(found) and written.id not in WHOLE):
            message = f"this is {self.builder.dtype(found).value}{show_shape(held)}"
            raise self._error(ShapeError, message, "f32(x) changes the type, reshape the extents", annotation)
        return found

    def _type(self, annotation: ast.expr) -> ast.expr:
        """The type that an annotation names: X: Rows, X: "f16[2, 3]", X: torch.float16[2, 3]."""
        match annotation:
            case ast.Name(id=name) if name in self._types:
                return self._types[name]
            case ast.Constant(value=str(text)) if _QUOTED.fullmatch(text) and not {*_WORDS.findall(text)} & KEYWORDS:
                tree = expression(text).body
                for node in ast.walk(tree):
                    ast.copy_location(node, annotation)
                    if isinstance(node, ast.Constant):
                        node.kind = str(node.value)
                return tree
            case ast.Subscript(value=ast.Attribute(value=module, attr=word) as named) if (
                self.expressions.family(module) is not None
            ):
                dtype = ast.copy_location(ast.Name(word), named)
                return ast.copy_location(ast.Subscript(dtype, annotation.slice), annotation)
        return annotation

    def _dtype(self, written: ast.Name) -> DType:
        if written.id in WHOLE and written.id not in DTYPE_NAMES:
            return DType.F32
        if written.id not in DTYPE_NAMES:
            hint = dtype_hint(written.id)
            raise self._error(DTypeError, f"there is no dtype {written.id}", hint, written)
        return DTYPE_NAMES[written.id]

    def _extent(self, node: ast.expr) -> int:
        extent = self.expressions.integer(node, "an extent")
        if extent < 1:
            message = f"this extent is {shorten(str(extent))}"
            raise self._error(ShapeError, message, "extents are at least 1", node)
        return extent

    def _inner_extent(self, node: ast.expr) -> int:
        read, self.expressions.reads = self.expressions.reads, set()
        extent = self._extent(node)
        if self._depends_on_size():
            message = "a size that is known at launch stands behind another dimension"
            raise self._error(NamedSizeError, message, "it may be the outermost dimension of an input", node)
        self.expressions.reads |= read
        return extent

    def _depends_on_size(self) -> bool:
        """Whether what was just read is made of the size that is known at launch."""
        return self._size is not None and self._size[1] in behind(self.expressions.reads)

    def _bind_size(self, name: str, target: ast.expr, ends: Number | Ends) -> None:
        if isinstance(ends, Number):
            assert ends.integer is not None
            self._known_sizes[name] = ends.integer
            return self._bind(name, target, ends)
        most = ends.size.most
        if self._size is not None:
            message = f"{self._size[0].size.name} is known at launch only, and {name} would be, too"
            raise self._error(NamedSizeError, message, f"one size may be; a constant is {name} = {most}", target)
        self._bind(name, target, Number.of(most))
        self._size = ends, self.expressions.bindings[name]


def _word(annotation: ast.Subscript | ast.Name) -> str:
    """The element type that an annotation names."""
    written = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return written.id if isinstance(written, ast.Name) else ""


def _called(extent: ast.expr) -> str:
    """What a text calls an extent: K for K, 2B for 2 * B; nothing for a number and for other expressions."""
    match extent:
        case ast.Name(id=name):
            return name
        case ast.BinOp(left=ast.Constant(value=int(number)), op=ast.Mult(), right=ast.Name(id=name)):
            return f"{number}{name}"
        case _:
            return ""
