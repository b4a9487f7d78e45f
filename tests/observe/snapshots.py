"""Snapshots as processes would answer, for tests that need no process."""

from __future__ import annotations

from typing import Any

from anygpu.observe.snapshot import Anomaly, DeviceMemoryUse, FallbackRecord, ProcessInfo, Snapshot
from anygpu.observe.statistics import CallStatistics, Quantiles, Summary
from anygpu.runtime.health import Health, LaneHealth, TenantHealth
from anygpu.workers.device_arrays.lineage import Loss


def calls(function: str, device: str = "numpy", count: int = 10, seconds: float = 1e-3, **more: Any) -> CallStatistics:
    quantiles = Quantiles(
        count=count, total=count * seconds, p50=seconds, p90=seconds, p99=2 * seconds, most=3 * seconds
    )
    fields: dict[str, Any] = {
        "errors": {},
        "fallbacks": 0,
        "host_operations": 0,
        "bytes_to_device": 0,
        "bytes_to_host": 0,
        "bytes_skipped": 0,
        "compilations": 0,
        "phases": {"run": count * seconds},
        "predicted_seconds": 0.0,
        "seconds_of_predicted": 0.0,
    }
    return CallStatistics(
        function=function, device=device, calls=count, seconds=quantiles, lately=quantiles, **(fields | more)
    )


def training(count: int = 10, seconds: float = 0.1) -> CallStatistics:
    """Steps, two of which were repeated."""
    whole = count * seconds
    return calls(
        "train",
        "torch:cpu",
        count,
        seconds,
        errors={"OutOfMemory": 1},
        phases={"queue": 0.05 * whole, "write": 0.1 * whole, "run": 0.8 * whole, "other": 0.05 * whole},
        parts={"forward": 0.25 * whole, "backward": 0.5 * whole, "optimizer": 0.05 * whole},
        repeats=2,
        peak_bytes=96 << 20,
        predicted_bytes=88 << 20,
    )


def snapshot(*functions: CallStatistics, time: float = 100.0, pid: int = 7, **more: Any) -> Snapshot:
    process = ProcessInfo(
        pid=pid,
        command="/usr/bin/python3 script.py",
        version="0",
        since=40.0,
        processor_seconds=time / 10,
        memory_bytes=5 << 20,
    )
    return Snapshot(time=time, process=process, statistics=Summary(seconds=time, calls=functions), **more)


def health() -> Health:
    lane = LaneHealth(device="webgpu:0", condition="late", running=("score",), seconds=3.0, done=40, failed=2)
    return Health(
        ok=False,
        closed=None,
        waiting=12,
        limit=1000,
        open_tasks=13,
        oldest_seconds=2.5,
        lanes=(lane,),
        tenants=(TenantHealth(tenant="reports", waiting=12, bytes=4096, seconds=1.5),),
        losses=(Loss(device="webgpu:0", generation=1, why="its process died"),),
    )


def eventful(time: float = 100.0, pid: int = 7) -> Snapshot:
    """With something on every page."""
    return snapshot(
        calls("score", "webgpu:0", 500, 2e-3, errors={"ValueError": 3}, fallbacks=4, bytes_to_device=1 << 20),
        calls("scale", "numpy", 90, 1e-5),
        time=time,
        pid=pid,
        runtime=health(),
        memory={"webgpu:0": DeviceMemoryUse(bytes=1 << 20, peak_bytes=2 << 20)},
        fallbacks=(FallbackRecord(time - 30, "score", "numpy", "webgpu:0: DeviceLost: gone"),),
        anomalies=(
            Anomaly(
                kind="slower", subject="score", device="webgpu:0", sentence="score takes 2 ms, not 1", time=time - 5
            ),
        ),
    )
