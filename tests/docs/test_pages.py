"""Every block of the pages is run or shown, or has a reason; and pages refer only to what is there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from anygpu.hardware.evidence import VARIABLES
from tests.docs.blocks import ROOT, RUNNABLE, SHOWN, Block, blocks, pages


def test_every_block_has_a_language_that_is_run_or_shown() -> None:
    others = [
        block.where for block in every_block() if block.language not in RUNNABLE + SHOWN and "{" not in block.language
    ]
    assert not others


def test_every_block_that_is_not_run_has_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    not_run = [block for block in every_block() if block.language in RUNNABLE and block.not_run is not None]
    with capsys.disabled():
        sys.stdout.write("\nBlocks that are not run:\n")
        sys.stdout.writelines(f"  {block.where}: {block.not_run}\n" for block in not_run)
    assert not [block.where for block in not_run if not block.not_run]
    varying = [block for block in every_block() if block.output_varies is not None]
    assert not [block.where for block in varying if not block.output_varies]


@pytest.mark.parametrize("page", pages())
def test_no_page_refers_to_what_is_outside_of_the_repository(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert not re.findall(r"\.\./shared|\bissue \d+|closing note|house\.md", text)
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (ROOT / page).parent.joinpath(Path(link)).exists(), link


def test_security_names_every_variable_that_a_report_contains() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert not [name for name in VARIABLES if f"`{name}`" not in text]


def every_block() -> list[Block]:
    return [block for page in pages() for block in blocks(page)]
