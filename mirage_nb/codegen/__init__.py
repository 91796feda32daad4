"""From a plan to CUDA C++: strings only, no GPU needed."""

from mirage_nb.codegen.cuda import emit, emit_plan
from mirage_nb.codegen.emitted import Emitted, Fitting, Launch, LibraryCall, MapArg, Temporary, TensorArg
from mirage_nb.optimize import Options, default_options, variants

__all__ = [
    "Emitted", "Fitting", "Launch", "LibraryCall", "MapArg", "Options", "Temporary", "TensorArg", "default_options",
    "emit", "emit_plan", "variants",
]  # fmt: skip
