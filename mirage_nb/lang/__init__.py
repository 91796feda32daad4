"""The tensor-expression language: text in, tensor program out, every mistake at its line and column."""

from mirage_nb.lang.functions import FUNCTIONS, OPERATORS
from mirage_nb.lang.program import TensorProgram, load, parse
from mirage_nb.lang.reference import explained, made, reference
from mirage_nb.lang.remarks import Remark

__all__ = ["FUNCTIONS", "OPERATORS", "Remark", "TensorProgram", "explained", "load", "made", "parse", "reference"]
