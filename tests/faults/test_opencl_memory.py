"""Memory that runs out, against the real library in a child: an error with a name, and a device that still works."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PRELUDE = """
import resource
import numpy as np
import psutil
from anygpu.engines.driver import Clear, Extent, Dispatch
from tests.engines.opencl_kernels import affine, open_first, room, whole

def narrow(room_left):
    most = psutil.Process().memory_info().vms + room_left
    resource.setrlimit(resource.RLIMIT_AS, (most, most))

def name_of(action):
    try:
        action()
    except Exception as error:
        return type(engine.classify(error, device) or error).__name__
    return "nothing"
"""


def in_a_child(script: str, seconds: float = 180) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _PRELUDE + script], capture_output=True, text=True, check=False, timeout=seconds
    )


@pytest.mark.parametrize("sharing", ["shared", "mapped"])
def test_exhausted_memory_is_recognised_and_recovered_from(sharing: str) -> None:
    done = in_a_child(f"""
engine, device, driver = open_first({sharing!r})
built = driver.build(affine(257))
source, target = whole(driver, np.ones(257, np.float32)), room(driver, 4 * 257)
driver.submit([Dispatch(built, (source, target), (0,))])
driver.synchronize()
narrow(1 << 30)
for turn in range(5):
    kept = []
    def fill():
        for _ in range(40):
            kept.append(driver.allocate(128 << 20))
    print(name_of(fill))
    kept.clear()
    driver.submit([Clear(target), Dispatch(built, (source, target), (0,))])
    assert (driver.read(target).view(np.float32) == 3).all()
assert driver.live().blocks == 2, driver.live()
""")
    assert done.stdout.split() == ["OutOfMemory"] * 5, (done.stdout, done.stderr[-2000:])


def test_a_result_that_has_no_room_on_the_host() -> None:
    done = in_a_child("""
engine, device, driver = open_first("shared")
extent = room(driver, 512 << 20)
driver.submit([Clear(Extent(extent.block, 0, 4096))])
driver.synchronize()
narrow(256 << 20)
print(name_of(lambda: driver.read(extent)), name_of(lambda: driver.read_view(extent)))
""")
    assert done.stdout.split() == ["OutOfMemory", "nothing"], (done.stdout, done.stderr[-2000:])


def test_a_buffer_larger_than_the_device_allows() -> None:
    done = in_a_child("""
import pyopencl as cl
engine, device, driver = open_first()
size = device.limits["max-buffer-size"] + 1
context = driver._opened.context
print(name_of(lambda: driver.allocate(size)))
print(name_of(lambda: cl.Buffer(context, cl.mem_flags.READ_WRITE, size)))
""")
    assert done.stdout.split() == ["TooBig", "TooBig"], (done.stdout, done.stderr[-2000:])


def test_pocl_aborts_when_memory_that_it_only_promised_is_missing() -> None:
    """Why its blocks are made of memory that we ask for ourselves. When this fails, PoCL has become better."""
    done = in_a_child("""
engine, device, driver = open_first("mapped")
import pyopencl as cl
context, queue = driver._opened.context, driver._opened.queue
narrow(1 << 30)
promised = [cl.Buffer(context, cl.mem_flags.READ_WRITE, 512 << 20) for _ in range(10)]
print("promised", flush=True)
for buffer in promised:
    cl.enqueue_fill_buffer(queue, buffer, np.zeros(1, np.uint32), 0, 4096)
queue.finish()
""")
    assert done.stdout.split() == ["promised"]
    assert done.returncode < 0, done.stderr[-2000:]
