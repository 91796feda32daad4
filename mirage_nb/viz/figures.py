"""matplotlib figures in the colours of the page: `ThemedFigure`, and `themed(figure)` for one that another room made.

In: figures in matplotlib's own colours, dark ink on white. Out: for notebooks an inline SVG whose ink, grid and ground
are CSS variables, as in all our pictures, so that it follows the page's theme also when that changes; and a PNG on
white. Invariant: `savefig` knows nothing of this; what is saved for a paper stays on white. Colours of data stay as
they are, chosen for both grounds.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
from html import escape
from typing import Any

from matplotlib import rc_context
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from mirage_nb.viz.svg import STYLE

WHITE = "#ffffff"
DOTS_PER_INCH = 100
VARIABLES = {"#000000": "var(--mir-fg)", "#1f2328": "var(--mir-fg)", WHITE: "none", "#dddddd": "var(--mir-line)"}
"""Colours that are not data, and what the page says instead."""


class ThemedFigure(Figure):
    """A figure that notebooks show in the colours of their page."""

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """HTML for pages, a PNG for everybody else."""
        png = _png(self)
        picture = inline_svg(self)
        words = escape(summary(self), quote=True)
        shown = f"{picture}<img class='mir-instead' src='data:image/png;base64,{png}' alt='{words}'>"
        return {"image/png": png, "text/plain": repr(self)} | (
            {"text/html": f"<style>{STYLE}</style><div class='mir mir-plot'>{shown}</div>"} if picture else {}
        )


def themed(figure: Figure) -> Figure:
    """The same figure, which notebooks show in the colours of their page from now on.

    Also a hook for pyplot: `plt.rcParams["figure.hooks"] = ["mirage_nb.viz.figures:themed"]`.
    """
    figure.__class__ = ThemedFigure
    return figure


def inline_svg(figure: Figure) -> str:
    """A figure as an SVG element to stand in a page, all that is drawn in view; empty if its ground is not white."""
    if to_hex(figure.get_facecolor()) != WHITE:
        return ""
    written, nothing = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with rc_context({"svg.hashsalt": "mirage_nb", "svg.fonttype": "path"}):
        figure.savefig(written, format="svg", bbox_inches="tight", metadata=nothing)
    text = written.getvalue()
    width, height = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)[0]
    body = text[text.index(">", text.index("<svg")) + 1 :]
    body = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r"-?\d+\.\d+", _rounded, body)
    body = re.sub(r"\s+", " ", body)
    name = hashlib.sha256(body.encode()).hexdigest()[:8]
    for reference in ('id="', 'href="#', "url(#"):  # several figures stand on one page
        body = body.replace(reference, f"{reference}{name}-")
    body = "".join(map(_recoloured, re.split(r"(<pattern.*?</pattern>)", body)))
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' xmlns:xlink='http://www.w3.org/1999/xlink' "
        f"width='{width}pt' viewBox='0 0 {width} {height}' role='img' "
        f"aria-label='{escape(summary(figure), quote=True)}' style='max-width:100%;height:auto;fill:var(--mir-fg);"
        f"stroke-linejoin:round;stroke-linecap:butt'>{body}"
    )


def _rounded(number: re.Match[str]) -> str:
    """Hundredths of a point are enough; factors such as the size of a font need more."""
    value = float(number[0])
    return f"{value:.{2 if abs(value) >= 1 else 4}f}".rstrip("0").rstrip(".")


def _recoloured(part: str) -> str:
    """Black hatches stay: bars are as bright on any ground."""
    for colour, variable in VARIABLES.items():
        if not (colour == "#000000" and part.startswith("<pattern")):
            part = part.replace(colour, variable)
    return part


def summary(figure: Figure) -> str:
    """What a figure shows, in words: its title, and what its axes are."""
    title = figure.get_suptitle()
    parts = [f"{axes.get_ylabel()} against {axes.get_xlabel()}" for axes in figure.axes if axes.get_xlabel()]
    parts += [axes.get_ylabel() for axes in figure.axes if not axes.get_xlabel() and axes.get_ylabel()]
    parts += [axes.get_title() for axes in figure.axes if axes.get_title()]
    words = [" ".join(part.split()) for part in (title, *parts) if part]
    return "figure: " + "; ".join(dict.fromkeys(words)) if words else "figure"


def _png(figure: Figure) -> str:
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=DOTS_PER_INCH, bbox_inches="tight")
    return base64.b64encode(written.getvalue()).decode("ascii")
