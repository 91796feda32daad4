"""Tensor programs at small test sizes, appended operator by operator."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from mirage_nb.ir import (
    ConstAttrs,
    DimAttrs,
    DType,
    Input,
    KernelGraph,
    Op,
    OpKind,
    TensorType,
    TransposeAttrs,
)


@dataclass
class Builder:
    """Appends operators to a kernel graph; values are integers."""

    graph: KernelGraph

    @classmethod
    def over(cls, **shapes: tuple[int, ...]) -> Builder:
        return cls(KernelGraph.start(*(Input(n, TensorType(s, DType.F16)) for n, s in shapes.items())))

    def op(self, kind: OpKind, *args: int, attrs: object = None) -> int:
        self.graph = self.graph.append(Op(kind, args, attrs))  # type: ignore[arg-type]
        return len(self.graph.types) - 1

    def const(self, value: Fraction, symbol: str = "") -> int:
        return self.op(OpKind.CONST, attrs=ConstAttrs(value, symbol))

    def sum(self, x: int, dim: int = -1) -> int:
        return self.op(OpKind.SUM, x, attrs=DimAttrs(dim % len(self.graph.types[x].shape)))

    def max(self, x: int, dim: int = -1) -> int:
        return self.op(OpKind.MAX, x, attrs=DimAttrs(dim % len(self.graph.types[x].shape)))

    def transpose(self, x: int) -> int:
        rank = len(self.graph.types[x].shape)
        return self.op(OpKind.TRANSPOSE, x, attrs=TransposeAttrs((*range(rank - 2), rank - 1, rank - 2)))

    def transpose_to(self, x: int, perm: tuple[int, ...]) -> int:
        return self.op(OpKind.TRANSPOSE, x, attrs=TransposeAttrs(perm))

    def rms(self, x: int) -> int:
        extent = self.graph.types[x].shape[-1]
        mean = self.op(OpKind.MUL, self.sum(self.op(OpKind.MUL, x, x)), self.const(Fraction(1, extent)))
        return self.op(OpKind.DIV, x, self.op(OpKind.SQRT, mean))

    def matmul(self, x: int, y: int) -> int:
        return self.op(OpKind.MATMUL, x, y)

    def softmax(self, s: int, safe: bool = False) -> int:
        e = self.op(OpKind.EXP, self.op(OpKind.SUB, s, self.max(s)) if safe else s)
        return self.op(OpKind.DIV, e, self.sum(e))

    def done(self, *outputs: int) -> KernelGraph:
        return self.graph.returning(outputs or (len(self.graph.types) - 1,))


def rmsnorm(m: int = 16, k: int = 4096, n: int = 6144) -> KernelGraph:
    b = Builder.over(X=(m, k), W=(k, n))
    b.matmul(b.rms(0), 1)
    return b.done()


def rmsnorm_fig3(m: int = 16, k: int = 1024, n: int = 4096) -> KernelGraph:
    b = Builder.over(X=(m, k), G=(k,), W=(k, n))
    b.matmul(b.rms(b.op(OpKind.MUL, 0, 1)), 2)
    return b.done()


def gated_mlp(m: int = 8, k: int = 4096, n: int = 4096) -> KernelGraph:
    b = Builder.over(X=(m, k), W1=(k, n), W2=(k, n))
    b.op(OpKind.MUL, b.op(OpKind.SILU, b.matmul(0, 1)), b.matmul(0, 2))
    return b.done()


def lora(m: int = 16, k: int = 256, r: int = 16, n: int = 4096) -> KernelGraph:
    b = Builder.over(X=(m, k), W=(k, n), A=(k, r), C=(r, n))
    b.op(OpKind.ADD, b.matmul(0, 1), b.matmul(b.matmul(0, 2), 3))
    return b.done()


def gqa(batch: int = 2, q: int = 256, d: int = 64, keys: int = 4096, norm: str = "") -> KernelGraph:
    b = Builder.over(Q=(batch, q, d), K=(batch, d, keys), V=(batch, keys, d))
    left = b.rms(0) if norm else 0
    middle = 1
    if norm == "k":
        turned = b.transpose(1)
        middle = b.transpose(b.rms(turned))
    right = b.rms(2) if norm == "v" else 2
    b.matmul(b.softmax(b.matmul(left, middle)), right)
    return b.done()


def qknorm(batch: int = 2, q: int = 256, d: int = 64, keys: int = 4096) -> KernelGraph:
    return gqa(batch, q, d, keys, norm="v")


def qknorm_k(batch: int = 2, q: int = 256, d: int = 64, keys: int = 4096) -> KernelGraph:
    return gqa(batch, q, d, keys, norm="k")


def attention_safe(batch: int = 2, q: int = 256, d: int = 64, keys: int = 4096) -> KernelGraph:
    b = Builder.over(Q=(batch, q, d), K=(batch, keys, d), V=(batch, keys, d))
    s = b.op(OpKind.MUL, b.matmul(0, b.transpose(1)), b.const(Fraction(1, 8)))
    b.matmul(b.softmax(s, safe=True), 2)
    return b.done()


def ntrans(m: int = 8, k: int = 4096) -> KernelGraph:
    b = Builder.over(H=(m, k), X=(m, k), alpha=(m, k))
    b.rms(b.op(OpKind.ADD, 1, b.op(OpKind.MUL, 2, b.op(OpKind.ADD, b.rms(0), 1))))
    return b.done()


def moe(x: int = 8, m: int = 8, k: int = 4096, f: int = 4096, n: int = 4096) -> KernelGraph:
    b = Builder.over(X=(x, m, k), A=(x, k, f), C=(x, f, n))
    b.matmul(b.op(OpKind.EXP, b.matmul(0, 1)), 2)
    return b.done()


PROGRAMS = {
    f.__name__: f for f in (rmsnorm, rmsnorm_fig3, gated_mlp, lora, gqa, qknorm, qknorm_k, attention_safe, ntrans, moe)
}
