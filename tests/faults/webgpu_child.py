"""What may take the process with it, one scenario for each process: `python -m tests.faults.webgpu_child <name>`.

A scenario prints one word for each thing that it saw.
"""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
from wgpu.backends.wgpu_native import _api, lib

from anygpu.engines.driver import Clear, Dispatch, DriverBlock, Move
from anygpu.engines.webgpu.engine import WebGPUDriver, WebGPUEngine
from anygpu.errors import OutOfMemory
from tests.engines.webgpu_kernels import (
    add_kernel,
    adding,
    count_kernel,
    first_device,
    get,
    put,
    room,
    whole,
    words,
)

MEGABYTE = 1 << 20


def say(*what: object) -> None:
    sys.stdout.write(" ".join(str(each) for each in what) + "\n")
    sys.stdout.flush()


def outcome(action: Callable[[], object]) -> str:
    try:
        action()
    except Exception as error:  # noqa: BLE001 - its type is what is asked for
        return type(error).__name__
    return "nothing"


def opened() -> WebGPUDriver:
    engine = WebGPUEngine()
    return engine.open(first_device(engine))


def native_device(driver: WebGPUDriver) -> Any:
    assert driver._open is not None
    return driver._open.device


def lose(driver: WebGPUDriver) -> None:
    """As when a driver resets: below wgpu-py, which does not hear of it."""
    lib.wgpuDeviceDestroy(native_device(driver)._internal)


def limit_memory(room_left: int) -> None:
    room_for_all = psutil.Process().memory_info().vms + room_left
    resource.setrlimit(resource.RLIMIT_AS, (room_for_all, room_for_all))


def use(driver: WebGPUDriver) -> None:
    """Something of everything."""
    x, y, z = put(driver, words(1000)), room(driver, 1000), room(driver, 1000)
    built = driver.build(add_kernel(1000, flops=1e9))
    driver.submit([Clear(z), Dispatch(built, (x, y), (0, 1)), Move(y, z), adding(driver, z, x, 1)], timed=True)
    driver.device_seconds()
    driver.read_many([x, y, z])
    driver.write(y, np.zeros(4000, np.uint8))
    driver.synchronize()
    for extent in (x, y, z):
        driver.release(extent.block)


def lost_at_each_call() -> None:
    """The device is lost before one call of the driver, and stays lost."""
    sample = opened()
    x = put(sample, words(100))
    sample.close()
    calls: dict[str, Callable[[WebGPUDriver, Any, Any], object]] = {
        "allocate": lambda driver, x, built: driver.allocate(4),
        "write": lambda driver, x, built: driver.write(x, np.zeros(x.nbytes, np.uint8)),
        "read": lambda driver, x, built: driver.read(x),
        "read_many": lambda driver, x, built: driver.read_many([x, x]),
        "build": lambda driver, x, built: driver.build(count_kernel(77)),
        "launch": lambda driver, x, built: driver.submit([Dispatch(built, (x,))]),
        "timed": lambda driver, x, built: driver.submit([Dispatch(built, (x,))], timed=True),
        "clear": lambda driver, x, built: driver.submit([Clear(x)]),
        "submit": lambda driver, x, built: driver.submit([]),
        "synchronize": lambda driver, x, built: driver.synchronize(),
    }
    for name, action in calls.items():
        driver = opened()
        x, built = put(driver, words(100)), driver.build(count_kernel(100))
        driver.submit([Dispatch(built, (x,))])
        lose(driver)
        first = outcome(lambda: action(driver, x, built))  # noqa: B023 - called at once
        again = {outcome(lambda: other(driver, x, built)) for other in calls.values()}  # noqa: B023
        driver.release(x.block)
        driver.close()
        say(name, first, *again)


def lost_before_each_library_call() -> None:
    """The device is lost before the first, the second, … call of the library that `use` makes.

    Only right before a submission it is not: that is the one window that ends the process.
    """
    calls = 0
    lose_at = -1
    losing: WebGPUDriver | None = None

    def watched(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            nonlocal calls, losing
            if losing is not None and name != "wgpuQueueSubmit" and not name.endswith("Release"):
                calls += 1
                if calls == lose_at:
                    driver, losing = losing, None
                    lose(driver)
            return function(*arguments)

        return call

    for name in dir(_api.libf):
        # The thread that polls has its own calls, at its own times.
        if name.startswith("wgpu") and name != "wgpuDevicePoll":
            setattr(_api.libf, name, watched(name, getattr(_api.libf, name)))
    seen: dict[str, int] = {}
    for attempt in range(1, 1000):
        driver = opened()
        calls, lose_at, losing = 0, attempt, driver
        ended = outcome(lambda: use(driver))  # noqa: B023 - called at once
        finished, losing = losing is not None, None
        driver.close()
        if finished:
            say("calls", attempt - 1)
            break
        seen[ended] = seen.get(ended, 0) + 1
    for ended, times in seen.items():
        say(ended, times)


def lost_between_finish_and_submit() -> None:
    driver = opened()
    x, built = put(driver, words(100)), driver.build(count_kernel(100))
    submit = _api.libf.wgpuQueueSubmit

    def lose_and_submit(*arguments: object) -> object:
        lose(driver)
        return submit(*arguments)

    _api.libf.wgpuQueueSubmit = lose_and_submit
    say("before")
    driver.submit([Dispatch(built, (x,))])
    say("after")


def out_of_memory() -> None:
    """Until nothing is left, and again after giving it back: an exhausted device is not a broken one."""
    driver = opened()
    limit_memory(1024 * MEGABYTE)
    for _ in range(5):
        blocks: list[DriverBlock] = []
        error: OutOfMemory | None = None
        while error is None and len(blocks) < 100:
            try:
                blocks.append(driver.allocate(128 * MEGABYTE))
            except OutOfMemory as caught:
                error = caught
        say(type(error).__name__, error.requested if error else None, len(blocks) >= 4)
        error = None
        for block in blocks:
            driver.release(block)
        del blocks
        gc.collect()
    use(driver)
    say("works")
    driver.close()


def out_of_memory_in_transfers() -> None:
    """No room for what a download needs: the same error, and the data are still there."""
    driver = opened()
    values = words(16 * MEGABYTE)
    x = put(driver, values)
    driver.synchronize()
    limit_memory(200 * MEGABYTE)
    held: list[DriverBlock] = []
    for size in (64 * MEGABYTE, 8 * MEGABYTE, MEGABYTE):
        while outcome(lambda: held.append(driver.allocate(size))) == "nothing":  # noqa: B023 - called at once
            pass
    say(outcome(lambda: driver.read(whole(x.block, 32 * MEGABYTE))))
    for block in held:
        driver.release(block)
    np.testing.assert_array_equal(get(driver, whole(x.block, 4096)), values[:1024])
    say("kept")


def everything() -> None:
    """The driver's whole work, for any adapter."""
    engine = WebGPUEngine()
    device = first_device(engine)
    driver = engine.open(device)
    say(device.name.replace(" ", "_"), device.kind)
    use(driver)
    for count in (0, 1, 63, 64, 65, 1025):
        x, y = put(driver, words(count)), room(driver, count)
        driver.submit([adding(driver, x, y, 5)])
        np.testing.assert_array_equal(get(driver, y), words(count) + np.uint32(5))
    count = 70_000 * 64 + 1
    x = room(driver, count)
    driver.submit([Clear(x), Dispatch(driver.build(count_kernel(count)), (x,))])
    np.testing.assert_array_equal(get(driver, x), np.arange(count, dtype=np.uint32))
    x, y = put(driver, words(6400)), room(driver, 6400)
    driver.submit([Dispatch(driver.build(add_kernel(6400, flops=3e9)), (x, y), (0, 3))], timed=True)
    np.testing.assert_array_equal(get(driver, y), words(6400) + 3)
    seconds = driver.device_seconds()
    say("timed" if seconds is None or seconds > 0 else "untimed")
    lose(driver)
    say(outcome(driver.synchronize), outcome(lambda: driver.submit([])))
    again = engine.open(device)
    use(again)
    say("again")
    engine.close()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
