"""Tensor programs: the result of parsing.

In: text, a name, sizes given from outside. Out: a frozen TensorProgram. Invariant: the graph holds every input in
the order of declaration and only operators that an output needs, each with its place in the text (paper section 2).
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from mirage_nb.errors import FormatError, OptionError, SourceSpan, suggestion
from mirage_nb.ir.graph import KernelGraph, Size
from mirage_nb.ir.sizes import size_of, sized
from mirage_nb.lang.constants import Number
from mirage_nb.lang.limits import MAX_TEXT
from mirage_nb.lang.remarks import Remark
from mirage_nb.lang.sizes import Ends, check_size
from mirage_nb.lang.source import read
from mirage_nb.lang.statements import Statements
from mirage_nb.typed import typed

MOST_NEARBY = 8
"""Names of files that a hint lists."""


@dataclass(frozen=True, slots=True)
class TensorProgram:
    """A tensor program: its text and the kernel graph of pre-defined operators that it stands for.

    Attributes:
        name: what the program is called; may be empty.
        text: the program as it was written.
        graph: the operators, shapes concrete, outputs named after the returned variables.
        spans: the place in the text of every operator of `graph`.
        sizes: the integer constants with their final values, in the order of the text.
        remarks: what the author may want to know.
        smaller: the same program for smaller extents of a size that is known at launch, which shall have a kernel of
            its own.
    """

    name: str
    text: str
    graph: KernelGraph
    spans: tuple[SourceSpan, ...]
    sizes: Mapping[str, int] = field(hash=False)
    remarks: tuple[Remark, ...] = ()
    smaller: TensorProgram | None = None

    def __repr__(self) -> str:
        return f"<TensorProgram {self.name[:40]} of {self.graph!r}>"

    @property
    def ranges(self) -> tuple[TensorProgram, ...]:
        """The program for every range of its size, the smallest first and itself last; just itself without one."""
        return (*(self.smaller.ranges if self.smaller is not None else ()), self)

    @property
    def called(self) -> str:
        """What tells it from itself at other extents: the range of its size, or its sizes."""
        size = size_of(self.graph)
        return str(size) if size is not None else ", ".join(f"{name} = {n}" for name, n in self.sizes.items())

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs, in the order of declaration."""
        return tuple(i.name for i in self.graph.inputs)

    def given(self, tensors: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The tensors of a call, in input order and by name, with those that the program brings itself: none."""
        return tensors, named

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs, in the order of `return`."""
        return self.graph.output_names


@typed
def parse(text: str, *, name: str = "", sizes: Mapping[str, int | range] | None = None) -> TensorProgram:
    """Read a tensor program; its text is never executed.

    Args:
        text: the program; `mirage_nb.lang.reference()` has the language.
        name: what to call it.
        sizes: new values for integer constants of the program, by name; for one of them a range, as range(1, 65):
            it is known at launch then, as `B: size(64)` says in the text.

    Raises:
        MirageError: one of its subclasses, with the place of the mistake and a hint.
    """
    source, tree = read(text)
    given = _checked_sizes(sizes or {})
    read_ = Statements(source, tree, given).read()
    if read_.ends is None:
        return TensorProgram(name, text, read_.graph, read_.spans, read_.sizes, read_.remarks)
    ends, place = read_.ends
    size = ends.size
    sized(read_.graph, read_.spans)
    at = partial(Statements, source, tree)
    check_size(read_.graph, size, tree, place, lambda n: at({**given, size.name: Number.of(n)}).read().graph)
    smaller = None
    for end in ends.smaller:
        kept = replace(size, most=end)
        some = at({**given, size.name: Ends(kept) if end > size.least else Number.of(end)}).read()
        smaller = TensorProgram(name, text, some.graph, some.spans, some.sizes, some.remarks, smaller)
    return TensorProgram(name, text, read_.graph, read_.spans, read_.sizes, read_.remarks, smaller)


@typed
def load(
    path: str | os.PathLike[str], *, name: str = "", sizes: Mapping[str, int | range] | None = None
) -> TensorProgram:
    """Read a tensor program from a UTF-8 file; its name is the file's unless given.

    A byte order mark and the line ends of other systems are part of the file, not of the program.

    Raises:
        FormatError: the file cannot be read, or is not UTF-8.
        MirageError: as `parse`.
    """
    file = Path(path)
    try:
        with file.open(encoding="utf-8-sig") as stream:
            text = stream.read(MAX_TEXT + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is not UTF-8 text"
        hint = _nearby(file) if isinstance(error, FileNotFoundError) else "programs are UTF-8 text files"
        raise FormatError(f"{file} cannot be read: {reason}", hint=hint) from None
    return parse(text, name=name or file.stem, sizes=sizes)


def _checked_sizes(sizes: Mapping[str, int | range]) -> dict[str, Number | Ends]:
    checked: dict[str, Number | Ends] = {}
    for name, value in sizes.items():
        if isinstance(value, range):
            if not value or value.step != 1 or value[0] < 1 or value[-1] < 2:
                raise OptionError(f"size {name} is {value}", hint=f"for example {name}=range(1, 65): 1 to 64")
            checked[name] = Ends(Size(name, value[0], value[-1]))
            continue
        checked[name] = Number.of(operator.index(value))
    return checked


def _nearby(file: Path) -> str:
    """The programs that stand where one was looked for."""
    folder = file.absolute().parent
    found = {path.stem: path.name for path in sorted(folder.glob("*.mirage"))}
    listed = f"has {', '.join([*found.values()][:MOST_NEARBY])}" if found else "has no .mirage file"
    close = suggestion(file.stem, found)
    return close.replace("?", ".mirage?") if close else f"{folder} {listed if folder.is_dir() else 'is no folder'}"
