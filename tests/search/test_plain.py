"""Results as JSON: what is read is what was written, and nothing else is ever read."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.errors import FormatError
from mirage_nb.lang import parse
from mirage_nb.search import EFFORTS, configurations, prepare
from mirage_nb.search.session.findings import Bounds, Explored
from mirage_nb.search.session.plain import Memo, read, write
from mirage_nb.search.session.worker import Channel, Task, explore
from mirage_nb.targets import find_target
from mirage_nb.verify.verdict import Verdict, VerdictKind, Witness


@cache
def explored() -> Explored:
    """A real result, cut down to a few of everything."""
    graph = parse("X: f16[4, 64]\nW: f16[64, 96]\nreturn rms_norm(X) @ W").graph
    configuration = configurations(prepare(graph), EFFORTS["quick"])[-1]
    bounds = Bounds("quick", EFFORTS["quick"].budget)
    found = explore(Task(0, graph, configuration, bounds, find_target("h200"), 0, None, Channel(Path("/nowhere"))))
    first, second, *_ = found.findings.candidates
    verdict = replace(second.verdict, log2_bound=-math.inf)
    odd = replace(second, time_us=math.inf, error=1e-300, note='"\u00b5\n', verdict=verdict)
    findings = replace(found.findings, candidates=(first, odd))
    return replace(found, findings=findings, prefixes=found.prefixes[:3], reached=frozenset({"seconds", "max_values"}))


def test_what_is_written_is_read() -> None:
    assert explored().findings.candidates and explored().prefixes and explored().findings.counts
    assert read(Explored, write(explored())) == explored()
    witness = Witness(3, 1, (0, 7), "1", "2")
    verdict = Verdict(VerdictKind.REFUTED, primes=((7, 3),), sizes={"X": (2, 3)}, witness=witness)
    assert read(Verdict, write(verdict)) == verdict


def test_graphs_stand_once_and_are_read_once() -> None:
    memo: Memo = {}
    text = write(explored())
    found = read(Explored, text, memo)
    assert len(memo) == len(json.loads(text)["graphs"]) < 3 * len(found.findings.candidates)
    again = read(Explored, text, memo)
    assert again.findings.candidates[0].graph is found.findings.candidates[0].graph


def places(plain: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in nested lists and objects."""
    inner = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    return [path, *(deeper for key, item in inner for deeper in places(item, (*path, key)))]


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just({}),
    st.just(10**400), st.just([[1, 2], [3]]), st.just({"graph": -1}), st.just("9" * 5000),
)  # fmt: skip


@given(st.data())
def test_a_changed_text_is_read_or_refused(data: st.DataObject) -> None:
    plain = json.loads(write(explored()))
    path = data.draw(st.sampled_from(places(plain)))
    junk = data.draw(JUNK)
    if path:
        inner = plain
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = junk
    else:
        plain = junk
    try:
        found = read(Explored, json.dumps(plain))
    except FormatError as error:
        assert len(str(error)) < 2000
    else:
        assert isinstance(found, Explored) and isinstance(found.findings.verified, int)
        assert read(Explored, write(found)) == found or "nan" in write(found)


@pytest.mark.parametrize(
    "text",
    ["", "null", "[" * 100_000, '{"a": ' * 50_000, '{"schema": "mirage_nb"}', "1" * 10_000, "\x00",
     '{"schema":"mirage_nb","version":2,"graphs":[],"value":{}}',
     '{"schema":"mirage_nb","version":1,"graphs":{},"value":{}}'],
)  # fmt: skip
def test_foreign_texts_are_refused(text: str) -> None:
    with pytest.raises(FormatError):
        read(Explored, text)


def test_a_missing_or_unknown_field_is_named() -> None:
    plain = json.loads(write(explored()))
    del plain["value"]["cut"]
    with pytest.raises(FormatError, match="needs 'cut'"):
        read(Explored, json.dumps(plain))
    plain = json.loads(write(explored()))
    plain["value"]["findings"]["candidates"][0]["__class__"] = "os.system"
    with pytest.raises(FormatError, match="has no __class__"):
        read(Explored, json.dumps(plain))
