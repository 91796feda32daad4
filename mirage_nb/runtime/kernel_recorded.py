"""Kernels of a library that make their result themselves, recorded once and told to write it where it is wanted.

Copied into every file that saves a muGraph (see `saved`), so it imports nothing of this package but what is copied
with it. In: a function of PyTorch that returns a new tensor, the tensor that its values shall be in. Out: a function
that enqueues the same kernels on the current stream, writing there. PyTorch has no form of its norms, nor of cuDNN's
attention, that is told where to write, and a copy of the result takes as long as half of a norm. So the kernels are
captured into a CUDA graph, in which every address within the tensor that was made becomes the one of the tensor that
is wanted. Invariants: what was recorded is taken only once it has written, bit by bit, what the function returns; else,
and inside of somebody else's capture that comes first, the result is copied.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, ClassVar

from mirage_nb.runtime.kernel_plan import KernelError
from mirage_nb.runtime.kernel_streams import RELAXED, driver_function, is_captured

_KERNEL, _FILL, _EMPTY = 0, 2, 5
"""The driver's numbers of nodes that launch a kernel, that fill memory with one value, and that do nothing."""
_ALL_DEPENDENCIES = 1
"""Its number of "these instead of all before"."""
_JOINING = ("cuStreamGetCaptureInfo_v2", "cuGraphAddChildGraphNode", "cuStreamUpdateCaptureDependencies")
_WORD = 8
POISON = {1: 0x55, 2: 0x7FA5, 4: 0x7FA5A5A5, 8: 0x7FFA5A5A5A5A5A5A}
"""Bits that no kernel computes, by the bytes of an element: not-a-numbers of our own."""
_ALIKE = 256
"""Bytes by which two addresses have to agree for a kernel to take one for the other."""


class _Node(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_: ClassVar = [
        ("function", ctypes.c_void_p),
        ("extents", ctypes.c_uint * 7),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    ]


class _Filled(ctypes.Structure):
    """CUDA_MEMSET_NODE_PARAMS."""

    _fields_: ClassVar = [
        ("start", ctypes.c_uint64),
        ("pitch", ctypes.c_size_t),
        ("value", ctypes.c_uint),
        ("element", ctypes.c_uint),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    ]


class Recorded:
    """A function that returns a tensor, as kernels that write into `result`; called on PyTorch's current stream, where
    what PyTorch takes belongs to the caller (`kernel_torch.Pool`): the kernels go on using it.

    `copies`: whether that was tried, and the result is copied after all; `why`: what spoke against it.
    """

    def __init__(self, torch: Any, make: Callable[[], Any], result: Any) -> None:
        self._torch, self._make, self._result = torch, make, result
        self._graph: _Graph | None = None
        self.copies, self.why = False, ""

    def __call__(self) -> None:
        """Enqueue it. Raises KernelError where the driver refuses."""
        stream = int(self._torch.cuda.current_stream().cuda_stream)
        if self._graph is None and not self.copies and not is_captured(stream):
            self._graph = self._recorded()
            self.copies = self._graph is None
        if self._graph is not None:
            self._graph.enqueue(stream)
        else:
            self._result.copy_(self._make())

    def _recorded(self) -> _Graph | None:
        """The kernels, where these can be recorded and write what they should."""
        torch, result = self._torch, self._result
        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[result.element_size()]
        wanted = self._make()  # makes ready what only a first call needs
        try:
            graph, made = self._captured()
            graph.redirect(int(made.data_ptr()), made.nbytes, int(result.data_ptr()))
            graph.ready()
            result.view(bits).fill_(POISON[result.element_size()])
            graph.enqueue(int(torch.cuda.current_stream().cuda_stream))
        except RuntimeError as error:  # KernelErrors among them: PyTorch does not take every call into a capture
            self.why = str(error)
            return None
        if _order(made) != _order(result) or not torch.equal(result.view(bits), wanted.view(bits)):
            self.why = "it writes something else, or in another order"
            return None
        return graph

    def _captured(self) -> tuple[_Graph, Any]:
        """The kernels as a graph, and the tensor that they were to make."""
        side = self._torch.cuda.Stream()
        side.wait_stream(self._torch.cuda.current_stream())
        with self._torch.cuda.stream(side):
            self._make()  # libraries have workspaces for every stream
            side.synchronize()
            place, graph = ctypes.c_void_p(int(side.cuda_stream)), ctypes.c_void_p()
            _done("cuStreamBeginCapture_v2", place, ctypes.c_int(RELAXED))
            try:
                made = self._make()
            finally:
                status = driver_function("cuStreamEndCapture")(place, ctypes.byref(graph))
        if status != 0 or not graph.value:
            raise KernelError(f"not captured: CUDA error {status}")
        return _Graph(graph), made


class _Graph:
    """A CUDA graph that was captured; once it is ready, it can be launched, and become part of another one."""

    def __init__(self, graph: ctypes.c_void_p) -> None:
        self._graph, self._exec = graph, ctypes.c_void_p()
        self._launch = driver_function("cuGraphLaunch")
        for name in _JOINING:
            driver_function(name)  # a driver without them is found out before a capture

    def redirect(self, old: int, nbytes: int, new: int) -> None:
        """Every address within the bytes from `old` on becomes the one as far behind `new`. Raises KernelError where
        there is none, or something else than kernels may be concerned."""
        if (new - old) % _ALIKE:
            raise KernelError("the addresses are aligned in different ways")
        count = ctypes.c_size_t()
        _done("cuGraphGetNodes", self._graph, None, ctypes.byref(count))
        nodes = (ctypes.c_void_p * count.value)()
        _done("cuGraphGetNodes", self._graph, nodes, ctypes.byref(count))
        if not sum(_redirected(ctypes.c_void_p(node), old, nbytes, new) for node in nodes):
            raise KernelError("no kernel is told where to write")

    def ready(self) -> None:
        """Make it launchable."""
        _done("cuGraphInstantiateWithFlags", ctypes.byref(self._exec), self._graph, ctypes.c_ulonglong(0))

    def enqueue(self, stream: int) -> None:
        """Launch it on a stream, or add it to the graph that the stream is being captured into."""
        place = ctypes.c_void_p(stream)
        if not is_captured(stream):
            if status := self._launch(self._exec, place):
                raise KernelError(f"the card reports CUDA error {status}")
            return
        status, number = ctypes.c_int(), ctypes.c_uint64()
        whole, before, count = ctypes.c_void_p(), ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_size_t()
        asked = (ctypes.byref(x) for x in (status, number, whole, before, count))
        information, child, update = _JOINING
        _done(information, place, *asked)
        node = ctypes.c_void_p()
        _done(child, ctypes.byref(node), whole, before, count, self._graph)
        only = (ctypes.c_void_p * 1)(node)
        _done(update, place, only, ctypes.c_size_t(1), ctypes.c_uint(_ALL_DEPENDENCIES))

    def __del__(self) -> None:
        if self._exec.value:
            driver_function("cuGraphExecDestroy")(self._exec)
        driver_function("cuGraphDestroy")(self._graph)


def _order(tensor: Any) -> list[tuple[int, int]]:
    """Extents, and how far apart elements lie along them."""
    return [(n, far) for n, far in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]


def _done(name: str, *arguments: Any) -> None:
    status = driver_function(name)(*arguments)
    if status != 0:
        raise KernelError(f"{name}: CUDA error {status}")


def _redirected(node: ctypes.c_void_p, old: int, nbytes: int, new: int) -> int:
    """How many addresses in the arguments of a node's kernel were changed."""
    kind = ctypes.c_int()
    _done("cuGraphNodeGetType", node, ctypes.byref(kind))
    if kind.value == _EMPTY:
        return 0
    if kind.value == _FILL:
        filled = _Filled()
        _done("cuGraphMemsetNodeGetParams", node, ctypes.byref(filled))
        if old <= filled.start < old + nbytes:
            raise KernelError("the result is filled with a value first")
        return 0
    if kind.value != _KERNEL:
        raise KernelError(f"something else than kernels was captured: a node of kind {kind.value}")
    said = _Node()
    _done("cuGraphKernelNodeGetParams_v2", node, ctypes.byref(said))
    if not said.arguments:
        raise KernelError("a kernel whose arguments nobody knows was captured")
    found = [redirected(argument, old, nbytes, new) for argument in _arguments(said)]
    changed = sum(count for _, count in found)
    if changed:
        held = [ctypes.create_string_buffer(data, len(data)) for data, _ in found]
        places = (ctypes.c_void_p * len(held))(*(ctypes.addressof(buffer) for buffer in held))
        said.arguments = ctypes.cast(places, ctypes.POINTER(ctypes.c_void_p))
        _done("cuGraphKernelNodeSetParams_v2", node, ctypes.byref(said))
    return changed


def _arguments(said: _Node) -> list[bytes]:
    """The arguments of a kernel, as it gets them."""
    describe = driver_function("cuFuncGetParamInfo" if said.function else "cuKernelGetParamInfo")
    handle = ctypes.c_void_p(said.function or said.kernel)
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    found: list[bytes] = []
    while describe(handle, ctypes.c_size_t(len(found)), ctypes.byref(offset), ctypes.byref(size)) == 0:
        start = said.arguments[len(found)]
        if not start:
            raise KernelError("a kernel without its arguments was captured")
        found.append(ctypes.string_at(start, size.value))
    return found


def redirected(argument: bytes, old: int, nbytes: int, new: int) -> tuple[bytes, int]:
    """An argument whose addresses within the bytes from `old` on are as far behind `new`, and how many these are: words
    of eight bytes, by themselves or in a structure, tensor maps among them."""
    words, changed = bytearray(argument), 0
    for at in range(0, len(words) - _WORD + 1, _WORD):
        word = int.from_bytes(words[at : at + _WORD], "little")
        if old <= word < old + nbytes:
            words[at : at + _WORD] = (word - old + new).to_bytes(_WORD, "little")
            changed += 1
    return bytes(words), changed
