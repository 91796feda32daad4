"""Pictures of muGraphs, of searches and of timings as SVG, HTML and matplotlib figures; no IPython in here.

In: frozen data of the house (`KernelGraph`, `Snapshot`, `Prefix`). Out: strings, or matplotlib figures from
`mirage_nb.viz.plots`, which is imported on its own because matplotlib is an optional extra.
"""

from mirage_nb.viz.html import page, snapshot_html
from mirage_nb.viz.mugraph import mugraph_svg
from mirage_nb.viz.prefix import prefix_svg
from mirage_nb.viz.search import counts_svg
from mirage_nb.viz.text import snapshot_text

__all__ = ["counts_svg", "mugraph_svg", "page", "prefix_svg", "snapshot_html", "snapshot_text"]
