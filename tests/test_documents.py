"""What README and CONTRIBUTING say is there: paths, make targets, programs."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirage_nb import superoptimize
from mirage_nb.ir.text import print_graph
from mirage_nb.lang import parse
from mirage_nb.runtime.passes import Passes

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ("README.md", "CONTRIBUTING.md")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def missing_paths(text: str, root: Path) -> list[str]:
    """Names in backquotes or links that look like paths and do not exist."""
    quoted = re.findall(r"`([\w.-]+(?:/[\w.-]+)*/?)`|\]\(([\w./-]+)\)", text)
    named = [first or second for first, second in quoted]
    known_suffix = re.compile(r"\.(py|md|ipynb|yml|toml|cuh)$")
    found = [name for name in named if ("/" in name or known_suffix.search(name)) and not name.startswith("device/")]
    places = (root, root / "mirage_nb", root / "mirage_nb/algebra")
    return [name for name in found if not any((place / name).exists() for place in places)]


def unknown_targets(text: str, makefile: str) -> list[str]:
    """`make X` where the Makefile has no target X."""
    targets = set(re.findall(r"^([\w-]+):", makefile, flags=re.MULTILINE))
    return [name for name in re.findall(r"(?:`|^)make ([\w-]+)", text, flags=re.MULTILINE) if name not in targets]


def cells(text: str) -> Iterator[str]:
    for block in re.findall(r"^```\w*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        if re.match(r"%%mirage \w+( --.*)?\n", block):
            yield block.split("\n", 1)[1]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_paths_exist(name: str) -> None:
    assert missing_paths(read(name), ROOT) == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_make_targets_exist(name: str) -> None:
    assert unknown_targets(read(name), read("Makefile")) == []


def test_cells_are_programs() -> None:
    programs = [parse(cell) for cell in cells(read("README.md"))]
    assert programs and all(program.graph.outputs for program in programs)


def test_the_printed_muGraph_is_the_one_that_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """README's first cell, and what it shows of the best muGraph: line by line, `...` apart."""
    monkeypatch.setattr(Passes, "run", lambda self: None)
    text = read("README.md")
    session = superoptimize(next(cells(text)), effort="quick", target="h200", name="fused")
    best = session.result(120).candidates[0]
    found = [line.strip() for line in print_graph(best.graph).splitlines()]
    (block,) = re.findall(r"^```\n(%\d+ = Graph.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    printed = [line.strip() for line in block.splitlines() if line.strip() != "..."]
    assert printed == [line for line in found if line in printed] and len(printed) > 8
    assert session.estimate_of(best) == session.estimate_of(best.digest[:8])
    assert "fused.estimate_of(fused.best.candidate)" in text


def test_what_is_not_there_is_noticed() -> None:
    text = "`mirage_nb/ir/ops.py` `ir/ops.py` `mirage_nb/ir/opz.py` [x](notebooks/none.ipynb) `nothing.md` `a/b`"
    assert missing_paths(text, ROOT) == ["mirage_nb/ir/opz.py", "notebooks/none.ipynb", "nothing.md", "a/b"]
    assert unknown_targets("make all\n`make test`", "test: x\n") == ["all"]


def test_notebooks_are_saved_for_readers_who_trust_nobody() -> None:
    """JupyterLab takes style, SVG and scripts out of notebooks that were not trusted, and has no model for a saved
    live view; `notebooks/save.py` saves tables and PNG instead."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for output in cell.get("outputs", []):
                html = "".join(output.get("data", {}).get("text/html", ""))
                assert not re.search(r"<(svg|style|script)\b", html), f"{path.name}: run notebooks/save.py"
                assert "application/vnd.jupyter.widget-view+json" not in output.get("data", {}), path.name


def test_what_is_saved_of_an_output() -> None:
    spec = importlib.util.spec_from_file_location("save", ROOT / "notebooks" / "save.py")
    assert spec is not None and spec.loader is not None
    save = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(save)
    table = {"text/html": "<style>a</style><table></table><svg><text>1</text></svg>", "text/plain": "t"}
    output = {"output_type": "display_data", "metadata": {}}

    def saved(**data: str) -> list[dict[str, str]]:
        return [one["data"] for one in save.safe({**output, "data": data})]

    clean = {"text/html": "<table></table>", "text/plain": "t"}
    assert saved(**table) == [clean]
    assert saved(**table, **{"image/png": "p"}) == [clean, {"text/plain": "t", "image/png": "p"}]
    picture = {"text/html": "<svg></svg>", "image/png": "p", "text/plain": "t"}
    assert saved(**picture) == [{"image/png": "p", "text/plain": "t"}]
    assert saved(**{save.WIDGET: "m", "text/plain": "t"}) == []
    assert save.safe({"output_type": "stream", "text": "x"}) == [{"output_type": "stream", "text": "x"}]
