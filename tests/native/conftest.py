from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.calibrations import own_calibrations as own_calibrations
from tests.support.native_placement import native_at_once, settle, wrong_functions


@pytest.fixture
def native_at_once_and_right() -> Iterator[None]:
    """Try native code in the first calls, and expect that no function was pinned to NumPy for a wrong result."""
    with native_at_once():
        yield
        settle()
        assert wrong_functions() == []
