"""Sessions by range: one for the whole range of a size that is known at launch, and smaller ones for its first part.

In: a session, and what it hands small extents over to. Out: the session whose kernels are made for an extent.
Invariant: kernels for a range are right at every extent of it, so where a smaller range has none the next one serves.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Self

from mirage_nb.errors import SearchError, ShapeError
from mirage_nb.ir.sizes import extent_of, size_of
from mirage_nb.lang import TensorProgram
from mirage_nb.runtime.contest.winner import Winner
from mirage_nb.runtime.execution.buffers import shapes_of
from mirage_nb.search.session.progress import Snapshot
from mirage_nb.search.session.session import SearchSession
from mirage_nb.typed import typed


@typed
class ByRange:
    """What a session does for `smaller`, the one for smaller extents, which begins when it has ended itself."""

    program: TensorProgram
    search: SearchSession
    smaller: Self | None = None
    _began = False

    @property
    @abstractmethod
    def winners(self) -> tuple[Winner, ...]:
        """Every candidate that was executed correctly, best first."""

    @abstractmethod
    def start(self) -> Self:
        """Begin."""

    def wait(self, timeout: float | None = None) -> bool:
        """Block until everything has ended, at most `timeout` seconds; returns whether it has."""
        until = None if timeout is None else time.monotonic() + timeout
        if not self.search.wait(timeout):
            return False
        left = None if until is None else max(0.0, until - time.monotonic())
        return self.smaller is None or not self.smaller._began or self.smaller.wait(left)

    def result(self, timeout: float | None = None) -> Snapshot:
        """Block until everything has ended; the last snapshot. Raises SearchError when late or failed."""
        if not self.wait(timeout) and self.search.wait(0):
            raise SearchError(f"not finished after {timeout:g} s", hint="the session in `smaller` still runs")
        return self.search.result(0)

    def pause(self) -> None:
        """Let the workers sleep; the passes that follow the search rest after the present one."""
        for search in self._searches():
            search.pause()

    def resume(self) -> None:
        """Go on after a pause."""
        for search in self._searches():
            search.resume()

    def stop(self) -> None:
        """End the search, or the passes that follow it; what was found stays."""
        for search in self._searches():
            search.stop()

    def _searches(self) -> Iterator[SearchSession]:
        """Its own, and those of smaller ranges that have begun."""
        yield self.search
        if self.smaller is not None and self.smaller._began:
            yield from self.smaller._searches()

    def at(self, extent: int) -> Self:
        """The session whose kernels are made for an extent of the size: that of the smallest range which has some.

        Raises ShapeError where the program has no size that is known at launch, or the extent is out of its range.
        """
        if (size := size_of(self.program.graph)) is None:
            raise ShapeError("the program has no size that is known at launch", hint="B: size(64) says one")
        if not size.least <= extent <= size.most:
            raise ShapeError(f"{size.name} = {extent}: {size}", hint=f"{size.name}: size(...) says how far it goes")
        return self._at(extent)

    def _at(self, extent: int) -> Self:
        lower = self.smaller
        if lower is not None and extent <= self._end_of(lower) and (found := lower._at(extent)).winners:
            return found
        return self

    def _for(self, tensors: Sequence[Any]) -> Self:
        """The session for tensors of these shapes. Raises ShapeError where the size is out of its range."""
        if self.smaller is None or len(tensors) != len(self.program.graph.inputs):
            return self
        inputs = self.program.graph.inputs
        extent = extent_of(inputs, shapes_of(tensors, inputs))
        return self if extent is None else self._at(extent)

    def _end_of(self, lower: Self) -> int:
        own, its = size_of(self.program.graph), size_of(lower.program.graph)
        assert own is not None
        return its.most if its is not None else lower.program.sizes[own.name]

    def _begin_smaller(self) -> None:
        """Behind the passes of the session itself."""
        if (size := size_of(self.program.graph)) is not None:
            self.search.tell(f"{size}: verdicts hold for all of them, because each is computed by itself")
        if self.smaller is not None and not self.smaller._began:
            self.smaller.start()
