"""The picture of a muGraph: nested kernel, block and thread graphs as one SVG (paper section 2, Figure 3).

In: a `KernelGraph`, and what a reader may be told about its tensors. Out: SVG text. Operators are boxes with
their names, every tensor is a label under the operator that defines it, with the shape, and the edges run from
there to its readers. Operators carry `data-op` (see `place_of`) and tensors `data-tensor`, for a page to act on.
Input iterators carry imap and fmap, savers omap, as chips like `x→n`. The for-loop body stands in a dashed box;
what follows the loop stands below it. Invariant: boxes do not overlap, and all text lies within its box.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from mirage_nb.ir import (
    OPS,
    AccumAttrs,
    ApplyAttrs,
    BlockGraph,
    ClampAttrs,
    ConstAttrs,
    DimAttrs,
    InIterAttrs,
    KernelGraph,
    MemSpace,
    Op,
    OpKind,
    OutSaverAttrs,
    PowAttrs,
    RepeatAttrs,
    TensorType,
    ThreadGraph,
    Trait,
    TransposeAttrs,
)
from mirage_nb.ir.text import print_graph
from mirage_nb.search.sizes.looked import launched
from mirage_nb.viz import layout, svg
from mirage_nb.viz.axes import AxisNames, Path, axis_names
from mirage_nb.viz.raster import png_bundle, with_png
from mirage_nb.viz.shapes import PILL, SMALL, Chip, Shape, operator, pill, tagged, tip

PAD, HEADER = 14.0, 24.0
GRID_DIMS = "xyz"
LOOP_DIM = "i"
REPLICA = "φ"
_COLOUR = {MemSpace.DEVICE: "kernel", MemSpace.SHARED: "block", MemSpace.REGISTER: "thread"}


def place_of(path: Path, number: int) -> str:
    """The name of an operator or a value: the operators around it, outermost first, and its own number."""
    return ".".join(map(str, (*path, number)))


def mugraph_svg(graph: KernelGraph, facts: Mapping[str, str] | None = None) -> str:
    """The picture of a tensor program or muGraph; `facts` are shown on hover, by the `place_of` their tensors."""
    names = _Named(axis_names(graph), facts or {})
    kernels = launched(graph)
    title = f"kernel graph · {kernels} kernel{'s' if kernels != 1 else ''} · tensors in device memory"
    whole = _framed(_Scene.of_kernels(graph, names), title, "kernel")
    summary = f"µGraph with {kernels} kernel(s): {', '.join(graph.output_names)} from "
    summary += ", ".join(given.name for given in graph.inputs)
    return svg.document(whole.width + 2, whole.height + 2, summary, (svg.move(1.0, 1.0, whole.parts),))


def mugraph_bundle(graph: KernelGraph) -> dict[str, str]:
    """The picture and the text form, by MIME type, as notebooks and terminals want them."""
    drawn = mugraph_svg(graph)
    return {"text/html": with_png(drawn, drawn), "text/plain": print_graph(graph), **png_bundle(drawn)}


@dataclass(frozen=True, slots=True)
class _Named:
    """The names of axes and what is known of tensors."""

    axes: AxisNames
    facts: Mapping[str, str]

    def of(self, path: Path, value: int) -> tuple[str, ...]:
        """One name per dimension."""
        return self.axes.of(path, value)

    def tensor(self, path: Path, value: int, type_: TensorType, name: str = "", out: bool = False) -> Shape:
        """The label of a tensor: name, and shape with the names of the axes."""
        dims = ", ".join(
            f"{axis}={extent}" if axis else str(extent)
            for axis, extent in zip(self.of(path, value), type_.shape, strict=True)
        )
        text = f"{name} {type_.dtype.value}[{dims}]" if name else f"[{dims}]"
        colour = _COLOUR[type_.space]
        place = place_of(path, value)
        hover = f"{name or f'%{value}'} {type_} in {type_.space.value} memory"
        hover += f"; {self.facts[place]}" if place in self.facts else ""
        return tagged(pill(text, f"{colour} out" if out else colour, hover), "tensor", place)


class _Scene:
    """Collects the nodes and edges of one graph, then lays them out."""

    def __init__(self) -> None:
        self.shapes: list[Shape] = []
        self.least: list[int] = []
        self.edges: list[layout.Edge] = []
        self.free: set[int] = set()  # nodes whose operands may enter in any order
        self.made: dict[int, tuple[int, float]] = {}  # value -> node, x offset
        self.loop: list[int] = []  # nodes of the loop body
        self.loop_title = ""
        self.entries: list[tuple[int, int]] = []  # operand number, node: where operands of the body enter
        self.exits: list[int] = []  # nodes where results leave

    def add(self, shape: Shape, least: int = 0) -> int:
        """A node that stands in layer `least` or lower."""
        self.shapes.append(shape)
        self.least.append(least)
        return len(self.shapes) - 1

    def connect(self, value: int, node: int, at: float) -> None:
        """An edge from where `value` is made."""
        source, source_at = self.made[value]
        self.edges.append(layout.Edge(source, node, source_at, at))

    @classmethod
    def of_kernels(cls, graph: KernelGraph, names: _Named) -> _Scene:
        """Kernel level: inputs, pre-defined operators, graph-defined ones with their block graphs inside."""
        scene = cls()
        folded = _folded(graph)
        for value, given in enumerate(graph.inputs):
            shape = names.tensor((), value, given.type, _output_name(graph, value, given.name))
            scene.made[value] = scene.add(shape), shape.leaves[0]
        for index, (op, results) in enumerate(graph.definitions()):
            if results and results[0] in folded:
                continue
            tensors = [names.tensor((), v, graph.types[v], _output_name(graph, v), v in graph.outputs) for v in results]
            if isinstance(op.body, BlockGraph):
                drawn, operands = _block(op.body, names, (index,), tensors)
                scene.defined(op, results, tagged(drawn, "op", place_of((), index)), operands)
            else:
                drawn = operator(_caption(op, names, (), folded), tensors)
                scene.plain(op, results, tagged(drawn, "op", place_of((), index)), folded)
        return scene

    def defined(self, op: Op, results: Sequence[int], shape: Shape, operands: Sequence[int]) -> int:
        """An operator with a body: its picture and the operand number of every entry."""
        node = self.add(shape)
        for at, operand in zip(shape.enters, operands, strict=True):
            self.connect(op.inputs[operand], node, at)
        for value, at in zip(results, shape.leaves, strict=True):
            self.made[value] = node, at
        return node

    def plain(self, op: Op, results: Sequence[int], shape: Shape, folded: dict[int, str]) -> int:
        """An operator without a body; constants are part of its name and have no edges."""
        node = self.add(shape)
        wired = [value for value in op.inputs if value not in folded]
        for number, value in enumerate(wired, start=1):
            middle, span = shape.width / 2, shape.enters[0] if shape.enters else 0.0
            self.connect(value, node, middle + span * (2 * number / (len(wired) + 1) - 1))
        for value in results:
            self.made[value] = node, shape.leaves[0]
        if Trait.COMMUTATIVE in OPS[op.kind].traits:
            self.free.add(node)
        return node

    def placed(self, layers: Sequence[int]) -> layout.Layout:
        """The layout; operands of commutative operators enter in the order that crosses least."""
        nodes = [layout.Node(s.width, s.height, layer) for s, layer in zip(self.shapes, layers, strict=True)]
        middle = [
            replace(edge, target_at=nodes[edge.target].width / 2) if edge.target in self.free else edge
            for edge in self.edges
        ]
        first = layout.place(nodes, middle)
        for node in self.free:
            entering = [i for i, edge in enumerate(self.edges) if edge.target == node]
            places = sorted(self.edges[i].target_at for i in entering)
            for i, at in zip(sorted(entering, key=lambda i: first.routes[i][-3]), places, strict=True):
                self.edges[i] = replace(self.edges[i], target_at=at)
        return layout.place(nodes, self.edges)

    def layered(self) -> list[int]:
        """Layers: iterators on top, the loop body, all accumulators in one layer, then the rest."""
        pairs = [(e.source, e.target) for e in self.edges]
        layers = layout.longest_path(pairs, self.least)
        body = set(self.loop)
        if body:
            last = max(layers[node] for node in body)
            ends = {source for source, target in pairs if source in body and target not in body}
            least = [
                last + 1 if node not in body else last if node in ends else layer for node, layer in enumerate(layers)
            ]
            layers = layout.longest_path(pairs, least)
        if self.exits:
            bottom = max(layers)
            for node in self.exits:
                layers[node] = bottom
        if not body:  # inputs stand right above their first reader
            entered = {node for _, node in self.entries}
            for node in range(len(layers)):
                below = [layers[t] for s, t in pairs if s == node]
                if below and node not in entered and not any(t == node for _, t in pairs):
                    layers[node] = min(below) - 1
        return layers


def _framed(scene: _Scene, title: str, level: str, tensors: Sequence[Shape] = ()) -> Shape:
    """The scene laid out within a titled box; `tensors` are the labels of the results, under its border."""
    layers = scene.layered()
    placed = scene.placed(layers)
    margin = PAD if scene.loop else 0.0
    width = max(placed.width + 2 * (PAD + margin), svg.text_width(title, SMALL) + 2 * PAD)
    left = (width - placed.width) / 2
    top = HEADER + PAD + (HEADER if scene.loop else 0.0)
    height = top + placed.height + PAD
    parts = [svg.rect(0.0, 0.0, width, height, f"level {level}", 8)]
    parts += [svg.rect(0.0, 0.0, width, HEADER, f"bar {level}", 8)]
    parts += [svg.label(title, PAD, HEADER / 2, SMALL)]
    inner: list[str] = []
    if scene.loop:
        bottom = max(placed.layers[layers[node]][1] for node in scene.loop) + PAD * 0.7
        above = HEADER + PAD * 0.5
        inner.append(svg.rect(-PAD, -above, placed.width + 2 * PAD, bottom + above, "loop", 8))
        inner.append(svg.label(scene.loop_title, -PAD / 2, -HEADER / 2 - PAD * 0.35, SMALL))
    for edge, route in zip(scene.edges, placed.routes, strict=True):
        leaving = not scene.shapes[edge.target].height  # runs on to the border
        points = (*route, (route[-1][0], placed.height + PAD)) if leaving else route
        inner.append(svg.element("path", d=layout.path(points), cls="edge"))
        if not leaving:
            inner.append(tip(*route[-1]))
    for shape, corner in zip(scene.shapes, placed.corners, strict=True):
        inner.append(svg.move(*corner, shape.parts))
    parts.append(svg.move(left, top, inner))
    enters = []
    for _, node in scene.entries:
        enters.append(left + placed.corners[node][0] + scene.shapes[node].width / 2)
    leaves, below = [], 0.0
    for node, tensor in zip(scene.exits, tensors, strict=True):
        x = left + placed.corners[node][0] + scene.shapes[node].width / 2
        parts.append(svg.move(x - tensor.width / 2, height, tensor.parts))
        leaves.append(x)
        below = PILL
    return Shape(width, height + below, tuple(parts), tuple(enters), tuple(leaves))


def _block(body: BlockGraph, names: _Named, path: Path, tensors: Sequence[Shape]) -> tuple[Shape, tuple[int, ...]]:
    """A block graph as one shape, and for every entry the number of the operand that comes in there."""
    scene = _Scene()
    folded = _folded(body)
    stages = body.stages()
    saved = iter(tensors)
    for index, (op, results) in enumerate(body.definitions()):
        if results and results[0] in folded:
            continue
        labels = [names.tensor(path, v, body.types[v]) for v in results]
        place = place_of(path, index)
        if isinstance(op.body, ThreadGraph):
            drawn, operands = _thread(op.body, names, (*path, index), labels)
            node = scene.defined(op, results, tagged(drawn, "op", place), operands)
        elif isinstance(op.attrs, InIterAttrs):
            chips = list(_partition(op.attrs, body, names.of(path, results[0])))
            node = scene.plain(op, results, tagged(operator("InIter", labels, chips), "op", place), folded)
            scene.entries.append((op.attrs.arg, node))
        elif isinstance(op.attrs, OutSaverAttrs):
            chips = list(_assembly(op.attrs, names.of(path, op.inputs[0])))
            shape = operator("OutSaver", [], chips, next(saved).width)
            node = scene.plain(op, results, tagged(shape, "op", place), folded)
            scene.exits.append(node)
        else:
            shape = operator(_caption(op, names, path, folded), labels)
            node = scene.plain(op, results, tagged(shape, "op", place), folded)
        if body.has_loop and (stages[index] == 0 or op.kind is OpKind.ACCUM):
            scene.loop.append(node)
    scene.loop_title = f"for-loop body · {LOOP_DIM} = 0 … {body.loop - 1}"
    grid = " ".join(f"{dim}={extent}" for dim, extent in zip(GRID_DIMS, body.grid, strict=False))
    title = f"block graph · grid dims {grid} · "
    title += f"for-loop range {LOOP_DIM}={body.loop}" if body.has_loop else "no for-loop"
    return _framed(scene, title, "block", tensors), tuple(arg for arg, _ in scene.entries)


def _thread(body: ThreadGraph, names: _Named, path: Path, tensors: Sequence[Shape]) -> tuple[Shape, tuple[int, ...]]:
    """A thread graph as one shape; its entries are its inputs in order."""
    scene = _Scene()
    folded = _folded(body)
    for value in range(body.input_count):
        shape = names.tensor(path, value, body.types[value])
        node = scene.add(shape)
        scene.made[value] = node, shape.leaves[0]
        scene.entries.append((value, node))
    for index, (op, results) in enumerate(body.definitions()):
        if results and results[0] in folded:
            continue
        labels = [names.tensor(path, v, body.types[v]) for v in results]
        shape = operator(_caption(op, names, path, folded), labels)
        scene.plain(op, results, tagged(shape, "op", place_of(path, index)), folded)
    for value, tensor in zip(body.outputs, tensors, strict=True):
        node = scene.add(Shape(tensor.width, 0.0, ()))
        scene.connect(value, node, tensor.width / 2)
        scene.exits.append(node)
    return _framed(scene, "thread graph · registers", "thread", tensors), tuple(range(body.input_count))


def _partition(attrs: InIterAttrs, body: BlockGraph, axes: Sequence[str]) -> Iterator[Chip]:
    """imap and fmap as chips."""
    yield Chip("imap")
    for dim, target in zip(GRID_DIMS, attrs.imap, strict=False):
        yield Chip(f"{dim}→{_axis(axes, target)}", "grid")
    if body.loop > 1:
        yield Chip("fmap")
        yield Chip(f"{LOOP_DIM}→{_axis(axes, attrs.fmap)}", "iteration")


def _assembly(attrs: OutSaverAttrs, axes: Sequence[str]) -> Iterator[Chip]:
    """omap as chips."""
    yield Chip("omap")
    for dim, target in zip(GRID_DIMS, attrs.omap, strict=False):
        yield Chip(f"{dim}→{_axis(axes, target)}", "grid")


def _axis(axes: Sequence[str], dim: int | None) -> str:
    return REPLICA if dim is None else axes[dim] or str(dim)


def _folded(graph: KernelGraph | BlockGraph | ThreadGraph) -> dict[int, str]:
    """The constants that are written into their readers: value -> text. Others stay nodes."""
    uses = graph.uses()
    returned = () if isinstance(graph, BlockGraph) else graph.outputs

    def foldable(value: int) -> bool:
        readers = [graph.ops[index] for index in uses[value]]
        plain = all(Trait.STRUCTURAL not in OPS[reader.kind].traits for reader in readers)
        return bool(readers) and plain and value not in returned

    return {
        results[0]: _constant(op.attrs)
        for op, results in graph.definitions()
        if isinstance(op.attrs, ConstAttrs) and foldable(results[0])
    }


def _caption(op: Op, names: _Named, path: Path, folded: dict[int, str]) -> str:
    """The operator's name with its attributes and constant operands."""
    name = op.kind.value
    if any(value in folded for value in op.inputs):
        name += f"({', '.join(folded.get(value, '·') for value in op.inputs)})"
    axes = names.of(path, op.inputs[0]) if op.inputs else ()
    match op.attrs:
        case ConstAttrs():
            return _constant(op.attrs)
        case AccumAttrs():
            along = "" if op.attrs.dim is None else f" {_axis(axes, op.attrs.dim)}"
            return f"{name} {op.attrs.kind.value}{along}"
        case DimAttrs():
            return f"{name} {_axis(axes, op.attrs.dim)}"
        case RepeatAttrs():
            return f"{name} {_axis(axes, op.attrs.dim)} ×{op.attrs.times}"
        case TransposeAttrs():
            return f"{name} {','.join(_axis(axes, dim) for dim in op.attrs.perm)}"
        case ClampAttrs():
            low, high = ("∞" if limit is None else _fraction(limit) for limit in (op.attrs.low, op.attrs.high))
            return f"{name} {'-' if op.attrs.low is None else ''}{low}…{high}"
        case ApplyAttrs():
            return op.attrs.name
        case PowAttrs():
            return f"{name} {_fraction(op.attrs.exponent)}"
        case _:
            return name


def _constant(attrs: ConstAttrs) -> str:
    return attrs.symbol or _fraction(attrs.value)


def _fraction(value: Fraction) -> str:
    return str(value) if len(str(value)) <= 8 else f"{float(value):.4g}"


def _output_name(graph: KernelGraph, value: int, name: str = "") -> str:
    """The names under which a value is returned, behind its own."""
    returned = [n for v, n in zip(graph.outputs, graph.output_names, strict=True) if v == value]
    return " = ".join(dict.fromkeys([name, *returned] if name else returned))
