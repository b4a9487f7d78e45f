"""The README is short, shows what its own first block printed, and the site shows the same block."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import ROOT, Block, blocks

PICTURE = "docs/_static/first-result.svg"


def test_it_is_short() -> None:
    assert len(readme().splitlines()) <= 130


def test_the_site_starts_with_the_same_block() -> None:
    assert first_block("docs/index.md").text == first_block("README.md").text


def test_it_shows_a_picture_that_is_small_and_loads_nothing() -> None:
    assert PICTURE in readme()
    judge_picture(ROOT / PICTURE)


def test_the_picture_comes_from_the_first_block(tmp_path: Path) -> None:
    new = tmp_path / "first-result.svg"
    subprocess.run(
        [sys.executable, "scripts/readme-picture", "--seconds", "0", "--engines", "numpy", "--output", str(new)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    judge_picture(new)
    assert "stayed on NumPy" in new.read_text(encoding="utf-8"), "it says so, and has no ratio"


def judge_picture(path: Path) -> None:
    svg = path.read_text(encoding="utf-8")
    assert len(svg) < 150_000
    # Names of formats look like addresses, and nobody asks them for anything.
    assert set(re.findall(r"https?://[\w.]+", svg)) <= {"http://www.w3.org"}
    assert "@font-face" not in svg
    shown = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", svg.replace("&#160;", " ")))
    assert "sharpen ran on" in shown
    assert re.search(r"NumPy [\d.]+ .s .*anygpu [\d.]+ .s ", shown), "both times"


def test_every_tool_has_a_row_that_says_what_it_does_better() -> None:
    rows = [line.split("|")[1:-1] for line in readme().splitlines() if line.startswith("| [")]
    tools = {re.sub(r"\W.*", "", row[0].strip(" [")): row for row in rows if len(row) == 4}
    assert list(tools) == ["CuPy", "JAX", "PyTorch", "numexpr", "Numba", "onnxruntime", "Ray"]
    assert all(cell.strip() for row in tools.values() for cell in row)


def first_block(page: str) -> Block:
    return next(block for block in blocks(page) if block.language == "python")


def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")
