"""The blocks of the README, the tutorials and the index run, and print what the page shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import pages_that_run
from tests.docs.page_runner import check_page


def is_guide(page: str) -> bool:
    return "/" not in page.removeprefix("docs/") or page.startswith(("docs/tutorial/", "examples/"))


#: The pages that a newcomer reads first.
FIRST = ("README.md", "docs/tutorial/first-look.md")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=() if page in FIRST else pytest.mark.full)
        for page in pages_that_run()
        if is_guide(page)
    ],
)
def test_the_page(page: str) -> None:
    check_page(page)


def test_the_script_of_the_tutorial_runs_where_nothing_moves(tmp_path: Path) -> None:
    """Its calls are the console's, so that the page itself does not run it."""
    page = Path("docs/tutorial/offload.md").read_text()
    script = page.split("$ cat glow.py\n")[1].split("$ python glow.py")[0].replace("(3000, 3000)", "(30, 30)")
    environment = os.environ | {"ANYGPU_DEVICE": "numpy", "ANYGPU_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "0 calls left NumPy\ncall 59: " in done.stdout
