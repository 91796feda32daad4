"""A kernel's results beside those that PyTorch's own operators have for its region.

In: regions, what runs them. Out: a mistake where they differ by more than rounding. Invariant: inputs are drawn as the
region's own lie in memory; what PyTorch rounds to, at the coarsest on the way to a result, says how near is the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from mirage_nb.errors import LaunchError
from mirage_nb.frontend.aten import ROWS, VIEWS
from mirage_nb.frontend.compiled.bodies import bodies
from mirage_nb.frontend.compiled.regions import Region
from mirage_nb.ir.graph import reached
from mirage_nb.verify.reals.ranges import SPREAD

TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 6e-2, torch.float32: 2e-3, torch.float64: 1e-6}
"""How far a kernel may be from PyTorch's own result, over the largest magnitude: both round in their own ways."""
SCALES = (1.0, 1000.0)
"""Standard deviations of the inputs that both are tried on."""
ROUNDINGS = 8.0
"""So many times what one rounding of the inputs does to PyTorch's result is no mistake of a kernel."""

CASTS = frozenset({"prims.convert_element_type.default", "aten._to_copy.default"})
COPIES = frozenset({"aten.clone.default", "aten.cat.default"})
CONSTANT = frozenset({"aten.full.default", "prims.iota.default"})
SCATTERS = frozenset({"aten.select_scatter.default", "aten.slice_scatter.default", "aten.constant_pad_nd.default"})
COPIED = CASTS | COPIES | SCATTERS | CONSTANT
SCALED = frozenset({"aten.mul.Tensor", "aten.div.Tensor", "aten.neg.default"})

Run = Callable[..., Any]
Examples = Callable[..., list[torch.Tensor]]
"""Makes random inputs of a standard deviation, in the order of a region's reads."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What PyTorch computes for a region: its own nodes as a function of what it reads.

    `nudged`: the same where what is read, and what it is cast to, is about the next number of its type; `coarsest`: for
    each result the type on its way that rounds most.
    """

    graph: GraphModule
    nudged: GraphModule
    coarsest: tuple[torch.dtype, ...]

    @classmethod
    def of(cls, region: Region) -> Reference:
        """That of a region."""
        return cls(_function(region, nudged=False), _function(region, nudged=True), (*_coarsest(region),))


def _function(region: Region, nudged: bool) -> GraphModule:
    graph = torch.fx.Graph()
    env: dict[Any, Any] = {}

    def put(node: Any, made: Any, moved: bool) -> None:
        env[node] = graph.call_function(_nudged, (made,)) if nudged and moved else made

    covers = {*region.covers}
    for number, node in enumerate(region.reads):
        put(node, graph.placeholder(f"r{number}"), not all(_is_cast(user) for user in covers.intersection(node.users)))
    for node, first in region.alike.items():
        if first in env:
            env[node] = graph.call_function(torch.ops.aten.reshape.default, (env[first], [*node.meta["val"].shape]))
    for node in region.covers:
        made = graph.node_copy(node, env.__getitem__)
        made.target = without_strides(made.target)
        put(node, made, _is_cast(node))
    graph.output(tuple(env[node] for node in region.writes))
    return GraphModule(_constants(region.covers), graph)


def _constants(nodes: Iterable[Any]) -> dict[str, Any]:
    """The tensors of a graph that these nodes of it stand for, by their names in it."""
    return {n.target: operator.attrgetter(n.target)(n.graph.owning_module) for n in nodes if n.op == "get_attr"}


def _is_cast(node: Any) -> bool:
    """Whether a node rounds; truth values do not."""
    return str(node.target) in CASTS and bool(node.meta["val"].is_floating_point())


def _coarsest(region: Region) -> Iterator[torch.dtype]:
    covers = {*region.covers}
    for write in region.writes:
        seen = reached([write], lambda node: covers.intersection(node.all_input_nodes))
        computed = [write, *(node for node in seen if str(node.target) not in VIEWS | COPIES)]
        values = [node.meta["val"] for node in computed]
        dtypes = {(v[0] if isinstance(v, tuple | list) else v).dtype for v in values}
        yield max(dtypes.intersection(TOLERANCE), key=TOLERANCE.__getitem__)


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes of what a region reads in its program, and of what it writes in PyTorch's graph."""

    given: tuple[tuple[int, ...], ...]
    wanted: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, region: Region) -> Shapes:
        """Those of a region."""
        given = (tuple(i.type.shape) for i in region.graph.inputs)
        return cls(tuple(given), tuple(tuple(node.meta["val"].shape) for node in region.writes))

    def around(self, run: Run) -> Run:
        """What runs the program, on tensors of PyTorch's graph and with results as it has them."""

        def placed(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            made = run(*(t.reshape(shape) for t, shape in zip(tensors, self.given, strict=True)))
            outputs = made if isinstance(made, tuple) else (made,)
            return tuple(t.reshape(shape) for t, shape in zip(outputs, self.wanted, strict=True))

        return placed


def without_strides(target: Any) -> Any:
    """An operator as it may be called on tensors that lie otherwise than when they were traced: compilers give results
    the strides that they like."""
    return torch.ops.aten.reshape.default if target is torch.ops.aten.view.default else target


def lying_anyhow(gm: GraphModule) -> GraphModule:
    """A graph that is changed so that it may be called on such tensors, and what it calls."""
    for _, body in bodies(gm):
        lying_anyhow(body)
    for node in gm.graph.nodes:
        node.target = without_strides(node.target)
    gm.recompile()
    return gm


def examples(region: Region) -> Examples:
    """Inputs like a region's: of its shapes and types, lying in memory as there, since what lies in no order has to
    be copied for a kernel; matrices of parameters scaled as they are when trained. What the graph copies from one of
    them into another is the same in both: programs may read either."""
    fixed = {node for node, same in zip(region.reads, region.parameters, strict=True) if same}
    given, copied = _copied(region.reads)
    held = [(_Layout.of(node.meta["val"]), node in fixed) for node in given]
    wanted = [_Layout.of(node.meta["val"]) for node in region.reads]

    def drawn(scale: float = 1.0, positive: bool = False) -> list[torch.Tensor]:
        generator = torch.Generator(wanted[0].device).manual_seed(0)
        made = []
        for layout, same in held:
            spread = layout.shape[-1] ** -0.5 if same and len(layout.shape) > 1 else 1.0 if same else scale
            made.append(layout.drawn(generator, spread, positive))
        return [layout.placed(t) for layout, t in zip(wanted, copied(*made), strict=True)]

    return drawn


def _copied(reads: Sequence[Any]) -> tuple[list[Any], GraphModule]:
    """What a region's inputs are made of, and a function from that to them: inputs with elements that the graph copies
    from others of them, or knows, are made of what else is copied there; those that it computes of others alone are
    computed; all others are themselves."""
    graph = torch.fx.Graph()
    env: dict[Any, Any] = {}
    given: list[Any] = []
    for read in sorted(reads):
        front, seen = [read], {read}
        for node in front if _is_copied(read) else ():
            fresh = [n for n in node.all_input_nodes if n not in seen and n not in env] if _is_copied(node) else []
            seen.update(fresh)
            front += fresh
        copies = [node for node in front if _is_copied(node)]
        known = any(str(n.target) in CONSTANT or not env.keys().isdisjoint(n.all_input_nodes) for n in copies)
        computed = _computed(read, env)
        for node in sorted(computed or front) if known or computed else [read]:
            if computed or (known and _is_copied(node)):
                env[node] = graph.node_copy(node, env.__getitem__)
                env[node].target = without_strides(node.target)
            else:
                env[node] = graph.placeholder(f"g{len(given)}")
                given.append(node)
    graph.output(tuple(env[node] for node in reads))
    return given, GraphModule(_constants(env), graph)


def _computed(read: Any, known: Collection[Any]) -> list[Any]:
    """The nodes that compute an input of known ones and of numbers; none where they read anything else."""
    front, seen = [read], {read, *known}
    for node in front:
        if str(node.target) not in ROWS or not (node.all_input_nodes or str(node.target) in CONSTANT):
            return []
        fresh = [n for n in node.all_input_nodes if n not in seen]
        seen.update(fresh)
        front += fresh
    return front


def _is_copied(node: Any) -> bool:
    """Whether a node's elements are those of others, numbers times them, or known."""
    scaled = str(node.target) in SCALED and sum(hasattr(argument, "op") for argument in node.args) == 1
    return scaled or str(node.target) in VIEWS | COPIED


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a tensor lies in memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, value: torch.Tensor) -> _Layout:
        return cls(tuple(value.shape), value.stride(), value.dtype, value.device)

    def drawn(self, generator: torch.Generator, spread: float, positive: bool) -> torch.Tensor:
        """A tensor of random numbers that lies like this."""
        count = 1 + sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))
        numbers = torch.randn(count, generator=generator, device=self.device) * spread
        numbers = numbers.abs() if positive else numbers
        return _stored(numbers, self.dtype).as_strided(self.shape, self.strides)

    def placed(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same elements, lying like this."""
        if tensor.stride() == self.strides or 0 in self.strides:
            return tensor
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device).copy_(tensor)


def compare(run: Run, reference: Reference, inputs: Examples) -> None:
    """Raises LaunchError where a kernel is not what PyTorch computes, on ordinary inputs and on large ones.

    Where PyTorch's own result moves with the rounding of what it computes from, nobody can be nearer to it than that.
    """
    for scale in SCALES:
        with torch.no_grad():
            tensors, wanted = _defined(reference, inputs, scale)
            moved, made = reference.nudged(*tensors), run(*tensors)
        outputs = made if isinstance(made, tuple) else (made,)
        for ours, theirs, others, dtype in zip(outputs, wanted, moved, reference.coarsest, strict=True):
            finite = theirs.isfinite()
            if not bool(ours.isfinite()[finite].all()):
                raise LaunchError(f"it overflows on inputs of magnitude {scale:g} where PyTorch does not")
            off = _distance(ours, theirs, finite)
            if off > TOLERANCE[dtype] + ROUNDINGS * _distance(others, theirs, finite & others.isfinite()):
                raise LaunchError(f"it is {off:.1e} off PyTorch's own result on inputs of magnitude {scale:g}")


def _defined(reference: Reference, inputs: Examples, scale: float) -> tuple[list[torch.Tensor], Any]:
    """Inputs, and what PyTorch computes of them: of positive ones where more of that are numbers then, as roots and
    logarithms want them. Beyond there a program computes nothing, and nothing would be compared."""
    found: list[tuple[list[torch.Tensor], Any]] = []
    finite: list[int] = []
    for positive in (False, True):
        tensors = inputs(scale, positive)
        found.append((tensors, wanted := reference.graph(*tensors)))
        finite.append(sum(int(one.isfinite().sum()) for one in wanted))
        if finite[-1] == sum(one.numel() for one in wanted):
            break
    return found[finite.index(max(finite))]


def _stored(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Normal numbers as an input's type has them: whole ones of one byte lie closer together."""
    if dtype is torch.bool:
        return numbers > 0
    if dtype.is_floating_point:
        return numbers.to(dtype)
    held = torch.iinfo(dtype)
    numbers = numbers.abs() if held.min == 0 else numbers
    return (numbers * SPREAD).round().clamp(held.min, held.max).to(dtype)


def _nudged(tensor: torch.Tensor) -> torch.Tensor:
    """About the next numbers of its type; whole ones are exact."""
    if not tensor.is_floating_point():
        return tensor
    step = torch.finfo(tensor.dtype).eps
    signs = torch.ones_like(tensor, memory_format=torch.contiguous_format)
    signs.view(-1)[::2] = -1
    return tensor * (1 + step * signs)


def _distance(ours: torch.Tensor, theirs: torch.Tensor, where: torch.Tensor) -> float:
    """The largest difference, over the largest magnitude. Where everything cancels, only one of them may do so wholly:
    one rounding of what is of magnitude 1 is no difference then."""
    if not bool(where.any()):
        return 0.0
    here, there = ours[where].double(), theirs[where].double()
    if not bool(there.any()) and float(here.abs().max()) <= torch.finfo(theirs.dtype).eps:
        return 0.0
    return float((here - there).abs().max() / there.abs().max().clamp_min(1e-30))
