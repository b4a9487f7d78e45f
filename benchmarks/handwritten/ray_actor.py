"""What a user of Ray would write by hand: an actor with a NumPy function, and arrays as Ray's users pass them.

It runs in a process of its own, a driver beside ours: one request a line, one answer a line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np


def _wave(x: Any) -> Any:
    return np.tanh(x) * 2 + 1


class _Wave:
    def run(self, x: Any) -> Any:
        return _wave(x)

    def double(self, x: Any) -> Any:
        return x * 2

    def pid(self) -> int:
        return os.getpid()


def _seconds(actor: Any, ray: Any, nbytes: int, way: str) -> float:
    x = np.random.default_rng(0).random(nbytes // 4, np.float32)
    begin = time.perf_counter()
    if way == "value":
        ray.get(actor.run.remote(x), timeout=60)
    else:
        # The object store's way, and a copy, because what comes out of it cannot be written to.
        ray.get(actor.double.remote(ray.put(x)), timeout=60).copy()
    return time.perf_counter() - begin


def main() -> None:
    """Until standard input closes."""
    sent = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR", namespace="by-hand")
    node = next(each["NodeID"] for each in ray.nodes() if each["NodeName"] == sys.argv[2])
    at: Any = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    cls: Any = ray.remote(_Wave)
    actor = cls.options(num_cpus=0, scheduling_strategy=at).remote()
    sent.write(json.dumps([os.getpid(), ray.get(actor.pid.remote(), timeout=60)]) + "\n")
    sent.flush()
    for line in sys.stdin:
        nbytes, way, count = json.loads(line)
        seconds = [_seconds(actor, ray, nbytes, way) for _ in range(count)]
        sent.write(json.dumps(seconds) + "\n")
        sent.flush()


if __name__ == "__main__":
    main()
