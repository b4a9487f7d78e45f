"""The blocks of the README, the tutorials and the index run, and print what the page shows."""

from __future__ import annotations

import pytest

from tests.docs.blocks import pages_that_run
from tests.docs.page_runner import check_page


def is_guide(page: str) -> bool:
    return "/" not in page.removeprefix("docs/") or page.startswith(("docs/tutorial/", "examples/"))


@pytest.mark.parametrize("page", [page for page in pages_that_run() if is_guide(page)])
def test_the_page(page: str) -> None:
    check_page(page)
