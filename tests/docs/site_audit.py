"""What a real browser makes of the built site: on a telephone and on a desk, light and dark.

`scripts/site-check --browser` prints the findings.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.browser import Tab, chromium

#: Of each kind one: the doors, an index, tables, code with pictures, what autodoc writes.
PAGES = ("index.html", "how-to/index.html", "status.html", "tutorial/programs.html", "reference/api.html")
WIDTHS = {390: 844, 1280: 800}
_JUDGE = Path(__file__).with_name("site_audit.js").read_text(encoding="utf-8")
#: The page is styled, its pictures and fonts are there, and so are the theme's icons: letters of a font since version
#: 0.24, drawings that a script puts in their place a moment later before that.
_READY = """document.readyState === 'complete' && [...document.images].every((each) => each.complete)
  && document.fonts.status === 'loaded'
  && [...document.querySelectorAll("i[class*='fa-']")]
       .every((each) => getComputedStyle(each, '::before').content !== 'none')"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server for it, on the loopback address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, name="site", daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


async def judge(tab: Tab, address: str, *, width: int = 1280, height: int = 800, dark: bool = False) -> list[str]:
    """What is wrong with one page in one window."""
    await tab.open(address, dark=dark, width=width, height=height)
    await tab.until(f"location.href.startsWith({address!r}) && {_READY}")
    found = [str(each) for each in await tab.value(_JUDGE)]
    found += [f"the console says: {line}" for line in tab.console]
    own = urlsplit(address).netloc
    found += [f"asks another host: {url}" for url in tab.requests if urlsplit(url).netloc not in (own, "")]
    return found


async def search(tab: Tab, address: str, word: str) -> list[str]:
    """Whether the search finds something, with nothing but the files of the site."""
    await tab.open(f"{address}/search.html?q={word}")
    try:
        await tab.until("document.querySelectorAll('#search-results li a').length > 0")
    except AssertionError:
        return [f"search.html finds nothing for {word!r}"]
    return [f"search.html says: {line}" for line in tab.console]


async def findings(site: Path, folder: Path, pictures: Path | None = None, pages: Iterable[str] = PAGES) -> list[str]:
    """What is wrong on the pages. `folder` is for the browser's profile, `pictures` for what it saw."""
    found = []
    with served(site) as address:
        async with chromium(folder) as browser:
            for page in pages:
                for width, height in WIDTHS.items():
                    for dark in (False, True):
                        async with browser.tab() as tab:
                            here = await judge(tab, f"{address}/{page}", width=width, height=height, dark=dark)
                            scheme = "dark" if dark else "light"
                            found += [f"{page} at {width} pixels, {scheme}: {each}" for each in here]
                            if pictures:
                                name = f"{page.removesuffix('.html').replace('/', '-')}-{width}-{scheme}.png"
                                (pictures / name).write_bytes(await tab.picture())
            for place in (address, site.resolve().as_uri()):
                async with browser.tab() as tab:
                    found += await search(tab, place, "receipt")
    return found
