"""What can be judged of a built site without a browser: where links lead, and what pages load.

`scripts/site-check` prints the findings.
"""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Tags that load something when the page is opened, with the attribute that names it.
_LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
#: A `link` loads only for these relations. The others are addresses.
_LOADED_RELATIONS = {"stylesheet", "icon", "preload", "modulepreload", "apple-touch-icon"}


class Page(HTMLParser):
    """The links, targets and loads of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.links: list[tuple[int, str]] = []
        self.loads: list[tuple[int, str]] = []
        self.targets: set[str] = set()
        self.without_alt: list[tuple[int, str]] = []
        self.language = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        line = self.getpos()[0]
        self.targets.update(given[name] for name in ("id", "name") if name in given)
        if tag == "html":
            self.language = given.get("lang", "")
        if tag in _LOADS and _LOADS[tag] in given:
            self.loads.append((line, given[_LOADS[tag]]))
        elif tag == "link" and _LOADED_RELATIONS & set(given.get("rel", "").split()):
            self.loads.append((line, given.get("href", "")))
        elif tag == "a" and "href" in given:
            self.links.append((line, given["href"]))
        if tag == "img" and "alt" not in given:
            self.without_alt.append((line, given.get("src", "")))


def read(site: Path) -> dict[Path, Page]:
    """Its pages by their absolute paths."""
    site = site.resolve()
    return {path: Page(path) for path in sorted(site.rglob("*.html")) if "_static" not in path.relative_to(site).parts}


def findings(site: Path) -> list[str]:
    """What is wrong, each with its page and line."""
    site = site.resolve()
    pages = read(site)
    if not pages:
        return [f"{site} has no pages: build them first"]
    return [
        f"{page.path.relative_to(site)}:{line}: {finding}"
        for page in pages.values()
        for line, finding in _of_page(site, page, pages)
    ]


def other_hosts(site: Path) -> dict[str, int]:
    """Where links lead that leave the site, with how many pages have them. Nobody follows them here."""
    found: dict[str, int] = {}
    for page in read(site).values():
        for address in {address for _, address in page.links if urlsplit(address).netloc}:
            found[address] = found.get(address, 0) + 1
    return found


def _of_page(site: Path, page: Page, pages: dict[Path, Page]) -> Iterator[tuple[int, str]]:
    if not page.language:
        yield 1, "the page does not say its language"
    for line, source in page.without_alt:
        yield line, f"the picture {source} has no alternative text"
    for line, address in page.loads:
        if urlsplit(address).netloc:
            yield line, f"{address} is loaded from another host"
        elif problem := _problem(site, page, address, pages):
            yield line, problem
    for line, address in page.links:
        if problem := _problem(site, page, address, pages):
            yield line, problem


def _problem(site: Path, page: Page, address: str, pages: dict[Path, Page]) -> str | None:
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return None
    target = page.path if not parts.path else (page.path.parent / unquote(parts.path)).resolve()
    if target.is_dir():
        target /= "index.html"
    if not target.is_relative_to(site):
        return f"{address} leads out of the site"
    if not target.exists():
        return f"{address} leads to nothing"
    # "#" alone is the top of the page, and only pages have anchors.
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].targets:
        return f"{address} leads to a page without that anchor"
    return None
