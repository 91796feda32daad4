"""`mirage_nb.verify` is the package, whatever was imported before; its functions are its own."""

from __future__ import annotations

import importlib
import types

import mirage_nb
import mirage_nb.verify.trials as trials
from mirage_nb import verify


def test_the_package_is_not_hidden_by_a_function() -> None:
    assert isinstance(mirage_nb.verify, types.ModuleType) and mirage_nb.verify is verify
    assert importlib.import_module("mirage_nb.verify") is verify
    assert verify.verify is trials.verify and verify.trials is trials
    assert mirage_nb.prove is verify.prove and mirage_nb.Verdict is verify.Verdict


def test_no_public_name_is_also_a_module() -> None:
    for name in mirage_nb.__all__:
        assert not isinstance(getattr(mirage_nb, name), types.ModuleType), name
    for name in verify.__all__:
        assert not isinstance(getattr(verify, name), types.ModuleType), name
