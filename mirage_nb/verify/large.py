"""Trials of graphs at their real shape: what memory they take, and how far another device is believed.

In: two graphs, a device and a seed. Out: what both graphs make of a trial, as arrays of the CPU, or `DeviceFault`.

Memory. Inputs below `UNDRAWN` elements are held whole, at 4 bytes for each element and field part (8 for small ones);
of larger ones, products draw the blocks that they multiply. Other tensors in device memory take 8 bytes for each
element and part from where they are made to where they are read last. What takes more than the machine has is refused
before anything is drawn.

Another device computes with whole numbers and has to give the same residues as the CPU. It is believed as far as that
is seen: the first trial, a later one that the seed chooses, and every trial that would refute are computed on the CPU
too. So whatever the device does, of the trials behind an acceptance the CPU made two as well, and a refutation is the
CPU's. Where values differ, or the device raises an error, nothing that it has said counts.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mirage_nb.errors import VerificationError
from mirage_nb.interp.field import FieldInstance, FieldTensor, evaluate
from mirage_nb.interp.instance import CPU, LARGE_TENSOR, UNDRAWN, Device
from mirage_nb.ir import KernelGraph
from mirage_nb.verify.drawn import Candidate, Trials, trial_seed

TOO_LARGE = "the field values of these graphs do not fit into memory"
SMALLER = "verify them with smaller extents, and prove them for all sizes"

Outputs = tuple[FieldTensor, ...]


class DeviceFault(Exception):
    """What a device did that it is not believed any more."""


def check_memory(*graphs: Candidate) -> None:
    """Raise VerificationError where a trial takes more memory than there is."""
    needed, there = max(map(_held, graphs)), _memory()
    if needed > there:
        sizes = f"about {needed / 2**30:.0f} GiB, and this machine has {there / 2**30:.0f}"
        raise VerificationError(f"{TOO_LARGE}: {sizes}", hint=SMALLER)


def held_bytes(graph: KernelGraph) -> int:
    """The most that one field part of a kernel graph's tensors takes at once; operands of a kernel with its results."""
    last = {v: index for index, op in enumerate(graph.ops) for v in op.inputs}
    size = [8 * t.elements for t in graph.types]
    for value, given in enumerate(graph.inputs):
        elements = given.type.elements
        size[value] = 0 if elements >= UNDRAWN else (4 if elements >= LARGE_TENSOR else 8) * elements
    held = most = sum(size[: graph.input_count])
    for index, (op, results) in enumerate(graph.definitions()):
        held += sum(size[v] for v in results)
        most = max(most, held)
        gone = {v for v in op.inputs if last[v] == index and v >= graph.input_count}
        gone |= {v for v in results if v not in last}
        held -= sum(size[v] for v in gone if v not in graph.outputs)
    return most


@functools.lru_cache(maxsize=1024)
def _held(candidate: Candidate) -> int:
    return held_bytes(candidate.graph)


@functools.cache
def _memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Believed:
    """A device whose values are held against the CPU's."""

    def __init__(self, device: Device, drawn: Trials, candidate: KernelGraph, wanted: int) -> None:
        self.device = device
        self._drawn = drawn
        self._graphs = drawn.program.graph, candidate
        self._checked = {0, 1 + trial_seed(drawn.seed(0), 0) % max(1, wanted - 1)}

    def outputs(self, number: int) -> tuple[FieldInstance, Outputs, Outputs]:
        """A trial, what the program makes of it and what the candidate makes of it. Raises DeviceFault."""
        instance, inputs = self._drawn.inputs(number)
        if self.device is CPU:
            return instance, *_evaluated(self._graphs, inputs, instance)
        found = self._there(instance, inputs)
        if number in self._checked or not _same(*found):
            expected = _evaluated(self._graphs, inputs, instance)
            if not all(map(_same, found, expected)):
                raise DeviceFault(f"the {self.device.name} computed other values than the CPU")
        return instance, *found

    def _there(self, instance: FieldInstance, inputs: dict[str, FieldTensor]) -> tuple[Outputs, Outputs]:
        device = self.device
        try:
            moved = {name: x.moved(device.to) for name, x in inputs.items()}
            found = _evaluated(self._graphs, moved, replace(instance, device=device))
            left, right = (tuple(x.moved(device.back) for x in outputs) for outputs in found)
            device.release()
            return left, right
        except Exception as error:  # whatever a driver or its library raises: the CPU does without them
            raise DeviceFault(f"the {device.name} failed ({type(error).__name__}: {error})") from error


def _evaluated(
    graphs: tuple[KernelGraph, KernelGraph], inputs: dict[str, FieldTensor], instance: FieldInstance
) -> tuple[Outputs, Outputs]:
    left, right = graphs
    return evaluate(left, inputs, instance), evaluate(right, inputs, instance)


def _same(left: Sequence[FieldTensor], right: Sequence[FieldTensor]) -> bool:
    """Whether tensors have the same values, and the same elements none."""
    return len(left) == len(right) and all(_equal(a, b) for a, b in zip(left, right, strict=True))


def _equal(a: FieldTensor, b: FieldTensor) -> bool:
    if a.shape != b.shape or (a.p is None) != (b.p is None) or not np.array_equal(a.defined, b.defined):
        return False
    return a.p is None or b.p is None or bool((a.defined <= (a.p == b.p)).all())
