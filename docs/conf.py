"""Builds the pages: `make docs`, which is `sphinx-build -W docs docs/_build`.

In: the pages of this folder, the notebooks beside it, the docstrings of the package. Out: HTML that reaches nothing
outside. Pages with `{code-cell}` and the notebooks are run by the build, so every figure and number of a run is of this
build; what was run stays in `docs/_build/.jupyter_cache` and runs again when it changes. Notebooks are copied here
first, and the gallery is made of their first pictures.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from docutils import nodes

import mirage_nb

HERE = Path(__file__).parent
NOTEBOOKS = HERE / "notebooks"

# Commands of pages find the interpreter that builds them.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

project = "mirage_nb"
author = "the authors of mirage_nb"
version = release = mirage_nb.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = "mirage_nb"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["pages.css"]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
suppress_warnings = ["mystnb.unknown_mime_type", "myst.header"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_timeout = 900
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_ipywidgets_js = {}  # would be fetched from elsewhere, and has no kernel to talk to
# A page has no kernel: the static form of a view instead of the live one.
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", None)]

LIVE = re.compile(r"<(Session|Explorer)View of [^>]*>")
"""What stands for a live view where there is none: its static form stands below."""

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False


def copied() -> list[Path]:
    """The notebooks, in this folder."""
    NOTEBOOKS.mkdir(exist_ok=True)
    for old in NOTEBOOKS.glob("*.ipynb"):
        old.unlink()
    return [Path(shutil.copy(path, NOTEBOOKS)) for path in sorted((HERE.parent / "notebooks").glob("*.ipynb"))]


def gallery(paths: list[Path]) -> str:
    """A page with a card for every notebook: its first picture, its title, its first sentence."""
    cards = []
    for path in paths:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        title, _, rest = "".join(cells[0]["source"]).partition("\n")
        outputs = (output.get("data", {}) for cell in cells for output in cell.get("outputs", ()))
        drawn = next((data["image/png"] for data in outputs if "image/png" in data), None)
        picture = ""
        if drawn is not None:
            (NOTEBOOKS / f"{path.stem}.png").write_bytes(base64.b64decode("".join(drawn)))
            picture = f"```{{image}} notebooks/{path.stem}.png\n:alt: from the notebook\n```\n"
        words = " ".join(rest.split())
        said = words.partition(". ")[0].rstrip(".") + "."
        cards.append(
            f":::{{container}} card\n{picture}**[{title.lstrip('# ')}](notebooks/{path.name})**\n\n{said}\n:::\n"
        )
    names = "\n".join(f"notebooks/{path.name}" for path in paths)
    listed = f"```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    return (
        f"# Gallery\n\nThe notebooks, run by this build.\n\n{listed}\n::::{{container}} cards\n{''.join(cards)}::::\n"
    )


(HERE / "gallery.md").write_text(gallery(copied()), encoding="utf-8")


def without_live_views(app: Any, doctree: Any) -> None:
    """Leave out the lines that stand for live views."""
    for block in list(doctree.findall(nodes.literal_block)):
        if LIVE.fullmatch(block.astext().strip()):
            block.parent.remove(block)


def setup(app: Any) -> None:
    """What Sphinx calls."""
    app.connect("doctree-read", without_live_views)
