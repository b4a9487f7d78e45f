"""How many neighbouring invocations surely are one subgroup.

Drivers tell a range. On hardware, the smallest of it is sure. Software adapters tell one that they do not use: theirs
is as many lanes as the processor's registers have, and is asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import wgpu

_ASK = """
@group(0) @binding(0) var<storage, read_write> sizes: array<u32, 64>;

@compute @workgroup_size(64)
fn ask(@builtin(local_invocation_index) lane: u32, @builtin(subgroup_size) size: u32) {
    sizes[lane] = size;
}
"""


def subgroup_size(opened: Any, *, software: bool) -> int:
    """The size, or 0 when it is unknown."""
    if not {"subgroup", "subgroups"} & set(opened.features):
        return 0
    if software:
        return _asked(opened)
    info = opened.adapter_info
    # The first of these names is a slip of the pen in wgpu-py 0.32.
    smallest = (info.get(name) for name in ("stackgroup_min_size", "subgroup_min_size", "subgroupMinSize"))
    return next((int(size) for size in smallest if size), 0)


def _asked(opened: Any) -> int:
    try:
        module = opened.create_shader_module(code=_ASK)
        pipeline = opened.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "ask"})
        buffer = opened.create_buffer(size=256, usage=wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC)
        group = opened.create_bind_group(
            layout=pipeline.get_bind_group_layout(0),
            entries=[{"binding": 0, "resource": {"buffer": buffer, "offset": 0, "size": 256}}],
        )
        encoder = opened.create_command_encoder()
        step = encoder.begin_compute_pass()
        step.set_pipeline(pipeline)
        step.set_bind_group(0, group)
        step.dispatch_workgroups(1)
        step.end()
        opened.queue.submit([encoder.finish()])
        sizes = np.frombuffer(opened.queue.read_buffer(buffer), np.uint32)
        buffer.destroy()
    except wgpu.GPUError:
        return 0
    return int(sizes.min())
