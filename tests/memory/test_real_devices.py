"""The claim that a pool rests on, on real queues: a block may be written to again while earlier work still reads it.

In a child, as everything that could take the process with it.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

_WEBGPU = """
import wgpu
device = wgpu.gpu.request_adapter_sync().request_device_sync()
U = wgpu.BufferUsage
def allocate(nbytes):
    return device.create_buffer(size=nbytes, usage=U.STORAGE | U.COPY_SRC | U.COPY_DST)
def release(buffer):
    buffer.destroy()
def write(buffer, data):
    device.queue.write_buffer(buffer, 0, data)
def copy(source, target):
    encoder = device.create_command_encoder()
    encoder.copy_buffer_to_buffer(source, 0, target, 0, NBYTES)
    device.queue.submit([encoder.finish()])
def read(buffer):
    return np.frombuffer(device.queue.read_buffer(buffer, 0, NBYTES), np.uint32)
"""

_OPENCL = """
import pyopencl as cl
device = cl.get_platforms()[0].get_devices()[0]
context = cl.Context([device])
queue = cl.CommandQueue(context)
waiting = []
def allocate(nbytes):
    return cl.Buffer(context, cl.mem_flags.READ_WRITE, nbytes)
def release(buffer):
    buffer.release()
def write(buffer, data):
    waiting.append(data)
    cl.enqueue_copy(queue, buffer, data, is_blocking=False)
def copy(source, target):
    cl.enqueue_copy(queue, target, source, byte_count=NBYTES)
def read(buffer):
    out = np.empty(NBYTES // 4, np.uint32)
    cl.enqueue_copy(queue, out, buffer)
    return out
"""

_REUSE = """
from anygpu.engines.memory import DeviceMemory, pooled, reclaim
from anygpu.testing import check_no_leaks

made = DeviceMemory(allocate, release)
memory = pooled(made, device="real")
with check_no_leaks(memory):
    results, used = [], set()
    for turn in range(20):
        block, result = memory.allocate(NBYTES), memory.allocate(NBYTES)
        write(block.handle, np.full(NBYTES // 4, turn, np.uint32))
        copy(block.handle, result.handle)
        memory.release(block)          # the copy has been submitted, and is not waited for
        used.add(block.number)
        results.append(result)
    assert len(used) == 1, used
    for turn, result in enumerate(results):
        values = read(result.handle)
        assert (values == turn).all(), (turn, values)
        memory.release(result)
reclaim(memory)
assert made.live_blocks == 0
print("right")
"""


@pytest.mark.parametrize("library", [_WEBGPU, _OPENCL], ids=["webgpu", "opencl"])
def test_reuse_keeps_to_the_order_of_the_queue(library: str) -> None:
    script = "import numpy as np\nNBYTES = 4 * 1048577\n" + library + _REUSE
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.split() == ["right"], (done.stdout, done.stderr)
