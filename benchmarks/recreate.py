"""What is left behind when a device is opened, used and closed again and again: megabytes of the process, each time."""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil

from anygpu.engines import catalogue
from anygpu.engines.codegen.kernel import Binding, Kernel
from anygpu.engines.driver import Dispatch, Driver, Extent
from anygpu.hardware.device import Device
from benchmarks.report import Figure, publish

#: The first ones fill what is filled once: the compiler's tables, the allocator's own pools.
WARM_UP = 50

COUNT = 1025

_OPENCL = """\
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void twice(__global const float *x, __global float *y) {{
    const size_t i = get_group_id(0) * 64 + get_local_id(0);
    if (i < {count}) {{
        y[i] = 2.0f * x[i];
    }}
}}
"""

_WGSL = """\
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn twice(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
    let i = group.x * 64u + lane;
    if (i < {count}u) {{
        y[i] = 2.0 * x[i];
    }}
}}
"""

TEXTS = {"opencl": _OPENCL, "webgpu": _WGSL}


def opener(name: str) -> Callable[[], Driver]:
    (entry,) = (entry for entry in catalogue.BUILT_IN if entry.name == name)
    engine: Any = catalogue.load(entry)
    device = next(found for found in engine.discover() if isinstance(found, Device))
    return lambda: engine.open(device)


def kernel_for(name: str) -> Kernel:
    return Kernel(
        name="twice",
        source=TEXTS[name].format(count=COUNT),
        bindings=(Binding(0, "read"), Binding(1, "write")),
        groups=-(-COUNT // 64),
        group_size=64,
    )


def use(driver: Driver, kernel: Kernel) -> None:
    """As a worker would: memory, a kernel, a result."""
    values = np.arange(COUNT, dtype=np.float32)
    extents = tuple(Extent(driver.allocate(values.nbytes), 0, values.nbytes) for _ in range(2))
    driver.write(extents[0], values.view(np.uint8))
    driver.submit([Dispatch(driver.build(kernel), extents)])
    if not (driver.read(extents[1]).view(np.float32) == 2 * values).all():
        raise RuntimeError("the device computes wrong results")
    for extent in extents:
        driver.release(extent.block)


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=sorted(TEXTS), required=True)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bound is missed")
    options = parser.parse_args()
    open_driver, kernel = opener(options.engine), kernel_for(options.engine)

    def again() -> None:
        driver = open_driver()
        use(driver, kernel)
        driver.close()

    for _ in range(WARM_UP):
        again()
    gc.collect()
    before, began = resident_bytes(), time.perf_counter()
    for _ in range(options.count):
        again()
    taken = time.perf_counter() - began
    gc.collect()
    grown = resident_bytes() - before
    publish(
        [
            Figure(
                name=f"{options.engine}: left behind by each of {options.count}",
                value=grown / options.count / 1e6,
                unit="MB",
                bound=0.15,
            ),
            Figure(name=f"{options.engine}: open, use and close", value=taken / options.count * 1e3, unit="ms"),
        ],
        options,
    )


if __name__ == "__main__":
    main()
