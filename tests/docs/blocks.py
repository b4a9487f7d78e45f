"""The code blocks of a page, and the markers that say how a block is tested.

A marker is an HTML comment on the line above a block, so that readers do not see it:

    <!-- docs-test: not run: REASON -->         the block cannot run in a test
    <!-- docs-test: output varies: REASON -->   the block runs, and its output is not compared
    <!-- docs-test: numbers vary -->            every number, with its unit, equals every other number
    <!-- docs-test: file NAME -->               the block is also saved as the file NAME

Where a Python block is followed by its output, `numbers vary` stands above the output.

`<!-- docs-test: engines NAMES -->` anywhere on a page says which engines its blocks can use; without it they are
numpy, cpu, webgpu and opencl, because importing torch and jax takes seconds.

A comment that begins with `docs-test: setup` holds Python code that runs where it stands, for example to write a file
that the page's readers have already.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: Blocks in these languages run. The output of a `python` block is the `text` block right below it, if there is one.
RUNNABLE = ("python", "pycon", "console", "setup")
#: Blocks in these languages are only shown.
SHOWN = ("text", "c", "toml", "wgsl", "yaml")

_FENCE = re.compile(r"( *)```(\S*)(?: .*)?")
_MARKER = re.compile(r"<!-- docs-test: (not run|output varies|numbers vary|file)(?:: | )?(.*?) ?-->")
_ENGINES = re.compile(r"<!-- docs-test: engines (\S+) -->")
_SETUP = "<!-- docs-test: setup"


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    #: What a `python` block prints; None where the page does not show it.
    output: str | None = None
    not_run: str | None = None
    output_varies: str | None = None
    numbers_vary: bool = False
    file: str | None = None

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Every Markdown page that users and contributors read, relative to the root."""
    own = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")]
    site = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts]
    return [str(page.relative_to(ROOT)) for page in [*own, *site]]


def pages_that_run() -> list[str]:
    return [page for page in pages() if any(is_run(block) for block in blocks(page))]


def is_run(block: Block) -> bool:
    return block.language in RUNNABLE and block.not_run is None


def engines(page: str) -> str:
    named = _ENGINES.search((ROOT / page).read_text(encoding="utf-8"))
    return named[1] if named else "numpy,cpu,webgpu,opencl"


def blocks(page: str) -> list[Block]:
    found: list[Block] = []
    lines = iter(enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1))
    markers: dict[str, str] = {}
    after_block = False
    for number, line in lines:
        if line.startswith(_SETUP):
            found.append(Block(page, number, "setup", _until(lines, "-->")))
        elif _ENGINES.fullmatch(line):
            continue
        elif marker := _MARKER.fullmatch(line.strip()):
            markers[marker[1]] = marker[2]
        elif line.lstrip().startswith("<!-- docs-test"):
            raise ValueError(f"{page}:{number}: not a marker: {line}")
        elif fence := _FENCE.fullmatch(line):
            text = _until(lines, fence[1] + "```", len(fence[1]))
            if fence[2] == "text" and after_block and found and found[-1].language == "python":
                found[-1] = replace(found[-1], output=text, numbers_vary="numbers vary" in markers)
            else:
                found.append(_block(page, number, fence[2], text, markers))
            markers, after_block = {}, True
        elif line.strip():
            if markers:
                raise ValueError(f"{page}:{number}: a marker stands above something that is not a code block")
            after_block = False
    return found


def _until(lines: Iterator[tuple[int, str]], end: str, indent: int = 0) -> str:
    collected = []
    for _, line in lines:
        if line.rstrip() == end:
            break
        collected.append(line[indent:])
    return "".join(line + "\n" for line in collected)


def _block(page: str, number: int, language: str, text: str, markers: dict[str, str]) -> Block:
    return Block(
        page,
        number,
        language,
        text,
        not_run=markers.get("not run"),
        output_varies=markers.get("output varies"),
        numbers_vary="numbers vary" in markers,
        file=markers.get("file"),
    )
