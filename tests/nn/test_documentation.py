"""The examples of the pages about `nn` and `image` run as they stand, and print what they say."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["reference/nn.md", "reference/image.md", "how-to/quantise-weights.md"])
def test_examples(page: str) -> None:
    blocks = re.findall(r"```(python|text)\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    printed = ""
    for kind, text in blocks:
        if kind == "text":
            assert printed == text
            continue
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(text, page, "exec"), names)
        printed = output.getvalue()
