"""mirage_nb: a superoptimizer for tensor programs that lives in a notebook.

`superoptimize(program)` starts a session; `%load_ext mirage_nb` brings the `%%mirage` cell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mirage_nb.errors import MirageError
from mirage_nb.ir import KernelGraph
from mirage_nb.ir.text import parse_graph, print_graph
from mirage_nb.lang import TensorProgram, load, parse
from mirage_nb.targets import TARGETS, Target

if TYPE_CHECKING:
    from mirage_nb.frontend import from_torch, model_report
    from mirage_nb.pipeline import Limits, Session, Winner, load_kernel, resume, superoptimize
    from mirage_nb.runtime.store import Store
    from mirage_nb.verify import Proof, Verdict, VerdictKind, prove, verify_and_prove

__version__ = "0.1.0"

__all__ = [
    "TARGETS", "KernelGraph", "Limits", "MirageError", "Proof", "Session", "Store", "Target", "TensorProgram",
    "Verdict", "VerdictKind", "Winner", "from_torch", "load", "load_kernel", "model_report", "parse", "parse_graph",
    "print_graph", "prove", "resume", "superoptimize", "verify_and_prove",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """The verifier, the pipeline and PyTorch load with their first use, so that `import mirage_nb` stays quick."""
    if name in ("frontend", "from_torch", "model_report"):
        import mirage_nb.frontend as frontend  # `from` would ask this function

        return frontend if name == "frontend" else getattr(frontend, name)
    if name in ("Proof", "Verdict", "VerdictKind", "prove", "verify_and_prove"):
        from mirage_nb import verify

        return getattr(verify, name)
    if name not in ("Limits", "Session", "Store", "Winner", "load_kernel", "resume", "superoptimize"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mirage_nb import pipeline

    return getattr(pipeline, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext mirage_nb` calls: registers the magics; mistakes show their message, and `%tb` the rest."""
    from mirage_magics import load_ipython_extension as register

    register(shell)


def unload_ipython_extension(shell: Any) -> None:
    """What `%unload_ext mirage_nb` calls."""
    from mirage_magics import unload_ipython_extension as undo

    undo(shell)
