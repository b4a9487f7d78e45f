"""Nothing is left behind by ordinary use; and the check that says so does find a leak when there is one."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from anygpu.engines.driver import Dispatch, Extent
from anygpu.engines.opencl.builder import KEPT_TEXTS
from anygpu.engines.opencl.device import HostSharing
from anygpu.engines.opencl.engine import OpenCLDriver
from tests.engines.opencl_kernels import affine, open_first, room, whole

WAYS: tuple[HostSharing, ...] = ("shared", "mapped", "staged")


@contextmanager
def nothing_left(driver: OpenCLDriver) -> Iterator[None]:
    driver.synchronize()
    gc.collect()
    before = driver.live()
    yield
    driver.synchronize()
    gc.collect()
    after = driver.live()
    if after != before:
        raise AssertionError(f"left behind: {after}, before: {before}")


@pytest.fixture(scope="module", params=WAYS)
def driver(request: pytest.FixtureRequest) -> Iterator[OpenCLDriver]:
    engine, _, driver = open_first(request.param)
    driver.build(affine(257))
    yield driver
    driver.close()
    engine.close()


def use(driver: OpenCLDriver) -> Extent:
    source, target = whole(driver, np.arange(257, dtype=np.float32)), room(driver, 4 * 257)
    driver.submit([Dispatch(driver.build(affine(257)), (source, target), (0,))], timed=True)
    driver.device_seconds()
    driver.read(target)
    driver.read_view(target)
    driver.release(source.block)
    return target


def test_use_leaves_nothing(driver: OpenCLDriver) -> None:
    with nothing_left(driver):
        for _ in range(20):
            driver.release(use(driver).block)


def test_a_kept_block_is_found(driver: OpenCLDriver) -> None:
    kept = []
    with pytest.raises(AssertionError, match="left behind"), nothing_left(driver):
        kept.append(use(driver))
    assert len(kept) == 1


def test_a_kept_view_is_found(driver: OpenCLDriver) -> None:
    if not driver.views_are_free:
        pytest.skip("a copy holds nothing of the device")
    kept = []
    with pytest.raises(AssertionError, match="left behind"), nothing_left(driver):
        kept.append(driver.read_view(use(driver)))
    assert len(kept) == 1


def test_a_new_text_is_found(driver: OpenCLDriver) -> None:
    with pytest.raises(AssertionError, match="left behind"), nothing_left(driver):
        driver.build(affine(258, name=f"another_{driver.live().functions}"))


def test_texts_are_bounded(driver: OpenCLDriver) -> None:
    functions = driver._builder._functions
    for number in range(KEPT_TEXTS + 5):
        functions.get(number, lambda: None)  # type: ignore[arg-type, return-value]
    assert driver.live().functions == KEPT_TEXTS
