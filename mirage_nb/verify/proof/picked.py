"""What graphs pick from their inputs by the numbers of elements, as inputs of their own.

In: a translation. Out: the same one for graphs without slices, paddings and counted axes of inputs: terms know these by
a name that says all of them, so they are arrays of any elements, and their extents may shrink like all others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from mirage_nb.ir import Input, KernelGraph, OpKind, TensorType
from mirage_nb.verify.proof.axes import BY_NUMBER, Scope
from mirage_nb.verify.proof.translate import Translation


def as_given(translation: Translation, kinds: Collection[OpKind] = BY_NUMBER) -> Translation:
    """The translation with what operators of these kinds pick as inputs, in both graphs the same, behind the others."""
    names: dict[str, TensorType] = {}
    for graph, scope in zip(translation.graphs, translation.scopes, strict=True):
        picks = (values[0] for op, values in graph.definitions() if op.kind in kinds)
        names |= {scope.numbered[value]: graph.types[value] for value in picks}
    if not names:
        return translation
    (left, first), (right, second) = (
        _given(graph, scope, names) for graph, scope in zip(translation.graphs, translation.scopes, strict=True)
    )
    return replace(translation, graphs=(left, right), scopes=(first, second))


def _given(graph: KernelGraph, scope: Scope, names: Mapping[str, TensorType]) -> tuple[KernelGraph, Scope]:
    count = graph.input_count
    made = KernelGraph.start(*graph.inputs, *(Input(name, type_) for name, type_ in names.items()))
    places = {name: count + place for place, name in enumerate(names)}
    moved = {value: value for value in range(count)}
    dims = [*scope.dims[:count], *(scope.shared[name] for name in names)]
    defined, inner = [(-1, place) for place in range(len(dims))], {}
    for number, (op, values) in enumerate(graph.definitions()):
        if values and scope.numbered.get(values[0]) in places:
            moved[values[0]] = places[scope.numbered[values[0]]]
            continue
        if number in scope.inner:
            inner[len(made.ops)] = scope.inner[number]
        defined += [(len(made.ops), place) for place in range(len(values))]
        moved |= {value: len(made.types) + place for place, value in enumerate(values)}
        made = made.append(replace(op, inputs=tuple(moved[v] for v in op.inputs)))
        dims += [scope.dims[value] for value in values]
    made = made.returning(tuple(moved[v] for v in graph.outputs), graph.output_names)
    return made, replace(scope, graph=made, dims=dims, defined=defined, inner=inner)
