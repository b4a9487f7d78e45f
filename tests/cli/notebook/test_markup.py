"""The pieces of pages: nothing that is shown can break them, and all colours are seen on every paper."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.base import markup
from anygpu.base.markup import Html, Share, bar, details, framed, legend, pairs, paragraph, safe, table, tag
from tests.cli.notebook.pages import check, parsed, words

HOSTILE = st.one_of(
    st.text(),
    st.sampled_from(
        [
            "<script>alert(1)</script>",
            '"><img src=x onerror=alert(1)>',
            "'; drop table",
            "</style><b>",
            "&lt;",
            "]]>",
            "<!--",
            "\x00\udfff",
        ]
    ),
)


@settings(max_examples=30)
@given(HOSTILE, HOSTILE, HOSTILE)
def test_no_text_becomes_markup(one: str, two: str, three: str) -> None:
    page = framed(
        one,
        paragraph(two, look=three),
        pairs([(one, two)], three),
        table((one or "a", two or "b"), [(three, one)], two or "c"),
        bar([Share(one, 1.0, two, markup.BLUE), Share(three, 2.0, one, markup.RED)]),
        legend([Share(two, 1.0, three, markup.BLUE)]),
        details(one, two),
    )
    allowed = {"div", "style", "p", "table", "tr", "th", "td", "thead", "tbody", "svg", "rect", "title", "ul", "li"}
    tags = {each.tag for each in parsed(page).iter()}
    assert tags <= allowed | {"span", "details", "summary"}


def test_html_stays_and_text_is_escaped() -> None:
    assert safe("<b>") == "&lt;b&gt;"
    assert safe(Html("<b>x</b>")) == "<b>x</b>"
    assert tag("a", "x", class_="y", aria_label='"') == '<a class="y" aria-label="&quot;">x</a>'


def test_a_long_text_is_cut() -> None:
    assert len(safe("x" * 10_000)) == markup.LONGEST_TEXT


def test_a_bar_has_its_shares() -> None:
    drawn = ET.fromstring(bar([Share("a", 1.0, "1 s", markup.BLUE), Share("b", 3.0, "3 s", markup.RED)]))
    assert [each.attrib["width"] for each in drawn] == ["25.00", "75.00"]
    assert drawn.attrib["aria-label"] == "a 1 s, b 3 s"
    half = ET.fromstring(bar([Share("a", 1.0, "1 s", markup.BLUE)], whole=2.0))
    assert [each.attrib["width"] for each in half] == ["50.00"]
    assert bar([]) == bar([Share("a", 0.0, "0", markup.BLUE)]) == ""


def test_a_page_is_sound() -> None:
    page = framed("Facts", pairs([("a", "1")], "facts"), details("more", "x"))
    check(page)
    assert words(page) == "a1morex"


@pytest.mark.parametrize("name", ["BLUE", "VIOLET", "ORANGE", "RED", "TEAL", "PINK", "GREY", "OLIVE"])
def test_a_colour_is_seen_on_light_and_on_dark_paper(name: str) -> None:
    colour = brightness(getattr(markup, name))
    assert (brightness("#ffffff") + 0.05) / (colour + 0.05) >= 3
    assert (colour + 0.05) / (brightness("#111111") + 0.05) >= 3


def brightness(colour: str) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
