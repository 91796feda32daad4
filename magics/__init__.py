"""The door of the notebook: `%load_ext mirage_nb` gives `%%mirage` and `%mirage`.

In: an IPython shell. Out: two magics with completion and help. They parse options, call the API and display;
whatever decides anything lives in `mirage_nb`.
"""

from __future__ import annotations

from typing import Any

from mirage_nb.runtime.loading import load_ahead

from . import mistakes
from .completion import register
from .magic import MirageMagics

__all__ = ["MirageMagics", "load_ipython_extension", "unload_ipython_extension"]


def load_ipython_extension(shell: Any) -> None:
    """Register the magics and their completion with an IPython shell, in which mistakes show their message alone, and
    load what a session on a card needs while its cell is written."""
    MirageMagics(shell).register()
    register(shell)
    mistakes.install(shell)
    load_ahead()


def unload_ipython_extension(shell: Any) -> None:
    """What `%unload_ext mirage_nb` calls: mistakes show their tracebacks again."""
    mistakes.remove(shell)
