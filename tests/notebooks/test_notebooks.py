"""Notebooks that are executed by a kernel of their own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from rayshim._core import session_folders

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    # Of the kernel's sockets and loops, not of ours.
    pytest.mark.filterwarnings("ignore"),
]


class Notebook:
    """A kernel, and cells that it runs one after the other."""

    def __init__(self) -> None:
        self._book = nbformat.v4.new_notebook()
        self.client = NotebookClient(self._book, timeout=60)

    def run(self, source: str) -> Any:
        """Run one cell; the texts and outputs that it made."""
        cell = nbformat.v4.new_code_cell(source)
        self._book.cells.append(cell)
        self.client.execute_cell(cell, len(self._book.cells) - 1)
        return cell.outputs

    def value(self, source: str) -> str:
        """The text of a cell's last expression."""
        return str(self.run(source)[-1]["data"]["text/plain"])


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    book = Notebook()
    with book.client.setup_kernel():
        book.run("import rayshim\nrayshim.install_as_ray()\nimport ray")
        yield book


INIT = "context = ray.init(num_cpus=2, log_to_driver=False)\ncontext"
SLEEP = """
@ray.remote
def sleep(seconds):
    import time
    time.sleep(seconds)
    return seconds
"""


def test_the_session_is_shown_with_its_links(notebook: Notebook) -> None:
    (shown,) = notebook.run(INIT)
    card = shown["data"]["text/html"]
    assert "CPU 2" in card
    assert "rayshim version" in card and "(the API of Ray 2." in card
    assert "GiB" in card and "e+" not in card  # amounts of memory, for people
    assert "token=" not in card
    url = notebook.value("context.dashboard_url").strip("'")
    assert not url or f"href='http://{url}'" in card
    notebook.run("ray.shutdown()")


def test_references_are_awaited_in_a_cell(notebook: Notebook) -> None:
    notebook.run(INIT + SLEEP)
    assert notebook.value("await sleep.remote(0.01)") == "0.01"
    gathered = "import asyncio\nawait asyncio.gather(*map(sleep.remote, [0, 0.1]))"
    assert notebook.value(gathered) == "[0, 0.1]"
    notebook.run("ray.shutdown()")


def test_a_long_get_shows_how_far_it_is(notebook: Notebook) -> None:
    notebook.run(INIT + SLEEP)
    outputs = notebook.run("ray.get([sleep.remote(0.4) for _ in range(8)])")
    bars = [
        one["data"]["text/html"]
        for one in outputs
        if "text/html" in one.get("data", {})
    ]
    assert bars and "<progress value='" in bars[-1]
    assert "values are there" in bars[-1]
    notebook.run("ray.shutdown()")


def test_a_group_of_calls_is_tracked(notebook: Notebook) -> None:
    notebook.run(INIT + SLEEP)
    outputs = notebook.run(
        "from ray.util.progress import track\n"
        "refs = [sleep.remote(0.02 * i) for i in range(9)]\n"
        "assert set(track(refs, 'naps are over')) == set(refs)"
    )
    (shown,) = outputs
    assert "9 of 9 naps are over" in shown["data"]["text/html"]
    notebook.run("ray.shutdown()")


def test_an_interrupt_ends_the_cell_and_nothing_else(notebook: Notebook) -> None:
    notebook.run(INIT + SLEEP)
    pid = int(notebook.value("import os; os.getpid()"))
    seconds = 60
    child = os.fork()
    if child == 0:
        time.sleep(2)
        os.kill(pid, signal.SIGINT)
        os._exit(0)
    try:
        with pytest.raises(CellExecutionError, match="KeyboardInterrupt"):
            notebook.run(f"ray.get(sleep.remote({seconds}))")
    finally:
        os.waitpid(child, 0)
    assert notebook.value("ray.get(sleep.remote(0))") == "0"
    notebook.run("ray.shutdown()")


def test_a_kernel_that_is_killed_leaves_nothing() -> None:
    book = Notebook()
    with book.client.setup_kernel():
        book.run("import rayshim as ray")
        book.run(INIT)
        pid = int(book.value("import os; os.getpid()"))
        folder = Path(book.value("context.address_info['session_dir']").strip("'"))
        assert folder.is_dir()
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while folder.exists():
            assert time.monotonic() < deadline, f"{folder} is still there"
            time.sleep(0.05)
    stores = session_folders.store_root(folder).glob(f"rayshim-{folder.name}-*")
    assert not list(stores)
