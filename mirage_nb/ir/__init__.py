"""The muGraph: one operator table and three levels of graphs (paper section 2)."""

from mirage_nb.ir.dtypes import BYTES, COUNTS, DTYPE_NAMES, FLOAT8, FLOATS, HALVES, DType, MemSpace, TensorType, promote
from mirage_nb.ir.graph import BlockGraph, Input, KernelGraph, Op, Size, ThreadGraph
from mirage_nb.ir.ops import (
    COMPARISONS,
    JOINED,
    OPS,
    AccumAttrs,
    AccumKind,
    ApplyAttrs,
    ArangeAttrs,
    Attrs,
    CastAttrs,
    ClampAttrs,
    ConstAttrs,
    DimAttrs,
    InIterAttrs,
    Level,
    OpKind,
    OpSpec,
    OutSaverAttrs,
    PadAttrs,
    PowAttrs,
    RepeatAttrs,
    ReshapeAttrs,
    RunningAttrs,
    SliceAttrs,
    Trait,
    TransposeAttrs,
    WhereAttrs,
)

__all__ = [
    "BYTES", "COMPARISONS", "COUNTS", "DTYPE_NAMES", "FLOAT8", "FLOATS", "HALVES", "JOINED", "OPS", "AccumAttrs",
    "AccumKind", "ApplyAttrs", "ArangeAttrs", "Attrs", "BlockGraph", "CastAttrs", "ClampAttrs", "ConstAttrs", "DType",
    "DimAttrs", "InIterAttrs", "Input", "KernelGraph", "Level", "MemSpace", "Op", "OpKind", "OpSpec", "OutSaverAttrs",
    "PadAttrs", "PowAttrs", "RepeatAttrs", "ReshapeAttrs", "RunningAttrs", "Size", "SliceAttrs", "TensorType",
    "ThreadGraph", "Trait", "TransposeAttrs", "WhereAttrs", "promote",
]  # fmt: skip
