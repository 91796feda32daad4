"""Two meanings of one walk: the float64 reference and the pair of finite fields (paper section 5)."""

from mirage_nb.interp.reference import evaluate

__all__ = ["evaluate"]
