"""Groups of roots: what is drawn again, and that each group takes the first version in which its roots exist."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_nb.interp.field import FieldInstance, FieldTensor
from mirage_nb.interp.instance import FieldStack
from mirage_nb.lang import parse
from mirage_nb.verify.fields.drawn import trial_seed
from mirage_nb.verify.fields.groups import AT_ONCE, VERSIONS, draw_stacked, root_groups
from mirage_nb.verify.fields.roots import Parts

NORM = "X: f16[3, 4]\nW: f16[4, 2]\nreturn (X / sqrt(mean(X * X, axis=-1, keepdims=True) + 0.001)) @ W"
TWO = "X: f16[6]\nY: f16[6]\nG: f16[1]\nreturn sqrt(X + G) * sqrt(X * Y) + exp(Y)"


def drawn(text: str, seed: int, count: int, parts: Parts) -> tuple[FieldStack, tuple[FieldTensor, ...]]:
    instances = FieldStack([FieldInstance.draw(trial_seed(seed, n)) for n in range(count)])
    return instances, draw_stacked(parse(text).graph, instances, parts)


def row(x: FieldTensor, number: int) -> FieldTensor:
    return FieldTensor(*(None if part is None else part[number] for part in (x.p, x.q)))


@pytest.mark.parametrize("q", [False, True])
@pytest.mark.parametrize("text", [NORM, TWO])
@pytest.mark.parametrize("seed", range(4))
def test_each_group_takes_its_first_version_with_roots(text: str, seed: int, q: bool) -> None:
    graph = parse(text).graph
    parts = {i.name: (True, q) for i in graph.inputs}
    groups = root_groups(graph)
    assert groups is not None
    instances, inputs = drawn(text, seed, 3, parts)
    for number, instance in enumerate(instances.instances):
        alone = FieldStack([instance])
        first = [instance.random(i.name, i.type.shape, True, q) for i in graph.inputs]
        versions = [first]
        for start in range(1, VERSIONS, AT_ONCE):
            many = [
                instance.random(i.name, (min(AT_ONCE, VERSIONS - start), *i.type.shape), True, q, f"again {start}")
                for i in graph.inputs
            ]
            for at in range(min(AT_ONCE, VERSIONS - start)):
                versions.append([row(x, at) for x in many])
        failed = []
        for version in versions:
            mixed = [mix(a, b, marks != 0) for a, b, marks in zip(first, version, groups.marks, strict=True)]
            failed.append(int(groups.failed([x.moved(lambda array: array[None]) for x in mixed], alone)[0]))
        for bit in {1 << g for g in groups.group}:
            good = next((v for v, word in enumerate(failed) if not word & bit), 0)
            for found, wanted, marks in zip(inputs, versions[good], groups.marks, strict=True):
                for a, b in ((found.p, wanted.p), (found.q, wanted.q)):
                    assert (a is None and b is None) or np.array_equal(a[number][marks == bit], b[marks == bit])
        for found, wanted, marks in zip(inputs, first, groups.marks, strict=True):
            assert np.array_equal(found.p[number][marks == 0], wanted.p[marks == 0])


def mix(old: FieldTensor, new: FieldTensor, mask: np.ndarray) -> FieldTensor:
    return FieldTensor(*(None if a is None else np.where(mask, b, a) for a, b in ((old.p, new.p), (old.q, new.q))))


@pytest.mark.parametrize(("text", "q"), [(NORM, True), (TWO, False)])
def test_roots_exist_but_rarely(text: str, q: bool) -> None:
    """In 40 instances, each version of a group has its roots in every fourth draw."""
    graph = parse(text).graph
    groups = root_groups(graph)
    assert groups is not None
    instances, inputs = drawn(text, 99, 40, {i.name: (True, q) for i in graph.inputs})
    assert np.count_nonzero(groups.failed(inputs, instances)) <= 1
