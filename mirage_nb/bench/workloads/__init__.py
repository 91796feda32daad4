"""The benchmark programs, one `.mirage` file each: what comes in is a name, what goes out is the program's text.

Invariant: a file holds the published shapes; only the batch `B` (1 unless given from outside) is meant to change.
Paper Table 4 and Figure 3; the last two are what deployed models run.
"""

from __future__ import annotations

from importlib import resources

from mirage_nb.errors import OptionError, suggestion

WORKLOADS: tuple[str, ...] = (
    "rmsnorm", "gated_mlp", "lora", "gqa", "qknorm", "qknorm_k", "ntrans", "mha", "mqa", "moe",
    "rmsnorm_fig3", "attention_safe", "decode70b",
)  # fmt: skip
"""Names of the workloads, in the order of the tables."""


def workload(name: str) -> str:
    """The text of a workload's program. Raises OptionError for an unknown name."""
    if name not in WORKLOADS:
        hint = suggestion(name, WORKLOADS) or f"the workloads are {', '.join(WORKLOADS)}"
        raise OptionError(f"there is no workload {name!r}", hint=hint)
    return (resources.files(__name__) / f"{name}.mirage").read_text(encoding="utf-8")
