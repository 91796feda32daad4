"""A JupyterLab server in a folder of its own, and Debian's or the system's Chromium to look at it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
START_SECONDS = 240
PAGE_MS = 90_000
HEIGHT = 1100
EMPTY = "about:blank"

SETUP = """\
import mirage_nb
from tests.browser.fake_session import FakeSession, begin
begin(get_ipython())
mirage_nb.superoptimize = lambda program, **options: FakeSession({seconds}, options["name"])
"""
CELL = """\
%%mirage fused
X: f16[16, 1024]
W: f16[1024, 4096]
return rms_norm(X) @ W
"""


OPEN = "document.querySelectorAll('.mir-live .mir-fold, .mir-live .mir-panel').forEach((n) => { n.open = true; })"
"""Opens every closed section of the live view."""


CLIPPED = """() => [...document.querySelectorAll('.mir-live .mir-section-candidates .mir-scroll')]
    .filter((n) => n.scrollWidth > n.clientWidth + 1).length"""
"""How many tables of results are wider than their column."""


CURRENT = """(() => {
  const { shell, commands } = window.jupyterapp;
  if (commands.isEnabled('notebook:run-cell')) return true;
  document.activeElement?.blur();
  shell.activateById([...shell.widgets('main')][0].id);
  return false;
})()"""
"""Whether commands are for the open notebook, which is made so: what was closed a moment before, or a change of the
theme, may take that away from what was opened since, and what is then executed does nothing."""
READY = f"{CURRENT} && document.querySelector('#jp-main-statusbar').innerText.includes('| Idle')"
RUN = f"{CURRENT} && (void window.jupyterapp.commands.execute('notebook:run-cell'), true)"
POLL_MS = 100
OPENED = "[...window.jupyterapp.shell.widgets('main')][0]"
ANSWERED = f"""![...{OPENED}?.context.sessionContext.session?.kernel?._futures.values() ?? []]
    .some((future) => future.msg.header.msg_type === 'create_subshell_request')"""
"""Whether the kernel has made what widgets talk through; to close the notebook before is an error in the console."""


class Server:
    """A running JupyterLab: its folder and its address."""

    def __init__(self, home: Path) -> None:
        self.home = home
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        names = home / "names"
        names.mkdir()
        (names / "mirage_magics").symlink_to(ROOT / "magics")
        config = {name: str(home / name) for name in ("config", "data", "runtime", "ipython")}
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(names)]),
            "HOME": str(home),
            "JUPYTER_CONFIG_DIR": config["config"],
            "JUPYTER_DATA_DIR": config["data"],
            "JUPYTER_RUNTIME_DIR": config["runtime"],
            "IPYTHONDIR": config["ipython"],
            "MIRAGE_NB_HOME": str(home / "store"),
        }
        options = ("--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={self.port}")
        private = (
            "--LabApp.expose_app_in_browser=True",
            "--IdentityProvider.token=",
            f"--ServerApp.root_dir={home}",
            "--ServerApp.port_retries=0",
        )
        self.log = (home / "server.log").open("wb")
        self.running = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options, *private],
            env=environment,
            cwd=home,
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        self.setting("notification", {"fetchNews": "false", "checkForUpdates": False})
        self.setting("plugin", {"autosave": False}, "docmanager-extension")
        self._without("launcher-extension", "debugger-extension")

    def _without(self, *extensions: str) -> None:
        """Leave out extensions of JupyterLab: a launcher comes a moment after the last notebook was closed, and hides
        one that was opened meanwhile; a debugger complains of kernels that end while it asks them."""
        folder = self.home / "config" / "labconfig"
        folder.mkdir(parents=True)
        left_out = {f"@jupyterlab/{name}": True for name in extensions}
        (folder / "page_config.json").write_text(json.dumps({"disabledExtensions": left_out}))

    def setting(self, name: str, values: dict[str, Any], extension: str = "apputils-extension") -> None:
        """Write a user setting of one of JupyterLab's own extensions."""
        folder = self.home / "config" / "lab" / "user-settings" / "@jupyterlab" / extension
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.jupyterlab-settings").write_text(json.dumps(values))

    def notebook(self, name: str, *cells: str) -> str:
        """Write a notebook; returns its address."""
        content = {
            "cells": [
                {"cell_type": "code", "id": f"c{n}", "metadata": {}, "source": source, "outputs": [],
                 "execution_count": None}
                for n, source in enumerate(cells)
            ],
            "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
            "nbformat": 4,
            "nbformat_minor": 5,
        }  # fmt: skip
        (self.home / f"{name}.ipynb").write_text(json.dumps(content))
        return f"http://127.0.0.1:{self.port}/doc/tree/{name}.ipynb"

    def wait(self) -> None:
        """Until it answers."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api", timeout=2).close()
                return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                if self.running.poll() is not None:
                    break
                time.sleep(0.2)
        pytest.fail(f"JupyterLab did not start: {(self.home / 'server.log').read_text()[-2000:]}")

    def close(self) -> None:
        """End the server and its kernels."""
        self.running.terminate()
        try:
            self.running.wait(20)
        except subprocess.TimeoutExpired:
            self.running.kill()
        self.log.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("jupyterlab")
    running = Server(tmp_path_factory.mktemp("lab"))
    try:
        running.wait()
        yield running
    finally:
        running.close()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on the PATH")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def left(chromium: Any) -> list[tuple[Any, list[str]]]:
    """Pages that tests have left, and what is complained of in them: to make one takes longer than to look at most."""
    return []


@pytest.fixture
def new_page(chromium: Any, left: list[tuple[Any, list[str]]]) -> Iterator[Callable[..., Any]]:
    """`new_page(width, dark)`: an empty page; errors of its console fail the test."""
    taken: list[tuple[Any, list[str]]] = []

    def make(width: int = 1280, dark: bool = False) -> Any:
        if left:
            page, complaints = left.pop()
        else:
            page, complaints = chromium.new_context().new_page(), []
            listen(page, complaints)
        taken.append((page, complaints))
        page.set_default_timeout(PAGE_MS)
        page.set_viewport_size({"width": width, "height": HEIGHT})
        page.emulate_media(color_scheme="dark" if dark else "light")
        return page

    yield make
    said = [text for _, complaints in taken for text in complaints]
    for page, complaints in taken:
        if page.is_closed() or page.url != EMPTY or said:  # what has an address may have kept something under it
            page.context.close()
        else:
            page.mouse.move(0, 0)
            page.goto(EMPTY)
            complaints.clear()
            left.append((page, complaints))
    assert said == []


def listen(page: Any, complaints: list[str]) -> None:
    """Errors of the page's console, and of its scripts, from now on."""
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))


class Notebook:
    """A notebook open in the page."""

    def __init__(self, page: Any) -> None:
        self.page = page
        page.wait_for_selector(".jp-Notebook .jp-Cell")
        page.wait_for_function(READY, polling=POLL_MS)

    def run(self, number: int, wait: bool = True, seconds: float = PAGE_MS / 1000) -> None:
        """Run cell `number`, counted from 0, and wait for its end, at most so many seconds."""
        cell = self.page.locator(".jp-Notebook .jp-CodeCell").nth(number)
        cell.locator(".jp-InputPrompt").click()
        self.page.wait_for_function(RUN, polling=POLL_MS)
        if wait:
            self.page.wait_for_function(
                "n => /\\d/.test(document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')[n].innerText)",
                arg=number,
                timeout=1000 * seconds,
            )

    def save(self) -> None:
        """Save it, and wait for the end: two at once are a conflict, which JupyterLab asks about."""
        self.page.evaluate(f"""() => {{
          window.saved = false;
          void {OPENED}.context.save().then(() => {{ window.saved = true; }});
        }}""")
        self.page.wait_for_function("window.saved")

    def output(self, number: int) -> str:
        """The text that cell `number` shows."""
        cell = self.page.locator(".jp-Notebook .jp-CodeCell").nth(number)
        return str(cell.locator(".jp-OutputArea-output").first.inner_text())


class Lab:
    """One page of JupyterLab and one kernel for all tests: loading these takes longer than most of them."""

    def __init__(self, server: Server, chromium: Any) -> None:
        self.server, self.complaints = server, list[str]()
        self.page = chromium.new_context(viewport={"width": 1280, "height": HEIGHT}).new_page()
        self.page.set_default_timeout(PAGE_MS)
        listen(self.page, self.complaints)
        self.page.goto(server.notebook("empty"))
        Notebook(self.page)
        self.kernel = self.page.evaluate(f"{OPENED}.context.sessionContext.session.kernel.id")
        self.close()

    def open(self, path: str, width: int, dark: bool) -> Any:
        """The page, with one notebook in it."""
        self.page.set_viewport_size({"width": width, "height": HEIGHT})
        self.page.emulate_media(color_scheme="dark" if dark else "light")
        self._execute("apputils:change-theme", {"theme": f"JupyterLab {'Dark' if dark else 'Light'}"})
        self._execute("docmanager:open", {"path": path, "kernel": {"id": self.kernel}})
        return self.page

    def close(self) -> None:
        """Close what is open, unsaved: of a file that was written meanwhile JupyterLab asks what nobody answers."""
        self.page.wait_for_function(ANSWERED, polling=POLL_MS)
        self.page.evaluate("""() => {
          for (const widget of [...window.jupyterapp.shell.widgets('main')]) {
            if (widget.context) widget.context.model.dirty = false;
            widget.dispose();
          }
        }""")

    def _execute(self, command: str, arguments: dict[str, Any]) -> None:
        """Execute a command and wait for its end; to evaluate a promise would have no limit of time."""
        self.page.evaluate(
            """([command, args]) => {
              window.done = false;
              void window.jupyterapp.commands.execute(command, args).then(() => { window.done = true; });
            }""",
            [command, arguments],
        )
        self.page.wait_for_function("window.done")


@pytest.fixture(scope="session")
def lab(server: Server, chromium: Any) -> Iterator[Lab]:
    lab = Lab(server, chromium)
    yield lab
    lab.page.context.close()


@pytest.fixture
def open_notebook(lab: Lab, request: Any) -> Iterator[Callable[..., Notebook]]:
    """`open_notebook(*cells, seconds=, width=, dark=)`: the first cell sets scripted searches up."""

    def make(*cells: str, seconds: float = 20.0, width: int = 1280, dark: bool = False) -> Notebook:
        name = "".join(c if c.isalnum() else "_" for c in request.node.name)
        lab.server.notebook(name, SETUP.format(seconds=seconds), *cells)
        notebook = Notebook(lab.open(f"{name}.ipynb", width, dark))
        notebook.run(0)
        return notebook

    lab.complaints.clear()
    yield make
    said = [*lab.complaints]
    lab.close()
    assert said == []
