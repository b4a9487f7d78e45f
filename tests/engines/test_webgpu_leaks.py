"""Nothing is left behind: live objects are counted by the driver and by the library, and the count is shown to work."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import wgpu

from anygpu.engines.driver import Clear, Dispatch
from anygpu.engines.webgpu.engine import LiveObjects, WebGPUDriver
from tests.engines.webgpu_kernels import add_kernel, adding, count_kernel, get, opened, put, room, words

#: What the library calls the things that could be left.
KINDS = (
    "Device",
    "Queue",
    "Buffer",
    "BindGroup",
    "BindGroupLayout",
    "PipelineLayout",
    "ComputePipeline",
    "ShaderModule",
)


def native() -> dict[str, int]:
    """How many of each the library itself holds."""
    gc.collect()
    counts: dict[str, Any] = wgpu.diagnostics.wgpu_native_counts.get_dict()
    return {kind: counts[kind]["count"] for kind in (*KINDS, "CommandBuffer", "QuerySet")}


def call(driver: WebGPUDriver, kept: list[object] | None = None) -> None:
    """One whole use: blocks, a kernel, a result, and everything given back; `kept` leaks a block."""
    x, y = put(driver, words(1000)), room(driver, 1000)
    driver.submit([Clear(y), adding(driver, x, y, 1)], timed=True)
    get(driver, y)
    driver.device_seconds()
    driver.release(x.block)
    if kept is None:
        driver.release(y.block)
    else:
        kept.append(y.block)


def build_new(driver: WebGPUDriver, length: int) -> None:
    driver.build(count_kernel(length))


def check_steady(driver: WebGPUDriver, use: Callable[[], None]) -> None:
    """Raises when uses leave more behind than the first did."""
    use()
    before: tuple[LiveObjects, dict[str, int]] = driver.live(), native()
    for _ in range(20):
        use()
    after = driver.live(), native()
    if after != before:
        raise AssertionError(f"left behind: {before} became {after}")


def test_uses_leave_nothing_behind() -> None:
    with opened() as driver:
        check_steady(driver, lambda: call(driver))
        assert driver.live().blocks == 0
        assert driver.live().bind_groups == 0
        assert driver.live().pipelines == 1


def test_the_check_sees_a_block_that_is_left() -> None:
    kept: list[object] = []
    with opened() as driver, pytest.raises(AssertionError, match="left behind"):
        check_steady(driver, lambda: call(driver, kept))


def test_the_check_sees_a_pipeline_for_every_use() -> None:
    lengths = iter(range(1, 100))
    with opened() as driver, pytest.raises(AssertionError, match="left behind"):
        check_steady(driver, lambda: build_new(driver, next(lengths)))


def test_the_check_sees_what_only_the_library_knows() -> None:
    kept: list[object] = []
    with opened() as driver:
        device = driver._open.device if driver._open is not None else None

        def leak() -> None:
            kept.append(device.create_buffer(size=16, usage=wgpu.BufferUsage.STORAGE) if device else None)

        with pytest.raises(AssertionError, match="left behind"):
            check_steady(driver, leak)


def test_released_memory_is_given_back_with_its_bind_groups() -> None:
    with opened() as driver:
        before = native()["Buffer"]
        extents = [put(driver, words(10)) for _ in range(10)]
        built = driver.build(add_kernel(10))
        driver.submit([Dispatch(built, (extents[i], extents[i + 1]), (0, 1)) for i in range(9)])
        assert driver.live().bind_groups == 9
        driver.release(extents[4].block)
        assert driver.live().bind_groups == 7
        for extent in extents:
            driver.release(extent.block)
        assert driver.live().bind_groups == 0
        driver.synchronize()
        driver.synchronize()
        # One mapped buffer is kept to read the next time.
        assert native()["Buffer"] <= before + 1


def test_closing_gives_everything_back_to_the_library() -> None:
    before = native()
    for _ in range(3):
        with opened() as driver:
            call(driver)
            put(driver, words(10))
    assert native() == before
