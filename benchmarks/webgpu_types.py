"""What `find_types_fast` saves a process that opens a WebGPU device: `python -m benchmarks.webgpu_types`."""

from __future__ import annotations

import statistics
import subprocess
import sys

ROUNDS = 5

_OPEN = """
import sys, time
import wgpu
from wgpu.backends import wgpu_native
from anygpu.engines.webgpu.device import find_types_fast
if sys.argv[1] == "fast":
    find_types_fast()
begin = time.process_time()
device = wgpu.gpu.enumerate_adapters_sync()[0].request_device_sync()
device.create_buffer(size=16, usage=wgpu.BufferUsage.STORAGE)
print(time.process_time() - begin)
"""


def seconds(way: str) -> float:
    """Processor time in which a new process lists the adapters, opens one and makes a buffer."""
    done = subprocess.run([sys.executable, "-c", _OPEN, way], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    taken: dict[str, list[float]] = {"plain": [], "fast": []}
    for _ in range(ROUNDS):
        for way, times in taken.items():
            times.append(seconds(way))
    for way, times in taken.items():
        sys.stdout.write(f"{way:6} {statistics.median(times):.2f} s\n")


if __name__ == "__main__":
    main()
