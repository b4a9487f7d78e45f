"""Who may ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anygpu.errors import InvalidOption
from anygpu.runtime.serving.limits import RequestRefused, TokenAccess, tokens_of

WEB, NIGHTLY = "web-0123456789abcdef", "nightly-0123456789"


def test_tokens_from_a_mapping() -> None:
    tokens = tokens_of({WEB: "web", NIGHTLY: ("nightly", ["score"])})
    assert tokens is not None
    assert tokens.find(f"Bearer {WEB}".encode()) == TokenAccess("web")
    nightly = tokens.find(f"bearer {NIGHTLY}".encode())
    assert nightly == TokenAccess("nightly", frozenset({"score"}))
    nightly.check("score")
    with pytest.raises(RequestRefused) as caught:
        nightly.check("other")
    assert caught.value.status == 403


@pytest.mark.parametrize(
    "header", [None, b"", b"Bearer", b"Bearer x", f"Basic {WEB}".encode(), WEB.encode(), b"\xff " * 9]
)
def test_tokens_that_are_missing_or_unknown(header: bytes | None) -> None:
    tokens = tokens_of({WEB: "web"})
    assert tokens is not None
    with pytest.raises(RequestRefused) as caught:
        tokens.find(header)
    assert caught.value.status == 401
    assert caught.value.headers[0][0] == b"www-authenticate"
    assert WEB not in caught.value.message


def test_tokens_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# ours\nweb {WEB}\n\nnightly {NIGHTLY} score,rank  # at night\n")
    tokens = tokens_of(path)
    assert tokens is not None
    assert tokens.find(f"Bearer {WEB}".encode()) == TokenAccess("web")
    assert tokens.find(f"Bearer {NIGHTLY}".encode()).models == frozenset({"score", "rank"})


def test_a_file_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    with pytest.raises(InvalidOption, match="cannot be read"):
        tokens_of(path)
    path.write_text(f"web {WEB} score rank\n")
    with pytest.raises(InvalidOption, match="line 1") as caught:
        tokens_of(path)
    assert WEB not in str(caught.value), "messages end up in logs"


@pytest.mark.parametrize(
    "given", [{}, {"short": "web"}, {WEB: ""}, {WEB: ("web", "score")}, {"sixteen characters": "web"}, {3: "web"}]
)
def test_tokens_that_are_no_good(given: Any) -> None:
    with pytest.raises(InvalidOption):
        tokens_of(given)
