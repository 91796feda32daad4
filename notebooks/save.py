"""Run the notebooks and save them as a fresh clone shows them best: `python notebooks/save.py [NAME...]`.

In: the notebooks of this folder. Out: the same with the outputs of a run. A reader whose Jupyter has not trusted a
notebook loses scripts, styles and SVG, and a live view without its kernel is an error message. So what is saved has
PNG pictures and plain tables only; running a cell brings the rest.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mirage_nb.viz.raster import png_bundle

FOLDER = Path(__file__).parent
WIDGET = "application/vnd.jupyter.widget-view+json"
PICTURE = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
UNSAFE = re.compile(r"<(style|svg|script|figure)\b(?:(?!<\1\b).)*?</\1>|<img class='mir-instead'[^>]*>", re.DOTALL)


def safe(output: dict[str, Any]) -> list[dict[str, Any]]:
    """The outputs to save in place of one."""
    data = output.get("data")
    if data is None:
        return [output]
    if WIDGET in data:
        return []
    kept = {kind: value for kind, value in data.items() if kind != "text/html"}
    shown = "".join(data.get("text/html", ""))
    html, before = shown, ""
    while html != before:  # from the inside out
        html, before = UNSAFE.sub("", html), html
    if "<table" not in html and "image/png" not in kept and (drawn := PICTURE.search(shown)) is not None:
        kept |= png_bundle(drawn[0])
    if "<table" not in html and "image/png" in kept:
        return [{**output, "data": kept}]
    if not html and "image/png" not in kept:
        return [output]
    table = {**output, "data": {"text/html": html, "text/plain": data.get("text/plain", "")}}
    return [table, {**output, "data": kept}] if "image/png" in kept else [table]


def save(path: Path) -> None:
    """Run one notebook and write it."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(FOLDER)}}
    NotebookClient(notebook, timeout=600, store_widget_state=False, resources=where).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [nbformat.from_dict(one) for output in cell.outputs for one in safe(output)]
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.name for path in FOLDER.glob("*.ipynb")):
        save(FOLDER / name)
