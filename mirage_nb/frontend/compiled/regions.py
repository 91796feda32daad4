"""Regions: the parts of a traced graph that kernels of the search could compute, and their replacement.

In: an ATen graph without mutation, a target. Out: `Region`s and the reasons for the rest. Nodes that have rows are
divided into levels: a level ends where one of its values passes through something that stays with PyTorch, so that all
of one level is convex. Each level is one tensor program, which the partitioner of the search cuts into pieces that pay.
Invariants: a region reads and writes tensors that the graph has, element for element and type for type, in order (their
shapes are the program's where PyTorch has others); regions in order find what they read; equal regions (`digest`) are
one program, searched once however often a layer repeats.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch._functorch.compile_utils import fx_graph_cse
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule

from mirage_nb.frontend.aten import POINTWISE, VIEWS
from mirage_nb.frontend.aten.terms import Left, number
from mirage_nb.frontend.compiled.bodies import CALLS, bodies
from mirage_nb.frontend.compiled.restore import restore_calls, restore_parts, restore_softmax, restore_views
from mirage_nb.frontend.compiled.shapes import as_computed, as_priced, keeps_order
from mirage_nb.frontend.complexes import lift_complex
from mirage_nb.frontend.lists import spell_lists
from mirage_nb.frontend.translate import Translation, names_of
from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.ir.graph import reached
from mirage_nb.ir.ops import OPS, Trait
from mirage_nb.ir.rewrite import Rewrite
from mirage_nb.lang.apart import taken_apart
from mirage_nb.lang.builder import Builder, Value
from mirage_nb.search.pieces.layers import layers_joined
from mirage_nb.search.pieces.partition import FREE, partition
from mirage_nb.search.pieces.piece import Piece
from mirage_nb.targets import Target

H = TypeVar("H")

COPIES = frozenset({OpKind.CONCAT, OpKind.SLICE, OpKind.PAD})
READ_AS_LYING = frozenset({"aten.view_as_complex.default", "aten.view.dtype"})
MAX_OPERATORS = 20_000
"""Of a whole model; pieces are far smaller."""


@dataclass(frozen=True)
class Region:
    """A part of a graph: its program, and the nodes behind inputs and outputs.

    `covers`: the ATen operators on the way from `reads` to `writes`, in order; `parameters`: inputs that are the
    same in every call; `source`: the program as it was cut out of the graph's, and `nodes` behind values of it;
    `alike`: for nodes that compute what another one did before, as PyTorch does not see, that one.
    """

    graph: KernelGraph
    digest: str
    reads: tuple[Any, ...]
    writes: tuple[Any, ...]
    covers: tuple[Any, ...]
    parameters: tuple[bool, ...]
    source: KernelGraph
    nodes: Mapping[int, Any]
    alike: Mapping[Any, Any] = field(default_factory=dict)

    @property
    def operators(self) -> tuple[str, ...]:
        """What it covers, as `mm`; views and copies only where there is nothing else."""
        shown = [str(n.target) for n in self.covers if n.op != "get_attr" and n.target is not operator.getitem]
        silent = VIEWS | {"aten.clone.default", "prims.convert_element_type.default"}
        computing = [name for name in shown if name not in silent]
        return tuple(name.split(".")[1] for name in computing or shown)

    def among(self, nodes: Mapping[Any, Any]) -> Region:
        """The same region in a copy of its graph, of whose nodes these are the copies."""
        reads, writes, covers = (tuple(nodes.get(n, n) for n in own) for own in (self.reads, self.writes, self.covers))
        return replace(self, reads=reads, writes=writes, covers=covers)

    @property
    def least_bytes(self) -> int:
        """Bytes that it has to read and write at least."""
        return sum(i.type.nbytes for i in self.graph.inputs) + sum(t.nbytes for t in self.graph.output_types)

    @property
    def apart_bytes(self) -> int:
        """Bytes that cross device memory when every operator is a kernel of its own."""
        types = self.graph.types
        moved = [(op, v) for op, (v, *_) in self.graph.definitions() if op.kind not in FREE]
        return sum(types[v].nbytes + sum(types[i].nbytes for i in op.inputs) for op, v in moved)


@dataclass
class Regions:
    """What was found in a graph: regions in order, and for nodes that are in none, why."""

    found: list[Region] = field(default_factory=list)
    left: dict[Any, str] = field(default_factory=dict)


def find_regions(gm: GraphModule, target: Target, parameters: Sequence[int] = ()) -> Regions:
    """The regions of an fx graph, which is made ready for them, and of the branches and bodies of loops that it calls.

    Args:
        gm: of ATen, without mutation but for copies into inputs at its end; `meta["val"]` of all nodes set. What is in
            it twice is there once then; softmax and complex numbers are as programs have them: it computes what
            it did.
        target: whose costs say what pays.
        parameters: numbers of the placeholders that are the same in every call.
    """
    restore_calls(gm.graph)
    lift_complex(gm.graph)
    spell_lists(gm.graph)
    graph = gm.graph = fx_graph_cse(gm.graph)
    restore_softmax(graph)
    restore_views(graph)
    restore_parts(graph)
    levels = _Levels(graph)
    found = Regions(left=dict(levels.left))
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    fixed = {placeholders[number] for number in parameters if number < len(placeholders)}
    for level in sorted(levels.translations):
        found.found += _regions(levels, level, target, fixed, found.left)
    for inner in (find_regions(body, target) for _, body in bodies(gm)):
        found = Regions(found.found + inner.found, found.left | inner.left)
    return found


class _Levels:
    """The translations of a graph, level by level."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.translations: dict[int, Translation] = {}
        self.level: dict[Any, int] = {}
        self.left: dict[Any, str] = {}
        self.home: dict[Any, int] = {}  # the level in which a node was translated
        self.given: dict[int, list[Any]] = {}
        self.needed: dict[int, dict[Any, None]] = {}
        self.again: set[tuple[Any, int]] = set()  # nodes and levels in which they are made once more
        self.names = names_of(list(graph.nodes), {})
        for node in graph.nodes:
            self._visit(node)
        self._find_needed()

    def _visit(self, node: Any) -> None:
        before = max((self.level[n] for n in node.all_input_nodes), default=0)
        if node.op in ("placeholder", "output"):
            self.level[node] = before
            return
        if self._translated(node, before):
            self.level[node] = before
            self.home[node] = before
        else:  # it comes after the regions that it reads from, and before all others
            self.level[node] = max((self.level[n] + (n in self.home) for n in node.all_input_nodes), default=0)

    def _translated(self, node: Any, level: int) -> bool:
        if node.op != "call_function":
            return self._is_number(node, level)
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            self.left[node] = _called(node)
            return False
        sources = node.all_input_nodes
        if all(map(_is_whole, (node, *sources))) and not self.left.keys().isdisjoint(sources):
            self.left[node] = "a mask of what stays with PyTorch"
            return False
        translation = self.translations.setdefault(level, Translation(Builder(MAX_OPERATORS)))
        ready = all(self._brought(n, level, translation) for n in sources)
        foreign = _foreign(node, translation) if ready else set()
        if ready and not foreign and translation.add(node):
            return True
        moved = f"it reads from {' and '.join(foreign)}" if foreign else translation.left.get(node)
        self.left[node] = moved or self._missing(node, translation)
        return False

    def _is_number(self, node: Any, level: int) -> bool:
        """A constant tensor of the model: known if it has one element."""
        module = self.graph.owning_module
        held = operator.attrgetter(node.target)(module) if node.op == "get_attr" and module is not None else None
        if isinstance(held, torch.Tensor) and held.numel() == 1 and held.dtype.is_floating_point:
            with unset_fake_temporarily():
                value = float(held)
            if math.isfinite(value):
                translation = self.translations.setdefault(level, Translation(Builder(MAX_OPERATORS)))
                translation.terms[node] = number(value)
                return True
        self.left[node] = f"a {node.op} stays with PyTorch"
        return False

    def _missing(self, node: Any, translation: Translation) -> str:
        reasons = [translation.left[n] for n in node.all_input_nodes if n in translation.left]
        return reasons[0] if reasons else "an operand stays with PyTorch"

    def _brought(self, node: Any, level: int, translation: Translation) -> bool:
        """Make a node known in a level: views, constants and what one operator makes of an input of the graph again,
        anything else as an input."""
        if node in translation.terms:
            return True
        home = self.home.get(node)
        if home is not None:
            term = self.translations[home].terms[node]
            view = str(node.target) in VIEWS or isinstance(term, tuple) or self.translations[home].value(node) is None
            if view or _is_prepared(node):
                if all(self._brought(n, level, translation) for n in node.all_input_nodes) and translation.add(node):
                    self.again.add((node, level))
                    return True
        if not translation.declare(node, self.names[node]):
            return False
        self.given.setdefault(level, []).append(node)
        return True

    def _find_needed(self) -> None:
        """The nodes whose values leave their level, views traced back to what they show."""
        given = {node for nodes in self.given.values() for node in nodes}
        for node, level in self.home.items():
            homes = {self.home.get(user) for user in node.users} - {level}
            if node in given or any(home is None or (node, home) not in self.again for home in homes):
                for base in self._bases(node):
                    self.needed.setdefault(level, {})[base] = None

    def _bases(self, node: Any) -> Iterator[Any]:
        """What a view shows; the node itself if it computes; what it reads if only PyTorch can write it as it lies."""
        if node not in self.home:
            return
        shows = str(node.target) in VIEWS or isinstance(self.translations[self.home[node]].terms[node], tuple)
        if not shows and _lies_well(node):
            yield node
            return
        if not shows:
            self.left[node] = "it is handed out, and does not lie row by row"
        for source in node.all_input_nodes:
            yield from self._bases(source)


def _is_whole(node: Any) -> bool:
    """Whether it is a tensor of integers or truth values."""
    held = node.meta.get("val")
    return isinstance(held, torch.Tensor) and not held.is_floating_point() and not held.is_complex()


def _foreign(node: Any, translation: Translation) -> set[str]:
    """The other devices that an operator reads given tensors from, which PyTorch brings; places and numbers are made
    on any."""
    made = node.meta.get("val")
    if not isinstance(made, torch.Tensor):
        return set()
    b, found = translation.builder, set()
    for source in node.all_input_nodes:
        term, held = translation.terms.get(source), source.meta.get("val")
        if not isinstance(held, torch.Tensor) or held.device == made.device or not isinstance(term, int):
            continue
        if any(b.definition(value) is None for value in b.needed([Value(term)])):
            found.add(str(held.device))
    return found


def _called(node: Any) -> str:
    """Why what calls functions, or an operator that does more than to compute, is in no region."""
    own = [argument for argument in node.args if isinstance(argument, torch._ops.OpOverload)]
    if own:
        return f"{own[0]} writes, or does something else that counts, which stays with PyTorch"
    where = "there are regions inside of them" if str(node.target) in CALLS else "which stay with PyTorch"
    return f"{node.target} calls functions, {where}"


def _is_prepared(node: Any) -> bool:
    """Whether one elementwise operator makes it of an input of the graph that is no larger, as a gain is scaled."""
    sources = node.all_input_nodes
    alone = len(sources) == 1 and sources[0].op == "placeholder" and str(node.target) in POINTWISE
    return alone and sources[0].meta["val"].nbytes <= node.meta["val"].nbytes


def _regions(levels: _Levels, level: int, target: Target, fixed: set[Any], left: dict[Any, str]) -> Iterator[Region]:
    translation = levels.translations[level]
    nodes, alike = _nodes_of_values(levels, level, translation, left)
    outputs = {
        value: nodes[value]
        for node in levels.needed.get(level, ())
        if (value := _shown(translation, node)) in nodes and translation.builder.definition(value) is not None
    }
    if not outputs:
        return
    said = taken_apart(translation.builder, [*outputs])
    graph, _, given = translation.builder.numbered(tuple((n.name, said[v]) for v, n in outputs.items()))
    numbers = {value: given[made] for value, made in said.items() if made in given}
    known = {number: nodes[value] for value, number in numbers.items() if value in nodes}
    inside = _inside(graph, known) | {numbers[value] for value in _on_the_way(translation, nodes) if value in numbers}
    for piece in layers_joined(graph, partition(graph, target, inside=inside, told=as_priced), target, as_priced):
        try:
            yield region_of(piece, known, fixed, alike)
        except Left as why:
            left.update({known[v]: str(why) for v in piece.writes if v in known})


def _inside(graph: KernelGraph, known: dict[int, Any]) -> set[int]:
    """Values that regions should not hand to each other: PyTorch's graph has no tensor for them, or they depend on no
    input, as masks of positions, and are cheaper made again than read."""
    constant: set[int] = set()
    for op, (value, *_) in graph.definitions():
        if constant.issuperset(op.inputs):
            constant.add(value)
    return constant.union(value for value in range(graph.input_count, len(graph.types)) if value not in known)


def _on_the_way(translation: Translation, nodes: Mapping[Value, Any]) -> Iterator[Value]:
    """Values that one operator of PyTorch makes on its way, and another one hands out, as a variance does a mean: who
    read them from a tensor would need more than the operator does."""
    for node, term in translation.terms.items():
        given = {translation.terms.get(source) for source in node.all_input_nodes}
        made = [t for t in (term if isinstance(term, tuple) else (term,)) if isinstance(t, int)]
        front = [_bare(translation.builder, t) for t in made if t not in given]
        seen = {*front, *given}
        while front:
            for value in translation.builder.operands(front.pop()):
                if value in seen or (value in nodes and _follows(node, base_of(nodes[value]))):
                    continue
                seen.add(value)
                front.append(value)
                if value in nodes:
                    yield value


def _follows(node: Any, other: Any) -> bool:
    """Whether a node is computed from another one."""
    front, seen = [node], {node}
    while front and other not in seen:
        fresh = [n for n in front.pop().all_input_nodes if n not in seen and not n < other]
        seen.update(fresh)
        front += fresh
    return other in seen


def _nodes_of_values(
    levels: _Levels, level: int, translation: Translation, left: dict[Any, str]
) -> tuple[dict[Value, Any], dict[Any, Any]]:
    """For values of a level, the first node of the graph that has these elements in this order; and for others that
    have them that one."""
    found: dict[Value, Any] = {}
    alike: dict[Any, Any] = {}
    own = [node for node, home in levels.home.items() if home == level]
    for node in (*levels.given.get(level, ()), *own):
        value = _shown(translation, node)
        if value is None:
            continue
        if translation.narrow(node):
            if node in levels.needed.get(level, ()):
                left[node] = "PyTorch keeps it in a wider type"
        elif _lies_well(node) and (first := found.setdefault(value, node)) is not node:
            alike[node] = first
    return found, alike


def _shown(translation: Translation, node: Any) -> Value | None:
    """The value that a node is, before it was given another shape: a tensor of either shape holds the same."""
    value = translation.value(node)
    return None if value is None else _bare(translation.builder, value)


def _bare(b: Builder, value: Value) -> Value:
    """A value before it was given another shape."""
    while (op := b.definition(value)) is not None and op.inputs and keeps_order(op, b.shape(Value(op.inputs[0]))):
        value = Value(op.inputs[0])
    return value


def _lies_well(node: Any) -> bool:
    """Whether a contiguous tensor may stand for the node: nobody sees its strides."""
    held = node.meta["val"]
    if not hasattr(held, "is_contiguous") or held.is_contiguous() or node.op == "placeholder":
        return True
    views = reached([node], lambda one: (user for user in one.users if str(user.target) in VIEWS))
    return not any(user.op == "output" or sees_strides(user) for one in views for user in one.users)


def sees_strides(node: Any) -> bool:
    """Whether what an operator makes, or that it can, depends on how what it reads lies."""
    return "as_strided" in str(node.target) or str(node.target) in READ_AS_LYING


def region_of(piece: Piece, known: Mapping[int, Any], fixed: Collection[Any], alike: Mapping[Any, Any]) -> Region:
    """A piece of a program as a region of the graph.

    Args:
        piece: reads and writes values of a program.
        known: nodes behind such values.
        fixed: nodes that are the same in every call.
        alike: as of `Region`.

    Raises:
        Left: it is no region, and why.
    """
    if any(value not in known for value in (*piece.reads, *piece.writes)):
        raise Left("it would begin or end inside one of PyTorch's operators")
    if not piece.reads:
        raise Left("it depends on no input, and is the same in every call")
    kinds = [op.kind for op in piece.graph.ops if op.kind not in FREE and op.kind is not OpKind.CAST]
    if COPIES.issuperset(kinds):
        raise Left("elements are only copied: there is nothing to fuse")
    if len(kinds) < 2 and all(Trait.ELEMENTWISE in OPS[kind].traits for kind in kinds):
        raise Left("a single elementwise operator: there is nothing to fuse")
    graph, order = _canonical(as_computed(piece.graph))
    reads = tuple(known[piece.reads[place]] for place in order)
    writes = tuple(known[value] for value in piece.writes)
    devices = {str(node.meta["val"].device) for node in (*reads, *writes)}
    if len(devices) > 1:
        raise Left(f"its tensors lie on {' and '.join(sorted(devices))}")
    nodes = {place: known[value] for place, value in enumerate(piece.values) if value in known}
    parameters = tuple(node in fixed for node in reads)
    settled = (replace(i, settled=_is_settled(n, fixed)) for i, n in zip(graph.inputs, reads, strict=True))
    graph = replace(graph, inputs=tuple(settled))
    covers = _between(reads, writes, alike)
    if any(node.target is operator.getitem and node.args[0] in covers for node in reads):
        raise Left("it reads a result of an operator that it computes")
    return Region(graph, graph.digest(), reads, writes, covers, parameters, piece.graph, nodes, alike)


def _is_settled(node: Any, fixed: Collection[Any]) -> bool:
    """Whether kernels find an input where the model keeps it, as it was when the graph's first kernel began: nothing in
    the graph writes it, or a copy."""
    written = any(str(user.target).startswith("aten.copy_.") and user.args[0] is node for user in node.users)
    return node in fixed and node.op == "placeholder" and node.meta["val"].is_contiguous() and not written


def base_of(node: Any) -> Any:
    """What a view shows; what is put together of several shows none of them."""
    while str(node.target) in VIEWS and node.all_input_nodes and not _is_joined(node):
        node = node.all_input_nodes[0]
    return node


def _is_joined(node: Any) -> bool:
    return isinstance(node.args[0], list | tuple) and len(node.args[0]) > 1


def users(node: Any) -> Iterator[Any]:
    """Who reads a node, as it is or views of it."""
    for user in node.users:
        yield from users(user) if str(user.target) in VIEWS else (user,)


def _canonical(graph: KernelGraph) -> tuple[KernelGraph, list[int]]:
    """The program with operators and inputs in the order in which its outputs ask for them, and that order of inputs:
    equal regions are one program, wherever in a model they stand."""
    maker = {values[0]: op for op, values in graph.definitions()}
    asked = _in_order(graph.outputs, lambda value: maker[value].inputs if value in maker else ())
    order = [v for v in asked if v not in maker] + [v for v in range(graph.input_count) if v not in asked]
    inputs = (replace(graph.inputs[v], name=f"x{n}", dims=()) for n, v in enumerate(order))
    made = Rewrite(KernelGraph.start(*inputs), {old: new for new, old in enumerate(order)})
    for value in (v for v in asked if v in maker):
        made.copy(maker[value], (value,))
    return made.graph.returning(made.places(graph.outputs)), order


def _between(reads: Sequence[Any], writes: Sequence[Any], alike: Mapping[Any, Any]) -> tuple[Any, ...]:
    """The nodes that compute `writes` from `reads` and what is alike, in order. Raises Left where they need more than
    that, as where a program sees that an operand does not count."""

    def is_computed(node: Any) -> bool:
        return node not in reads and alike.get(node) not in reads

    def operands(node: Any) -> list[Any]:
        if node.op == "placeholder":
            raise Left("PyTorch's operators read more than what is computed depends on")
        return [*filter(is_computed, node.all_input_nodes[::-1])]

    return tuple(_in_order([*filter(is_computed, writes)], operands))


def _in_order(ends: Sequence[H], operands: Callable[[H], Sequence[H]]) -> list[H]:
    """These and what they are made of, operands first, in the order in which they are asked for."""
    found: dict[H, None] = {}
    stack = [(one, False) for one in reversed(ends)]
    while stack:
        one, done = stack.pop()
        if done:
            found[one] = None
        elif one not in found:
            stack.append((one, True))
            stack += [(other, False) for other in reversed(operands(one))]
    return [*found]
