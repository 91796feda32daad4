"""One process that has imported what workers need, and of which they are forked: each is there in milliseconds.

In: the socket of a worker, where its last words go. Out: its number, and how it ended. Invariants:
the nursery has one thread and makes no call itself; it ends with its owner, or when nobody has needed it for a while;
until somebody has asked how a worker ended, its number becomes nobody else's.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle

from mirage_nb.errors import SearchError
from mirage_nb.settings import take_environment, worker_environment

BOOT = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from mirage_nb.search.session.nursery import tend; from mirage_nb.search.session.pool import serve; "
    "serve(*tend(int(sys.argv[1]), int(sys.argv[2])))"
)
START_SECONDS = 120.0
"""How long a process may take until it says for the first time that it is there."""
OWNER_SECONDS = 2.0
"""How often a process looks for its owner: a fork of the owner may hold the socket as well."""
IDLE_SECONDS = 60.0
"""How long a nursery without workers stays."""
QUIET_SECONDS = 0.1
LATER = ("mirage_nb.verify.reals.exact", "mirage_nb.verify.tiles")
"""What verification loads when it is needed, imported once there are workers and nobody has asked for one for so long:
those of a session are wanted one after the other, and nobody waits for it."""
GARBAGE = (5_000, 50, 20)
"""How rarely workers look for garbage: what a search makes stays until its end, and is hardly ever garbage of the kind
that only the collector finds, which looks at all of it again and again otherwise."""
FIRST_DESCRIPTOR = 3
"""Those below are standard streams; an interpreter that was started without them would give their numbers away."""
KILLED = -signal.SIGKILL


@dataclass(frozen=True, slots=True)
class Wanted:
    """A worker as its owner is at this moment. `modules`: of what was called so far, imported for all that come."""

    modules: tuple[str, ...]
    niceness: int
    path: tuple[str, ...]
    folder: str
    environment: Mapping[str, str]


class Nursery:
    """The owner's side."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._link: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._modules: dict[str, None] = {}

    def needs(self, called: object) -> None:
        """Workers will call this: where it is defined is imported for them all."""
        module = getattr(called, "__module__", None) or ""
        if module.startswith("mirage_nb."):
            self._modules[module] = None

    def begin(self) -> None:
        """Start the process, and have it import what workers will call; nobody waits for that.

        Raises:
            OSError, SearchError: it does not start.
        """
        with self._turn:
            try:
                self._there(_path()).send(tuple(self._modules))
            except (BrokenPipeError, ConnectionResetError):  # it had ended meanwhile
                self._close()
                self._there(_path()).send(tuple(self._modules))

    def fork(self, link: int, complaints: int, niceness: int, environment: Mapping[str, str]) -> int:
        """A new worker, head of a group of its own, that serves this socket and writes its last words there, with these
        variables beside its owner's.

        Raises:
            OSError, EOFError: it does not start.
        """
        variables = {**worker_environment(), **environment}
        wanted = Wanted(tuple(self._modules), niceness, _path(), _folder(), variables)
        with self._turn:
            try:
                return self._forked(wanted, link, complaints)
            except (BrokenPipeError, ConnectionResetError, EOFError):  # it had ended meanwhile
                self._close()
            try:
                return self._forked(wanted, link, complaints)
            except EOFError as error:
                self._close()
                raise OSError(f"{sys.executable} ends as it starts") from error

    def _forked(self, wanted: Wanted, *descriptors: int) -> int:
        nursery = self._there(wanted.path)
        nursery.send(wanted)
        for descriptor in descriptors:
            send_handle(nursery, descriptor, 0)
        pid = self._answer(nursery)
        assert pid is not None
        return pid

    def ended(self, pid: int) -> int | None:
        """How a worker ended, as `Popen.returncode` has it; None while it is there."""
        with self._turn:
            if self._link is None or self._owner != os.getpid():
                return KILLED
            try:
                self._link.send(pid)
                return self._answer(self._link)
            except (OSError, EOFError):
                self._close()
                return KILLED

    def _there(self, path: tuple[str, ...]) -> Connection:
        if self._link is not None and self._owner == os.getpid():
            return self._link
        if not sys.executable:
            raise SearchError("no Python interpreter is known to start workers with", hint="pass an executor")
        ours, theirs = pair()
        with Connection(theirs):
            self._link, self._owner = Connection(ours), os.getpid()
            self._process = subprocess.Popen(
                [sys.executable, "-c", BOOT, str(theirs), str(self._owner), *path],
                pass_fds=[theirs],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=worker_environment(),
                start_new_session=True,
            )
        return self._link

    def _answer(self, link: Connection) -> int | None:
        if not link.poll(START_SECONDS):
            self._close()
            raise TimeoutError(f"it did not start within {START_SECONDS:g} s")
        answer: int | OSError | None = link.recv()
        if isinstance(answer, OSError):
            raise answer
        return answer

    def _close(self) -> None:
        if self._link is not None and self._process is not None:
            self._link.close()
            self._process.kill()
            self._process.wait()
        self._link = self._process = None


def pair() -> tuple[int, int]:
    """The descriptors of two sockets that are connected."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        first, second = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR) for end in (ours, theirs))
        return first, second


def surroundings() -> tuple[object, ...]:
    """What else a worker has of its owner, to be compared."""
    return _path(), _folder(), frozenset(worker_environment().items())


def _path() -> tuple[str, ...]:
    return tuple(entry or os.getcwd() for entry in sys.path)


def _folder() -> str:
    """Where relative paths begin; empty if that folder is gone."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def tend(descriptor: int, owner: int) -> tuple[Connection, int, int]:
    """What a nursery runs until it ends. Returns in every worker, with what `serve` takes."""
    nursery, link = os.getpid(), Connection(descriptor)
    gc.set_threshold(*GARBAGE)
    workers: set[int] = set()
    idle = 0.0
    later: tuple[str, ...] = ()
    left: tuple[str, ...] = LATER
    while os.getppid() == owner and idle < IDLE_SECONDS:
        if not link.poll(QUIET_SECONDS if later else OWNER_SECONDS):
            if later:
                _prepare(later)
                later = ()
            idle = 0.0 if workers else idle + OWNER_SECONDS
            continue
        idle = 0.0
        try:
            wanted = link.recv()
            if isinstance(wanted, int):
                link.send(_status(wanted, workers))
                continue
            if isinstance(wanted, tuple):
                _prepare(wanted)
                continue
            served, complaints = recv_handle(link), recv_handle(link)
        except (OSError, EOFError):
            break
        _prepare(wanted.modules)
        ready, begun = os.pipe()
        answer: int | OSError
        try:
            answer = os.fork()
        except OSError as error:  # there are too many processes, or there is no memory
            answer = error
        if answer == 0:
            link.close()
            os.close(ready)
            return _begun(wanted, served, complaints, begun), nursery, wanted.niceness
        for end in (served, complaints, begun):
            os.close(end)
        os.read(ready, 1)  # it has a group of its own
        os.close(ready)
        if isinstance(answer, int):
            workers.add(answer)
        link.send(answer)
        later, left = later or left, ()
    sys.exit()


def _prepare(modules: tuple[str, ...]) -> None:
    """Import modules, for workers that are yet to come."""
    for module in modules:
        with contextlib.suppress(Exception):  # who makes the call is told what is wrong
            importlib.import_module(module)
    gc.freeze()


def _status(pid: int, workers: set[int]) -> int | None:
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # of an earlier nursery
        return KILLED
    if not found:
        return None
    workers.discard(pid)
    return os.waitstatus_to_exitcode(status)


def _begun(wanted: Wanted, served: int, complaints: int, begun: int) -> Connection:
    """Make this process the worker that is wanted."""
    os.setsid()
    os.close(begun)
    os.dup2(complaints, 2)
    os.close(complaints)
    take_environment(wanted.environment)
    sys.path[:] = wanted.path
    with contextlib.suppress(OSError):
        os.chdir(wanted.folder)
    return Connection(served)
