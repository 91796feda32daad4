"""PyTorch in, PyTorch out: modules and functions as tensor programs, and a backend of torch.compile.

In: `from_torch(module, example_inputs)`, or `torch.compile(model, backend="mirage_nb")`. Out: a tensor program, or a
model whose regions run as kernels that the search found. Invariant: the front end is a table of ATen operators
(`aten`) and what partitions graphs over it; whatever has no row, or did not turn out faster and right, stays as
PyTorch has it, and the report says why. Importing this asks for no PyTorch; calling it does, and says so where there is
none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mirage_nb.errors import MissingPartError

if TYPE_CHECKING:
    from mirage_nb.frontend.compiled.report import ModelReport
    from mirage_nb.frontend.program import TorchProgram

_HINT = "pip install 'mirage-nb[torch]'"


def from_torch(
    module: Any, example_inputs: Sequence[Any], *, name: str = "", keywords: Mapping[str, Any] | None = None
) -> TorchProgram:
    """Read a module or function of PyTorch as a tensor program, for `superoptimize`.

    Args:
        module: a `torch.nn.Module`, or a function of tensors.
        example_inputs: tensors of the shapes and types that it shall be read for; values do not count.
        name: what to call the program; default: the module's class or the function's name.
        keywords: inputs that are given by name, tensors among them behind the others.

    Raises:
        TraceError: PyTorch cannot export it, or it computes something that programs cannot say; the message names it.
        MissingPartError: PyTorch is not installed.
    """
    try:
        from mirage_nb.frontend.program import from_torch as read
    except ImportError as error:
        raise MissingPartError(f"from_torch needs PyTorch: {error}", hint=_HINT) from error
    return read(module, example_inputs, name=name, keywords=keywords)


def model_report(model: Any, example_inputs: Sequence[Any], *, target: str | None = None) -> ModelReport:
    """What `torch.compile(model, backend="mirage_nb")` would take over: regions, and estimates; nothing is searched.

    Args:
        model: a module or function; it is called once.
        example_inputs: what it is called with.
        target: the GPU to estimate for; default: the attached one, else the H200.

    Raises:
        MissingPartError: PyTorch is not installed.
    """
    try:
        from mirage_nb.frontend.compiled.look import look
    except ImportError as error:
        raise MissingPartError(f"model_report needs PyTorch: {error}", hint=_HINT) from error
    return look(model, example_inputs, target)


def explain() -> ModelReport:
    """What became of everything that torch.compile has compiled with the backend `mirage_nb` in this process.

    Raises:
        MissingPartError: PyTorch is not installed.
    """
    try:
        from mirage_nb.frontend.compiled.backend import REPORTS
    except ImportError as error:
        raise MissingPartError(f"explain needs PyTorch: {error}", hint=_HINT) from error
    return REPORTS.all()


def backend() -> Any:
    """The backend of torch.compile itself, where its name `mirage_nb` is not known: in an installation that is older
    than the entry point.

    Raises:
        MissingPartError: PyTorch is not installed.
    """
    try:
        from mirage_nb.frontend.compiled.backend import mirage_nb
    except ImportError as error:
        raise MissingPartError(f"the backend needs PyTorch: {error}", hint=_HINT) from error
    return mirage_nb
