"""The pages: links lead somewhere, public names are documented, cells are Python, the build warns of nothing."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mirage_nb
from mirage_nb.lang import parse

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(path for path in (ROOT / "docs").glob("*.md") if path.name != "gallery.md")
MADE = {"gallery.md"}
"""By the build."""


def cells(text: str) -> list[str]:
    """The code that the build runs."""
    found = re.findall(r"^```\{code-cell\}[^\n]*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return [re.sub(r"\A(?::[^\n]*\n)+\n?", "", cell) for cell in found]


def broken(page: Path, text: str) -> list[str]:
    """Links and entries of tables of contents that lead nowhere."""
    prose = re.sub(r"^```(?!\{toctree\}).*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", prose) if "://" not in link]
    for table in re.findall(r"^```\{toctree\}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        links += [f"{name}.md" for name in table.split("\n") if name and not name.startswith(":")]
    links += re.findall(r"^```\{include\} (\S+)", text, flags=re.MULTILINE)
    places = (page.parent, ROOT)  # the build copies the notebooks beside the pages
    return [link for link in links if link not in MADE and not any((place / link).exists() for place in places)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page, page.read_text(encoding="utf-8")) == []


def test_a_link_that_leads_nowhere_is_found() -> None:
    text = "[a](gone.md) [b](https://x.org) [c](index.md#top)\n```{toctree}\n:maxdepth: 1\n\nindex\nmissing\n```\n"
    assert broken(ROOT / "docs" / "index.md", text) == ["gone.md", "missing.md"]


def test_every_page_is_in_the_table_of_contents() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = index.split("{toctree}")[1].split()
    assert {page.stem for page in PAGES} - {"index"} <= set(listed)


def test_every_public_name_is_documented() -> None:
    api = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"auto(?:function|class|module):: (\S+)", api)
    for name in named:
        module, _, last = name.rpartition(".")
        owner = importlib.import_module(module or name)
        assert hasattr(owner, last) or importlib.import_module(name), name
    data = {"TARGETS", "MirageError", "VerdictKind"}  # MirageError stands in `mirage_nb.errors`
    assert {f"mirage_nb.{name}" for name in set(mirage_nb.__all__) - data} <= set(named)


def test_methods_that_a_class_has_from_another_are_documented() -> None:
    api = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name, options in re.findall(r"autoclass:: (\S+)\n((?:   :.*\n)*)", api):
        module, _, last = name.rpartition(".")
        of = getattr(importlib.import_module(module), last)
        given = {key for base in of.__mro__[1:] if base.__module__.startswith("mirage_nb") for key in vars(base)}
        inherited = {key for key in given - set(vars(of)) if not key.startswith("_")}
        assert not inherited or ":inherited-members:" in options or ": of" in options, (name, inherited)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_cells_are_python_or_programs(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for cell in cells(text):
        wrong = ":tags: [raises-exception]" in text and cell.startswith("%%mirage wrong")
        if cell.startswith("%%mirage") and not wrong:
            assert parse(cell.partition("\n")[2]).graph.outputs
        elif not wrong:
            ast.parse("\n".join(line for line in cell.splitlines() if not line.startswith(("%", "!"))))


@pytest.mark.slow
def test_the_build_warns_of_nothing(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_nb")
    command = [sys.executable, "-m", "sphinx", "-W", "-b", "html", str(ROOT / "docs"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    pages = [page.read_text(encoding="utf-8") for page in tmp_path.glob("*.html")]
    assert pages and not any(re.search(r"<(?:script|link)[^>]*(?:src|href)=.https?:", page) for page in pages)
    assert not any("No module named" in page or "View of" in page for page in pages), "as for readers"
