"""Places that the tests of one file share, and a runtime on them for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anygpu.runtime.runtime import Runtime
from anygpu.workers.device_arrays.registry import DeviceRegistry


@pytest.fixture(scope="module")
def known() -> Iterator[DeviceRegistry]:
    known = DeviceRegistry()
    yield known
    known.close()


@pytest.fixture
def runtime(known: DeviceRegistry) -> Iterator[Runtime]:
    with Runtime(known=known) as runtime:
        yield runtime
