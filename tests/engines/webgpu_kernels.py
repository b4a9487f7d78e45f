"""Small kernels by hand, and a device to run them on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from anygpu.engines.codegen.kernel import Binding, Kernel
from anygpu.engines.driver import Bytes, Dispatch, DriverBlock, Extent
from anygpu.engines.webgpu.engine import WebGPUDriver, WebGPUEngine
from anygpu.hardware.device import Device

Words = npt.NDArray[np.uint32]

ODD_SIZES = (1, 2, 3, 4, 5, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025)

_ADD = """\
struct Numbers {{ first_group: u32, amount: u32 }}
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<uniform> numbers: Numbers;

@compute @workgroup_size({group_size})
fn add(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
    let number = numbers.first_group + group.x + group.y * 65535u;
    let i = number * {group_size}u + lane;
    if (i < {length}u) {{
        y[i] = x[i] + numbers.amount;
    }}
}}
"""

_COUNT = """\
@group(0) @binding(0) var<storage, read_write> y: array<u32>;

@compute @workgroup_size({group_size})
fn count(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
    let i = (group.x + group.y * 65535u) * {group_size}u + lane;
    if (i < {length}u) {{
        y[i] = y[i] + i + {start}u;
    }}
}}
"""

_SPIN = """\
struct Numbers {{ first_group: u32 }}
@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<uniform> numbers: Numbers;

@compute @workgroup_size(64)
fn spin(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
    let i = (numbers.first_group + group.x + group.y * 65535u) * 64u + lane;
    var turns = 0u;
    for (var turn = 0u; turn < {turns}u; turn += 1u) {{
        // Something that no compiler can leave out.
        turns = turns + 1u + (y[i] >> 31u);
    }}
    y[i] = turns;
}}
"""


def add_kernel(length: int, *, group_size: int = 64, flops: float = 0.0, bytes_moved: float = 0.0) -> Kernel:
    """y = x + amount, for 32-bit words."""
    return Kernel(
        name="add",
        source=_ADD.format(length=length, group_size=group_size),
        bindings=(Binding(0, "read"), Binding(1, "write")),
        groups=-(-length // group_size),
        group_size=group_size,
        numbers=("first_group", "amount"),
        flops=flops,
        bytes_moved=bytes_moved,
    )


def count_kernel(length: int, *, group_size: int = 64, start: int = 0) -> Kernel:
    """y += start, start + 1, …, without numbers: it can only run as a whole."""
    return Kernel(
        name="count",
        source=_COUNT.format(length=length, group_size=group_size, start=start),
        bindings=(Binding(0, "read_write"),),
        groups=-(-length // group_size),
        group_size=group_size,
    )


def spin_kernel(groups: int, turns: int, *, flops: float = 0.0) -> Kernel:
    """Each invocation goes round a loop, and says how often it did."""
    return Kernel(
        name="spin",
        source=_SPIN.format(turns=turns),
        bindings=(Binding(0, "read_write"),),
        groups=groups,
        group_size=64,
        numbers=("first_group",),
        flops=flops,
    )


@contextmanager
def opened() -> Iterator[WebGPUDriver]:
    engine = WebGPUEngine()
    try:
        yield engine.open(first_device(engine))
    finally:
        engine.close()


def first_device(engine: WebGPUEngine) -> Device:
    device = engine.discover()[0]
    assert isinstance(device, Device), device
    return device


def whole(block: DriverBlock, nbytes: int) -> Extent:
    return Extent(block, 0, nbytes)


def words(count: int, seed: int = 0) -> Words:
    return np.random.default_rng(seed).integers(0, 1 << 32, count, dtype=np.uint32)


def random_bytes(count: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


def put(driver: WebGPUDriver, values: Words) -> Extent:
    """A block with these values."""
    extent = whole(driver.allocate(values.nbytes), values.nbytes)
    driver.write(extent, values.view(np.uint8))
    return extent


def get(driver: WebGPUDriver, extent: Extent) -> Words:
    return driver.read(extent).view(np.uint32)


def room(driver: WebGPUDriver, count: int) -> Extent:
    """A block for so many words."""
    return whole(driver.allocate(4 * count), 4 * count)


def adding(driver: WebGPUDriver, source: Extent, target: Extent, amount: int) -> Dispatch:
    return Dispatch(driver.build(add_kernel(source.nbytes // 4)), (source, target), (0, amount))
