"""Library kernels that compute several operators of a program at once: a table, and where in a program they fit."""

from mirage_nb.predefined.rows import ROWS, Match, Row, matches, needed, part

__all__ = ["ROWS", "Match", "Row", "matches", "needed", "part"]
