"""What a notebook shows, as a test reads it."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as ET

_FIGURE = re.compile(r"\d[\d.,]*\d|\d")
_WITHOUT_CONTENT = ("style", "title")


def html(value: Any) -> str:
    """As IPython asks for it."""
    shown = value._repr_html_()
    assert isinstance(shown, str)
    return shown


def parsed(shown: str) -> ET.Element:
    """Our HTML is also XML, so that nothing of it can be open or misplaced."""
    return ET.fromstring(shown)


def words(shown: str) -> str:
    """All that is read on the page."""
    page = parsed(shown)
    for parent in page.iter():
        for child in list(parent):
            if child.tag.rpartition("}")[2] in _WITHOUT_CONTENT:
                child.text = None
    return " ".join("".join(page.itertext()).split())


def missing_figures(text: str, shown: str) -> list[str]:
    """The figures of the text that the page lacks."""
    seen = words(shown)
    return [figure for figure in _FIGURE.findall(text) if figure not in seen]


def check(shown: str) -> None:
    """What holds for all that we show."""
    page = parsed(shown)
    tags = [each.tag.rpartition("}")[2] for each in page.iter()]
    assert "script" not in tags
    assert "img" not in tags  # pictures are drawn, and not asked for
    assert not [each for each in page.iter() if "id" in each.attrib]  # two outputs would have the same
    attributes = [(name, value) for each in page.iter() for name, value in each.attrib.items()]
    assert not [name for name, _ in attributes if name.startswith("on") or name in ("href", "src")]
    assert "url(" not in shown
    assert "http" not in shown.replace("http://www.w3.org/2000/svg", "")
    for each in page.iter():
        name = each.tag.rpartition("}")[2]
        if name == "svg":
            assert each.attrib["role"] == "img"
            assert each.attrib["aria-label"]
        if name == "table":
            assert each.attrib["aria-label"]
            heads = [cell for cell in each.iter() if cell.tag == "th"]
            assert heads
            assert all("".join(cell.itertext()).strip() and cell.attrib["scope"] for cell in heads)
    assert len(shown.encode()) <= 40_000
