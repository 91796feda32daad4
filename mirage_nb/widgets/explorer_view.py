"""A muGraph to walk through in a notebook: `ExplorerView(graph)` is the explorer as a widget.

In: a muGraph, a target, emission options. Out: an ipywidget that shows `mirage_nb.viz.explorer`; it talks to no
kernel once it is on the page, so it works while cells run. A static form stands beside it for pages without one.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

import anywidget
import traitlets
from IPython.display import display

from mirage_nb.ir import KernelGraph
from mirage_nb.ir.text import print_graph
from mirage_nb.optimize import Options
from mirage_nb.targets import DEFAULT_TARGET, Target, find_target
from mirage_nb.viz import explorer, html
from mirage_nb.viz.mugraph import mugraph_svg
from mirage_nb.viz.raster import with_png
from mirage_nb.viz.svg import STYLE

_display: Any = display  # IPython gives it no types

STATIC_ONLY = (
    "<style>:is(.jp-OutputArea,.output,.cell_container):has(.mir-live) .mir-static{display:none}"
    ":is(.jp-OutputArea,.output,.cell_container):has(.mir-static) .jupyter-widgets:not(:has(*)){display:none}</style>"
)
"""A static form stands beside the live one and hides while there is one: a page without a kernel shows it, and not
what ipywidgets says of a model that is gone.

The outputs of one cell share an element, which JupyterLab, the classic notebook and VS Code name differently."""


def still_html(body: str) -> str:
    """A static form that hides beside its live form."""
    return f"{STATIC_ONLY}<div class='mir-static'>{body}</div>"


class ExplorerView(anywidget.AnyWidget):
    """The explorer of one muGraph.

    Args:
        graph: the muGraph, or a tensor program, which has only a picture.
        target: the GPU to plan and emit for; default: the H200.
        options: how to emit; default: the target's.
    """

    _esm = explorer.SCRIPT + resources.files("mirage_nb.widgets").joinpath("explorer_view.js").read_text("utf-8")
    _css = STYLE + explorer.CSS

    content = traitlets.Unicode("").tag(sync=True)

    def __init__(self, graph: KernelGraph, target: Target | None = None, options: Options | None = None) -> None:
        super().__init__()
        self._graph = graph
        self.content = explorer.explorer_html(graph, target or find_target(DEFAULT_TARGET), options)

    def __repr__(self) -> str:
        return f"<ExplorerView of µGraph {self._graph.digest()[:8]}>"

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The live form, the picture with all its panels, and the text."""
        live, metadata = super()._repr_mimebundle_() or ({}, {})
        return {**live, **self.still()}, metadata

    def still(self) -> dict[str, str]:
        """The forms without a kernel."""
        drawn = with_png(html.styled(self.content), mugraph_svg(self._graph))
        return {"text/plain": print_graph(self._graph), "text/html": still_html(drawn)}

    def show(self) -> ExplorerView:
        """Display the live form and, in an output of its own, the static one."""
        live, _ = super()._repr_mimebundle_() or ({}, {})
        _display({**live, "text/plain": repr(self)}, raw=True)
        _display(self.still(), raw=True)
        return self

    def close(self) -> None:
        """Take the view off the page."""
        layout = self.layout if self.comm is not None else None
        super().close()
        if layout is not None:
            layout.close()  # a widget of its own, which nobody else would close
