"""The limits of a program's text, stated once: the parser enforces them and the reference prints them."""

from __future__ import annotations

from typing import Final

MAX_TEXT: Final = 65_536
"""Characters of a program."""

MAX_NESTING: Final = 100
"""Levels of brackets and of operators inside one expression; keeps every recursion short."""

MAX_OPERATORS: Final = 512
"""Operators of a program after lowering."""

MAX_STATEMENTS: Final = 4_000
"""Statements that are read, those of loops and functions every time; and turns of loops within expressions."""

MAX_NAME: Final = 64
"""Characters of a name."""

MAX_RANK: Final = 8
"""Dimensions of a tensor."""

MAX_ELEMENTS: Final = 2**31 - 1
"""Elements of one tensor: a 32-bit index reaches all of them."""

MAX_BITS: Final = 1024
"""Bits of a constant's numerator and denominator; larger results are never computed."""

MAX_ROOT: Final = 64
"""Largest root of a constant."""

MAX_POWER: Final = 8
"""Integer powers of a tensor up to this one are written as squares and products, which stay in LAX."""

MAX_CONST: Final = 2**128 - 2**104
"""Largest magnitude of a constant beside a tensor: the largest f32."""

MIN_CONST_BITS: Final = 126
"""Smallest magnitude of such a constant but zero: 2**-126, the smallest normal f32."""
