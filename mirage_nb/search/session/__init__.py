"""A search that runs in the background: one supervising thread, worker processes, and a snapshot at any moment."""

from mirage_nb.search.session.session import SearchSession

__all__ = ["SearchSession"]
