"""Pre-defined operators between kernels: which products are one call of cuBLAS, which kernel of these is taken, and
where temporaries lie."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from mirage_nb.runtime.kernel.library import Temporaries
from mirage_nb.runtime.kernel.plan import KernelError
from mirage_nb.runtime.kernel.products import Ending, Places, Product, fastest, matrix_product

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


def took(*samples: float) -> Any:
    """A kernel whose runs take so long, the last one again and again; a negative number is a refusal."""
    left = list(samples)

    def run() -> float:
        now = left.pop(0) if len(left) > 1 else left[0]
        if now < 0:
            raise KernelError("not for these extents")
        return now

    return run


def test_the_fastest_kernel_is_taken() -> None:
    assert fastest([took(9.0), took(7.0), took(8.0)]) == 1
    assert fastest([took(7.0), took(6.95)]) == 0, "not clearly faster"
    assert fastest([took(900.0, 5.0), took(6.0)]) == 0, "the first run loads the kernel"
    assert fastest([took(5.0, 9.0, 5.0), took(6.0)]) == 0, "others' work only adds"
    assert fastest([took(-1.0), took(8.0), took(3.0, -1.0)]) == 1
    assert fastest([took(-1.0), took(-1.0)]) == 0


def test_what_is_clearly_slower_is_run_twice() -> None:
    runs = 0

    def slow() -> float:
        nonlocal runs
        runs += 1
        return 90.0

    assert fastest([took(9.0), slow]) == 0 and runs == 2


def test_endings_have_the_numbers_of_cublaslt() -> None:
    """CUBLASLT_EPILOGUE_DEFAULT, _RELU, _BIAS, _RELU_BIAS."""
    endings = Ending(), Ending(relu=True), Ending(bias=True), Ending(bias=True, relu=True), Ending(added=True)
    assert [ending.epilogue for ending in endings] == [1, 2, 4, 6, 1]
    assert Places(512, 1024, 256).alignment == 256 and Places(512, 1024, 256, added=16).alignment == 16


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
