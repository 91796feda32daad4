"""Programs that look rows or elements up, small, in front of, behind and beside others; for several rooms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.codegen import Emitted, emit
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import parse
from mirage_nb.predefined import LOOKUP
from mirage_nb.runtime.execution.buffers import decode, encode
from mirage_nb.search.composition import library_and_fused
from mirage_nb.targets import TARGETS

H200 = TARGETS["h200"]
Array = NDArray[Any]
NO_ROWS = (0.5, np.nan, -1.0, np.inf, -np.inf, 1000.0)


@dataclass(frozen=True, slots=True)
class Looked:
    """A program; the inputs that are tables, and which of their rows numbers name; those that are numbers; how many
    kernels compute it, and how many operands are looked up."""

    text: str
    tables: str
    numbers: str
    rows: int = 24
    kernels: int = 1
    operands: int = 1


PROGRAMS = {
    "embedding, position and layer norm": Looked(
        "E: f16[40,64]\nP: f16[6,64]\nI: i64[2,6]\nG: f16[64]\nB: f16[64]\n"
        "return layer_norm(E[I] + P, G, B, eps=1e-5)", "E", "I",
    ),
    "embedding and norm of wide rows": Looked(
        "E: bf16[30,1024]\nI: i64[7]\nG: bf16[1024]\nreturn rms_norm(E[I], G, eps=1e-5)", "E", "I",
    ),
    "embedding that goes on, and its norm": Looked(
        "E: bf16[30,1024]\nI: i64[7]\nG: bf16[1024]\nx = E[I]\nreturn x, rms_norm(x, G, eps=1e-5)", "E", "I",
    ),
    "lines that hang over": Looked("E: f32[40,64]\nI: i64[1021]\nreturn tanh(E[I])", "E", "I"),
    "rows of no vectors": Looked("E: f32[40,33]\nI: i64[9]\nreturn softmax(E[I])", "E", "I"),
    "one element a row": Looked("X: f32[37,30]\nI: i64[37]\nreturn exp(X[arange(37), I]) * 2", "", "I"),
    "cross entropy": Looked(
        "X: f16[8,64]\nI: i64[8]\nreturn -sum(where(arange(64) == I[:, None], log_softmax(X), 0), axis=1)", "", "I",
    ),
    "two tables by the same numbers": Looked(
        "Q: f16[4,3,16]\nC: f16[40,16]\nS: f16[40,16]\nI: i64[4]\nc = C[I][:, None, :]\ns = S[I][:, None, :]\n"
        "return Q * c + concat(-Q[:, :, 8:], Q[:, :, :8], axis=2) * s", "CS", "I", operands=4,
    ),
    "bias of relative positions": Looked(
        "S: f32[2,12,256]\nE: f32[32,2]\nI: i64[12,256]\nreturn softmax(S + transpose(E[I], 2, 0, 1))", "E", "I",
    ),
    "columns of a table": Looked("E: f32[12,40]\nI: i64[8]\nreturn tanh(E.T[I]) + 1", "", "I"),
    "a part of each column": Looked("E: f32[48,3,16]\nI: i64[8]\nreturn exp(take(E[4:36], I, axis=0))", "", "I"),
    "along an axis in the middle": Looked(
        "E: f32[4,40,16]\nI: i64[5]\nreturn softmax(take(E, I, axis=1))", "", "I",
    ),
    "elements of each row": Looked("X: f32[37,30]\nI: i64[37,4]\nreturn exp(torch.gather(X, 1, I)) * 2", "", "I"),
    "elements of each column": Looked("X: f32[30,36]\nI: i64[4,36]\nreturn exp(torch.gather(X, 0, I))", "", "I"),
    "numbers behind the first": Looked("E: f32[40,32]\nI: i64[3,9]\nreturn rms_norm(E[I[:, 1:]])", "E", "I"),
    "numbers that are turned, and computed": Looked(
        "E: f32[40,32]\nI: i64[3,8]\nreturn exp(E[I.T]) + E[I.T + 1]", "E", "I", operands=2,
    ),
    "elements of parts of rows": Looked(
        "X: f32[5,7,40]\nI: i64[5,7,3]\nreturn tanh(torch.gather(X[:, :, 4:34], 2, I))", "", "I",
    ),
    "a part of each row": Looked("E: f32[40,24]\nI: i64[9]\nreturn exp(E[I][:, 4:20])", "E", "I"),
    "masked by its numbers": Looked("E: f16[40,16]\nI: i64[50]\nreturn E[I] * (I != 0)[:, None]", "E", "I"),
    "folded along lines": Looked("E: f32[40,16]\nI: i64[50]\nreturn sum(E[I] * E[I], axis=0)", "E", "I"),
    "numbers that are computed": Looked(
        "X: f32[40,32]\nU: f32[16]\ni = floor(U)\nf = (U - i)[:, None]\nreturn X[i] * (1 - f) + X[i + 1] * f", "X", "U",
        operands=2,
    ),
    "numbers of several tensors": Looked(
        "X: f32[40,32]\nU: f32[16]\nV: f32[16]\nreturn exp(X[floor(U / 2) + floor(V / 2)]) + X[floor(U / 4)]", "X",
        "UV", operands=2,
    ),
    "numbers of a kernel": Looked(
        "X: f32[40,32]\nU: f32[16,8]\ni = floor(sum(U, axis=1) / 8)\nreturn tanh(X[i]) * 2", "X", "U", kernels=2,
    ),
    "two tables": Looked(
        "E: f16[40,16]\nF: f16[30,16]\nI: i64[9]\nJ: i64[9]\nreturn gelu(E[I] + F[J])", "EF", "IJ", operands=2,
    ),
}  # fmt: skip


def composed(looked: Looked) -> tuple[KernelGraph, Emitted]:
    """The program, and what is emitted for it without any other library kernel than products."""
    program = parse(looked.text).graph
    found = library_and_fused(program, H200, rows=[LOOKUP])
    assert found is not None
    return program, emit(found.instance.graph, H200)


def drawn(program: KernelGraph, looked: Looked, *, named: bool) -> list[Array]:
    """Inputs; numbers name rows, or some of them do not."""
    rng, inputs = np.random.default_rng(7), list[Array]()
    for given in program.inputs:
        made = rng.standard_normal(given.type.shape)
        if given.name in looked.numbers:
            whole = given.name not in "UV"
            made = rng.integers(0, looked.rows, made.shape) + (0.0 if whole else rng.uniform(0.1, 0.9, made.shape))
            if whole and not named:
                none = np.resize(NO_ROWS, made.size).reshape(made.shape)
                made = np.where(np.arange(made.size).reshape(made.shape) % 7 % 2, none, made)
        inputs.append(decode(encode(made, given.type.dtype), given.type.dtype))
    return inputs
