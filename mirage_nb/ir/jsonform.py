"""The JSON form of muGraphs, for programs; the same content as the text form.

In: a kernel graph; out: a JSON text with a schema version, and the other way round:
`parse_json(print_json(g)) == g`. Rationals are strings, so nothing is rounded. Unknown keys, wrong types,
and sizes beyond the limits are errors; reading is linear in the text.
"""

from __future__ import annotations

import json
from fractions import Fraction
from functools import partial
from typing import Any

from mirage_nb.errors import FormatError, GraphError, MirageError, ProgramSizeError
from mirage_nb.ir.dtypes import TensorType
from mirage_nb.ir.fields import (
    DTYPE,
    INPUT_WORDS,
    INT,
    MAX_OPERATORS,
    check_launch,
    check_size,
    listed,
    name,
    read_attrs,
    record,
    several,
    shown,
    whole,
    write_attrs,
)
from mirage_nb.ir.graph import BlockGraph, G, Graph, Input, KernelGraph, Op, Size, ThreadGraph
from mirage_nb.ir.ops import KINDS, OpKind

_listed = partial(listed, most=MAX_OPERATORS)
SCHEMA = "mugraph"
VERSION = 1
MAX_TEXT = 8_000_000
WRITTEN = "as print_graph or the command line's --json writes it"

SHAPE = several(INT)


def print_json(graph: KernelGraph) -> str:
    """The JSON text of a graph. Raises ProgramSizeError for constants of more than a thousand digits."""
    return json.dumps(to_plain(graph), indent=1)


def to_plain(graph: KernelGraph) -> dict[str, Any]:
    """The graph as nested dicts and lists, ready for `json.dumps`."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "inputs": [_written(i) for i in graph.inputs],
        "operators": _operators(graph),
        "outputs": [
            {"value": value, "name": label} for value, label in zip(graph.outputs, graph.output_names, strict=True)
        ],
    }


def _written(i: Input) -> dict[str, Any]:
    dims = {"dims": list(i.dims)} if any(i.dims) else {}
    size = {"size": [i.size.name, i.size.least, i.size.most]} if i.size is not None else {}
    known = {word: True for word in INPUT_WORDS if getattr(i, word)}
    return {"name": i.name, "dtype": i.type.dtype.value, "shape": list(i.type.shape), **dims, **size, **known}


def _operators(graph: Graph) -> list[dict[str, Any]]:
    return [_operator(op) for op in graph.ops]


def _operator(op: Op) -> dict[str, Any]:
    written: dict[str, Any] = {"kind": op.kind.value, "operands": list(op.inputs)}
    if op.attrs is not None:
        written["attrs"] = {
            field: str(value) if isinstance(value, Fraction) else value
            for field, value in write_attrs(op.attrs).items()
        }
    match op.body:
        case BlockGraph(grid=grid, loop=loop):
            written["block"] = {"grid": list(grid), "loop": loop, "operators": _operators(op.body)}
        case ThreadGraph(outputs=outputs):
            written["thread"] = {"operators": _operators(op.body), "outputs": list(outputs)}
    return written


def parse_json(text: str) -> KernelGraph:
    """The kernel graph in a JSON text. Raises FormatError, ProgramSizeError."""
    if len(text) > MAX_TEXT:
        raise ProgramSizeError(f"a text of {len(text)} characters; at most {MAX_TEXT}")
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not JSON: {shown(str(error))}", hint=WRITTEN) from error
    try:
        return from_plain(plain)
    except FormatError as error:
        error.hint = error.hint or WRITTEN
        raise


def from_plain(plain: object) -> KernelGraph:
    """The kernel graph in nested dicts and lists. Raises FormatError, ProgramSizeError."""
    top = record(plain, "the graph", ("schema", "version", "inputs", "operators", "outputs"))
    if top["schema"] != SCHEMA or top["version"] != VERSION or isinstance(top["version"], bool):
        raise FormatError(f"schema {shown(top['schema'])} {shown(top['version'])}; this reads {SCHEMA} {VERSION}")
    inputs = [_input(item) for item in _listed(top["inputs"], "inputs")]
    graph = _Reader().fill(KernelGraph.start(*inputs), top["operators"])
    outputs = [record(item, "an output", ("value", "name")) for item in _listed(top["outputs"], "outputs")]
    if not outputs:
        return graph
    try:
        return graph.returning(tuple(whole(o["value"]) for o in outputs), tuple(name(o["name"]) for o in outputs))
    except GraphError as error:
        raise FormatError(error.message) from error


def _input(item: object) -> Input:
    held = record(item, "an input", ("name", "dtype", "shape"), ("dims", "size", *INPUT_WORDS))
    shape = SHAPE.read(held["shape"])
    if any(extent < 1 for extent in shape):
        raise FormatError("extents are at least 1")
    dims = tuple(name(called) for called in _listed(held.get("dims", []), "dims"))
    if dims and len(dims) != len(shape):
        raise FormatError(f"{len(dims)} names for {len(shape)} dimensions")
    known = {word: held.get(word, False) for word in INPUT_WORDS}
    for word, said in known.items():
        if not isinstance(said, bool):
            raise FormatError(f"{word} is true or false, not {shown(said)}")
    try:
        type_ = TensorType(shape, DTYPE.read(held["dtype"]))
        found = Input(name(held["name"]), type_, dims, _size(held.get("size")), **known)
    except GraphError as error:
        raise FormatError(error.message) from error
    check_size(found.type.shape)
    return found


def _size(item: object) -> Size | None:
    if item is None:
        return None
    parts = _listed(item, "a size")
    if len(parts) != 3:
        raise FormatError("a size is a name, its least extent and its largest")
    return Size(name(parts[0]), whole(parts[1]), whole(parts[2]))


class _Reader:
    """Builds graphs and counts operators over all levels."""

    def __init__(self) -> None:
        self.operators = 0

    def fill(self, graph: G, operators: object) -> G:
        """The graph with all operators of a list."""
        for number, item in enumerate(_listed(operators, "operators")):
            self.operators += 1
            if self.operators > MAX_OPERATORS:
                raise ProgramSizeError(f"more than {MAX_OPERATORS} operators")
            start = len(graph.types)
            try:
                graph = graph.append(self._operator(graph, item))
                for t in graph.types[start:]:
                    check_size(t.shape)
            except MirageError as error:
                kind = ProgramSizeError if isinstance(error, ProgramSizeError) else FormatError
                raise kind(f"operator {number}: {error.message}", hint=error.hint) from error
        return graph

    def _operator(self, graph: Graph, item: object) -> Op:
        held = record(item, "an operator", ("kind", "operands"), ("attrs", "block", "thread"))
        kind = KINDS.get(held["kind"]) if isinstance(held["kind"], str) else None
        if kind is None:
            raise FormatError(f"unknown operator {shown(held['kind'])}")
        operands = tuple(whole(v) for v in _listed(held["operands"], "operands"))
        if any(not 0 <= v < len(graph.types) for v in operands):
            raise FormatError(f"{kind.value} reads a value that is not defined before it")
        types = tuple(graph.types[v] for v in operands)
        body: BlockGraph | ThreadGraph | None = None
        if kind is OpKind.GRAPH and isinstance(graph, KernelGraph):
            block = record(held.get("block"), "a block graph", ("grid", "loop", "operators"))
            grid, loop = SHAPE.read(block["grid"]), whole(block["loop"])
            check_launch(grid, loop)
            body = self.fill(BlockGraph.start(types, grid, loop), block["operators"])
        elif kind is OpKind.FUSED and isinstance(graph, BlockGraph):
            thread = record(held.get("thread"), "a thread graph", ("operators", "outputs"))
            chain = self.fill(ThreadGraph.start(types), thread["operators"])
            outputs = tuple(whole(v) for v in _listed(thread["outputs"], "outputs"))
            if any(not 0 <= v < len(chain.types) for v in outputs):
                raise FormatError("a thread graph returns a value that is not defined")
            body = chain.returning(outputs)
        if body is None and ("block" in held or "thread" in held):
            raise FormatError(f"{kind.value} has no graph of its own here")
        return Op(kind, operands, read_attrs(kind, record(held.get("attrs", {}), "attrs", optional=None)), body)
