"""Pictures of muGraphs, of searches and of timings as SVG, HTML and matplotlib figures; no IPython in here.

In: frozen data of the house (`KernelGraph`, `Snapshot`, `Prefix`), or a session to export. Out: strings, or matplotlib
figures from `mirage_nb.viz.plots`, which is imported on its own because matplotlib is an optional extra.
"""

from mirage_nb.viz.compare import compare_html, compare_text
from mirage_nb.viz.explorer import explorer_html, explorer_page
from mirage_nb.viz.export import session_page
from mirage_nb.viz.html import page, snapshot_html
from mirage_nb.viz.mugraph import mugraph_svg
from mirage_nb.viz.prefix import prefix_svg
from mirage_nb.viz.search import counts_svg
from mirage_nb.viz.text import snapshot_text

__all__ = [
    "compare_html", "compare_text", "counts_svg", "explorer_html", "explorer_page", "mugraph_svg", "page",
    "prefix_svg", "session_page", "snapshot_html", "snapshot_text",
]  # fmt: skip
