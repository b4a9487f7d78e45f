"""Places that the tests of one file share, and a runtime on them for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anygpu.runtime.places import Places
from anygpu.runtime.runtime import Runtime


@pytest.fixture(scope="module")
def known() -> Iterator[Places]:
    known = Places()
    yield known
    known.close()


@pytest.fixture
def runtime(known: Places) -> Iterator[Runtime]:
    with Runtime(known=known) as runtime:
        yield runtime
