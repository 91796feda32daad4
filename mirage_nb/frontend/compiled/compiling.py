"""PyTorch's compiler, in turns: it is made for one thread at a time, and its settings are everybody's.

In: settings. Out: a while in which they hold. Invariant: nobody waits for a search inside of it, since a search
compiles with PyTorch, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._dynamo.convert_frame import compile_lock


@contextlib.contextmanager
def compiling(settings: Mapping[str, Any]) -> Iterator[None]:
    """While this lasts nobody else compiles with PyTorch, and its compiler is set like this."""
    with compile_lock, torch._inductor.config.patch(dict(settings)):
        yield
