"""Searches on other executors: a Dask cluster of two worker processes finds what the default finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mirage_nb.lang import parse
from mirage_nb.search.session import session as module
from mirage_nb.search.session.progress import State
from mirage_nb.search.session.session import SearchSession
from mirage_nb.targets import find_target
from tests.sessions import LONG, facts, until

distributed = pytest.importorskip("distributed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

TEXT = "X: f16[4, 64]\nE = exp(X)\nreturn E / sum(E, axis=-1, keepdims=True)"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = str(tmp_path_factory.mktemp("dask"))
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "local_directory": folder}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as found:
        yield found


def search(text: str, **options: Any) -> SearchSession:
    return SearchSession(parse(text).graph, find_target("h200"), **options)


def test_a_cluster_finds_what_one_process_finds_and_configurations_spread(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEAD_START_SECONDS", -1.0)
    expected = search(TEXT).start().result(300)
    executor = client.get_executor(pure=False)
    found = search(TEXT, executor=executor).start().result(300)
    assert facts(found) == facts(expected)
    assert found.configurations_done == found.configurations_total
    begun = client.run(explored).values()
    assert sum(begun) == found.configurations_total and min(begun) >= 2


def explored(dask_worker: Any) -> int:
    """Configurations that a worker of the cluster explored."""
    return len({event[0] for event in dask_worker.state.log if str(event[0]).startswith("explore")})


def test_stop_reaches_the_cluster(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_START_SECONDS", -1.0)
    session = search(LONG, executor=client.get_executor(pure=False)).start()
    assert until(lambda: session.snapshot().verified)
    session.stop()
    assert session.wait(10) and session.snapshot().state is State.STOPPED
    assert until(lambda: not any(client.processing().values()))
    assert client.submit(divmod, 7, 2).result() == (3, 1)  # the cluster stays the caller's
