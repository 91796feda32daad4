"""Lines of C++ with indentation, the spelling of element types, and of the indices and panels of a tile program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mirage_nb.errors import EmitError
from mirage_nb.ir import DType
from mirage_nb.tile.roles.program import Index


class Writer:
    """Collects lines; blocks indent by two."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str = "") -> None:
        """One line at the current depth; an empty one separates."""
        self._lines.append("  " * self._depth + text if text else "")

    def lines(self, texts: list[str]) -> None:
        """Several lines."""
        for text in texts:
            self.line(text)

    @contextmanager
    def block(self, head: str = "", tail: str = "}") -> Iterator[None]:
        """`head {` ... `}`."""
        self.line(f"{head} {{" if head else "{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line(tail)

    @contextmanager
    def unrolled(self, variable: str, count: int, most: int | None = None, *, always: bool = False) -> Iterator[str]:
        """A for-loop over 0 .. count-1, unrolled unless `count` is more than `most`; yields the variable, or 0 and no
        loop for a single pass, unless there is to be one `always`."""
        if count == 1 and not always:
            yield "0"
            return
        if most is None or count <= most:
            self.line("MIRAGE_UNROLL")
        with self.block(f"for (int {variable} = 0; {variable} < {count}; ++{variable})"):
            yield variable

    def text(self) -> str:
        """Everything so far."""
        return "\n".join(self._lines) + "\n"


_NAMES = {
    DType.F16: "f16", DType.BF16: "bf16", DType.F32: "float",
    DType.I8: "int8_t", DType.U8: "uint8_t", DType.BOOL: "uint8_t",
    DType.E4M3: "f8e4m3", DType.E5M2: "f8e5m2",
}  # fmt: skip


def c_type(dtype: DType) -> str:
    """The device library's name of an element type. Raises EmitError for f64."""
    if dtype not in _NAMES:
        raise EmitError(
            f"{dtype.value} tensors cannot be emitted", hint="kernels compute in f32; use f16, bf16 or f32 tensors"
        )
    return _NAMES[dtype]


def stored_type(dtype: DType) -> str:
    """The same where elements are only moved, multiplied and added: f64, too."""
    return "double" if dtype is DType.F64 else c_type(dtype)


def extents(form: tuple[int, ...]) -> str:
    """The C extents of an array."""
    return "".join(f"[{extent}]" for extent in form)


def c_index(index: Index) -> str:
    """The C expression of an index; it needs brackets inside a product."""
    parts = [name if factor == 1 else f"{name} * {factor}" for name, factor in index.terms]
    return " + ".join([*parts, *([str(index.const)] if index.const or not parts else [])])
