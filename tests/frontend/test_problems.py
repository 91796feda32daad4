"""What people benchmark compilers with goes through the backend: right outputs, regions taken, reasons for the rest."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from mirage_nb.bench.modules import Fate, fates, table
from mirage_nb.bench.pytorch.running_modules import problems
from mirage_nb.errors import OptionError

AT_LEAST = 80
"""Modules that have a region."""


@pytest.mark.slow
def test_every_module_is_right_and_most_have_regions() -> None:
    found = fates()
    print(table(found))
    assert len(found) == len(problems()) >= 106
    assert not [fate for fate in found if fate.wrong]
    assert sum(fate.taken > 0 for fate in found) >= AT_LEAST
    assert all(fate.why for fate in found if not fate.taken)


def test_some_modules() -> None:
    found = fates(["gelu, softmax", "layer norm of a row", "attention", "upper triangle", "minimum, subtract"])
    assert len(found) == 6 and all(fate.taken and not fate.wrong for fate in found), table(found)
    (one,) = fates(["min, tanh, tanh"])
    assert "aten.convolution.default stays PyTorch's in a model, which has it as fast" in one.why
    assert table([one, Fate("x", 0, 0, (), "no")]).endswith("2 modules: 1 right, 1 with a region taken")


def test_modules_that_there_are_not() -> None:
    with pytest.raises(OptionError, match="no module"):
        fates(["turing machine"])
