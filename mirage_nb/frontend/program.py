"""from_torch: a module or function of PyTorch as a tensor program.

In: what is to be read, and examples of its inputs. Out: a `TorchProgram`. Invariant: the program computes what the
module does in evaluation over the real numbers, on tensors of these shapes and types; what cannot be said is an
error that names it, never left out.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import logging
import operator
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from mirage_nb.errors import TraceError
from mirage_nb.frontend.aten import NUMBERS, WHOLE
from mirage_nb.frontend.aten.terms import BYTES
from mirage_nb.frontend.complexes import lift_complex
from mirage_nb.frontend.fixed import Fixed, drop_empty
from mirage_nb.frontend.fourier import WHOLE as PARTS
from mirage_nb.frontend.lists import spell_lists
from mirage_nb.frontend.spelled import multilabel_margin_loss
from mirage_nb.frontend.translate import Translation, names_of, typed
from mirage_nb.lang import TensorProgram
from mirage_nb.lang.builder import Value
from mirage_nb.lang.hints import NAMES
from mirage_nb.lang.parts import in_parts


@dataclass(frozen=True, slots=True, repr=False)
class TorchProgram(TensorProgram):
    """A tensor program that was read from PyTorch.

    `constants`: the module's parameters and buffers by the names of the inputs that they are. They come behind the
    inputs that a call of the module has.
    """

    constants: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def given(self, tensors: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The tensors of a call, in input order and by name, with the module's own; those of PyTorch as programs have
        them: numbers as tensors of one element, whole numbers of more than a byte in single precision, complex ones as
        pairs."""
        left = (name for name in self.input_names[len(tensors) :] if name not in named)
        own = {name: self.constants[name].detach() for name in left if name in self.constants}
        return tuple(map(_held, tensors)), {name: _held(x) for name, x in {**own, **named}.items()}

    def arguments(self, *inputs: Any) -> tuple[Any, ...]:
        """The tensors of a call, all in input order: these, then the module's own, as `given` has them."""
        first, own = self.given(inputs, {})
        return (*first, *(own[name] for name in self.input_names[len(inputs) :]))


def _held(x: Any) -> Any:
    """A tensor of PyTorch as a program has it; whatever else stays."""
    if not isinstance(x, torch.Tensor):
        return x
    parts = torch.view_as_real(x) if x.is_complex() else x
    real = parts if parts.is_floating_point() or str(parts.dtype) in BYTES else parts.float()
    return real.reshape(1) if real.ndim == 0 else real


class _Function(torch.nn.Module):
    """A function as a module, whose inputs are called as its parameters are."""

    def __init__(self, function: Any) -> None:
        super().__init__()

        def forward(*inputs: Any, **keywords: Any) -> Any:
            return function(*inputs, **keywords)

        with contextlib.suppress(TypeError, ValueError):  # a function that nobody can look into
            forward.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        self.__dict__["forward"] = forward


class _Traced(torch.nn.Module):
    """A module as the operators that it calls: derivatives and batches that it asks for itself are taken."""

    def __init__(self, module: torch.nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        super().__init__()
        self.__dict__.update(module.__dict__)  # its own tensors keep their names

        def run(state: Any, inputs: Any, keywords: Any) -> Any:
            return torch.func.functional_call(module, state, inputs, keywords)

        table = dict(_decompositions())  # export leaves some of what derivatives are made of as it is
        traced = make_fx(run, table, tracing_mode="fake")(self._state(), inputs, keywords)

        @functools.wraps(module.forward)
        def forward(*inputs: Any, **keywords: Any) -> Any:
            return traced(self._state(), inputs, keywords)

        self.__dict__["forward"] = forward

    def _state(self) -> dict[str, torch.Tensor]:
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}


def from_torch(
    module: Any, example_inputs: Sequence[Any], *, name: str = "", keywords: Mapping[str, Any] | None = None
) -> TorchProgram:
    """As `mirage_nb.from_torch` says. Raises TraceError."""
    if isinstance(example_inputs, Mapping):
        raise TraceError("inputs by their names", hint="from_torch(module, (), keywords={...}) takes them")
    inputs = tuple(example_inputs) if isinstance(example_inputs, list | tuple) else (example_inputs,)
    called = name or (type(module).__name__ if isinstance(module, torch.nn.Module) else getattr(module, "__name__", ""))
    exported = _exported(module, inputs, dict(keywords or {}))
    lift_complex(exported.graph, PARTS)
    drop_empty(exported.graph)
    spell_lists(exported.graph)
    translation = Translation(rows=WHOLE, is_whole=True)
    signature = exported.graph_signature
    lifted = signature.inputs_to_lifted_tensor_constants
    kept = {**signature.inputs_to_parameters, **signature.inputs_to_buffers, **lifted}
    placeholders = [node for node in exported.graph.nodes if node.op == "placeholder"]
    read = [n for n in placeholders if n.users or (n.name not in kept and isinstance(n.meta["val"], torch.Tensor))]
    read = [node for node in read if node.name not in signature.input_tokens]  # these order effects, and hold nothing
    read.sort(key=lambda node: node.name in kept)  # a call's own inputs first
    names = names_of(read, {n: kept.get(n.name, n.name) for n in read})
    for node in read:
        if not translation.declare(node, names[node]) and node.name not in lifted:
            raise TraceError(f"input {names[node]}: {translation.left[node]}", hint=_REST)
    state = {**exported.state_dict, **exported.constants}
    given = dict(zip(signature.user_inputs, tree_leaves((inputs, dict(keywords or {}))), strict=False))
    for node in read:
        held = state[kept[node.name]] if node.name in kept else given.get(node.name)
        if node in translation.terms and node.name not in signature.inputs_to_parameters:
            _look_for_infinities(node, held, translation)
    fixed = Fixed({node: state[lifted[node.name]] for node in placeholders if node.name in lifted})
    constants = {names[n]: state[kept[n.name]] for n in read if n.name in kept and n in translation.terms}
    for node in exported.graph.nodes:
        is_fixed = fixed.has(node)
        if node.op != "call_function" or (not (is_fixed and _is_rounded(node)) and translation.add(node)):
            continue
        names = names_of([*names, node], names) if is_fixed else names
        if is_fixed and translation.declare(node, names[node]):
            constants[names[node]] = fixed.value(node)
            _look_for_infinities(node, fixed.value(node), translation)
            translation.left.pop(node, None)
        elif node.users:
            _check_dead(node, translation)
    outputs = _outputs(exported, translation)
    graph, _ = translation.builder.finish(in_parts(translation.builder, tuple(outputs)))
    return TorchProgram(called, "\n".join(translation.lines), graph, (), {}, constants=constants)


def _look_for_infinities(node: Any, held: Any, translation: Translation) -> None:
    """Of a table, as of a mask that is added: it is looked up otherwise."""
    value, known = translation.value(node), isinstance(held, torch.Tensor) and not held.is_meta
    if value is not None and known and held.is_floating_point() and bool(held.double().isinf().any()):
        translation.builder.infinite.add(value)


def _is_rounded(node: Any) -> bool:
    """Whether it makes whole numbers of others, which takes a program several steps."""
    held = [one.meta["val"] for one in (node, *node.all_input_nodes)] if str(node.target) in NUMBERS else []
    return [value.is_floating_point() for value in held] == [False, True]


WIDTHS = "16, 32 or 64 bits with a point"
_TENSORS = "have it return tensors: with keywords={'use_cache': False}, where it returns a cache"
_REST = 'torch.compile(model, backend="mirage_nb") takes what it can and leaves the rest to PyTorch'


@functools.cache
def _decompositions() -> Mapping[Any, Any]:
    """PyTorch's own of what the table has no row for; collecting them takes as long as reading a small model."""
    every, core = torch._decomp.decomposition_table, torch.Tag.core
    table = {key: row for key, row in every.items() if core in getattr(key, "tags", ())}
    table |= torch.export.default_decompositions()
    return {key: row for key, row in table.items() if str(key) not in WHOLE} | {MARGIN: _margin_loss}


UNSAID = "aten.batch_norm.default"
"""It changes its running means, and its schema does not say so."""
MASKED = "aten.index.Tensor"
MARGIN = torch.ops.aten.multilabel_margin_loss.default


def _margin_loss(x: Any, target: Any, reduction: int = 1) -> Any:
    return multilabel_margin_loss(x, target, reduction=("none", "mean", "sum")[reduction])


def _exported(module: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """The ATen graph, without mutation; what the table has a row for stays whole."""
    module = module.module() if isinstance(module, torch.export.ExportedProgram) else module
    wrapped = module if isinstance(module, torch.nn.Module) else _Function(module)
    table = dict(_decompositions())
    training = wrapped.training
    _set_training(wrapped, False)
    printed = io.StringIO()  # where PyTorch fails it prints the graph so far
    try:
        with torch.no_grad(), warnings.catch_warnings(), contextlib.redirect_stderr(printed), unlogged():
            warnings.simplefilter("ignore", FutureWarning)  # PyTorch's own, about itself
            try:
                made = _decomposed(wrapped, inputs, keywords, table)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is told below
                try:  # export cannot look into all transforms of functions
                    made = _decomposed(_Traced(wrapped, inputs, keywords), inputs, keywords, table)
                except Exception:  # noqa: BLE001  # the first one says more
                    raise error from None
        sys.stderr.write(printed.getvalue())
        return made
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        first = "which way it goes depends on values, as in `if x.sum() > 0:`" if "data-dependent" in first else first
        hint = _TENSORS if "in output, which is not a known type" in first else f"does it run on these inputs? {_REST}"
        raise TraceError(f"PyTorch cannot export it: {first[:200]}", hint=hint) from error
    finally:
        _set_training(wrapped, training)


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Where shapes do not fit, PyTorch logs all calls that led there, some hundred lines, before it says so."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _set_training(module: torch.nn.Module, training: bool) -> None:
    """Whether it is in training; what was exported stays as it was then."""
    with contextlib.suppress(NotImplementedError):
        module.train(training)


def _decomposed(module: torch.nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any], table: Any) -> Any:
    exported = torch.export.export(module, inputs, keywords)
    graphs = (part.graph for part in exported.graph_module.modules() if hasattr(part, "graph"))
    if any("functorch" in str(getattr(n.target, "__module__", "")) for graph in graphs for n in graph.nodes):
        raise TraceError("it transforms functions")  # which decompositions do not keep
    return exported if _is_told(exported.graph) else exported.run_decompositions(table)


def _is_told(graph: torch.fx.Graph) -> bool:
    """Whether the table has rows for all of it, and nothing is changed in place: to decompose, PyTorch looks at every
    operator that it has, which takes ten times as long as to export a small model."""
    called = [node.target for node in graph.nodes if node.op == "call_function" and node.target is not operator.getitem]
    return all(str(op) in WHOLE and str(op) != UNSAID and not op._schema.is_mutable for op in called)


def _check_dead(node: Any, translation: Translation) -> None:
    """A node without a term is no matter as long as nothing reads it that has to be said."""
    if any(user.op == "output" for user in node.users):
        raise _untold(node, translation)


def _outputs(exported: Any, translation: Translation) -> list[tuple[str, Value]]:
    signature = exported.graph_signature
    changed = [spec.target for spec in signature.output_specs if spec.kind.name.endswith("MUTATION")]
    if changed:
        raise TraceError(f"it changes {', '.join(changed)} in place", hint=_REST)
    (output,) = (node for node in exported.graph.nodes if node.op == "output")
    found: dict[Value, int] = {}
    for index, node in enumerate(output.args[0]):
        if node is None or getattr(node, "name", None) in signature.output_tokens:
            continue
        value = translation.value(node) if hasattr(node, "op") else None
        if value is None or typed(node)[1] is None or translation.builder.definition(value) is None:
            raise _untold(node, translation)
        if value in found:
            raise TraceError(f"outputs {found[value]} and {index} are the same tensor", hint="return it once")
        found[value] = index
    if not found:
        raise TraceError("it returns no tensor", hint="return what is computed")
    alone = len(output.args[0]) == 1
    return [("O" if alone else f"O{index}", value) for value, index in found.items()]


def _untold(node: Any, translation: Translation) -> TraceError:
    """Why an output has no value: the first operator of the program on the way to it that has none."""
    if not hasattr(node, "op"):
        return TraceError(f"it returns {node!r}, which is no tensor", hint="return tensors")
    if (held := node.meta["val"].dtype).is_complex:
        return TraceError(f"output {node.name} is of type {held}", hint="return torch.view_as_real of it, or its parts")
    seen = [node]
    for one in seen:
        seen.extend(n for n in one.all_input_nodes if n in translation.left and n not in seen)
    cause = next((n for n in sorted(translation.left, key=lambda n: n.op == "placeholder") if n in seen), None)
    if cause is None and typed(node)[1] is None:
        held = node.meta["val"].dtype
        hint = f"programs return numbers of {WIDTHS}, as .float() makes of others. {_REST}"
        return TraceError(f"output {node.name} is of type {held}", hint=hint)
    if cause is None:
        return TraceError(f"output {node.name} is an input or a constant, unchanged", hint="return what is computed")
    where = f" ({_source(cause)})" if _source(cause) else ""
    return TraceError(f"{cause.name}{where}: {translation.left[cause]}", hint=_instead(cause))


def _instead(node: Any) -> str:
    """What to do about an operator that programs do not have: what the language says of what is called so."""
    name = str(node.target)
    if name == MASKED and any(one is not None and one.meta["val"].dtype is torch.bool for one in node.args[1]):
        return f"x[mask] = y is torch.where(mask, y, x), which has as many elements as x. {_REST}"
    called = name.split(".")[1].removeprefix("linalg_").removesuffix("_ex") if name.startswith("aten.") else ""
    return f"{NAMES[called]}. {_REST}" if called in NAMES and name not in WHOLE else _REST


def _source(node: Any) -> str:
    """The line of the module that a node comes from."""
    trace = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip()]
    return trace[-1] if trace and not any(__file__ in line for line in trace[-2:]) else ""
