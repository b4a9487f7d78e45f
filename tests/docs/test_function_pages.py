"""Each public function has a page, with what it returns and raises and an example."""

from __future__ import annotations

import inspect

import pytest

import anygpu
from tests.docs.blocks import ROOT, RUNNABLE, blocks

FOLDER = "docs/reference/functions"
FUNCTIONS = sorted(name for name in anygpu.__all__ if inspect.isfunction(getattr(anygpu, name)))


def test_there_are_pages_for_functions_and_for_nothing_else() -> None:
    assert sorted(page.stem for page in (ROOT / FOLDER).glob("*.md")) == FUNCTIONS


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_page_has_all_its_parts(name: str) -> None:
    page = f"{FOLDER}/{name}.md"
    text = (ROOT / page).read_text(encoding="utf-8")
    assert f".. autofunction:: anygpu.{name}\n" in text
    for heading in ("Returns", "Raises", "Example", "See also"):
        assert f"\n## {heading}\n" in text
    assert any(f"ag.{name}" in block.text for block in blocks(page) if block.language in RUNNABLE)
    assert f"(functions/{name}.md)" in (ROOT / "docs/reference/api.md").read_text(encoding="utf-8")
