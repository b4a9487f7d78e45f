"""A cache folder for each file of tests that place calls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def own_calibrations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Calibrations that were measured beside other tests may be far off, and decide where calls go."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANYGPU_CACHE_DIR", str(tmp_path_factory.mktemp("calibrations")))
        yield
