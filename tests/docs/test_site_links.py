"""The check of a built site finds what is wrong with one, and nothing in a good one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.site_links import findings, other_hosts

GOOD = """<!doctype html><html lang="en"><head><link rel="stylesheet" href="_static/site.css">
<link rel="canonical" href="https://example.org/"></head><body>
<h1 id="top">One</h1><a href="#top">up</a><a href="#">top</a><a href="sub/two.html#part%20one">two</a>
<a href="https://example.org/elsewhere">away</a><a href="mailto:a@example.org">mail</a><a href="sub/">index</a>
<img src="_static/a.png" alt=""></body></html>"""
TWO = '<html lang="en"><a href="../index.html">back</a><p id="part one">Part</p></html>'


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for name, text in {
        "index.html": GOOD,
        "sub/two.html": TWO,
        "sub/index.html": TWO,
        "_static/site.css": "",
        "_static/a.png": "",
        "_static/template.html": '<a href="nowhere.html">not a page of ours</a>',
        "../outside.html": "",
    }.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "site"


def test_a_good_site_has_no_findings(site: Path) -> None:
    assert findings(site) == []
    assert other_hosts(site) == {"https://example.org/elsewhere": 1}


@pytest.mark.parametrize(
    ("markup", "finding"),
    [
        ('<a href="gone.html">x</a>', "gone.html leads to nothing"),
        ('<a href="#gone">x</a>', "#gone leads to a page without that anchor"),
        ('<a href="two.html#gone">x</a>', "two.html#gone leads to a page without that anchor"),
        ('<a href="../../outside.html">x</a>', "../../outside.html leads out of the site"),
        ('<img src="gone.png" alt="x">', "gone.png leads to nothing"),
        ('<img src="../_static/a.png">', "the picture ../_static/a.png has no alternative text"),
        ('<script src="//cdn.example.org/x.js"></script>', "//cdn.example.org/x.js is loaded from another host"),
        ('<link rel="stylesheet" href="https://a.org/x.css">', "https://a.org/x.css is loaded from another host"),
    ],
)
def test_what_is_wrong_is_found(site: Path, markup: str, finding: str) -> None:
    (site / "sub/two.html").write_text(TWO.replace("<p", markup + "<p"), encoding="utf-8")
    assert findings(site) == [f"sub/two.html:1: {finding}"]


def test_a_page_says_its_language(site: Path) -> None:
    (site / "sub/two.html").write_text(TWO.replace(' lang="en"', ""), encoding="utf-8")
    assert findings(site) == ["sub/two.html:1: the page does not say its language"]


def test_a_site_without_pages_is_a_finding(tmp_path: Path) -> None:
    assert findings(tmp_path) == [f"{tmp_path.resolve()} has no pages: build them first"]
