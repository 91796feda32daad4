"""The door of the notebook: `%load_ext mirage_nb` gives `%%mirage` and `%mirage`.

In: an IPython shell. Out: two magics with completion and help. They parse options, call the API and display;
whatever decides anything lives in `mirage_nb`.
"""

from __future__ import annotations

from typing import Any

from .completion import register
from .magic import MirageMagics

__all__ = ["MirageMagics", "load_ipython_extension"]


def load_ipython_extension(shell: Any) -> None:
    """Register the magics and their completion with an IPython shell."""
    MirageMagics(shell).register()
    register(shell)
