"""Abstract expressions and their oracle: what the search prunes with (section 4.3 of the paper)."""

from mirage_nb.algebra.atoms import Expr
from mirage_nb.algebra.axioms import EQUATIONS, PARTS, Axiom
from mirage_nb.algebra.normal_form import Algebra
from mirage_nb.algebra.options import QUICK, STANDARD, THOROUGH, AlgebraOptions
from mirage_nb.algebra.oracle import ADD, DIV_AB, DIV_BA, MUL, Oracle
from mirage_nb.algebra.strict import algebra_for, oracle_for

__all__ = [
    "ADD",
    "DIV_AB",
    "DIV_BA",
    "EQUATIONS",
    "MUL",
    "PARTS",
    "QUICK",
    "STANDARD",
    "THOROUGH",
    "Algebra",
    "AlgebraOptions",
    "Axiom",
    "Expr",
    "Oracle",
    "algebra_for",
    "oracle_for",
]
