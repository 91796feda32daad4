"""A share of a benchmark, where several machines measure side by side.

In: items, and I/N as it is written on the command line. Out: every N-th item from the I-th on. Invariant: the shares
0/N to (N-1)/N have every item once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from mirage_nb.errors import OptionError

T = TypeVar("T")


def share_of(items: Sequence[T], share: str) -> Sequence[T]:
    """Every N-th of the items, from the I-th on. Raises OptionError where this is not I/N with I below N."""
    parts = re.fullmatch(r"(\d{1,4})/(\d{1,4})", share)
    if parts is None or int(parts[1]) >= int(parts[2]):
        raise OptionError(f"--share {share!r}: not a share", hint="0/4, 1/4, 2/4 and 3/4 are all of them")
    return items[int(parts[1]) :: int(parts[2])]
