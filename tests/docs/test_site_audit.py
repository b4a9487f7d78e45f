"""The look at a page in a browser finds what is wrong with one, and nothing in a good one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.docs.site_audit import judge, served
from tests.support.browser import chromium

HEAD = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>A page</title>'
GOOD = f"""<!doctype html><html lang="en"><head>{HEAD}<link rel="icon" href="data:,"></head><body><main>
<h1>One</h1><h2>Two</h2><p>Black on white, <a href="#">a link</a>, <button style="min-height: 30px">press</button></p>
<div style="overflow-x: auto"><pre style="width: 900px">wide, inside of what scrolls</pre></div>
<p style="color: #767676">just enough</p><p style="color: #ccc; display: none">not shown</p>
<label>Name <input style="height: 30px"></label></main></body></html>"""
BAD = """<!doctype html><html><body><main>
<h1>One</h1><h3>Three</h3><div style="width: 2000px">wide</div>
<p style="color: #777">grey on white</p><p style="background: #000; color: rgb(255 255 255 / 40%)">veiled</p>
<img src="gone.png"><input><a href="#" style="display: block; width: 9px; height: 9px; overflow: hidden">x</a>
<button></button><script>console.error("a complaint"); fetch("http://127.0.0.2:9/").catch(() => 0); nothing()</script>
</main></body></html>"""
WRONG = (
    "the page is 20",
    "contrast 4.48 instead of 4.5",
    "contrast 3.66 instead of 4.5",
    "a picture without alternative text",
    "a picture that does not load",
    "a field without a label",
    "a link or button without a name",
    "does not say its language",
    "has no title",
    "does not say that it fits a telephone",
    "<h3> follows <h1>",
    "9 by 9 pixels are small for a finger",
    "the console says: a complaint",
    "nothing is not defined",
    "asks another host: http://127.0.0.2:9/",
)


@pytest.mark.full
def test_a_page_in_a_browser(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "good.html").write_text(GOOD, encoding="utf-8")
    (site / "bad.html").write_text(BAD, encoding="utf-8")

    async def look() -> tuple[list[str], list[str]]:
        with served(site) as address:
            async with chromium(tmp_path / "profile") as browser:
                async with browser.tab() as tab:
                    good = await judge(tab, f"{address}/good.html", width=390)
                async with browser.tab() as tab:
                    return good, await judge(tab, f"{address}/bad.html", width=390)

    good, bad = asyncio.run(look())
    assert good == []
    missing = [wrong for wrong in WRONG if not any(wrong in finding for finding in bad)]
    assert not missing, bad


@pytest.mark.full
def test_a_tab_that_was_behind_another_one_draws(tmp_path: Path) -> None:
    """Scripts that wait for a frame, as the theme's icons do, would wait without end."""
    (tmp_path / "page.html").write_text(
        GOOD.replace("</body>", "<script>requestAnimationFrame(() => { window.drawn = true })</script></body>"),
        encoding="utf-8",
    )

    async def look() -> None:
        with served(tmp_path) as address:
            async with (
                chromium(tmp_path / "profile") as browser,
                browser.tab() as behind,
                browser.tab() as before,
            ):
                await before.do("Page.bringToFront")
                await behind.open(f"{address}/page.html")
                await behind.until("window.drawn")

    asyncio.run(look())
