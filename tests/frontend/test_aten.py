"""Every row of the ATen table against eager PyTorch, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
import torch.nn.functional as F

import mirage_nb
from mirage_nb.frontend.aten import ROWS, WHOLE
from mirage_nb.frontend.aten.terms import Left
from mirage_nb.frontend.translate import Translation
from mirage_nb.interp import evaluate
from tests.frontend.aten_graphs import Node, numbers, places, positive, tensor

Case = tuple[tuple[Any, ...], dict[str, Any]]


def case(*args: Any, **kwargs: Any) -> Case:
    return args, kwargs


X, Y, ROW, IMAGE = tensor(3, 4), tensor(3, 4), tensor(4), tensor(2, 6, 5)
HEADS = tensor(2, 3, 5, 8)
CACHE, NEW = tensor(2, 3, 8, 4), tensor(2, 3, 2, 4)
ONE = [case(X)]
POINTWISE = [case(X, Y), case(X, ROW), case(tensor(3, 1), tensor(1, 4)), case(X, tensor())]
SCALED = [case(X, Y, alpha=0.5), case(X, 2.5)]
F64 = {"dtype": torch.float64}

CASES: dict[str, list[Case]] = {
    "aten.add.Tensor": POINTWISE + SCALED,
    "aten.add.Scalar": [case(X, 1e-5), case(X, 2, 3)],
    "aten.sub.Tensor": POINTWISE + SCALED,
    "aten.sub.Scalar": [case(X, 1.5)],
    "aten.rsub.Scalar": [case(X, 1.5)],
    "aten.rsub.Tensor": [case(X, Y)],
    "prims.fma.default": [case(X, Y, tensor(3, 4))],
    "aten.mul.Tensor": [*POINTWISE, case(X, 2), case(X, 0.1)],
    "aten.mul.Scalar": [case(X, -0.5)],
    "aten.div.Tensor": [case(X, positive(3, 4)), case(X, 3.0), case(X, positive(4))],
    "aten.div.Scalar": [case(X, 4)],
    "aten.neg.default": ONE,
    "aten.reciprocal.default": [case(positive(3, 4))],
    "aten.square.default": ONE,
    "aten.pow.Scalar": [case(2, X), case(0.5, X)],
    "aten.pow.Tensor_Scalar": [case(X, 2), case(X, 3), case(X, 1), case(positive(3, 4), 0.5),
                               case(positive(3, 4), -0.5), case(positive(3, 4), 1.7), case(positive(3, 4), -2)],
    "aten.sqrt.default": [case(positive(3, 4))],
    "aten.rsqrt.default": [case(positive(3, 4))],
    "aten.exp.default": ONE,
    "aten.expm1.default": ONE,
    "aten.log.default": [case(positive(3, 4))],
    "aten.log1p.default": [case(positive(3, 4))],
    "aten.tanh.default": ONE,
    "aten.erf.default": ONE,
    "aten.abs.default": ONE,
    "aten.sin.default": ONE,
    "aten.cos.default": ONE,
    **{f"aten.{name}.default": [case(tensor(3, 4))] for name in ("atan", "asin", "acos")},
    "aten.sign.default": ONE,
    "aten.sgn.default": ONE,
    "aten.floor.default": ONE,
    "aten.maximum.default": [case(X, Y), case(X, ROW)],
    "aten.minimum.default": [case(X, Y)],
    "aten.sigmoid.default": ONE,
    "aten.relu.default": ONE,
    "aten.silu.default": ONE,
    "aten.gelu.default": [case(X), case(X, approximate="none"), case(X, approximate="tanh")],
    "aten.leaky_relu.default": [case(X), case(X, 0.2), case(X, 1.5)],
    "aten.elu.default": [case(X), case(X, 0.5), case(X, 1.0, 1.5, 0.3)],
    "aten.selu.default": ONE,
    "aten.celu.default": [case(X), case(X, 0.7)],
    "aten.softplus.default": [case(X), case(X, 2.0, 20)],
    "aten.mish.default": ONE,
    "aten.hardswish.default": [case(tensor(5, 40))],
    "aten.hardsigmoid.default": [case(tensor(5, 40))],
    "aten.log_sigmoid.default": ONE,
    "aten.log_sigmoid_forward.default": ONE,
    "aten.clamp.default": [case(X, -0.5, 0.5), case(X, None, 0.1), case(X, min=0.2)],
    "aten.clamp.Tensor": [case(X, Y, ROW), case(X, None, Y), case(ROW, min=X)],
    "aten.clamp_min.default": [case(X, 0.1)],
    "aten.clamp_min.Tensor": [case(X, ROW)],
    "aten.clamp_max.default": [case(X, 0.1)],
    "aten.clamp_max.Tensor": [case(X, Y)],
    "aten.hardtanh.default": [case(X), case(X, -0.3, 0.2)],
    "aten.relu6.default": ONE,
    "aten.copy.default": [case(X, Y), case(X, ROW)],
    "aten.clone.default": [case(X), case(X, memory_format=torch.contiguous_format)],
    "aten.contiguous.default": ONE,
    "aten.detach.default": ONE,
    "aten.alias.default": ONE,
    "aten.lift_fresh_copy.default": ONE,
    "aten.dropout.default": [case(X, 0.5, False), case(X, 0.0, True)],
    "aten._to_copy.default": [case(X, **F64), case(X, dtype=torch.bool)],
    "aten.to.dtype": [case(X, torch.float64)],
    "prims.convert_element_type.default": [case(X, torch.float64)],
    "aten.full.default": [case([2, 3], 1.5, **F64)], "prims.device_put.default": [case(X, torch.device("cpu"))],
    "aten.full_like.default": [case(X, -2)], "aten.fill.Scalar": [case(X, 0.5)],
    "aten.scalar_tensor.default": [case(0.25, **F64)],
    "aten.ones.default": [case([2], **F64)],
    "aten.zeros.default": [case([2], **F64)],
    "aten.ones_like.default": ONE,
    "aten.zeros_like.default": ONE,
    "aten._efficientzerotensor.default": [case([2], **F64)],
    "aten.view.default": [case(X, [2, 6]), case(X, [-1])],
    "aten._unsafe_view.default": [case(X, [2, 6])],
    "aten.reshape.default": [case(X, [12])],
    "aten.flatten.using_ints": [case(IMAGE, 1)],
    "aten.unflatten.int": [case(IMAGE, 1, [2, 3])],
    "aten.unsqueeze.default": [case(X, 1), case(X, -1)],
    "aten.squeeze.default": [case(tensor(1, 3, 1))],
    "aten.squeeze.dim": [case(tensor(1, 3), 0), case(tensor(1, 3), 1)],
    "aten.squeeze.dims": [case(tensor(1, 3, 1), [0, 2])],
    "aten.view_as.default": [case(X, tensor(4, 3))],
    "aten.permute.default": [case(IMAGE, [2, 0, 1]), case(IMAGE, [0, -1, 1])],
    "aten.transpose.int": [case(IMAGE, 0, 2), case(IMAGE, -1, -2)],
    "aten.t.default": [case(X), case(ROW)],
    "aten.numpy_T.default": ONE,
    "aten.mT.default": [case(IMAGE)],
    "aten.expand.default": [case(tensor(3, 1), [3, 5]), case(ROW, [2, 3, 4]), case(ROW, [3, -1])],
    "aten.expand_as.default": [case(tensor(3, 1), X)],
    "aten.repeat.default": [case(X, [2, 1]), case(ROW, [2, 3])],
    "aten.cat.default": [case([X, Y]), case([X, tensor(3, 2), Y], -1)],
    "aten.concat.default": [case([X, Y], 1)],
    "aten.stack.default": [case([X, Y]), case([X, Y, X], -1)],
    "aten.gt.Scalar": [case(X, 0.1)], "aten.ge.Scalar": [case(X, 0)], "aten.lt.Scalar": [case(X, 0.1)],
    "aten.le.Scalar": [case(X, 0)], "aten.eq.Scalar": [case(X, 0)], "aten.ne.Scalar": [case(X, 0.5)],
    "aten.isnan.default": ONE, "aten.isinf.default": ONE, "aten.isfinite.default": ONE,
    "aten.gt.Tensor": [case(X, Y), case(X, ROW)], "aten.ge.Tensor": [case(X, Y)], "aten.lt.Tensor": [case(X, Y)],
    "aten.le.Tensor": [case(X, Y)], "aten.eq.Tensor": [case(X, Y)], "aten.ne.Tensor": [case(X, Y)],
    "aten.arange.default": [case(5, **F64)],
    "aten.arange.start": [case(2, 6, **F64)],
    "aten.arange.start_step": [case(6, 1, -2, **F64)],
    "prims.iota.default": [case(4, start=1, step=2, dtype=torch.int64, device="cpu", requires_grad=False)],
    "aten.slice_scatter.default": [case(CACHE, NEW, 2, 3, 5), case(CACHE, NEW, -2, 6), case(CACHE, NEW, 2, 0, 2),
                                   case(X, Y), case(X, tensor(3, 1), 1, -1), case(X, tensor(3, 2), 1, 1, 4, 2),
                                   case(CACHE, tensor(2, 3, 3, 4), 2, 1, 8, 3)],
    "aten.select_scatter.default": [case(CACHE, tensor(2, 3, 4), 2, 5), case(X, ROW, 0, -1)],
    **{f"aten.{name}": [] for name in ("empty.memory_format", "empty_permuted.default", "empty_like.default",
                                       "empty_strided.default")},
    "aten.diagonal_scatter.default": [case(X, tensor(3)), case(IMAGE, tensor(2, 4), 1, 1, 2), case(X, tensor(2), -1),
                                      case(X, tensor(1), 3, -2, -1)],
    "aten.tril.default": [case(IMAGE), case(X, 1), case(X, -1)],
    "aten.triu.default": [case(IMAGE), case(X, 2)],
    "aten.cumsum.default": [case(IMAGE, 1), case(ROW, 0), case(X, 0, **F64)],
    "aten.constant_pad_nd.default": [case(IMAGE, [1, 2]), case(IMAGE, [0, 1, 2, 0]), case(IMAGE, [1, -1, -2, 0]),
                                     case(IMAGE, [1, 2], 0.5)],
    "aten.glu.default": [case(IMAGE, 1), case(X)],
    "aten.addcmul.default": [case(X, Y, ROW), case(X, ROW, Y, value=0.5)],
    "aten.addcdiv.default": [case(X, Y, positive(3, 4), value=-2)],
    "aten.lerp.Scalar": [case(X, Y, 0.3)], "aten.lerp.Tensor": [case(X, ROW, Y)],
    "aten.ceil.default": ONE, "aten.exp2.default": ONE, "aten.tan.default": ONE,
    "aten.log2.default": [case(positive(3, 4))], "aten.log10.default": [case(positive(3, 4))],
    "aten.slice.Tensor": [case(X, 1, 1, 3), case(X, -1, 0, 9223372036854775807, 2), case(X, 0, -2), case(X)],
    "aten.select.int": [case(X, 0, 1), case(IMAGE, 1, -2), case(ROW, 0, 2)],
    "aten.split.Tensor": [case(IMAGE, 4, 1), case(IMAGE, 2, -1)],
    "aten.split.sizes": [case(IMAGE, [1, 5], 1)],
    "aten.split_with_sizes.default": [case(IMAGE, [1, 2, 3], 1)],
    "aten.chunk.default": [case(IMAGE, 2, -1), case(IMAGE, 3, 1)],
    "aten.unbind.int": [case(X), case(X, -1)],
    "aten.flip.default": [case(IMAGE, [0, 2]), case(X, [])],
    "prims.rev.default": [case(IMAGE, [0, 2])],
    "aten.narrow.default": [case(X, 1, 1, 2)],
    "aten.sum.default": ONE,
    "aten.prod.default": ONE,
    "aten.prod.dim_int": [case(X, 1), case(X, 0, True)],
    "aten.sum.dim_IntList": [case(IMAGE, [1]), case(IMAGE, [0, -1], True), case(IMAGE, None)],
    "aten.mean.default": ONE,
    "aten.mean.dim": [case(IMAGE, [-1], True), case(IMAGE, [0, 1])],
    "aten.amax.default": [case(IMAGE, [1]), case(IMAGE, [-1], True)],
    "aten.max.default": ONE,
    "aten.max.dim": [case(IMAGE, 1), case(IMAGE, -1, True)],
    "aten.amin.default": [case(IMAGE, [1])],
    "aten.min.default": ONE,
    "aten.min.dim": [case(IMAGE, 1)],
    "aten.var.correction": [case(IMAGE, [1]), case(IMAGE, [1, 2], correction=0, keepdim=True)],
    "aten.var.dim": [case(IMAGE, [1]), case(IMAGE, [1, 2], False, True)],
    "aten.var_mean.correction": [case(IMAGE, [2], correction=0, keepdim=True), case(IMAGE, [1])],
    "aten.std.correction": [case(IMAGE, [1], correction=1)],
    "aten.linalg_vector_norm.default": [case(IMAGE, 2, [1], True), case(IMAGE, 1, [-1]), case(X),
                                        case(IMAGE, 3, [0, 2]), case(IMAGE, float("inf"), [1])],
    "aten.norm.ScalarOpt_dim": [case(IMAGE, 2, [1], True), case(IMAGE, None, [0])],
    "aten.norm.Scalar": [case(X), case(X, 1)],
    "aten.mm.default": [case(X, tensor(4, 5))],
    "aten.bmm.default": [case(tensor(2, 3, 4), tensor(2, 4, 5))],
    "aten.matmul.default": [case(HEADS, tensor(8, 4)), case(HEADS, tensor(2, 3, 8, 4)), case(ROW, tensor(4, 3)),
                            case(X, ROW), case(ROW, tensor(4)), case(tensor(2, 1, 3, 4), tensor(5, 4, 2))],
    "aten.mv.default": [case(X, ROW)],
    "aten.dot.default": [case(ROW, tensor(4))],
    "aten.linear.default": [case(IMAGE, tensor(3, 5)), case(IMAGE, tensor(3, 5), tensor(3)), case(ROW, tensor(3, 4))],
    "aten.addmm.default": [case(tensor(5), X, tensor(4, 5)), case(tensor(3, 5), X, tensor(4, 5), beta=0.5, alpha=2)],
    "aten.baddbmm.default": [case(tensor(2, 3, 5), tensor(2, 3, 4), tensor(2, 4, 5), alpha=0.5)],
    "aten.addbmm.default": [case(tensor(3, 5), tensor(2, 3, 4), tensor(2, 4, 5), beta=0.5, alpha=2)],
    "aten.addmv.default": [case(tensor(3), X, ROW), case(tensor(3), X, ROW, beta=0.5, alpha=2)],
    "aten._trilinear.default": [case(X, tensor(2, 4, 5), tensor(3, 5), [1, 3], [0], [1, 2], [2, 3])],
    "aten.einsum.default": [case("bhqd,bhkd->bhqk", [HEADS, tensor(2, 3, 7, 8)]), case("ij,jk", [X, tensor(4, 2)]),
                            case("ii->i", [tensor(3, 3)]), case("ii", [tensor(3, 3)]),
                            case("ij,kj->ki", [X, tensor(2, 4)]), case("ij->j", [X]), case("ij,ij->", [X, Y]),
                            case("i,j->ji", [ROW, tensor(3)]), case("ab,bc,cd->ad", [X, tensor(4, 2), tensor(2, 3)]),
                            case("abc,dca->bd", [tensor(2, 3, 4), tensor(5, 4, 2)]),
                            case("ij,jk->k", [X, tensor(4, 5)])],
    "aten.softmax.int": [case(X, -1), case(X, 0)],
    "aten._softmax.default": [case(X, 1, False)],
    "aten.log_softmax.int": [case(X, -1)],
    "aten._log_softmax.default": [case(X, 0, False)],
    "aten.logsumexp.default": [case(IMAGE, [-1]), case(IMAGE, [1], True), case(IMAGE, [0, 2])],
    "aten.layer_norm.default": [case(X, [4]), case(IMAGE, [6, 5]), case(X, [4], ROW, tensor(4), 1e-3)],
    "aten.native_layer_norm.default": [case(X, [4], ROW, tensor(4), 1e-3), case(IMAGE, [5], None, None, 1e-5),
                                       case(IMAGE, [6, 5], None, None, 1e-5)],
    "aten.rms_norm.default": [case(X, [4]), case(X, [4], ROW, 1e-3)],
    "aten._fused_rms_norm.default": [case(X, [4], ROW, 1e-3)],
    "aten.group_norm.default": [case(IMAGE, 3), case(IMAGE, 2, tensor(6), tensor(6), 1e-3), case(tensor(2, 6), 3)],
    "aten.native_group_norm.default": [case(IMAGE, tensor(6), tensor(6), 2, 6, 5, 3, 1e-5)],
    "aten.batch_norm.default": [case(IMAGE, tensor(6), tensor(6), tensor(6), positive(6), False, 0.1, 1e-5, False),
                                case(IMAGE, None, None, tensor(6), positive(6), False, 0.1, 1e-5, False)],
    "aten._native_batch_norm_legit_no_training.default":
        [case(IMAGE, tensor(6), tensor(6), tensor(6), positive(6), 0.1, 1e-5)],
    "aten._native_batch_norm_legit.no_stats": [case(IMAGE, tensor(6), tensor(6), True, 0.1, 1e-5)],
    "aten.scaled_dot_product_attention.default": [
        case(HEADS, tensor(2, 3, 7, 8), tensor(2, 3, 7, 6)), case(HEADS, HEADS, HEADS, tensor(5, 5), scale=0.3),
        case(tensor(2, 6, 5, 8), tensor(2, 3, 7, 8), tensor(2, 3, 7, 8), enable_gqa=True),
        *(case(tensor(2, 6, 5, 8), tensor(2, 3, 7, 8), tensor(2, 3, 7, 8), mask, enable_gqa=True)
          for mask in (tensor(5, 7), tensor(2, 1, 5, 7), tensor(1, 6, 1, 7)))],
    "aten._scaled_dot_product_flash_attention_for_cpu.default":
        [case(HEADS, HEADS, HEADS), case(HEADS, HEADS, HEADS, attn_mask=tensor(2, 3, 5, 5), scale=0.3),
         case(tensor(2, 6, 5, 8), tensor(2, 3, 5, 8), tensor(2, 3, 5, 8))],
}  # fmt: skip

LOOKUPS: dict[str, list[Case]] = {
    "aten.embedding.default": [case(tensor(9, 4), places(9, 5)), case(tensor(9, 4), places(9, 2, 3), 1)],
    "aten.index_select.default": [case(IMAGE, 1, places(6, 4)), case(IMAGE, -1, places(5, 5))],
    "aten.gather.default": [case(tensor(3, 9), 1, places(9, 3, 2)), case(tensor(9, 3), 0, places(9, 1, 3))],
    "aten.index.Tensor": [case(tensor(9, 4), [places(9, 2, 3, from_end=True)]), case(IMAGE, [None, places(6, 4)]),
                          case(IMAGE, [None, None, places(5, 2, from_end=True)]),
                          case(IMAGE, [None, places(6, 4), places(5, 4, from_end=True)]),
                          case(IMAGE, [places(2, 2), None, places(5, 2)]),
                          case(IMAGE, [places(2, 2, 1), places(6, 1, 3)])],
    "aten.index_copy.default": [case(CACHE, 2, places(8, 2), NEW), case(CACHE, -2, places(8, 1), tensor(2, 3, 1, 4))],
    "aten.index_put.default": [
        case(CACHE, [None, None, places(8, 2, from_end=True)], NEW), case(tensor(9, 4), [places(9, 2, 3)], tensor(4)),
        case(tensor(9, 4), [places(9, 5)], tensor(5, 4), True), case(CACHE, [None, places(3, 3)], tensor()),
        case(tensor(9, 4), [places(9, 5)], tensor(1, 4), True), case(tensor(9, 4), [places(9, 5)], tensor(5, 1)),
        case(IMAGE, [places(2, 2, 1), places(6, 1, 3)], tensor(2, 3, 5)),
        case(IMAGE, [places(2, 1), None, places(5, 3)], tensor(3, 6)),
        case(IMAGE, [None, places(6, 4), places(5, 4, from_end=True)], tensor(4), True)],
    "aten._unsafe_index.Tensor": [case(IMAGE, [None, places(6, 4)])],
    "aten.index_add.default": [case(X, 0, places(3, 2), tensor(2, 4)), case(IMAGE, 1, places(6, 4), tensor(2, 4, 5))],
    "aten.scatter_add.default": [case(X, 1, places(4, 3, 1), tensor(3, 1)), case(ROW, 0, places(4, 3), tensor(3))],
    "aten.as_strided.default": [case(X, (3, 2), (3, 4), 1), case(X, (2, 1, 3, 2), (4, 9, 0, 1))],
    "aten.scatter.value": [case(X, 1, places(4, 3, 1), 0.5)],
    "aten.scatter.src": [case(X, 1, places(4, 3, 1), tensor(3, 1))],
    "aten.scatter_reduce.two": [
        case(X, 1, places(4, 3, 1), tensor(3, 1), how, include_self=both)
        for how in ("sum", "mean", "prod", "amax", "amin") for both in (True, False)],
    "aten._embedding_bag.default": [
        case(tensor(9, 4), places(9, 6), numbers(0, 2, 2), False, mode, False, *rest)
        for mode, *rest in ((0,), (1,), (2,), (0, tensor(6)), (1, None, True), (2, None, True),
                               (0, None, False, 3), (1, None, False, 3))],
    "aten._embedding_bag_forward_only.default": [case(tensor(9, 4), places(9, 6), numbers(0))],
}
"""Places that tensors of integers name."""
PHOTO = tensor(2, 4, 6, 6)
WHOLE_ONLY: dict[str, list[Case]] = {
    "aten.fmod.Scalar": [case(X, 0.7)], "aten.fmod.Tensor": [case(X, positive(3, 4))],
    "aten.remainder.Scalar": [case(X, -0.7)], "aten.remainder.Tensor": [case(X, positive(4))],
    "aten.cumprod.default": [case(IMAGE, 1), case(X, -1, **F64)],
    "aten.argmax.default": [case(X), case(IMAGE, 1), case(IMAGE, -1, True)],
    "aten.argmin.default": [case(X), case(IMAGE, -2)],
    "aten.roll.default": [case(X, [1]), case(IMAGE, [1, -2], [1, 2]), case(IMAGE, [7], [-1])],
    "aten.conv1d.default": [case(IMAGE, tensor(4, 6, 3)), case(IMAGE, tensor(6, 2, 2), tensor(6), [2], [1], [1], 3)],
    "aten.conv2d.default": [case(PHOTO, tensor(3, 4, 3, 3), tensor(3), [2, 2], [1, 1]),
                            case(PHOTO, tensor(4, 1, 3, 2), None, [1, 1], [0, 1], [2, 1], 4)],
    "aten.conv2d.padding": [case(PHOTO, tensor(3, 4, 3, 3), None, [1, 1], "same")],
    "aten.conv3d.default": [case(tensor(2, 2, 3, 4, 4), tensor(3, 2, 2, 2, 2))],
    "aten.conv_transpose1d.default": [case(IMAGE, tensor(6, 4, 2), tensor(4), [2])],
    "aten.conv_transpose2d.input": [case(PHOTO, tensor(4, 2, 3, 3), None, [2, 2], [1, 1], [1, 1], 1, [1, 1])],
    "aten.max_pool1d.default": [case(IMAGE, [2], [1]), case(IMAGE, [2], [2], [1], [1], True)],
    "aten.avg_pool1d.default": [case(IMAGE, [2]), case(IMAGE, [3], [2], [1], True, False)],
    "aten.adaptive_avg_pool1d.default": [case(tensor(2, 3, 6), [2]), case(tensor(2, 3, 7), [3])],
    "aten.pixel_unshuffle.default": [case(PHOTO, 2)], "aten.channel_shuffle.default": [case(PHOTO, 2)],
    "aten.diagonal.default": [case(X), case(IMAGE, -1, 1, -1), case(IMAGE, 1, 2, 0)],
    "aten.unfold.default": [case(IMAGE, 1, 3, 2), case(ROW, 0, 2, 1)],
    "aten.pad.default": [case(IMAGE, [1, 2]), case(IMAGE, [1, 2], "reflect"), case(PHOTO, [1, 0, 2, 1], "replicate"),
                         case(PHOTO, [1, 1, 1, 1], "circular")],
    "aten.div.Tensor_mode": [case(X, positive(3, 4), rounding_mode="floor"), case(X, Y, rounding_mode="trunc")],
    "aten.div.Scalar_mode": [case(X, 0.3, rounding_mode="floor"), case(X, 2, rounding_mode=None)],
    "aten.floor_divide.default": [case(X, positive(4))], "aten.floor_divide.Scalar": [case(X, 0.4)],
    "aten.sinh.default": ONE, "aten.cosh.default": ONE, "aten.asinh.default": ONE, "aten.erfc.default": ONE,
    "aten.hypot.default": [case(X, Y)], "aten.logaddexp.default": [case(X, ROW)],
    "aten.logcumsumexp.default": [case(IMAGE, 1), case(X, -1)],
    "aten.max_pool2d.default": [case(PHOTO, [2, 2]), case(PHOTO, [3, 3], [2, 2], [1, 1]),
                                case(PHOTO, [3], [2], [0], [1], True)],
    "aten.avg_pool2d.default": [case(PHOTO, [2, 3]), case(PHOTO, [3, 3], [2, 2], [1, 1]),
                                case(PHOTO, [3, 3], [1, 1], [1, 1], False, False),
                                case(PHOTO, [3, 2], [2, 3], [1, 0], True), case(PHOTO, [4], [3], [1], True, False),
                                case(PHOTO, [3], [2], [1], True, False, 5), case(PHOTO, [2], [], 0, False, True, 3)],
    "aten.adaptive_avg_pool2d.default": [case(PHOTO, [1, 1]), case(PHOTO, [3, 2]), case(PHOTO, [4, 3])],
    "aten.pixel_shuffle.default": [case(PHOTO, 2)],
    "aten.round.default": [case(X), case(tensor(5, 40))], "aten.trunc.default": ONE, "aten.frac.default": ONE,
    "aten.acosh.default": [case(positive(3, 4))], "aten.atanh.default": [case(tensor(3, 4))],
    "aten.copysign.Tensor": [case(X, Y)], "aten.fmax.default": [case(X, ROW)], "aten.fmin.default": [case(X, Y)],
    "aten.cummax.default": [case(IMAGE, 1), case(X, -1)], "aten.cummin.default": [case(X, 0)],
    "aten.__rshift__.Scalar": [case(places(9, 4), 1)],
    "aten.atan2.default": [case(X, Y), case(tensor(3, 4), ROW)],
    "aten.max_pool2d_with_indices.default": [case(PHOTO, [3, 3], [2, 2], [1, 1])],
    "aten.max_pool3d_with_indices.default": [case(tensor(2, 2, 4, 4, 4), [2, 2, 2])],
    "aten.convolution.default": [
        case(IMAGE, tensor(4, 6, 3), None, [1], [1], [2], False, [0], 1),
        case(PHOTO, tensor(4, 2, 3, 3), tensor(4), [2, 2], [1, 1], [1, 1], False, [0, 0], 2),
        case(PHOTO, tensor(4, 2, 3, 3), tensor(2), [2, 2], [1, 1], [1, 1], True, [1, 1], 1)],
    "aten.col2im.default": [case(tensor(2, 12, 8), [6, 6], [2, 3], [1, 1], [1, 0], [2, 2]),
                            case(tensor(8, 4), [4, 5], [2, 2], [2, 1], [1, 0], [2, 2])],
    "aten.max.dim": [case(IMAGE, 1), case(IMAGE, -1, True)], "aten.min.dim": [case(IMAGE, 1)],
    "aten.sort.default": [case(IMAGE), case(X, 0, True)], "aten.sort.stable": [case(IMAGE, stable=True, dim=1)],
    "aten.kthvalue.default": [case(X, 2), case(IMAGE, 1, 1, True)],
    "aten.median.dim": [case(X, 1), case(IMAGE, 1, True)], "aten.median.default": [case(X), case(IMAGE)],
    "aten.topk.default": [case(X, 2), case(IMAGE, 3, 1, False)],
    "aten.adaptive_avg_pool3d.default": [case(tensor(2, 2, 4, 4, 4), [1, 2, 4])],
    "aten._cdist_forward.default": [case(X, tensor(2, 4), order, None) for order in (1.0, 2.0, 3.0)],
    "aten._pdist_forward.default": [case(tensor(5, 3), order) for order in (1.0, 2.0)],
    "aten.avg_pool3d.default": [case(tensor(2, 2, 4, 4, 4), [2, 2, 2])],
    "aten.adaptive_max_pool2d.default": [case(PHOTO, [3, 2]), case(PHOTO, [4, 3])],
    "aten.upsample_nearest2d.vec": [case(PHOTO, None, [2.0, 3.0]), case(PHOTO, [12, 6], None),
                                     case(PHOTO, [7, 3], None), case(PHOTO, [4, 12], None),
                                     case(PHOTO, None, [1.5, 0.7])],
    "aten.searchsorted.Tensor": [case(tensor(3, 1), X), case(tensor(3, 1), X, right=True), case(tensor(1), IMAGE)],
    "aten.searchsorted.Scalar": [case(tensor(1), 0.5, side="right")], "aten.bucketize.Tensor": [case(X, tensor(1))],
    "aten.pow.Tensor_Tensor": [],
    "aten.fake_quantize_per_tensor_affine_cachemask.default": [],
    "aten.fake_quantize_per_channel_affine_cachemask.default": [],
}
"""What only whole programs compute themselves."""
CASES |= LOOKUPS | WHOLE_ONLY

GPU_ONLY = {
    "aten._scaled_dot_product_flash_attention.default",
    "aten._scaled_dot_product_efficient_attention.default",
    "aten._scaled_dot_product_cudnn_attention.default",
}


LOGICAL: dict[str, Callable[..., Any]] = {
    "aten.logical_and.default": lambda x, y: torch.where(torch.logical_and(x > 0, y > 0), x, y),
    "aten.bitwise_and.Tensor": lambda x, y: torch.where((x > 0) & (y > 0), x, 0.0),
    "aten.logical_or.default": lambda x, y: torch.where(torch.logical_or(x > 0, y > 0), x, 2.0),
    "aten.logical_xor.default": lambda x, y: torch.where(torch.logical_xor(x > 0, y > 0), x, y),
    "aten.bitwise_xor.Tensor": lambda x, y: torch.where((x > 0) ^ (y > 0), x, 0.0),
    "aten.bitwise_or.Tensor": lambda x, y: torch.where((x > 0) | (y > 0), 1.0, y),
    "aten.logical_not.default": lambda x, y: torch.where(torch.logical_not(x > y), x, -torch.inf),
    "aten.bitwise_and.Scalar": lambda x, y: torch.where(torch.bitwise_and(x > 0, True), x, y),
    "aten.bitwise_or.Scalar": lambda x, y: torch.where(torch.bitwise_or(x > 0, False), x, y),
    "aten.bitwise_xor.Scalar": lambda x, y: torch.where(torch.bitwise_xor(x > 0, True), x, y),
    "aten.bitwise_not.default": lambda x, y: (~(x > y)).double() * x,
    "aten.any.default": lambda x, y: torch.where((x > 2).any(), x, y),
    "aten.any.dim": lambda x, y: torch.where((x > 0.8).any(-1, keepdim=True), x, y),
    "aten.any.dims": lambda x, y: torch.where((x > 2).any((0, 1)), x, y),
    "aten.all.default": lambda x, y: torch.where((x > 2).all(), x, y),
    "aten.all.dim": lambda x, y: torch.where(torch.all(x + 0.5, -1, keepdim=True) & (x > -0.8).all(1, True), x, y),
    "aten.all.dims": lambda x, y: torch.where((x > -4).all((0, 1), keepdim=True), x, y),
    "aten.where.self": lambda x, y: torch.where(x > y, x * 2, y),
    "aten.where.ScalarOther": lambda x, y: torch.where(x > y, x, 0.5),
    "aten.where.ScalarSelf": lambda x, y: torch.where(x > y, 0.5, x),
    "aten.index_put.default": lambda x, y: x.index_put((y > 0,), y.sum()).index_put((x > 1,), y.new_full((), 0.5)),
    "aten.masked_fill.Scalar": lambda x, y: x.masked_fill(y > 0, -torch.inf).exp(),
}
"""What works on truth values: functions that use them and return numbers."""
COMPLEX = frozenset({"aten.view_as_real.default"})
"""Rows that read complex numbers: `test_program` has a model of them."""


@pytest.mark.parametrize("name", LOGICAL)
def test_masks_choose_what_pytorch_chooses(name: str) -> None:
    x, y = torch.randn(2, 3, 4, dtype=torch.float64)
    program = mirage_nb.from_torch(LOGICAL[name], (x, y))
    (found,) = evaluate(program.graph, [x.numpy(), y.numpy()])
    np.testing.assert_allclose(found, LOGICAL[name](x, y).numpy(), rtol=1e-12)
    assert name in ROWS


@pytest.mark.parametrize("causal", [True, False])
def test_attention_is_masked(causal: bool) -> None:
    q, k, v = torch.randn(3, 2, 5, 4, dtype=torch.float64)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = None if causal else torch.arange(5)[:, None] < torch.arange(5) + 3
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)

    (found,) = evaluate(mirage_nb.from_torch(attend, (q, k, v)).graph, [t.numpy() for t in (q, k, v)])
    np.testing.assert_allclose(found, attend(q, k, v).numpy(), rtol=1e-9)


def test_infinities_and_what_is_no_number_are_asked_for() -> None:
    x, y = torch.tensor([[-math.inf, -1.0, -0.0], [3.0, math.inf, math.nan]], dtype=torch.float64), torch.ones(2, 3)

    def chosen(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        compared = (x != x, x == x, x == -math.inf, x < math.inf, x >= x, x > x.flip(0))
        asked = (*compared, x.isnan(), x.isinf(), x.isfinite())
        return *(torch.where(a, n * y, y / 3) for n, a in enumerate(asked, 2)), torch.nan_to_num(x, 0.5, 8.0, -7.0) * y

    program = mirage_nb.from_torch(chosen, (x, y))
    found = evaluate(program.graph, [t.double().numpy() for t in program.arguments(x, y)])
    for ours, theirs in zip(found, chosen(x, y), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6)


def test_halves_are_rounded_to_even_numbers_and_infinities_stay() -> None:
    x = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997, 8388609.0, -1e30, math.inf, -math.inf, math.nan])
    program = mirage_nb.from_torch(torch.round, (x,))
    np.testing.assert_array_equal(evaluate(program.graph, [x.numpy()])[0], x.round().numpy())


def test_whole_numbers_of_eight_bits_go_round() -> None:
    x = torch.randn(4, dtype=torch.float64)
    chosen = lambda x: torch.where(torch.arange(4, dtype=torch.uint8) * 100 > 150, x, -x)  # noqa: E731
    program = mirage_nb.from_torch(chosen, (x,))
    (found,) = evaluate(program.graph, [t.double().numpy() for t in program.arguments(x)])
    np.testing.assert_array_equal(found, chosen(x).numpy())


def test_sums_of_truth_values_are_truth_values() -> None:
    """PyTorch adds truth values to truth values; nothing here may make twos of them."""
    x, summed = torch.tensor([-2.0, 0.5, 3.0]), lambda x: torch.where(((x > 0) + (x < 1)) == (x > -1), x, -x)
    program = mirage_nb.from_torch(summed, (x,))
    np.testing.assert_array_equal(evaluate(program.graph, [x.double().numpy()])[0], summed(x).numpy())


def test_every_row_has_a_case() -> None:
    assert set(WHOLE) == set(CASES) | GPU_ONLY | set(LOGICAL) | COMPLEX
    assert set(WHOLE) == set(ROWS) | set(LOOKUPS) | set(WHOLE_ONLY) | COMPLEX


@pytest.mark.parametrize("name", CASES)
def test_rows_say_what_pytorch_computes(name: str) -> None:
    for args, kwargs in CASES[name]:
        Node(name, args, kwargs, torch.float64).check()


@pytest.mark.parametrize("name", sorted(GPU_ONLY))
def test_fused_attention_of_gpus_has_the_arguments_that_rows_expect(name: str) -> None:
    """They run on GPUs only: their schemas are compared, and the row itself is that of the other ones."""
    packet, overload = name.removeprefix("aten.").split(".")
    arguments = [a.name for a in getattr(getattr(torch.ops.aten, packet), overload)._schema.arguments]
    expected = {
        "_scaled_dot_product_flash_attention": ["query", "key", "value", "dropout_p", "is_causal", "return_debug_mask",
                                                "scale"],
        "_scaled_dot_product_efficient_attention": ["query", "key", "value", "attn_bias", "compute_log_sumexp",
                                                    "dropout_p", "is_causal", "scale"],
        "_scaled_dot_product_cudnn_attention": ["query", "key", "value", "attn_bias", "compute_log_sumexp",
                                                "dropout_p", "is_causal", "return_debug_mask", "scale"],
    }  # fmt: skip
    assert arguments == expected[packet]


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("aten.dropout.default", (X, 0.5, True), {}),
        ("aten.add.Tensor", (X, float("inf")), {}),
        ("aten.softplus.default", (X, 1.0, 1.0), {}),
        ("aten.linalg_vector_norm.default", (X, 0), {}),
        ("aten.scaled_dot_product_attention.default", (HEADS, HEADS, HEADS, None, 0.5), {}),
        ("aten.cumprod.default", (X, 0), {}),
        ("aten.to.dtype", (X, torch.int64), {}),
        ("aten._scaled_dot_product_flash_attention_for_cpu.default", (HEADS, tensor(2, 3, 7, 8), tensor(2, 3, 7, 8)),
         {"is_causal": True}),
        ("aten.var.correction", (tensor(3, 1), [1]), {}),
    ],
)
def test_what_rows_cannot_say_is_left(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    node = Node(name, args, kwargs, torch.float64)
    made = Translation()
    for number, place in enumerate(node.places):
        made.declare(place, f"x{number}")
    assert not made.add(node.node)
    assert made.left[node.node]


def test_sizes_that_are_not_fixed_are_left() -> None:
    node = Node("aten.neg.default", (X,), {}, torch.float64)
    made = Translation()
    made.declare(node.places[0], "x")

    class Symbolic:
        shape = (torch.SymInt, 3)
        dtype = torch.float64

    node.node.meta["val"] = Symbolic()
    assert not made.add(node.node)
    assert made.left[node.node] == "sizes that are not fixed"
    assert issubclass(Left, Exception)
