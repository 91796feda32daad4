"""Kernels without a GPU: the CPU edition of the device library, built with g++, run in another process.

In: the very text that NVRTC compiles, NumPy arrays, scalars, tensor maps. Out: the arrays as the kernel
leaves them, or a `LaunchError` that names the mistake, the block, the threads and the line.
Invariant: nothing that a kernel does can harm the caller: each launch is a process of its own (a few
milliseconds: it is a small native program, not a Python), with a time limit.
"""

from __future__ import annotations

import concurrent.futures as futures
import contextlib
import functools
import math
import os
import platform
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mirage_nb.errors import CompileError, LaunchError, MissingPartError
from mirage_nb.ir.graph import few
from mirage_nb.runtime.execution.arguments import Job, Parameter, bind
from mirage_nb.runtime.execution.artifacts import CPU_FOLDER, ArtifactCache, digest, digest_folder
from mirage_nb.runtime.execution.compile import DEVICE_FOLDER, relevant
from mirage_nb.search.session.channel import temporary_folder
from mirage_nb.settings import Settings, read_settings

HEADER = "mirage_device.cuh"
ENGINE = DEVICE_FOLDER / "cpu" / "engine" / "program.cc"
CPU_PARTS = (HEADER, "common", "cpu")
COMMON_FLAGS = ("-std=c++20", "-fPIC", "-fno-strict-aliasing")
RUNNER_FLAGS = ("-O2", "-rdynamic")
"""Products, reductions and copies are in the runner: it is where a launch spends its time, and built once."""
KERNEL_FLAGS = ("-Og", "-w", "-fno-exceptions", "-fno-rtti", "-fstack-clash-protection")
"""Most kernels run a few times only: at -O2 they are compiled three times as long, and run hardly faster."""
LINK_FLAGS = ("-shared", "-nostdlib", "-lm", "-lgcc")
"""All else that kernels call is in the runner, which loads them: to look through more libraries takes longer than to
link."""
BUILD_SECONDS = 120
GRACE_SECONDS = 5
LEAST_SECONDS = 0.05
"""What a launch may take however late it is: most are over by then."""
MEMORY_FOLDER = "/dev/shm"
OTHER_COMPILER = "name another one in MIRAGE_NB_CXX"
SHARED_LIMIT = 232448
"""Bytes of shared memory that a block may have on the largest target."""

_KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+(?:__cluster_dims__\((\d+)[\d\s,]*\)\s*)?'
    r"(?:__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)\s*)?(\w+)\s*\("
)
_SECONDS = re.compile(r"\s*[\d.eE+-]+\s*")
_X86_VECTORS = ("avx2", "fma")
_HINTS = {
    "deadlock": "each thread waits for something that no other thread will do",
    "divergence": "all 32 lanes of a warp must reach a collective together",
    "race": "put a barrier between the two accesses",
    "barrier": "a named barrier has one number from 1 to 15 and one count of threads",
    "mbarrier": "initialise, fence, expect the bytes, wait for the phase",
    "bounds": "an index is out of range",
    "alignment": "vector accesses and copies need aligned addresses",
    "timeout": "an endless loop, or a larger timeout is needed",
    "late": "a larger budget, or extend(seconds=...), gives it more",
}


class CpuModule:
    """One translation unit on the CPU edition.

    Args:
        source: text that includes `mirage_device.cuh`; kernels are `extern "C" __global__ void name(...)`.
        options: more options for the C++ compiler, such as "-DNAME=1".
        checked: also report races between warps, and every access outside an array, wherever it happens
            (slower by a factor of about ten).
        seconds: after which neither the compiler nor a launch goes on.

    Raises:
        CompileError: the compiler rejects the text, or it has no kernel.
        MissingPartError: there is no C++ compiler.
    """

    def __init__(
        self,
        source: str,
        options: Sequence[str] = (),
        *,
        checked: bool = False,
        settings: Settings | None = None,
        seconds: float = math.inf,
    ) -> None:
        known = settings or read_settings()
        self._until = time.monotonic() + seconds
        self.source = source
        self.checked = checked
        self._builder = _Builder(known, self._until)
        self._runner = self._builder.runner()
        self._module, self.kernels = self._builder.module(self._runner, source, options, checked)

    def __repr__(self) -> str:
        return f"<CpuModule of {few(list(self.kernels))}>"

    def launch(
        self,
        kernel: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        args: Sequence[Any],
        *,
        deferred: bool = False,
        order: str | int = "forward",
        timeout: float = 60.0,
        shared_limit: int = SHARED_LIMIT,
    ) -> float:
        """Run one kernel to its end; arrays that it may write are changed in place.

        Args:
            shared_bytes: dynamic shared memory per block, in bytes.
            args: C-contiguous arrays (bf16 as uint16), scalars, `TensorMap`s, as the parameters say.
            deferred: asynchronous copies and products land only when they are waited for, else at once.
            order: of warps, lanes and blocks: "forward", "reversed", or the seed of a random one.
            timeout: seconds, at least LEAST_SECONDS.
            shared_limit: bytes of shared memory that a block may have in all.

        Returns:
            Seconds in the kernel.

        Raises:
            LaunchError: wrong arguments; or the kernel crashed, hung, diverged, raced or left its arrays.
        """
        if kernel not in self.kernels:
            raise LaunchError(f"no kernel {kernel!r} in this module", hint=f"it has {', '.join(self.kernels)}")
        if min(*grid, *block) < 1 or block[0] * block[1] * block[2] > 1024:
            raise LaunchError(f"cannot launch grid {grid} of blocks {block}", hint="1 to 1024 threads in a block")
        mode, seed = (order, 0) if isinstance(order, str) else ("random", order)
        if mode not in ("forward", "reversed", "random"):
            raise LaunchError(f"unknown order {order!r}", hint="'forward', 'reversed' or a seed")
        asked, timeout = timeout, _left(self._until, timeout)
        lines = [
            f"module {self._module}",
            f"kernel {kernel}",
            f"grid {grid[0]} {grid[1]} {grid[2]}",
            f"block {block[0]} {block[1]} {block[2]}",
            f"shared {shared_bytes} {shared_limit}",
            f"mode {int(deferred)} {int(self.checked)}",
            f"order {mode} {seed}",
            f"timeout {max(LEAST_SECONDS, timeout):f}",
        ]
        return self._run(lines, bind(self.kernels[kernel], args), timeout, "late" if timeout < asked else "timeout")

    def _run(self, lines: list[str], job: Job, timeout: float, over: str) -> float:
        """`over`: the hint for a launch that does not end in time."""
        with temporary_folder(_scratch(job.nbytes)) as folder:
            try:
                job.write(folder)
                (folder / "job").write_text("\n".join(lines + job.lines) + "\n")
            except OSError as error:
                raise LaunchError(f"no room for the arrays of the launch: {error}") from error
            try:
                ended = subprocess.run(
                    (self._runner, folder), capture_output=True, timeout=timeout + GRACE_SECONDS, check=False
                )
            except subprocess.TimeoutExpired as error:
                raise LaunchError(f"still running after {timeout:g} s", hint=_HINTS[over]) from error
            except OSError as error:
                raise LaunchError(f"the runner cannot be started: {error}") from error
            seconds = self._read_report(folder / "report", ended.returncode, over)
            job.read_back(folder)
            return seconds

    def _read_report(self, path: Path, status: int, over: str) -> float:
        kind, _, message = (path.read_text(errors="replace") if path.exists() else "").partition("\n")
        if status == 0 and kind == "done" and _SECONDS.fullmatch(message):
            return float(message)
        if not kind:
            cause = f"signal {-status}" if status < 0 else f"status {status}"
            raise LaunchError(f"the kernel's run ended with {cause} and left no report")
        hint = _HINTS.get(over if kind == "timeout" else kind, "")
        raise LaunchError(f"{kind}: {message.rstrip()}{self._quote(message)}", hint=hint)

    def _quote(self, message: str) -> str:
        """The lines of kernel text that a message speaks of."""
        text = self.source.splitlines()
        numbers = dict.fromkeys(int(n) for n in re.findall(r"\bline (\d+)", message))
        quoted = [f"\n  {n:>4} | {text[n - 1].strip()}" for n in numbers if 0 < n <= len(text)]
        return "".join(quoted[:6])


class _Builder:
    """Runs the C++ compiler, for kernels until the clock (`time.monotonic`) says so; what it makes lives in the cache,
    or in a folder that ends with this process."""

    def __init__(self, settings: Settings, until: float) -> None:
        self._cxx, self._until = settings.cxx, until
        self._cache = ArtifactCache(settings.home / CPU_FOLDER)
        self._key = (_version(self._cxx), digest_folder(DEVICE_FOLDER, *CPU_PARTS), *_machine_flags())
        self._flags = (*COMMON_FLAGS, *KERNEL_FLAGS)

    def runner(self) -> Path:
        """The program that runs kernels; built once per machine and version, about 3 s, and to its end all the same
        where nobody waits for that long."""
        key = digest(("runner", *self._key))
        kept = self._cache.load(key, ".runner")
        if kept is not None:
            return kept.path
        made: futures.Future[Path] = futures.Future()
        threading.Thread(target=_resolve, args=(made, functools.partial(self._build_runner, key)), daemon=True).start()
        try:
            return made.result(_left(self._until, BUILD_SECONDS + GRACE_SECONDS))
        except TimeoutError as error:
            raise CompileError("the program that runs kernels is still being built, once on this machine") from error

    def _build_runner(self, key: str) -> Path:
        with _workshop("the runner") as folder:
            output = folder / "runner"
            self._compile("the runner", (*COMMON_FLAGS, *RUNNER_FLAGS, "-o", str(output), str(ENGINE), "-ldl"))
            return self._cache.store(key, ".runner", output.read_bytes(), {}, executable=True).path

    def module(
        self, runner: Path, source: str, options: Sequence[str], checked: bool
    ) -> tuple[Path, Mapping[str, tuple[Parameter, ...]]]:
        """The shared object of a kernel text, about 0.15 s and more, and its kernels."""
        clusters = {name: int(blocks or 1) for blocks, name in _KERNEL.findall(source)}
        if not clusters:
            raise CompileError("the text has no kernel", hint='write extern "C" __global__ void name(...)')
        key = digest(("module", str(checked), *self._key, *options, "source", source))
        kept = self._cache.load(key, ".so")
        if kept is not None:
            return kept.path, _read_kernels(kept.facts["kernels"])
        with _workshop("the kernel") as folder:
            output = self._build(folder, source, clusters, options, checked)
            described = _run((str(runner), "--describe", str(output)), BUILD_SECONDS)
            if described.returncode != 0 or not described.stdout:
                raise CompileError(f"the compiled kernels cannot be loaded\n  {described.stderr.strip()}")
            facts = {"kernels": described.stdout}
            made = self._cache.store(key, ".so", output.read_bytes(), facts)
            return made.path, _read_kernels(described.stdout)

    def _build(
        self, folder: Path, source: str, clusters: Mapping[str, int], options: Sequence[str], checked: bool
    ) -> Path:
        enlisted = "".join(f"MIRAGE_ENLIST({name}, {blocks});\n" for name, blocks in clusters.items())
        text, output = folder / "kernel.cc", folder / "kernel.so"
        text.write_text(f'#line 1 "kernel.cu"\n{source}\n#line 1 "kernels"\n{enlisted}')
        flags = (*self._flags, f"-I{folder}", f"-I{DEVICE_FOLDER}", *options)
        if checked:
            # Compiled and linked apart: the runner hears of the accesses, not the sanitizer's library.
            part = str(folder / "kernel.o")
            self._compile("the kernel", (*flags, "-fsanitize=thread", "-c", "-o", part, str(text)), self._until)
            self._compile("the kernel", ("-o", str(output), part, *LINK_FLAGS), self._until)
        else:
            self._bring_header(folder / f"{HEADER}.gch")
            self._compile("the kernel", (*flags, "-o", str(output), str(text), *LINK_FLAGS), self._until)
        return output

    def _bring_header(self, place: Path) -> None:
        """The device library as the compiler keeps it once it was read, which is half of its work at a small kernel;
        where options do not fit, or it makes nothing of that, it reads the text."""
        key = digest(("header", *self._key, *self._flags))
        kept = self._cache.load(key, ".gch")
        if kept is not None:
            place.symlink_to(kept.path)
            return
        with contextlib.suppress(CompileError):
            header = str(DEVICE_FOLDER / HEADER)
            self._compile("the header", (*self._flags, "-o", str(place), "-x", "c++-header", header), self._until)
            self._cache.store(key, ".gch", place.read_bytes(), {})

    def _compile(self, what: str, arguments: Sequence[str], until: float = math.inf) -> None:
        try:
            ended = _run((self._cxx, *_machine_flags(), *arguments), _left(until, BUILD_SECONDS))
        except subprocess.TimeoutExpired as error:
            raise CompileError(f"{self._cxx} took more than {error.timeout:.3g} s for {what}") from error
        if ended.returncode < 0:
            raise CompileError(f"{self._cxx} ended with signal {-ended.returncode} at {what}", hint=OTHER_COMPILER)
        if ended.returncode != 0:
            raise CompileError(f"{self._cxx} rejects {what}\n{relevant(ended.stderr)}")
        if not Path(arguments[arguments.index("-o") + 1]).exists():
            raise CompileError(f"{self._cxx} made nothing of {what}", hint=OTHER_COMPILER)


@functools.cache
def _version(cxx: str) -> str:
    """What the compiler says of itself, asked once."""
    try:
        shown = _run((cxx, "--version"), 30)
        shown.check_returncode()
    except FileNotFoundError as error:
        raise MissingPartError(
            f"no C++ compiler: {cxx!r} is not there", hint=f"apt-get install g++ (Debian, Ubuntu), or {OTHER_COMPILER}"
        ) from error
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingPartError(
            f"{cxx!r} is not a C++ compiler: {error}", hint=f"apt-get install g++, or {OTHER_COMPILER}"
        ) from error
    return shown.stdout


def _left(until: float, seconds: float) -> float:
    """So many seconds, or those until the clock (`time.monotonic`) says so if these are fewer."""
    return max(0.0, min(seconds, until - time.monotonic()))


def _resolve(future: futures.Future[Path], make: Callable[[], Path]) -> None:
    try:
        future.set_result(make())
    except BaseException as error:  # noqa: BLE001 - for whoever waits
        future.set_exception(error)


@contextlib.contextmanager
def _workshop(what: str) -> Iterator[Path]:
    """A folder to build in. Raises CompileError for whatever the machine has against it."""
    try:
        with temporary_folder() as folder:
            yield folder
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"{what} cannot be built: {error}") from error


def _run(command: tuple[str, ...], seconds: float) -> subprocess.CompletedProcess[str]:
    """A program to its end, with all that it said, in whatever encoding. Raises OSError, TimeoutExpired."""
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=seconds, check=False
    )


def _machine_flags() -> tuple[str, ...]:
    """Vector instructions for x86-64 CPUs that have them; they are part of the digest."""
    if platform.machine() != "x86_64":
        return ()
    try:
        flags = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()
    except OSError:
        return ()
    return tuple(f"-m{name}" for name in _X86_VECTORS if name in flags)


def _scratch(nbytes: int) -> str | None:
    """Where the arrays of a launch pass through files: in memory, if there is a folder with room to spare."""
    try:
        roomy = shutil.disk_usage(MEMORY_FOLDER).free > 2 * nbytes
        return MEMORY_FOLDER if roomy and os.access(MEMORY_FOLDER, os.W_OK | os.X_OK) else None
    except OSError:
        return None


def _read_kernels(described: str) -> dict[str, tuple[Parameter, ...]]:
    """What `runner --describe` prints: a name, then one indented line for each parameter."""
    found: dict[str, tuple[Parameter, ...]] = {}
    for part in re.findall(r"^\w+\n(?:\t.*\n)*", described, re.MULTILINE):
        name, *types = [line.strip() for line in part.splitlines()]
        found[name] = tuple(Parameter.parse(t) for t in types)
    return found
