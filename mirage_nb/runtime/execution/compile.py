"""CUDA C++ to a cubin with NVRTC: no GPU, no driver, no CUDA headers needed.

In: kernel text that includes the device library, an architecture, options; or a muGraph. Out: a `Cubin` with the
resources of each kernel as ptxas reports them. Invariant: the same text, headers, architecture, options and NVRTC
version give the same cubin, from the cache under `Settings.home` where there is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from mirage_nb.codegen import Emitted, Options, default_options, emit, variants
from mirage_nb.errors import CompileError, MissingPartError, TargetError
from mirage_nb.ir import KernelGraph
from mirage_nb.ir.graph import few
from mirage_nb.runtime.execution.artifacts import CUBIN_FOLDER, ArtifactCache, digest, digest_folder, distrust
from mirage_nb.runtime.kernel.driver import whole
from mirage_nb.search.sizes.written import likely_variant
from mirage_nb.settings import Settings, read_settings
from mirage_nb.targets import Target

DEVICE_FOLDER = Path(__file__).resolve().parents[2] / "codegen" / "device"
CUDA_PARTS = ("mirage_device.cuh", "common", "cuda")
STANDARD = "--std=c++17"
SHOWN_LINES = 12
INSTALL_NVRTC = "pip install 'mirage-nb[nvrtc]'"


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """What one kernel takes: registers per thread; bytes per thread of stack and of register spills; bytes of
    static shared memory per block, alignment included."""

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    static_shared_bytes: int


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code for one architecture.

    usage: by kernel name. path: the file in the cache, or None when it is not kept there; note then says why.
    """

    data: bytes
    arch: str
    log: str
    usage: Mapping[str, ResourceUsage]
    path: Path | None
    note: str = ""

    def __repr__(self) -> str:
        kernels = few([f"{name} ({usage.registers} registers)" for name, usage in self.usage.items()], 3)
        return f"<Cubin for {self.arch}, {len(self.data):,} bytes: {kernels}>"


def compile_cubin(
    source: str, arch: str = "sm_90a", options: Sequence[str] = (), *, settings: Settings | None = None
) -> Cubin:
    """Compile `source` for `arch` (such as "sm_90a"), about 0.1 s per kernel, or fetch it from the cache.

    Raises:
        CompileError: NVRTC or ptxas rejects the text; carries the first errors of their log.
        MissingPartError: NVRTC is not installed.
    """
    nvrtc = _nvrtc()
    version = ".".join(map(str, nvrtc.getVersion()))
    headers = digest_folder(DEVICE_FOLDER, *CUDA_PARTS)
    key = digest(("cubin", version, headers, arch, *options, "source", source))
    folder = (settings or read_settings()).home / CUBIN_FOLDER
    cache, why = ArtifactCache(folder), distrust(folder)
    kept = cache.load(key, ".cubin")
    if kept is not None:
        usage = {name: ResourceUsage(**numbers) for name, numbers in kept.facts["usage"].items()}
        return Cubin(kept.data, arch, kept.facts["log"], usage, None if why else kept.path, why)
    data, log = _compile(nvrtc, source, arch, options)
    usage = read_usage(log)
    facts = {"arch": arch, "log": log, "usage": {name: asdict(u) for name, u in usage.items()}}
    try:
        path: Path | None = cache.store(key, ".cubin", data, facts).path
    except OSError as error:
        path, why = None, f"not kept in {folder}: {error.strerror or error}"
    return Cubin(data, arch, log, usage, None if why else path, why)


def emit_and_compile(graph: KernelGraph, target: Target, options: Options | None = None) -> tuple[Emitted, Cubin]:
    """A muGraph as it is emitted so, or as is estimated fastest, or in the first way that fits the target, and its
    cubin. Raises what `emit` and `compile_cubin` do."""
    try:
        emitted = emit(graph, target, options or likely_options(graph, target))
    except TargetError:
        fitting = variants(graph, target) if options is None else ()
        if not fitting:
            raise
        emitted = emit(graph, target, fitting[0])
    return emitted, compile_cubin(emitted.source, target.arch)


def likely_options(graph: KernelGraph, target: Target) -> Options:
    """The way to emit a muGraph that is estimated fastest."""
    chosen = likely_variant(graph, target)
    return replace(default_options(target), warps=chosen.warps, stages=chosen.stages, wide=chosen.wide)


def load_compiler() -> None:
    """Load NVRTC, which takes a process a second. Raises MissingPartError where it is not installed."""
    _nvrtc()


def _nvrtc() -> Any:
    """CuPy's binding, checked to find its library."""
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError, OSError) as error:  # CuPy reports a missing library in each of these ways
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        hint = INSTALL_NVRTC if getattr(error, "filename", None) is None else "CUPY_CACHE_DIR names a folder of yours"
        raise MissingPartError(f"NVRTC is not usable: {reason}", hint=hint) from error
    return nvrtc


def _compile(nvrtc: Any, source: str, arch: str, options: Sequence[str]) -> tuple[bytes, str]:
    flags = (STANDARD, f"--gpu-architecture={arch}", "--ptxas-options=-v", f"--include-path={DEVICE_FOLDER}", *options)
    program = nvrtc.createProgram(source, "kernel.cu", [], [])
    try:
        try:
            nvrtc.compileProgram(program, list(flags))
            return whole(nvrtc.getCUBIN(program)), _log(nvrtc, program)
        except nvrtc.NVRTCError as error:
            raise CompileError(f"NVRTC rejects the kernel for {arch}\n{relevant(_log(nvrtc, program))}") from error
    finally:
        nvrtc.destroyProgram(program)


def _log(nvrtc: Any, program: Any) -> str:
    return cast(str, nvrtc.getProgramLog(program)).rstrip("\0\n ")


def relevant(log: str) -> str:
    """The first lines of a compiler's log that say what is wrong, with the code that they quote."""
    lines = log.splitlines()
    first = next((n for n, line in enumerate(lines) if re.search(r"\b(error|fatal)\b", line)), 0)
    shown = lines[first : first + SHOWN_LINES]
    rest = len(lines) - first - len(shown)
    return "\n".join(f"  {line}" for line in shown) + (f"\n  ... {rest} more lines" if rest > 0 else "")


def read_usage(log: str) -> dict[str, ResourceUsage]:
    """The resources of every kernel in a log of `ptxas -v`."""
    return {name: _usage_of(part) for name, part in _entries(log)}


def _entries(log: str) -> Iterator[tuple[str, str]]:
    parts = re.split(r"Compiling entry function '([^']+)' for '[^']+'", log)
    yield from zip(parts[1::2], parts[2::2], strict=True)


def _usage_of(part: str) -> ResourceUsage:
    def number(pattern: str) -> int:
        found = re.search(pattern, part)
        return int(found[1]) if found else 0

    return ResourceUsage(
        registers=number(r"Used (\d+) registers"),
        spill_store_bytes=number(r"(\d+) bytes spill stores"),
        spill_load_bytes=number(r"(\d+) bytes spill loads"),
        stack_bytes=number(r"(\d+) bytes stack frame"),
        static_shared_bytes=number(r"(\d+) bytes smem"),
    )
