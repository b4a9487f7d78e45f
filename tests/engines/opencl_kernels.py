"""Small OpenCL kernels written by hand, and a PoCL device to run them on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from anygpu.engines.codegen.kernel import Binding, Kernel
from anygpu.engines.driver import Bytes, Extent
from anygpu.engines.opencl.engine import OpenCLDriver, OpenCLEngine
from anygpu.hardware.device import Device

GROUP = 64


def affine(count: int, *, scale: float = 2.0, group_size: int = GROUP, name: str = "affine") -> Kernel:
    """y = scale * x + 1 for `count` numbers."""
    return Kernel(
        name=name,
        source=f"""\
__kernel __attribute__((reqd_work_group_size({group_size}, 1, 1)))
void {name}(__global const float *restrict x, __global float *restrict y, uint first_group) {{
    const size_t i = (get_group_id(0) + first_group) * {group_size} + get_local_id(0);
    if (i < {count}) {{
        y[i] = {scale!r}f * x[i] + 1.0f;
    }}
}}
""",
        bindings=(Binding(0, "read"), Binding(1, "write")),
        groups=-(-count // group_size),
        group_size=group_size,
        numbers=("first_group",),
        flops=2.0 * count,
        bytes_moved=8.0 * count,
    )


def open_first(sharing: str | None = None, subdevices: str = "") -> tuple[OpenCLEngine, Device, OpenCLDriver]:
    engine = OpenCLEngine(subdevices=subdevices)
    device = engine.discover()[0]
    if not isinstance(device, Device):
        raise RuntimeError(device.reason)
    return engine, device, engine.open(device, sharing=sharing)  # type: ignore[arg-type]


def as_bytes(values: npt.NDArray[np.generic]) -> Bytes:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def whole(driver: OpenCLDriver, values: npt.NDArray[np.generic]) -> Extent:
    """A new block that holds the values."""
    data = as_bytes(values)
    extent = Extent(driver.allocate(len(data)), 0, len(data))
    driver.write(extent, data)
    return extent


def room(driver: OpenCLDriver, nbytes: int) -> Extent:
    return Extent(driver.allocate(nbytes), 0, nbytes)
