"""What the command line takes: options, their help, and what it says of those that there are not.

In: words. Out: an `argparse.Namespace`; `command` names what to do, `mirage_nb.__main__` does it. Mistakes end the
interpreter with exit code 2, the place and a hint, as argparse's own do.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from functools import cache, partial
from typing import Any, NoReturn

from mirage_nb.bench import commands as bench
from mirage_nb.bench.workloads import WORKLOADS
from mirage_nb.errors import suggestion
from mirage_nb.lang.constants import shorten
from mirage_nb.options import LIMITS, SEARCH, SIZES, SWITCHES, Option

WRONG = 2
PROGRAM = "python -m mirage_nb"
CODES = """exit codes:
  0    done
  1    no muGraph was verified; or `verify`: refuted
  2    a mistake in the arguments or the input; or `verify`: not decided
  130  interrupted; what was found until then was printed"""
EXAMPLES = f"""examples:
  {PROGRAM} superoptimize attention.mirage --effort quick --emit out
  {PROGRAM} superoptimize --workload gqa --set B=8 --target a100 --json result.json
  {PROGRAM} superoptimize attention.mirage --blocks :132 --loop 2:64 --without-operator Accum-concat
  {PROGRAM} superoptimize attention.mirage --keep --name mine   and later:   {PROGRAM} resume mine

The environment: MIRAGE_NB_WORKERS (worker processes), MIRAGE_NB_STORE (a file that keeps every session, or off),
MIRAGE_NB_HOME (the folder of compiled kernels), MIRAGE_NB_CXX (the C++ compiler)."""


class _Parser(argparse.ArgumentParser):
    """argparse, which says of a mistake what would have been right instead of listing everything that there is."""

    def parse_known_args(self, *args: Any, **named: Any) -> Any:
        """Whoever does not know an option says so: the command, which knows its own, not the program."""
        found, left = super().parse_known_args(*args, **named)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return found, left

    def error(self, message: str) -> NoReturn:
        """End with exit code 2, the mistake and a hint."""
        see = f"{self.prog} --help"
        asked, known = "", []
        if found := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            asked, known = found[1], re.findall(r"[\w-]+", found[2])
        elif found := re.search(r"unrecognized arguments: (--[\w-]+)", message):
            asked, known = found[1], list(self._option_string_actions)
        close = suggestion(asked, known)
        if close:
            message = message.partition(" (choose from")[0]
        message = re.sub(r"\S{80,}", lambda long: shorten(long[0]), message)
        self.exit(WRONG, f"error: {message}\n  hint: {close and f'{close} '}see {see}\n")


@cache
def parser() -> argparse.ArgumentParser:
    """The whole command line as an argparse parser."""
    top = _Parser(
        prog=PROGRAM,
        description="Superoptimize tensor programs: search, verify, compile, time.",
        epilog=CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_superoptimize(commands)
    _add_kept(commands)
    _add_verify(commands)
    commands.add_parser("doctor", help="what this machine has and what is missing")
    bench.add_parser(commands)
    return top


def _file(name: str) -> str:
    return "/dev/stdin" if name == "-" else name


def _add_superoptimize(commands: argparse._SubParsersAction[_Parser]) -> None:
    sub = commands.add_parser(
        "superoptimize",
        help="search, verify, compile and run the best muGraph of a program",
        description="Search, verify, compile and run the best muGraph of a tensor program.",
        usage=f"{PROGRAM} superoptimize (FILE | --workload NAME) [options]",
        epilog=f"{EXAMPLES}\n\n{CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    group = sub.add_argument_group("the program")
    group.add_argument("file", nargs="?", type=_file, metavar="FILE", help="a .mirage file; - is what is piped in")
    group.add_argument("--workload", choices=WORKLOADS, metavar="NAME", help=f"one of {', '.join(WORKLOADS)}")
    _add_asked(group, SIZES)
    group = sub.add_argument_group("the search")
    _add_asked(group, SEARCH)
    group.add_argument("--max-block-ops", type=int, metavar="N", help="largest number of block operators")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of all random elements; default: 0")
    _add_asked(sub.add_argument_group("what kernels have to keep to"), LIMITS)
    _add_asked(sub.add_argument_group("axioms and prunings"), SWITCHES)
    group = sub.add_argument_group("what is kept")
    group.add_argument("--store", metavar="FILE", help="keep the session there, and go on with what it has")
    group.add_argument("--keep", action="store_true", help="the same in the user's own store")
    group.add_argument("--name", default="", help="what it is called and stored as; default: the program's name")
    group.add_argument("--fresh", action="store_true", help="forget first what is stored under its name")
    _add_ends(sub)


class _Asked(argparse.Action):
    """Keeps what an option of a session is given, under the keywords of the API."""

    def __init__(self, *args: Any, option: Option, **named: Any) -> None:
        super().__init__(*args, **named)
        self.option = option

    def __call__(self, _: object, found: argparse.Namespace, value: Any, *__: object) -> None:
        found.asked = dict(getattr(found, "asked", {}))
        self.option.keep(value, found.asked)


def _add_asked(group: argparse._ArgumentGroup, table: Iterable[Option]) -> None:
    """Options that are those of the magics, too."""
    for option in table:
        values = f"; one of {', '.join(option.values)}" if option.values else ""
        group.add_argument(
            option.name, action=_Asked, option=option, type=partial(_read, option), dest="asked",
            default=argparse.SUPPRESS, choices=option.values or None, metavar=option.metavar,
            help=f"{option.doc}{values}",
        )  # fmt: skip


def _read(option: Option, text: str) -> object:
    try:
        return option.read(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no {option.metavar}: {option.doc}") from None


def _add_ends(sub: argparse.ArgumentParser) -> None:
    """Where a search runs, and where its result goes."""
    group = sub.add_argument_group("where it runs")
    group.add_argument("--workers", type=int, metavar="N", help="worker processes; default: the cores")
    group.add_argument("--dask", metavar="ADDRESS", help="the scheduler of a Dask cluster, as tcp://127.0.0.1:8786")
    group = sub.add_argument_group("what comes out")
    group.add_argument("--json", metavar="OUT", help="write the result as JSON")
    group.add_argument("--emit", metavar="DIR", help="write the CUDA sources, cubins and muGraph texts")
    group.add_argument("--quiet", action="store_true", help="no progress line")


def _add_kept(commands: argparse._SubParsersAction[_Parser]) -> None:
    store = "default: the file in MIRAGE_NB_STORE, else the user's own"
    sub = commands.add_parser(
        "resume",
        help="go on with a stored session",
        description="Go on with a session that was stored: what it had done is there, the rest is searched.",
        epilog=CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sub.add_argument("name", metavar="NAME", help=f"as `{PROGRAM} stored` lists it")
    sub.add_argument("--store", metavar="FILE", help=store)
    _add_ends(sub)
    sub = commands.add_parser("stored", help="the names of the stored sessions, the latest first")
    sub.add_argument("--store", metavar="FILE", help=store)


def _add_verify(commands: argparse._SubParsersAction[_Parser]) -> None:
    sub = commands.add_parser(
        "verify",
        help="compare two programs or muGraph files",
        description="Compare two files, each a tensor program, the text of a muGraph, or its JSON form.",
        epilog=CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sub.add_argument("left", type=_file, metavar="LEFT", help="what is meant; - is what is piped in")
    sub.add_argument("right", type=_file, metavar="RIGHT", help="what shall be the same")
    sub.add_argument("--trials", type=int, default=4, metavar="N", help="random tests; default: 4")
    sub.add_argument(
        "--seed", type=int, metavar="N", help="repeat what was drawn from this number; default: one that nobody knows"
    )
    sub.add_argument("--final", action="store_true", help="as many trials as a bound of 2^-64 takes")
    sub.add_argument("--permute", action="store_true", help="outputs of RIGHT may have any order and any names")
    sub.add_argument("--prove", action="store_true", help="look for a proof for all sizes, and print it")
    sub.add_argument("--proof", metavar="FILE", help="look for a proof for all sizes, and write it as JSON")
    sub.add_argument(
        "--assume", action="append", default=[], metavar="NAME=LIST",
        help="for --prove, --proof and --check: what is taken for granted of a function, such as scaled=linear,odd",
    )  # fmt: skip
    sub.add_argument("--check", metavar="FILE", help="only check a proof that was written before")
