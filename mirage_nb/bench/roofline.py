"""The roofline of measured kernels: what they reach of the target's memory and arithmetic. Needs matplotlib.

In: rows of a record of `bench kernels`, a target. Out: a `matplotlib.figure.Figure`, made without pyplot. Work is
counted on the program: floating-point operations of its operators, bytes of its inputs and outputs, each once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from mirage_nb.bench.kernels import program_of
from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.targets import Target

VIEWS = frozenset({OpKind.CONST, OpKind.RESHAPE, OpKind.TRANSPOSE, OpKind.REPEAT, OpKind.CONCAT})
"""Operators that move elements and compute nothing."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a program does at least: floating-point operations, and bytes from and to device memory."""

    flops: int
    nbytes: int

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.nbytes


def work(program: KernelGraph) -> Work:
    """Two operations for every product of a matrix multiplication, one for every element that another operator
    writes, or reads if it reduces."""
    flops = 0
    for op, (result, *_) in program.definitions():
        made = program.types[result].elements
        read = max((program.types[v].elements for v in op.inputs), default=0)
        if op.kind is OpKind.MATMUL:
            flops += 2 * made * program.types[op.inputs[0]].shape[-1]
        elif op.kind is OpKind.CONCAT_MATMUL:
            flops += 2 * made * sum(program.types[v].shape[-1] for v in op.inputs[:2])
        elif op.kind not in VIEWS:
            flops += max(made, read)
    tensors = (*(i.type for i in program.inputs), *program.output_types)
    return Work(flops, sum(t.nbytes for t in tensors))


def roofline_figure(rows: Sequence[Mapping[str, Any]], target: Target, title: str = "") -> Figure:
    """One point for every row with a time of ours: operations per byte, and operations per second."""
    figure = Figure(figsize=(8.0, 4.6), layout="constrained")
    axes = figure.subplots()
    bandwidth, peak = target.device_bandwidth * 1e9, target.tensor_rate * 1e12
    ridge = peak / bandwidth
    span = (0.3, 10 * ridge)
    axes.plot([span[0], ridge, span[1]], [span[0] * bandwidth, peak, peak], color="#404040", linewidth=1.2)
    axes.text(ridge * 1.1, peak * 1.08, f"{target.tensor_rate:g} TFLOP/s, tensor cores", fontsize=8)
    slope = span[0] * 1.15
    axes.text(slope, slope * bandwidth * 1.35, f"{target.device_bandwidth / 1e3:g} TB/s", fontsize=8)
    colours = {1: "#0072b2", 8: "#d55e00"}
    for row in rows:
        program = program_of(row["workload"], row["B"])
        if program is None or not row["ours_us"]:
            continue
        done = work(program.graph)
        x, y = done.intensity, done.flops / row["ours_us"] * 1e6
        axes.scatter([x], [y], s=22, color=colours.get(row["B"], "#8f8f8f"), zorder=3)
        shift = (5, 3) if row["B"] > 1 else (5, -9)
        axes.annotate(f"{row['workload']} {row['B']}", (x, y), textcoords="offset points", xytext=shift, fontsize=7)
    axes.set(xscale="log", yscale="log", xlim=span, xlabel="operations per byte", ylabel="operations per second")
    axes.set_ylim(bottom=10 ** math.floor(math.log10(span[0] * bandwidth) - 0.5), top=peak * 3)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    if title:
        axes.set_title(title, fontsize=10)
    return figure
