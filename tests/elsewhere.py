"""A stand-in for arrays on a GPU: NumPy's, behind a wall as thick as CuPy's."""

from __future__ import annotations

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin


class Elsewhere(NDArrayOperatorsMixin):
    """An array that neither mixes with NumPy's nor becomes one by itself, as one on a GPU does not."""

    def __init__(self, held: np.ndarray) -> None:
        self.held = held

    def __array__(self, *args: object, **options: object) -> np.ndarray:
        raise TypeError("this array is not NumPy's")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **options: object) -> object:
        return _away(getattr(ufunc, method), inputs, options)

    def __array_function__(self, function: object, types: object, args: tuple, options: dict) -> object:
        return _away(function, args, options)

    def __getattr__(self, name: str) -> object:
        if name not in {"shape", "ndim", "size", "dtype", "nbytes", "T", "flags"}:
            method = getattr(self.held, name)
            return lambda *args, **options: _away(method, args, options)
        found = getattr(self.held, name)
        return Elsewhere(found) if isinstance(found, np.ndarray) else found

    def __getitem__(self, key: object) -> object:
        return _away(self.held.__getitem__, (key,), {})

    def __setitem__(self, key: object, value: object) -> None:
        _away(self.held.__setitem__, (key, value), {})

    def __len__(self) -> int:
        return len(self.held)

    def __bool__(self) -> bool:
        return bool(self.held)

    def __int__(self) -> int:
        return int(self.held)


def _away(function: object, args: tuple, options: dict) -> object:
    def plain(x: object) -> object:
        if isinstance(x, list | tuple):
            return type(x)(map(plain, x))
        assert not (isinstance(x, np.ndarray) and x.ndim), "an array of NumPy's among others"
        return x.held if isinstance(x, Elsewhere) else x

    found = function(*plain(args), **{name: plain(option) for name, option in options.items()})
    if isinstance(found, list | tuple):
        return type(found)(Elsewhere(x) if isinstance(x, np.ndarray) else x for x in found)
    return Elsewhere(found) if isinstance(found, np.ndarray | np.generic) else found


BOTH_WAYS = (lambda array: Elsewhere(np.asarray(array)), lambda array: array.held)
"""How arrays come to a device that is elsewhere, and back from it."""
