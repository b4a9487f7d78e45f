"""The notebooks of docs/notebooks run from the first cell to the last, in a kernel of their own, and show pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.docs.blocks import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.full
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
# The kernel's own libraries announce what they will change.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_the_notebook_runs_and_shows_pages(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_ENGINES", "numpy,webgpu")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    read: Any = nbformat.read  # it has no types
    notebook = read(path, 4)
    assert not [cell for cell in notebook.cells if cell.get("outputs")], "notebooks are committed without outputs"
    NotebookClient(notebook, timeout=250, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    pages = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert len(pages) >= 5
    assert all('class="anygpu-out"' in page and len(page) <= 20_000 for page in pages)
    assert any("image/png" in output.get("data", {}) for output in outputs)
