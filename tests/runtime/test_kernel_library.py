"""Pre-defined operators between kernels: which products are one call of cuBLAS, and where temporaries lie."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from mirage_nb.runtime.kernel_library import Product, Temporaries, matrix_product

EXTENTS = st.integers(1, 3)


@st.composite
def shapes(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of two operands: leading dimensions that broadcast."""
    leading = draw(st.lists(EXTENTS, max_size=3))
    rows, depth, columns = (draw(EXTENTS) for _ in range(3))

    def side() -> list[int]:
        kept = leading[draw(st.integers(0, len(leading))) :]
        return [1 if draw(st.booleans()) else extent for extent in kept]

    return (*side(), rows, depth), (*side(), depth, columns)


def by_strides(product: Product, left: Any, right: Any) -> Any:
    """What a library computes that is told this, on arrays that it sees as flat memory."""
    size = left.itemsize

    def matrices(flat: Any, rows: int, columns: int, stride: int) -> Any:
        return as_strided(flat, (product.batch, rows, columns), (stride * size, columns * size, size))

    a = matrices(left.ravel(), product.rows, product.depth, product.left_stride)
    b = matrices(right.ravel(), product.depth, product.columns, product.right_stride)
    return (a @ b).ravel()


@given(shapes())
def test_products_are_those_of_numpy(made: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    left, right = (np.arange(1.0, 1 + np.prod(shape)).reshape(shape) for shape in made)
    exact = left @ right
    product = matrix_product([left.shape, right.shape, exact.shape])
    if product is not None:
        np.testing.assert_array_equal(by_strides(product, left, right), exact.ravel())
        return
    leading = {shape[:-2] for shape in made if np.prod(shape[:-2]) > 1}
    assert leading - {exact.shape[:-2]}, "operands that are not broadcast at all are one call"


def test_one_right_operand_makes_one_tall_product() -> None:
    assert matrix_product([(8, 2, 4), (4, 5), (8, 2, 5)]) == Product(1, 16, 5, 4, 0, 0)
    assert matrix_product([(2, 1, 3, 4), (1, 5, 4, 6), (2, 5, 3, 6)]) is None
    assert matrix_product([(4,), (4, 6), (6,)]) is None


def test_every_run_gets_the_same_blocks() -> None:
    allocated: list[int] = []

    def allocate(nbytes: int) -> object:
        allocated.append(nbytes)
        return object()

    memory = Temporaries(allocate)
    runs = []
    for _ in range(3):
        memory.rewind()
        runs.append([memory.malloc(n) for n in (512, 64, 512)])
    assert runs[0] == runs[1] == runs[2] and len({id(block) for block in runs[0]}) == 3 and allocated == [512, 64, 512]
    memory.rewind()
    assert memory.malloc(1024) not in runs[0] and memory.malloc(32) is runs[0][1]
