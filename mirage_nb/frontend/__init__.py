"""PyTorch in, PyTorch out: modules and functions as tensor programs, and a backend of torch.compile.

In: `from_torch(module, example_inputs)`, or `torch.compile(model, backend="mirage_nb")`. Out: a tensor program, or a
model whose regions run as kernels that the search found. Invariant: the front end is a table of ATen operators
(`aten`) and what partitions graphs over it; whatever has no row, or did not turn out faster and right, stays as
PyTorch has it, and the report says why. Importing this asks for no PyTorch; calling it does, and says so where there is
none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mirage_nb.errors import MissingPartError
from mirage_nb.typed import typed

if TYPE_CHECKING:
    from mirage_nb.frontend.compiled.report import ModelReport
    from mirage_nb.frontend.program import TorchProgram


def _part(module: str, name: str) -> Any:
    """What a module has under a name. Raises MissingPartError where there is no PyTorch to load it with."""
    try:
        return getattr(import_module(f"mirage_nb.frontend.{module}"), name)
    except ImportError as error:
        raise MissingPartError(f"this needs PyTorch: {error}", hint="pip install 'mirage-nb[torch]'") from error


@typed
def from_torch(
    module: Callable[..., Any], example_inputs: Any, *, name: str = "", keywords: Mapping[str, Any] | None = None
) -> TorchProgram:
    """Read a module or function of PyTorch as a tensor program, for `superoptimize`.

    >>> session = superoptimize(from_torch(module, (x,)))
    >>> session(x)               # as module(x): the program brings the module's own tensors, in `constants`

    Args:
        module: a `torch.nn.Module`, read as in evaluation whatever its mode is, or a function of tensors.
        example_inputs: a tensor or several, of the shapes and types that it shall be read for; of values it counts
            only whether some are infinite.
        name: what to call the program; default: the module's class or the function's name.
        keywords: inputs that are given by name, tensors among them behind the others.

    Raises:
        TraceError: PyTorch cannot export it, or it computes something that programs cannot say; the message names it.
        MissingPartError: PyTorch is not installed.
    """
    read: TorchProgram = _part("program", "from_torch")(module, example_inputs, name=name, keywords=keywords)
    return read


@typed
def model_report(model: Callable[..., Any], example_inputs: Any, *, target: str | None = None) -> ModelReport:
    """What `torch.compile(model, backend="mirage_nb")` would take over: regions, and estimates; nothing is searched.

    Args:
        model: a module or function; it is called once.
        example_inputs: what it is called with, a tensor or several.
        target: the GPU to estimate for; default: the attached one, else the H200.

    Raises:
        TraceError: the model fails on these inputs.
        MissingPartError: PyTorch is not installed.
    """
    report: ModelReport = _part("compiled.backend", "look")(model, example_inputs, target)
    return report


def explain() -> ModelReport:
    """What became of everything that torch.compile has compiled with the backend `mirage_nb` in this process.

    Raises:
        MissingPartError: PyTorch is not installed.
    """
    report: ModelReport = _part("compiled.backend", "REPORTS").all()
    return report


def backend() -> Any:
    """The backend of torch.compile itself, where its name `mirage_nb` is not known: in an installation that is older
    than the entry point.

    Raises:
        MissingPartError: PyTorch is not installed.
    """
    return _part("compiled.backend", "mirage_nb")
