"""The command line: `python -m mirage_nb superoptimize | verify | doctor | bench`.

Parses arguments, calls the API, prints. Exit codes: 0 done, 1 nothing verified (or refuted), 2 a mistake
in the arguments or the input (or undecided), 130 interrupted; what was found until then is still printed.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from mirage_nb.bench import commands as bench
from mirage_nb.bench.workloads import WORKLOADS, workload
from mirage_nb.errors import MirageError, OptionError, StoreError
from mirage_nb.lang import TensorProgram, load, parse
from mirage_nb.pipeline import Session, superoptimize
from mirage_nb.report import describe, emit_files, to_json
from mirage_nb.runtime.doctor import examine, report
from mirage_nb.search import AXIOMS, EFFORTS, PRUNINGS
from mirage_nb.targets import DEFAULT_TARGET, TARGETS
from mirage_nb.verify.files import check_files, prove_files, verify_files

PROGRESS_SECONDS = 0.2
STOP_SECONDS = 10.0
WRONG, INTERRUPTED = 2, 130
MAX_TEXT = 2**24
"""Characters of a file that are read; what they say has narrower limits."""


def parser() -> argparse.ArgumentParser:
    """The whole command line as an argparse parser."""
    top = argparse.ArgumentParser(prog="mirage_nb", description="superoptimize tensor programs")
    commands = top.add_subparsers(dest="command", required=True)
    sub = commands.add_parser("superoptimize", help="search, verify, compile and run the best muGraph of a program")
    sub.add_argument("file", nargs="?", help="a .mirage file")
    sub.add_argument("--workload", choices=WORKLOADS, metavar="NAME", help=f"one of {', '.join(WORKLOADS)}")
    sub.add_argument("--set", action="append", default=[], metavar="B=8", help="override an integer constant")
    sub.add_argument("--effort", choices=tuple(EFFORTS), default="standard")
    sub.add_argument("--max-block-ops", type=int, metavar="N", help="largest number of block operators")
    sub.add_argument("--budget", type=float, metavar="S", help="seconds of search")
    sub.add_argument("--target", choices=tuple(TARGETS), help=f"default: the attached GPU, else {DEFAULT_TARGET}")
    sub.add_argument("--json", metavar="OUT", help="write the result as JSON")
    sub.add_argument("--emit", metavar="DIR", help="write the CUDA sources, cubins and muGraph texts")
    sub.add_argument("--store", metavar="FILE", help="keep the session there, and go on with what it has")
    for state in ("without", "with"):
        for what, known in (("axiom", AXIOMS), ("pruning", PRUNINGS)):
            names = [name for name, switch in known.items() if not switch.fixed]
            says = f"search without it: {', '.join(names)}" if state == "without" else "search with it at any effort"
            sub.add_argument(f"--{state}-{what}", action="append", default=[], choices=names, metavar="NAME", help=says)
    sub.add_argument("--quiet", action="store_true", help="no progress line")
    sub.set_defaults(run=_superoptimize)
    sub = commands.add_parser("verify", help="compare two programs or muGraph files")
    sub.add_argument("left")
    sub.add_argument("right")
    sub.add_argument("--trials", type=int, default=4)
    sub.add_argument("--final", action="store_true", help="larger primes, and instances with a bound of 2^-64")
    sub.add_argument("--prove", action="store_true", help="look for a proof for all sizes, and print it")
    sub.add_argument("--proof", metavar="FILE", help="look for a proof for all sizes, and write it as JSON")
    sub.add_argument(
        "--property", action="append", default=[], metavar="NAME=LIST",
        help="for --prove and --proof: what is known of a function, such as scaled=linear,odd",
    )  # fmt: skip
    sub.add_argument("--check", metavar="FILE", help="only check a proof that was written before")
    sub.set_defaults(run=_verify)
    sub = commands.add_parser("doctor", help="what this machine has and what is missing")
    sub.set_defaults(run=_doctor)
    bench.add_parser(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. A mistake in the arguments themselves exits with 2, as argparse does."""
    options = parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except MirageError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # whoever reads, as in `| head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _superoptimize(options: argparse.Namespace) -> int:
    program = _program(options)
    _check_outputs(options)
    with _Interrupt() as interrupt:
        session = superoptimize(
            program,
            target=options.target,
            effort=options.effort,
            budget=options.budget,
            max_block_ops=options.max_block_ops,
            store=options.store,
            axioms=dict.fromkeys(options.with_axiom, True) | dict.fromkeys(options.without_axiom, False),
            prunings=dict.fromkeys(options.with_pruning, True) | dict.fromkeys(options.without_pruning, False),
        )
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
    return 0 if session.snapshot().candidates else 1


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
        held = path if path.exists() else path.absolute().parent
        if path.is_dir() or not held.exists() or not os.access(held, os.W_OK):
            raise StoreError(f"{path} cannot be written", hint="give another file to --json")
    if options.emit:
        try:
            Path(options.emit).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{options.emit}: {error.strerror}", hint="give another folder to --emit") from error
        if not os.access(options.emit, os.W_OK):
            raise StoreError(f"{options.emit} cannot be written to", hint="give another folder to --emit")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error


def _program(options: argparse.Namespace) -> TensorProgram:
    if bool(options.file) == bool(options.workload):
        raise OptionError("give either a FILE or --workload NAME")
    sizes = dict(_size(text) for text in options.set)
    if options.workload:
        return parse(workload(options.workload), name=options.workload, sizes=sizes)
    return load(options.file, sizes=sizes)


def _size(text: str) -> tuple[str, int]:
    name, equals, number = text.partition("=")
    if not equals or not name.isidentifier() or not number.strip().isdecimal():
        raise OptionError(f"--set {text!r}: not of the form NAME=NUMBER", hint="for example --set B=8")
    return name, int(number)


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
    left, right = _read(options.left), _read(options.right)
    if options.check:
        print(check_files(left, right, _read(options.check)))
        return 0
    progress = _show_trials if sys.stderr.isatty() else None
    if not (options.prove or options.proof):
        code, text = verify_files(
            left, right, trials=options.trials, final=options.final, progress=progress
        )
        print(text)
        return code
    code, text, proof = prove_files(
        left,
        right,
        trials=options.trials,
        final=options.final,
        progress=progress,
        properties=dict(_property(text) for text in options.property),
    )
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
        raise OptionError(f"--property {text!r}: not of the form NAME=LIST", hint="for example --property f=linear,odd")
    return function, tuple(names.split(","))


def _read(name: str) -> str:
    try:
        with Path(name).open(encoding="utf-8") as file:
            text = file.read(MAX_TEXT + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise OptionError(f"{name} cannot be read: {reason}") from error
    if len(text) > MAX_TEXT:
        raise OptionError(f"{name} has more than {MAX_TEXT:,} characters", hint="no program, muGraph or proof does")
    return text


def _doctor(options: argparse.Namespace) -> int:
    print(report(examine()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
