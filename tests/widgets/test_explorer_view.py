"""The explorer as a widget: live and static forms say the same, nothing stays when it is closed."""

from __future__ import annotations

import pytest

pytest.importorskip("anywidget")

import comm

from mirage_nb.ir.text import parse_graph
from mirage_nb.targets import find_target
from mirage_nb.viz.explorer import explorer_html
from mirage_nb.widgets import ExplorerView
from tests.viz.mugraph_samples import rmsnorm_fused, rmsnorm_program


def test_the_bundle_has_a_live_a_static_and_a_text_form() -> None:
    graph = rmsnorm_fused()
    data, _ = ExplorerView(graph)._repr_mimebundle_()
    assert set(data) == {"application/vnd.jupyter.widget-view+json", "text/html", "text/plain"}
    assert parse_graph(data["text/plain"]) == graph
    assert explorer_html(graph, find_target("h200")) in data["text/html"]
    assert "mir-static" in data["text/html"] and "<script" not in data["text/html"]


def test_a_program_has_a_picture_only() -> None:
    content = ExplorerView(rmsnorm_program(), find_target("a100")).content
    assert "<svg" in content and "mir-tiles" not in content


def test_it_says_its_name_without_an_address() -> None:
    view = ExplorerView(rmsnorm_fused())
    assert repr(view) == f"<ExplorerView of µGraph {rmsnorm_fused().digest()[:8]}>"


def test_closing_leaves_no_comm() -> None:
    before = set(comm.get_comm_manager().comms)
    view = ExplorerView(rmsnorm_fused())
    assert set(comm.get_comm_manager().comms) > before
    view.close()
    view.close()
    assert set(comm.get_comm_manager().comms) == before
