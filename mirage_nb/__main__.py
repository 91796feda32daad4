"""The command line: `python -m mirage_nb superoptimize | resume | stored | verify | doctor | bench`.

Parses arguments, calls the API, prints. Exit codes: 0 done, 1 nothing verified (or refuted), 2 a mistake
in the arguments or the input (or undecided), 130 interrupted; what was found until then is still printed.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # loading takes a second: Ctrl-C ends it without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from mirage_nb.arguments import PROGRAM, WRONG, parser
from mirage_nb.bench.workloads import WORKLOADS, workload
from mirage_nb.errors import AssumptionError, MirageError, MissingPartError, OptionError, StoreError, printable
from mirage_nb.interp.instance import CPU
from mirage_nb.lang import TensorProgram, load, parse
from mirage_nb.lang.constants import shorten
from mirage_nb.options import with_limits
from mirage_nb.pipeline import Limits, Session, resume, superoptimize
from mirage_nb.report import describe, emit_files, to_json
from mirage_nb.runtime.doctor import examine, report
from mirage_nb.runtime.field_device import field_device
from mirage_nb.runtime.store import find_store
from mirage_nb.search.session.pool import Workers
from mirage_nb.verify.files import check_files, prove_files, read_graph, verify_files

PROGRESS_SECONDS = 0.2
STOP_SECONDS = 10.0
INTERRUPTED = 130
MAX_TEXT = 2**24
"""Characters of a file that are read; what they say has narrower limits."""
MAX_WORKERS = 1024
MAX_NAME = 400
DASK_SECONDS = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. A mistake in the arguments themselves exits with 2, as argparse does."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files may be no text, terminals may know no Greek
            stream.reconfigure(errors="backslashreplace")
    try:
        options = parser().parse_args(arguments)
        code: int = COMMANDS[options.command](options)
        sys.stdout.flush()
    except MirageError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # whoever reads, as in `| head`, has seen enough
        _print_no_more()
        return 0
    except OSError as error:  # what is printed goes to a full disk
        _print_no_more()
        print(f"error: {error}", file=sys.stderr)
        return WRONG
    return code


def _print_no_more() -> None:
    """The interpreter prints what is left when it ends; into nowhere."""
    with suppress(OSError):  # there may be no file behind it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _superoptimize(options: argparse.Namespace) -> int:
    asked = with_limits(getattr(options, "asked", {}), Limits())
    program = _program(options, asked.pop("sizes", {}))
    for remark in program.remarks:
        print(f"note: {remark}", file=sys.stderr)
    if options.store and options.keep:
        raise OptionError("--store FILE and --keep", hint="one of them: --keep is the user's own file")
    with _Interrupt() as interrupt, _executor(options) as executor:
        session = superoptimize(
            program,
            name=options.name,
            max_block_ops=options.max_block_ops,
            executor=executor,
            seed=options.seed,
            store=options.store or options.keep or None,
            fresh=options.fresh,
            **asked,
        )
        return _finished(session, interrupt, options)


def _resume(options: argparse.Namespace) -> int:
    with _Interrupt() as interrupt, _executor(options) as executor:
        session = resume(options.name, store=options.store, executor=executor)
        return _finished(session, interrupt, options)


def _stored(options: argparse.Namespace) -> int:
    kept = find_store(options.store or True)
    names = kept.names() if kept is not None else ()
    where = f" in {kept.path}" if kept is not None else ""
    print("\n".join(names) or f"nothing is stored{where}; {PROGRAM} superoptimize FILE --keep stores a session")
    return 0


def _finished(session: Session, interrupt: _Interrupt, options: argparse.Namespace) -> int:
    """Follow a session to its end, or to Ctrl-C; print and write what came of it."""
    _follow(session, interrupt, quiet=options.quiet)
    if interrupt.came:
        session.stop()
        session.wait(STOP_SECONDS)
    print(describe(session))
    done = session.snapshot()
    if done.configurations_kept and session.stored is not None:
        print(f"{done.configurations_kept} of {done.configurations_total} configurations were in {session.stored[1]}")
    if options.json:
        _write(Path(options.json), to_json(session))
    if options.emit:
        for path in emit_files(session, Path(options.emit)):
            print(f"wrote {path}")
    if interrupt.came:
        return INTERRUPTED
    return 0 if done.candidates else 1


@contextmanager
def _executor(options: argparse.Namespace) -> Iterator[Executor | None]:
    """Where the workers are, once it is known that what they find can be written; None: where they are by default."""
    _check_outputs(options)
    if options.dask and options.workers is not None:
        raise OptionError("--dask ADDRESS and --workers N", hint="one of them: a cluster has workers of its own")
    if options.dask:
        with _cluster(options.dask) as executor:
            yield executor
    elif options.workers is not None:
        if not 1 <= options.workers <= MAX_WORKERS:
            raise OptionError(f"--workers {options.workers}", hint=f"1 to {MAX_WORKERS}")
        with Workers(options.workers) as executor:
            yield executor
    else:
        yield None


@contextmanager
def _cluster(address: str) -> Iterator[Executor]:
    hint = "the address of a running scheduler, as tcp://127.0.0.1:8786"
    if not re.fullmatch(r"(\w+://)?[\w.-]+:\d{1,5}", address):
        raise OptionError(f"--dask {shorten(address)}: not an address", hint=hint)
    try:
        distributed = import_module("distributed")
    except ImportError:
        advice = "pip install 'mirage-nb[cluster]'"
        raise MissingPartError("--dask needs the package distributed", hint=advice) from None
    try:
        client = distributed.Client(address, timeout=DASK_SECONDS)
    except Exception as error:  # whoever listens there may answer anything
        raise OptionError(f"--dask {address}: no scheduler answers there", hint=hint) from error
    with client:
        yield client.get_executor(pure=False)


class _Interrupt:
    """Notes the first Ctrl-C instead of raising it, wherever it falls; the second one raises."""

    def __enter__(self) -> _Interrupt:
        self.came = False
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is signal.default_int_handler:  # else it is ignored, or somebody else's
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _note(self, *_: object) -> None:
        self.came = True
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _check_outputs(options: argparse.Namespace) -> None:
    """Raise StoreError for files that cannot be written: before the search, not after."""
    if options.json:
        path = Path(options.json)
        try:
            held = path if path.exists() else path.absolute().parent
            writable = not path.is_dir() and held.exists() and os.access(held, os.W_OK)
        except OSError:  # a name that is too long, or of something that is no folder
            writable = False
        if not writable:
            raise StoreError(f"{_shown(path)} cannot be written", hint="give another file to --json")
    if options.emit:
        try:
            Path(options.emit).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            where = _shown(options.emit)
            raise StoreError(f"{where}: {error.strerror}", hint="give another folder to --emit") from error
        if not os.access(options.emit, os.W_OK):
            raise StoreError(f"{options.emit} cannot be written to", hint="give another folder to --emit")


def _shown(path: str | Path) -> str:
    """A file's name, unless it is longer than names of files can be."""
    return str(path) if len(str(path)) <= MAX_NAME else shorten(str(path))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise StoreError(f"{_shown(path)} cannot be written: {error.strerror}", hint="give another file") from error


def _program(options: argparse.Namespace, sizes: Mapping[str, int | range]) -> TensorProgram:
    if bool(options.file) == bool(options.workload):
        hint = f"workloads are {', '.join(WORKLOADS)}"
        raise OptionError("give either a FILE or --workload NAME", hint=hint)
    if options.workload:
        return parse(workload(options.workload), name=options.workload, sizes=sizes)
    return load(options.file, sizes=sizes)


def _follow(session: Session, interrupt: _Interrupt, *, quiet: bool) -> None:
    """Show progress on one line until the session ends or is interrupted."""
    live = sys.stderr.isatty() and not quiet
    while not (session.wait(PROGRESS_SECONDS) or interrupt.came):
        if live:
            now = session.snapshot()
            line = f"{now.seconds:6.1f} s  {now.configurations_done}/{now.configurations_total} configurations"
            print(f"\r{line}, {now.verified} verified muGraphs  {session.stage}\033[K", end="", file=sys.stderr)
    if live:
        print("\r\033[K", end="", file=sys.stderr)


def _verify(options: argparse.Namespace) -> int:
    left, right = _read_graph(options.left), _read_graph(options.right)
    assumed = dict(_property(text) for text in options.assume)
    if options.check:
        try:
            print(check_files(left, right, _read(options.check), permuted=options.permute, assume=assumed))
        except AssumptionError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        return 0
    common: dict[str, Any] = {
        "trials": options.trials,
        "seed": options.seed,
        "final": options.final,
        "permuted": options.permute,
        "progress": _show_trials if sys.stderr.isatty() else None,
        "device": field_device if options.final else lambda: CPU,
    }
    if not (options.prove or options.proof):
        code, text = verify_files(left, right, **common)
        print(text)
        return code
    code, text, proof = prove_files(left, right, **common, properties=assumed)
    print(text)
    if proof is not None and options.prove:
        print(proof)
    if proof is not None and options.proof:
        _write(Path(options.proof), proof.to_json())
        print(f"wrote {options.proof}")
    return code


def _show_trials(done: int, wanted: int) -> None:
    """Show on one line how many trials there were; at full shapes one takes seconds."""
    print(f"\r{done} of {wanted} trials\033[K" if done < wanted else "\r\033[K", end="", file=sys.stderr, flush=True)


def _property(text: str) -> tuple[str, tuple[str, ...]]:
    function, equals, names = text.rpartition("=")
    if not function or not equals or not names:
        hint = "for example --assume f=linear,odd"
        raise OptionError(f"--assume {shorten(repr(text))}: not of the form NAME=LIST", hint=hint)
    return function, tuple(names.split(","))


def _read_graph(name: str) -> str:
    """The text of a file that holds a program or a muGraph; what is wrong in it is told with the file's name."""
    text = _read(name)
    try:
        read_graph(text)
    except MirageError as error:
        error.message = f"{name}: {error.message}"
        raise
    return text


def _read(name: str) -> str:
    try:
        with Path(name).open(encoding="utf-8") as file:
            text = file.read(MAX_TEXT + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        hint = "a tensor program, a muGraph as text or JSON, or a proof"
        raise OptionError(f"{_shown(name)} cannot be read: {reason}", hint=hint) from error
    if len(text) > MAX_TEXT:
        raise OptionError(f"{name} has more than {MAX_TEXT:,} characters", hint="no program, muGraph or proof does")
    return text


def _doctor(_: argparse.Namespace) -> int:
    print(report(examine()))
    return 0


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "superoptimize": _superoptimize,
    "resume": _resume,
    "stored": _stored,
    "verify": _verify,
    "doctor": _doctor,
    "bench": lambda options: options.run(options),
}


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
