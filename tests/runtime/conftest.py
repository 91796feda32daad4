"""What tests on a card share."""

from __future__ import annotations

import pytest

from mirage_nb.runtime.gpu import Gpu, attached_gpu


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    """The card."""
    found = attached_gpu()
    if found is None:
        pytest.skip("there is no GPU")
    return found
