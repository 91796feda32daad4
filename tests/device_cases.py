"""Hand-written kernels, their inputs, and what NumPy says they compute: for the CPU edition and for GPUs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import erf
from typing import Any

import numpy as np

from mirage_nb.ir import DType
from mirage_nb.tile.instructions.table import F8_COLUMNS
from mirage_nb.verify.reals.rounding import bits_of, numbers_of
from tests.device_numbers import bf16_bits, bf16_values, f16_bits, tf32_values
from tests.launches import Array, Case, In, Map, Out


def _rng() -> np.random.Generator:
    return np.random.default_rng(20)


def _normal(*shape: int) -> Array:
    return _rng().standard_normal(shape).astype(np.float32)


def _hard_floats() -> Array:
    """2048 floats: specials, ties, the edges of both 16-bit formats, random bits."""
    rng = _rng()
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 65504.0, 65519.9, 65520.0, -65520.0, 65536.0]
    special += [2.0**-14, 2.0**-14 - 2.0**-26, 2.0**-24, 2.0**-25, 1.5 * 2.0**-25, 3 * 2.0**-25, 2.0**-26, 1e-40, 3e38]
    special += [1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.3895314e38, 3.4e38]
    bits = rng.integers(0, 2**32, 512, dtype=np.uint32).view(np.float32)
    bits = np.where(np.isnan(bits), np.float32(7), bits)
    halves = rng.integers(0, 2**15 - 2**10, 1024 - len(special)).astype(np.uint16).view(np.float16).astype(np.float32)
    between = halves * (1 + rng.choice([2.0**-11, 2.0**-12, -(2.0**-12)], halves.shape)).astype(np.float32)
    return np.concatenate([np.array(special, np.float32), bits, between, rng.standard_normal(512).astype(np.float32)])


def _convert() -> Case:
    x = _hard_floats()
    with np.errstate(over="ignore", invalid="ignore"):
        h = f16_bits(x).view(np.float16)
    b = bf16_bits(x)
    outs = (Out(h), Out(b), Out(h.astype(np.float32)), Out(bf16_values(b)))
    return Case("convert", "functions.cu", "convert", (8, 1, 1), (256, 1, 1), 0, (In(x), *outs))


def _all_halves() -> Case:
    bits = np.arange(2**16, dtype=np.uint16)
    h, b = bits.view(np.float16).astype(np.float32), bf16_values(bits)
    args = (In(bits.view(np.float16)), In(bits), Out(h), Out(b))
    return Case("all halves", "functions.cu", "all_halves", (64, 1, 1), (1024, 1, 1), 0, args)


def _pack() -> Case:
    low, high = _normal(2, 64)
    h_low, h_high = f16_bits(low).astype(np.uint32), f16_bits(high).astype(np.uint32)
    b_low, b_high = bf16_bits(low).astype(np.uint32), bf16_bits(high).astype(np.uint32)
    packed = np.stack(
        [
            h_low | h_high << 16,
            b_low | b_high << 16,
            low.view(np.uint32),
        ]
    )
    unpacked = np.stack([low.astype(np.float16), high.astype(np.float16), bf16_values(b_low), bf16_values(b_high), low])
    args = (In(low), In(high), Out(packed.astype(np.uint32)), Out(unpacked.astype(np.float32)))
    return Case("pack", "functions.cu", "pack", (1, 1, 1), (64, 1, 1), 0, args)


def _math() -> Case:
    rng = _rng()
    x = np.concatenate([rng.uniform(-8, 8, 192), rng.uniform(-0.3, 0.3, 63), [0.0]]).astype(np.float32)
    y = rng.uniform(0.01, 30, 256).astype(np.float32)
    a, b = x.astype(np.float64), y.astype(np.float64)
    erfs = np.array([erf(v) for v in a])
    cube = np.sqrt(2 / np.pi) * (a + 0.044715 * a**3)
    gelu = 0.5 * a * (1 + np.array([erf(v / 2**0.5) for v in a]))
    rows = [np.exp2(a), np.exp(a), np.sqrt(b), b**-0.5, 1 / b, a / b, np.tanh(a)]
    rows += [
        1 / (1 + np.exp(-a)),
        a / (1 + np.exp(-a)),
        gelu,
        0.5 * a * (1 + np.tanh(cube)),
        np.maximum(a, 0),
        a * a,
    ]
    rows += [
        b**a,
        erfs,
        np.log(b),
        np.log1p(b),
        *(np.expm1(a), np.arctan(a)),
        np.floor(a),
        np.abs(a),
        np.sign(a),
        *(a >= 0, a >= b, a > b, 0 * a, 0 * a),
        np.maximum(a, b),
        np.minimum(a, b),
        np.clip(a, -1, 2),
        a * b + 1,
        0 * a,
        b * np.exp(b - np.maximum(a, b)),
        0 * a,
        0 * a,
    ]
    expected = np.stack(rows).astype(np.float32)
    args = (In(x), In(y), Out(expected, relative=4e-6, absolute=4e-7))
    return Case("math", "functions.cu", "math", (1, 1, 1), (256, 1, 1), 0, args)


def _quotients() -> Case:
    """Of numbers of any size, denormals among them."""
    rng = _rng()
    y = (10 ** rng.uniform(-43, 38, 256) * rng.choice([-1, 1], 256)).astype(np.float32)
    x = (y * 10 ** rng.uniform(-3, 0, 256)).astype(np.float32)
    infinite, undefined = np.inf, np.nan
    special = [(1, 0), (0, 0), (1, infinite), (infinite, 1e-40), (infinite, infinite), (1, undefined), (1e-40, 3e38)]
    x[:7], y[:7] = np.array(special, np.float32).T
    with np.errstate(all="ignore"):
        expected = (x.astype(np.float64) / y).astype(np.float32)
    args = (In(x), In(y), Out(expected, relative=4e-6, absolute=1e-44))
    return Case("quotients", "functions.cu", "quotients", (1, 1, 1), (256, 1, 1), 0, args)


def _waves() -> Case:
    """Sine and cosine, also of arguments that are reduced with many digits of pi."""
    x = np.concatenate([_rng().uniform(-8, 8, 192), _rng().uniform(1e5, 1e8, 63), [0.0]]).astype(np.float32)
    a = x.astype(np.float64)
    args = (In(x), Out(np.stack([np.sin(a), np.cos(a)]).astype(np.float32), absolute=4e-7))
    return Case("waves", "functions.cu", "waves", (1, 1, 1), (256, 1, 1), 0, args)


def _vectors() -> Case:
    x, u = _normal(64, 16).astype(np.float16), _normal(256)
    i, j = np.ogrid[:64, :8]
    v = x[:, :8].astype(np.float32)
    for term in (
        u[4 * i + j % 4],
        u[2 * i + j % 2],
        np.where(i < 40, x.ravel()[2 * i + j % 2].astype(np.float32), np.float32(0)),
        np.where(j < i % 12, x.ravel()[np.minimum(16 * i + i % 9 + j, 1023)].astype(np.float32), np.float32(0)),
        u[i + 0 * j],
    ):
        v = v + term
    y = x.copy()
    args = (In(x), Out(y), In(u), Out(v, relative=1e-5, absolute=1e-6))
    return Case("vectors", "functions.cu", "vectors", (1, 1, 1), (64, 1, 1), 0, args)


def _exchanges() -> Case:
    x, lane = _normal(32), np.arange(32)

    def over(groups: Array, f: Callable[..., Array]) -> Array:
        return np.array([f(x[groups == g]) for g in groups])

    rows = [x[(lane * 7 + 3) % 32], x[lane ^ 5], over(lane * 0, np.sum), over(lane // 4, np.sum)]
    rows += [over(lane * 0, np.max), over(lane // 8, np.max), (9 + (lane ^ 1)).astype(np.float32)]
    args = (In(x), Out(np.stack(rows).astype(np.float32), 1e-5, 1e-6))
    return Case("exchanges", "functions.cu", "exchanges", (1, 1, 1), (32, 1, 1), 0, args)


def _reductions() -> Case:
    x = _normal(256)
    low, high = x[:96], x[96:]

    def split(f: Callable[..., Any]) -> Array:
        return np.concatenate([np.full(96, f(low)), np.full(160, f(high))])

    def teams(warps: int, f: Callable[..., Any]) -> Array:
        return np.repeat(f(x.reshape(-1, 32 * warps), axis=1), 32 * warps)

    rows = [np.full(256, x.sum()), np.full(256, x.max()), split(np.sum), split(np.max)]
    sums, tops = np.resize(x.reshape(32, 8).sum(axis=0), 256), np.resize(x.reshape(4, 64).max(axis=0), 256)
    rows += [teams(8, np.sum), teams(4, np.max), teams(2, np.sum), sums, 2 * sums, tops]
    rows += [3 * x, x.reshape(32, 8).cumsum(axis=0).ravel() - x, x[::-1].cumsum()[::-1], teams(8, np.sum) * 3]
    out = Out(np.stack(rows).astype(np.float32), 1e-5, 1e-5)
    return Case("reductions", "functions.cu", "reductions", (1, 1, 1), (256, 1, 1), 0, (In(x), out))


def _rounded_or_not(x: Array, y: Array) -> tuple[Array, Array]:
    """The bounds of products in f32 that may be rounded."""
    rounded = x * y
    more = np.where(np.isfinite(rounded) & (rounded == x.astype(float) * y), 0, np.float32(2.0**-23) * abs(rounded))
    return rounded - more, rounded + more


def _bounds() -> Case:
    """Numbers around a place of their own for every warp, of a few kinds, and now and then none."""
    rng, warps = _rng(), 200
    middle, wide = (rng.choice(kinds, (2, warps, 1)) for kinds in ([0, 1, -1, 3, 100, -2.5], [0, 0, 0.5, 1, 40]))
    x, y = (middle + np.round(wide * rng.standard_normal((2, warps, 32)), 1)).astype(np.float32)
    x[::17, 5], y[::23, 9], x[::29, 1] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        a, b, c, d = x.min(1), x.max(1), y.min(1), y.max(1)  # none where one of them is
        none = 0 * (np.maximum(abs(a), abs(b)) + np.maximum(abs(c), abs(d)))  # of infinities
        below, above = zip(*(_rounded_or_not(*pair) for pair in ((a, c), (a, d), (b, c), (b, d))), strict=True)
        low, high = np.min(below, 0) + none, np.max(above, 0) + none
        sure = a > d, a >= d, (a == b) & (c == d) & (a == c)
        maybe = ~(b <= c), ~(b < c), ~((a > d) | (c > b))
        size, least = np.maximum(abs(a), abs(b)), np.maximum(np.maximum(a, -b), 0)
        sides: list[Any] = [
            (a, b), (np.nan, np.nan), (-b, -a), (a + c + none, b + d + none), (a - d + none, b - c + none),
            (low, high), (np.minimum(a, c), np.minimum(b, d)), (np.maximum(a, c), np.maximum(b, d)), (least, size),
            (_rounded_or_not(least, least)[0], _rounded_or_not(size, size)[1]),
            (np.maximum(a, 0), np.maximum(b, 0)), (np.floor(a), np.floor(b)),
            (np.sign(a), np.sign(b)), (a >= 0, ~(b < 0)), *zip(sure, maybe, strict=True),
            (low - 1 + 0 * low, high - 1 + 0 * high),
            [np.where(maybe[0], np.where(sure[0], x, hull(x, 2)), 2) for x, hull in ((a, np.minimum), (b, np.maximum))],
        ]  # fmt: skip
    out = np.zeros((warps, 19, 3), np.float32)
    for row, (least, most) in enumerate(sides):
        out[:, row, 1], out[:, row, 2] = least, most
    return Case("bounds", "functions.cu", "bounds", (warps, 1, 1), (32, 1, 1), 0, (In(x), In(y), Out(out, 1e-6)))


def _hand_over() -> Case:
    x = _normal(32)
    return Case("hand over", "functions.cu", "hand_over", (1, 1, 1), (64, 1, 1), 0, (In(x), Out(x[::-1].copy())))


def _mma(kernel: str, k: int) -> Case:
    a, b, start = _normal(16, k), _normal(2, k, 8)[1], _normal(3, 16, 8)[2]
    if kernel == "mma_f16":
        a, b = a.astype(np.float16), b.astype(np.float16)
    exact = (a, b)
    if kernel == "mma_bf16":
        a, b = bf16_bits(a), bf16_bits(b)
        exact = (bf16_values(a), bf16_values(b))
    if kernel == "mma_tf32":
        exact = tuple(tf32_values(x) for x in exact)
    expected = (start + exact[0].astype(np.float64) @ exact[1].astype(np.float64)).astype(np.float32)
    args = (In(a), In(b), Out(expected, 1e-5, 1e-5, start))
    return Case(kernel, "functions.cu", kernel, (1, 1, 1), (32, 1, 1), 0, args)


def _mma_f64() -> Case:
    a, b, start = (x.astype(np.float64) for x in (_normal(16, 16), _normal(2, 16, 8)[1], _normal(3, 16, 8)[2]))
    args = (In(a), In(b), Out(start + a @ b, 1e-13, 1e-13, start))
    return Case("mma_f64", "mma_f64.cu", "multiply", (1, 1, 1), (32, 1, 1), 0, args)


def _wgmma_tf32(columns: int) -> Case:
    """64 x 8 by 8 x columns for each of four steps of 8: right lies along k in shared memory."""
    a, b = _normal(64, 32), _normal(2, columns, 32)[1]
    expected = (tf32_values(a).astype(np.float64) @ tf32_values(b).astype(np.float64).T).astype(np.float32)
    args = (In(a), In(b), Out(expected, 1e-5, 1e-5))
    name, options = f"wgmma {columns} tf32", (f"-DCOLUMNS={columns}",)
    return Case(name, "wgmma_tf32.cu", "matmul", (1, 1, 1), (128, 1, 1), columns * 128, args, options)


def _wgmma_f8(columns: int, left: DType, right: DType, *, overwrites: bool = False) -> Case:
    """Whole numbers, whose sums have few digits: they come out exactly."""
    a, b = (np.round(np.clip(2 * x, -4, 4)) for x in (_normal(64, 128), _normal(2, columns, 128)[1]))
    start = np.full((64, columns), 32, np.float32)
    args = (Map(bits_of(a, left), (64, 128)), Map(bits_of(b, right), (columns, 128)))
    out = Out((a @ b.T + (0 if overwrites else start)).astype(np.float32), start=start)
    name = f"wgmma {columns} {left.value} {right.value}" + ", overwrites" * overwrites
    options = (f"-DCOLUMNS={columns}", f"-DLEFT={left.value}", f"-DRIGHT={right.value}")
    options += (f"-DOVERWRITES={int(overwrites)}",)
    return Case(name, "wgmma_f8.cu", "matmul", (1, 1, 1), (128, 1, 1), (64 + columns) * 128, (*args, out), options)


def _tf32_pieces() -> Case:
    x = _hard_floats()
    bits = np.ascontiguousarray(x := np.where(np.isnan(x), np.float32(1), x)).view(np.uint32)
    near = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return Case("tf32 pieces", "functions.cu", "tf32_pieces", (8, 1, 1), (256, 1, 1), 0,
                (In(x), Out(tf32_values(x)), Out(near)))  # fmt: skip


def _ldmatrix() -> Case:
    m = _rng().integers(0, 2**16, (4, 8, 8)).astype(np.uint16)

    def registers(matrices: Array) -> list[Array]:
        return [np.ascontiguousarray(one).view(np.uint32).ravel() for one in matrices]

    t = m.transpose(0, 2, 1)
    rows = [row for of in (m, t) for count in (2, 4) for row in registers(of[:count])]
    args = (In(m), Out(np.stack(rows)))
    return Case("ldmatrix", "functions.cu", "ldmatrix", (1, 1, 1), (32, 1, 1), 0, args)


def _copies() -> Case:
    x = _rng().integers(1, 256, (32, 16)).astype(np.uint8)

    def cut(row: Array, valid: int) -> Array:
        return np.where(np.arange(len(row)) < valid, row, 0)

    rows = []
    for t, row in enumerate(x):
        source = row if t % 2 else x[0]
        rows.append(
            np.concatenate([cut(row[:8], t % 9), cut(row[:4], t % 5), row[4:8], row[8:], cut(row, t % 17), source[:8]])
        )
    args = (In(x), Out(np.stack(rows).astype(np.uint8)))
    return Case("copies", "functions.cu", "copies", (1, 1, 1), (32, 1, 1), 0, args)


def _hints() -> Case:
    x = _normal(128)
    return Case("hints", "functions.cu", "hints", (1, 1, 1), (128, 1, 1), 0, (In(x), Out(x)))


def _places() -> Case:
    rows = []
    for bz, by, bx in itertools.product(range(2), range(2), range(3)):
        for t in range(96):
            rows.append([0, 0, 0, t // 32 * 1000 + t % 32, 3, t, 96, bx + 10 * by + 100 * bz])
    args = (Out(np.array(rows, np.int32)),)
    return Case("places", "functions.cu", "places", (3, 2, 2), (96, 1, 1), 96, args)


def _box(swizzle: int, row_bytes: int, column: int, row: int, *matrix: int) -> Case:
    one, kernel = (1,) * len(matrix), f"box_{2 + len(matrix)}d"
    source = _rng().integers(1, 2**16, (*(3 * n for n in one), 40, 104)).astype(np.uint16)
    plain = _window(source, (*matrix, row, column), box := (*one, 16, row_bytes // 2)).view(np.uint8).ravel()
    args = (Map(source, box, swizzle), Out(_swizzled_and_plain(plain, swizzle)), column, row, *matrix)
    options = (f"-DSWIZZLE={swizzle}", f"-DROW_BYTES={row_bytes}")
    name = f"{kernel}, swizzle {swizzle}, at {(*matrix, row, column)}"
    return Case(name, "hopper.cu", kernel, (1, 1, 1), (64, 1, 1), 16 * row_bytes, args, options)


def _window(source: Array, start: tuple[int, ...], extents: tuple[int, ...]) -> Array:
    """Part of an array; what lies outside is zero."""
    found = np.zeros(extents, source.dtype)
    for at in np.ndindex(*extents):
        place = tuple(s + i for s, i in zip(start, at, strict=True))
        if all(0 <= p < n for p, n in zip(place, source.shape, strict=True)):
            found[at] = source[place]
    return found


def _swizzled_and_plain(plain: Array, swizzle: int) -> Array:
    """The 16-byte chunks of a tile in the order of shared memory, then as they were."""
    chunks = plain.reshape(-1, 16)
    at = np.arange(len(chunks))
    place = at ^ ((at >> 3) & (max(1, swizzle // 16) - 1))
    swizzled = np.empty_like(chunks)
    swizzled[place] = chunks
    return np.concatenate([swizzled.ravel(), plain])


def _bulk() -> Case:
    x = _rng().integers(0, 256, 1024).astype(np.uint8)
    tail = np.concatenate([x[:32], np.full(32, 7, np.uint8)])
    return Case("bulk", "hopper.cu", "bulk", (1, 1, 1), (64, 1, 1), 0, (In(x), Out(np.concatenate([x, tail]))))


def _row_sum() -> Case:
    x = _normal(5, 3000).astype(np.float16)
    args = (In(x), Out(x.astype(np.float64).sum(1).astype(np.float32), 1e-4, 1e-3), 3000)
    return Case("row sum", "rows.cu", "row_sum", (5, 1, 1), (128, 1, 1), 0, args)


def _softmax() -> Case:
    x = (4 * _normal(6, 1024)).astype(np.float16)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    args = (In(x), Out((e / e.sum(1, keepdims=True)).astype(np.float16), 2e-3, 1e-6))
    return Case("softmax", "rows.cu", "softmax", (6, 1, 1), (128, 1, 1), 0, args)


def _matmul_cp_async(element: str, blocks: int = 2, k: int = 320) -> Case:
    a, b = _normal(16 * blocks, k), _normal(k, 64)
    if element == "f16":
        a, b = a.astype(np.float16), b.astype(np.float16)
        expected = a.astype(np.float64) @ b.astype(np.float64)
    else:
        a, b = bf16_bits(a), bf16_bits(b)
        expected = bf16_values(a).astype(np.float64) @ bf16_values(b).astype(np.float64)
    args = (In(a), In(b), Out(expected.astype(np.float32), 1e-4, 1e-3), k)
    shared = 2 * (16 + 64) * 72 * 2
    name = f"matmul by cp.async, {element}"
    options = (f"-DELEMENT={element}",)
    return Case(name, "matmul_cp_async.cu", "matmul", (blocks, 1, 1), (128, 1, 1), shared, args, options)


def _matmul_tma(k: int = 512, n: int = 128) -> Case:
    x, w = _normal(16, k).astype(np.float16), _normal(k, n).astype(np.float16)
    expected = (x.astype(np.float64) @ w.astype(np.float64)).astype(np.float32)
    args = (Map(x, (16, 64)), Map(w, (64, 64)), Out(expected, 1e-4, 1e-3), k, n)
    shared = 3 * (64 + 16) * 128
    return Case("matmul by TMA", "matmul_tma.cu", "matmul", (n // 64, 1, 1), (160, 1, 1), shared, args)


def wgmma_case(columns: int, a_order: str, b_order: str, *, element: str = "f16", registers: bool = False,
               overwrites: bool = False) -> Case:  # fmt: skip
    """One warpgroup: every width, both orders of both operands, a in registers; sums that the first product begins."""
    k = 192
    a, b = _normal(64, k), _normal(k, columns)
    stored: list[Array] = []
    exact: list[Array] = []
    for one in (a, b):
        bits = one.astype(np.float16) if element == "f16" else bf16_bits(one)
        stored.append(bits)
        exact.append((bits if element == "f16" else bf16_values(bits)).astype(np.float64))
    expected = (exact[0] @ exact[1]).astype(np.float32)
    a_map = Map(stored[0] if a_order == "K" else stored[0].T.copy(), (64, 64))
    if b_order == "K":
        b_map = Map(stored[1].T.copy(), (columns, 64))
    else:
        wide = np.zeros((k, max(64, columns)), stored[1].dtype)
        wide[:, :columns] = stored[1]
        b_map = Map(wide, (64, 64))
    options: tuple[str, ...] = (
        f"-DCOLUMNS={columns}",
        f"-DA_ORDER={a_order}",
        f"-DB_ORDER={b_order}",
        f"-DELEMENT={element}",
    )
    options += (f"-DA_REGISTERS={int(registers)}", f"-DOVERWRITES={int(overwrites)}")
    name = f"wgmma {columns} {element}, a {'in registers' if registers else a_order}, b {b_order}"
    name += ", overwrites" * overwrites
    shared = 64 * 128 * (1 - -columns // 64)
    args = (a_map, b_map, Out(expected, 1e-4, 1e-3), k)
    return Case(name, "wgmma.cu", "matmul", (1, 1, 1), (128, 1, 1), shared, args, options)


def _quads() -> Case:
    """Words that the four lanes of a row exchange: lane q's word i becomes word q of lane i."""
    w = np.arange(128, dtype=np.uint32).reshape(8, 4, 4)
    return Case("quads", "functions.cu", "quads", (1, 1, 1), (32, 1, 1), 0, (In(w), Out(w.transpose(0, 2, 1).copy())))


def _rows() -> Case:
    """Pairs of eight fragments side by side become rows, stored wherever they begin, as far as they go (0 to 66)."""
    pairs = np.arange(8 * 32 * 2, dtype=np.uint16).reshape(8, 8, 4, 2)  # fragment, row, lane of the row, element
    stored = np.zeros((67, 8, 71), np.uint16)
    for length in range(67):
        stored[length, :, : min(length, 64)] = pairs.transpose(1, 0, 2, 3).reshape(8, 64)[:, :length]
    args = In(pairs.reshape(8, 64).view(np.uint32)), Out(stored.view(np.float16))
    return Case("rows", "functions.cu", "rows", (67, 1, 1), (32, 1, 1), 0, args)


def _rows_named() -> Case:
    numbers = np.array([0, -0.0, 1, 4, 5, -1, 0.5, 3.999, np.nan, np.inf, -np.inf, 1e30, 2.0**31, 4.000001, 1e-40, 3])
    rows = [0, 0, 1, 4, *[-1] * 11, 3]
    args = In(numbers.astype(np.float32)), Out(np.array(rows, np.int32))
    return Case("rows_named", "functions.cu", "rows_named", (1, 1, 1), (16, 1, 1), 0, args)


def _bytes() -> Case:
    """Every number of a byte, of signed ones, unsigned ones (twice), and of both floats."""
    held, rows = np.arange(256, dtype=np.uint8), []
    for values in (held.view(np.int8), held, held, numbers_of(DType.E4M3), numbers_of(DType.E5M2)):
        plain = np.asarray(values, np.float32).reshape(64, 4)
        rows.append(np.concatenate([plain, plain[:, [0, 2, 1, 3]]] * 2 + [plain], 1))
    same = np.where(np.isnan(np.stack([row[:, -4:] for row in rows], 1)), 0, held.reshape(64, 1, 4)).astype(np.uint8)
    args = In(held.view(np.uint32)), Out(np.concatenate(rows, 1)), Out(same)
    return Case("bytes", "bytes.cu", "bytes", (1, 1, 1), (64, 1, 1), 0, args)


def _fours() -> Case:
    x, (lane, i) = np.arange(128, dtype=np.uint16), np.indices((32, 4))
    places = np.concatenate([4 * (lane % 4) + 2 * (i // 2), 4 * (lane % 4) + 2 * (i % 2), 2 * (lane // 4) + i // 2], 1)
    args = In(x.view(np.float16)), Out(x.view(np.uint32)), Out(places.astype(np.int32))
    return Case("fours", "bytes.cu", "fours", (1, 1, 1), (32, 1, 1), 0, args)


def _roles() -> Case:
    """A warpgroup hands registers over to two others."""
    x = _normal(384)
    expected = Out((x * 3 + 1).astype(np.float32), 1e-5, 1e-6)
    return Case("roles", "roles.cu", "roles", (1, 1, 1), (384, 1, 1), 0, (In(x), expected))


AMPERE: tuple[Case, ...] = (
    _convert(), _all_halves(), _pack(), _math(), _quotients(), _waves(), _vectors(), _exchanges(), _reductions(),
    _hand_over(), _bounds(), _mma("mma_f16", 16), _mma("mma_bf16", 16), _mma("mma_tf32", 8), _tf32_pieces(),
    _ldmatrix(), _copies(), _hints(), _places(), _quads(), _rows(), _rows_named(), _bytes(), _fours(), _row_sum(),
    _softmax(),
    *map(_matmul_cp_async, ("f16", "bf16")),
)  # fmt: skip
"""Kernels for sm_80 and newer."""


def _cluster() -> Case:
    x = np.round(4 * _normal(64, 32))
    args = Map(x, (16, 32), 0), Out(np.concatenate([x[0::2].sum(0), x[1::2].sum(0), np.zeros(2, np.float32)]))
    return Case("cluster", "cluster.cu", "cluster_sums", (4, 1, 1), (32, 1, 1), 4096, args)


HOPPER: tuple[Case, ...] = (
    _box(128, 128, 0, 0), _box(128, 128, 64, 32), _box(128, 128, -8, -3), _box(64, 64, 16, 5), _box(32, 32, 96, 30),
    _box(0, 128, 48, 8), _box(128, 128, 64, 32, 1), _box(64, 64, -8, -3, 2), _bulk(), _matmul_tma(),
    wgmma_case(8, "K", "MN"), wgmma_case(16, "MN", "K"), wgmma_case(32, "K", "K"), wgmma_case(64, "MN", "MN"),
    wgmma_case(64, "K", "K", element="bf16"), wgmma_case(128, "K", "MN", registers=True),
    wgmma_case(256, "MN", "MN", element="bf16"), wgmma_case(80, "K", "K"), wgmma_case(192, "K", "MN", element="bf16"),
    wgmma_case(224, "K", "K"), wgmma_case(112, "MN", "K", element="bf16"), _roles(),
    _wgmma_tf32(32), _wgmma_tf32(64), _wgmma_tf32(128), wgmma_case(48, "K", "K", overwrites=True),
    _mma_f64(), _cluster(), *(_wgmma_f8(n, DType.E4M3, DType.E5M2, overwrites=n < 64) for n in F8_COLUMNS),
    _wgmma_f8(128, DType.E5M2, DType.E4M3), *(_wgmma_f8(64, dtype, dtype) for dtype in (DType.E4M3, DType.E5M2)),
)  # fmt: skip
"""Kernels for sm_90a."""
