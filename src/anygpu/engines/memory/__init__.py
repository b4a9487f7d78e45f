"""Device memory as resources that wrap one another.

Read `resource.py` first: two methods, and why a release never waits. Then each file is one thing to wrap around it, and
`strategies.py` puts them together. Nothing here knows a library: an engine hands its driver's two functions to
`DeviceMemory`.
"""

from anygpu.engines.memory.adaptors import UNOWNED, Held, Limit, OnFailure, Snapshot, Stats, eager, lazy, pooled
from anygpu.engines.memory.pool import Fence, Fenced, Pool, PoolSnapshot, Timeline, bucket_size
from anygpu.engines.memory.resource import Block, DeviceMemory, Reclaiming, Resource, Wrapping, find, layers, reclaim

__all__ = [
    "UNOWNED",
    "Block",
    "DeviceMemory",
    "Fence",
    "Fenced",
    "Held",
    "Limit",
    "OnFailure",
    "Pool",
    "PoolSnapshot",
    "Reclaiming",
    "Resource",
    "Snapshot",
    "Stats",
    "Timeline",
    "Wrapping",
    "bucket_size",
    "eager",
    "find",
    "layers",
    "lazy",
    "pooled",
    "reclaim",
]
