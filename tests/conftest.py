"""Fixtures shared by all rooms: an isolated home folder, golden files, one Hypothesis profile; the group `fast`."""

from __future__ import annotations

import os

# Before these are loaded: each process of a run has a core, and threads of libraries would wait for it by spinning.
os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
# Inductor takes the processor's word for its vectors: it compiles a program for each kind to see, for 14 seconds.
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"

import difflib
import functools
import gc
import itertools
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from mirage_nb.runtime.execution.artifacts import CPU_FOLDER, CUBIN_FOLDER
from tests.shares import SHARE, WHOLE

# No deadline, and none for drawing examples: shared machines pause for longer than that takes. The default tests draw
# the same examples whenever they run; the slow group draws others each time, more of them, and a failure prints how to
# replay it: `--hypothesis-profile whole`.
for profile, count in (("house", WHOLE // SHARE), ("whole", WHOLE)):
    settings.register_profile(
        profile,
        max_examples=count,
        deadline=None,
        derandomize=profile == "house",
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
settings.load_profile("house")

SECONDS = Path(__file__).parent / "seconds.json"
"""The test functions, all their examples together, that take a second and more; `--fast` leaves them out."""
LONG = 1.0
COMPILED = (CPU_FOLDER, CUBIN_FOLDER)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files from what is emitted")
    parser.addoption("--fast", action="store_true", help="only functions of tests that are known to be quick")
    parser.addoption("--update-seconds", action="store_true", help="write down what functions of tests take now")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--update-seconds") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Watch())


class Watch:
    """Sums up what every function of tests takes, and writes the slow ones down."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._taken[function_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        kept = {name: taken for name, taken in known_seconds().items() if name not in self._taken}
        found = kept | {name: round(taken, 1) for name, taken in self._taken.items() if taken >= LONG}
        SECONDS.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n", encoding="utf-8")


def known_seconds() -> dict[str, float]:
    """What slow functions of tests took when somebody last looked."""
    found: dict[str, float] = json.loads(SECONDS.read_text(encoding="utf-8"))
    return found


def function_of(nodeid: str) -> str:
    """The name of a test without the example."""
    return nodeid.partition("[")[0]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, object]:
    """While files are imported hardly anything becomes garbage: the collector would look at all of it many times."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is there now stays until the end: the collector of garbage need not look at it, and need not look often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(500_000, 20, 50)


@pytest.fixture(scope="module", autouse=True)
def settled() -> Iterator[None]:
    """Nor at what a file leaves behind, as what was searched is kept for others: a gigabyte after some hundred."""
    yield
    gc.collect(1)
    gc.freeze()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the compilers made in this run, of all its processes: minutes of work, kept by the digest of its sources."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "built"
    for name in COMPILED:
        (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def new_home(tmp_path_factory: pytest.TempPathFactory, built: Path) -> Callable[[], Path]:
    """Makes homes that have what was compiled in this run, and nothing else. Their names are counted: pytest looks at
    all temporary folders for the next one, which takes longer with every test."""
    folder, numbers = tmp_path_factory.mktemp("homes"), itertools.count()

    def made() -> Path:
        home = folder / str(next(numbers))
        home.mkdir(mode=0o700)
        for name in COMPILED:
            (home / name).symlink_to(built / name)
        return home

    return made


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, pytest.CollectReport]:
    """Every other process of a run begins at the other end: each compiles, and keeps, what the others import then."""
    report: pytest.CollectReport = yield
    if isinstance(collector, pytest.Directory) and os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] in "13579":
        report.result.reverse()
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`--fast` leaves slow tests out. Processes of a run begin with the files that take longest, as far as is known;
    quick tests count a little each: none waits for another at the end."""
    if hasattr(config, "workerinput"):
        taken: Counter[str] = Counter()
        for name, seconds in known_seconds().items():
            taken[name.partition("::")[0]] += seconds
        files = {item: item.nodeid.partition("::")[0] for item in items}
        taken.update({name: LONG / 100 * count for name, count in Counter(files.values()).items()})
        items.sort(key=lambda item: (-taken[files[item]], files[item]))
    if config.getoption("--fast"):
        slow = known_seconds()
        config.hook.pytest_deselected(items=[item for item in items if function_of(item.nodeid) in slow])
        items[:] = [item for item in items if function_of(item.nodeid) not in slow]


@pytest.fixture(scope="session", autouse=True)
def shared_home(new_home: Callable[[], Path]) -> Iterator[Path]:
    """The home of fixtures that outlive one test, never the user's; and one worker for every session: each process of
    a run has a core."""
    home = new_home()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MIRAGE_NB_STORE", raising=False)
        patch.setenv("MIRAGE_NB_HOME", str(home))
        patch.setenv("MIRAGE_NB_WORKERS", "1")
        yield home


@pytest.fixture(scope="session")
def untouched() -> list[Path]:
    """Homes in which tests have left nothing: making and removing thousands takes as long as many tests do."""
    return []


@pytest.fixture(autouse=True)
def mirage_home(
    new_home: Callable[[], Path], untouched: list[Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A fresh MIRAGE_NB_HOME for every test: none reads what another one, or a user, left behind."""
    home, threads = untouched.pop() if untouched else new_home(), threading.active_count()
    monkeypatch.setenv("MIRAGE_NB_HOME", str(home))
    before = _state(home)
    yield home
    if threading.active_count() <= threads and _state(home) == before:  # nobody is left who could write there
        untouched.append(home)


def _state(home: Path) -> tuple[int, dict[str, str]]:
    """The rights of a home, and what is in it: nothing but links to what was compiled, unless somebody was there."""
    try:
        return home.stat().st_mode, {name: os.readlink(home / name) for name in os.listdir(home)}
    except OSError:  # a file that is no link, or no home any more
        return 0, {}


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What this process keeps for itself alone, of no other test."""
    folder = tmp_path / "own"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr("mirage_nb.runtime.execution.artifacts.own_folder", functools.cache(lambda: folder))
    return folder


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """PyTorch's generator belongs to the process: what a test draws does not depend on the tests before it."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(0)


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether `--update-golden` was given."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def golden(request: pytest.FixtureRequest, update_golden: bool) -> Callable[[str, str], None]:
    """`golden(name, text)`: `text` equals the file `golden/name` beside the test; --update-golden writes."""
    folder = request.path.parent / "golden"

    def check(name: str, text: str) -> None:
        path = folder / name
        if update_golden:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.exists(), (
            f"{path} is missing; write it with --update-golden and read it before you commit"
        )
        expected = path.read_text(encoding="utf-8")
        if text != expected:
            old, new = expected.splitlines(), text.splitlines()
            diff = difflib.unified_diff(old, new, str(path), "emitted", lineterm="")
            pytest.fail("\n".join([*diff, "if the change is meant: --update-golden"]), pytrace=False)

    return check
