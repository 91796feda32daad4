"""Prepared calls as CUDA graphs: when a graph is launched, and when the kernels themselves."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mirage_nb.runtime.kernel import driver as kernel_driver
from mirage_nb.runtime.kernel.driver import replayed

STREAM = 2**40 + 8


class Driver:
    """Notes what is launched; says what streams are being captured, and how launches of graphs end."""

    def __init__(self) -> None:
        self.did: list[tuple[str, int]] = []
        self.captured: set[int] = set()
        self.refuses = False
        self.records = True

    def function(self, name: str) -> Callable[..., int]:
        def launch(graph: Any, stream: Any) -> int:
            assert graph.value == 77
            if self.refuses:
                return 400
            self.did.append(("graph", stream.value))
            return 0

        return {"cuGraphLaunch": launch}[name]

    def enqueue(self, stream: int) -> None:
        self.did.append(("kernels", stream))

    def recorded(self, enqueue: Any, device: int) -> Any:
        self.did.append(("recorded", device))
        return SimpleNamespace(graphExec=77) if self.records else False


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    monkeypatch.setattr(kernel_driver, "driver_function", found.function)
    monkeypatch.setattr(kernel_driver, "_recorded", found.recorded)
    monkeypatch.setattr(kernel_driver, "is_captured", lambda stream: stream in found.captured)
    return found


def run(driver: Driver, *streams: int) -> list[tuple[str, int]]:
    call = replayed(driver.enqueue, 3)
    for stream in streams:
        call(stream)
    return driver.did


def test_from_the_second_call_on_it_is_one_graph(driver: Driver) -> None:
    assert run(driver, STREAM, STREAM, 16) == [("kernels", STREAM), ("recorded", 3), ("graph", STREAM), ("graph", 16)]


def test_a_stream_that_is_being_captured_gets_the_kernels(driver: Driver) -> None:
    driver.captured = {24}
    did = run(driver, 24, 24, STREAM, 24)
    assert did == [("kernels", 24), ("kernels", 24), ("recorded", 3), ("graph", STREAM), ("kernels", 24)]


def test_what_cuda_does_not_take_is_launched_one_by_one(driver: Driver) -> None:
    driver.records = False
    assert run(driver, STREAM, STREAM, STREAM).count(("kernels", STREAM)) == 3
    assert driver.did.count(("recorded", 3)) == 1, "it is tried once"
    driver.did.clear()
    driver.records, driver.refuses = True, True
    assert run(driver, STREAM, STREAM).count(("kernels", STREAM)) == 2
