"""The blocks of the how-tos and the reference run, and print what the page shows.

They are apart from the tutorials so that two workers can share the pages.
"""

from __future__ import annotations

import pytest

from tests.docs.blocks import pages_that_run
from tests.docs.page_runner import check_page
from tests.docs.test_tutorials import is_guide


@pytest.mark.full
@pytest.mark.parametrize("page", [page for page in pages_that_run() if not is_guide(page)])
def test_the_page(page: str) -> None:
    check_page(page)
