"""Library kernels that compute several operators of a program at once: a table, and where in a program they fit."""

from mirage_nb.predefined.rows import LOOKUP, ROWS, Match, Row, matches, needed, part

__all__ = ["LOOKUP", "ROWS", "Match", "Row", "matches", "needed", "part"]
