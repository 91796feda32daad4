"""Graphs of single ATen nodes, as tracing leaves them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mirage_nb.frontend.aten import WHOLE
from mirage_nb.frontend.translate import Translation
from mirage_nb.interp import evaluate


class Shape(tuple[int, ...]):
    """Stands for a random tensor of this shape among a node's arguments."""


class Positive(Shape):
    """The same, of positive numbers."""


class Places(Shape):
    """The same, of different places of an axis of `extent` elements, some of them counted from its end."""

    extent = 1
    from_end = False


def places(extent: int, *extents: int, from_end: bool = False) -> Places:
    made = Places(extents)
    made.extent, made.from_end = extent, from_end
    return made


class Numbers(Shape):
    """Stands for a tensor of these whole numbers."""


def numbers(*held: int) -> Numbers:
    return Numbers(held)


def tensor(*extents: int) -> Shape:
    return Shape(extents)


def positive(*extents: int) -> Positive:
    return Positive(extents)


def overload(name: str) -> Any:
    """The operator that is called `aten.mm.default`."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part)
    return found


class Node:
    """One node of an operator on random tensors: what PyTorch computes, and what its row says."""

    def __init__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype) -> None:
        self.graph = torch.fx.Graph()
        self.tensors: list[torch.Tensor] = []
        self.places: list[Any] = []
        self.dtype = dtype
        self.generator = torch.Generator().manual_seed(sum(map(ord, name)))
        target = overload(name)
        values = [self._given(a) for a in args]
        named = {key: self._given(value) for key, value in kwargs.items()}
        self.wanted = target(*(v for v, _ in values), **{key: v for key, (v, _) in named.items()})
        placed = {key: node for key, (_, node) in named.items()}
        self.node = self.graph.call_function(target, tuple(n for _, n in values), placed)
        self.node.meta["val"] = self.wanted

    def _given(self, argument: Any) -> tuple[Any, Any]:
        if isinstance(argument, Shape):
            made = self._drawn(argument)
            node = self.graph.placeholder(f"x{len(self.tensors)}")
            node.meta["val"] = made
            self.tensors.append(made)
            self.places.append(node)
            return made, node
        if isinstance(argument, list) and any(isinstance(a, Shape) for a in argument):
            pairs = [self._given(a) for a in argument]
            return [v for v, _ in pairs], [n for _, n in pairs]
        return argument, argument

    def _drawn(self, argument: Shape) -> torch.Tensor:
        if isinstance(argument, Numbers):
            return torch.tensor(argument)
        if isinstance(argument, Places):
            count = int(np.prod(argument, dtype=int))
            made = torch.randperm(argument.extent, generator=self.generator)[:count].reshape(argument)
            turned = torch.arange(count).reshape(argument) % 2 * argument.from_end
            return made - argument.extent * turned
        made = torch.randn(argument, dtype=torch.float64, generator=self.generator)
        return (made.abs() + 0.1 if isinstance(argument, Positive) else made).to(self.dtype)

    def translated(self) -> Translation:
        """The program of this node; its row has to take it."""
        made = Translation(rows=WHOLE, is_whole=True)
        for number, place in enumerate(self.places):
            assert made.declare(place, f"x{number}"), made.left
        assert made.add(self.node), made.left
        return made

    def check(self) -> None:
        """What the program computes in float64 is what PyTorch computes, for every result that has a term."""
        made = self.translated()
        terms = made.terms[self.node]
        wanted = self.wanted if isinstance(self.wanted, tuple | list) else (self.wanted,)
        for term, theirs in zip(terms if isinstance(terms, tuple) else (terms,), wanted, strict=False):
            if term is None:
                continue
            exact = theirs.clone().double().numpy()  # zeros that lie nowhere have no array
            number = made.builder
            if not isinstance(term, int):
                assert np.allclose(float(term.attrs().value), exact)
                continue
            if number.definition(term) is None:
                ours = self.tensors[term].double().numpy()
            else:
                graph, _ = made.builder.finish((("O", term),))
                (ours,) = evaluate(graph, [t.double().reshape(t.shape or (1,)).numpy() for t in self.tensors])
            assert ours.shape == (exact.shape or (1,))
            np.testing.assert_allclose(ours.reshape(exact.shape), exact, rtol=1e-9, atol=1e-9)
