"""Trials of graphs at their real shape: how far another device than the CPU is believed.

In: two graphs, a device and a seed. Out: what both graphs make of a trial, as arrays of the CPU, or `DeviceFault`.

Another device computes with whole numbers and has to give the same residues as the CPU. It is believed as far as that
is seen: the first trial, a later one that the seed chooses, and every trial that would refute are computed on the CPU
too. So whatever the device does, of the trials behind an acceptance the CPU made two as well, and a refutation is the
CPU's. Where values differ, or the device raises an error, nothing that it has said counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mirage_nb.interp.field import FieldInstance, FieldTensor, evaluate
from mirage_nb.interp.instance import CPU, Device
from mirage_nb.ir import KernelGraph
from mirage_nb.verify.fields.drawn import Trials, trial_seed

Outputs = tuple[FieldTensor, ...]


class DeviceFault(Exception):
    """What a device did that it is not believed any more."""


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
