"""What the search finds of a configuration: explored once by a process, whichever tests ask."""

from __future__ import annotations

from functools import cache

from mirage_nb.search import Budget, Configuration, ConfigurationResult, Effort, Prepared, run_configuration


@cache
def explored(
    prepared: Prepared, configuration: Configuration, effort: Effort, budget: Budget | None = None
) -> ConfigurationResult:
    """Under the effort's own budget, if no other is named."""
    return run_configuration(prepared, configuration, effort, budget or effort.budget)
