"""Processes that do not exist, for the dashboard: a source that tells of them what a test wants."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping

import numpy as np

from anygpu.hardware.usage import READINGS, Usage
from anygpu.observe.snapshot import Advice, Anomaly, CallRecord, DeviceMemoryUse, FallbackRecord, ProcessInfo, Snapshot
from anygpu.observe.statistics import CallStatistics, Quantiles, Summary
from anygpu.runtime.health import Health, LaneHealth, TenantHealth
from anygpu.workers.device_arrays.lineage import Loss

DEVICES = ("cuda:0", "webgpu:0", "opencl:0", "numpy")
FUNCTIONS = ("score", "resize", "embed", "denoise", "spectrum", "rank")


def call(
    number: int,
    end: float,
    run: float = 0.01,
    *,
    function: str = "score",
    device: str = "numpy",
    queue: float = 0.0,
    move: float = 0.0,
    predicted: float | None = None,
    error: str | None = None,
) -> CallRecord:
    return CallRecord(number, function, device, end, queue + move + run, queue, move, run, 0, predicted, error)


def quantiles(count: int, p50: float) -> Quantiles:
    return Quantiles(count=count, total=count * p50, p50=p50, p90=p50 * 1.6, p99=p50 * 2.9, most=p50 * 5)


def statistics(function: str, device: str, calls: int, p50: float, **fields: object) -> CallStatistics:
    values: dict[str, object] = {
        "errors": {},
        "fallbacks": 0,
        "host_operations": 0,
        "bytes_to_device": 0,
        "bytes_to_host": 0,
        "bytes_skipped": 0,
        "compilations": 0,
        "phases": {},
        "predicted_seconds": calls * p50 * 0.95,
        "seconds_of_predicted": calls * p50,
        "seconds": quantiles(calls, p50),
        "lately": quantiles(calls, p50),
    }
    values |= fields
    return CallStatistics(function=function, device=device, calls=calls, **values)  # type: ignore[arg-type]


def snapshot(pid: int, time: float, **fields: object) -> Snapshot:
    values: dict[str, object] = {
        "process": ProcessInfo(
            pid=pid,
            command=f"python service.py --part {pid % 10}",
            version="0.1",
            since=1000.0,
            processor_seconds=time * 0.3,
            memory_bytes=180 << 20,
        ),
        "statistics": Summary(seconds=time, calls=()),
    }
    return Snapshot(time=time, **(values | fields))  # type: ignore[arg-type]


def usage(card: str, source: str = "nvml", **known: object) -> Usage:
    unknown = {name: "the driver does not tell it" for name in READINGS if name not in known}
    return Usage(card=card, source=source, unknown=unknown, **known)  # type: ignore[arg-type]


def _usual(function: str) -> float:
    return 0.0007 * (1 + FUNCTIONS.index(function))


class Invented:
    """A few processes with so many calls a second, together; the same ones with every run."""

    def __init__(self, now: Callable[[], float], *, processes: int = 4, rate: float = 2000.0, seed: int = 18) -> None:
        self._now = now
        self._random = random.Random(seed)
        self._numbers = [itertools.count(1) for _ in range(processes)]
        self._last = [now() - 1.0] * processes
        self._done: list[dict[tuple[str, str], int]] = [{} for _ in range(processes)]
        self._rate = rate / processes

    def snapshots(self, since: Mapping[int, int]) -> dict[int, Snapshot | None]:
        now = self._now()
        return {4101 + index * 7: self._snapshot(index, 4101 + index * 7, now) for index in range(len(self._numbers))}

    def _snapshot(self, index: int, pid: int, now: float) -> Snapshot:
        calls = []
        count = min(1000, int((now - self._last[index]) * self._rate))
        for end in np.linspace(self._last[index], now, count, endpoint=False):
            # Bursts, as of users that come and go.
            if math.sin(end * 0.9 + index) < -0.4:
                continue
            function = FUNCTIONS[(index + int(self._random.expovariate(1.2))) % len(FUNCTIONS)]
            device = DEVICES[(index + (self._random.random() < 0.2)) % len(DEVICES)]
            run = _usual(function) * self._random.lognormvariate(0, 0.3)
            move = run * (0.5 if device in ("cuda:0", "webgpu:0") else 0.02)
            queue = run * self._random.random()
            error = "DeviceLost" if self._random.random() < 0.0005 else None
            predicted = run * self._random.lognormvariate(0.1, 0.35)
            calls.append(
                CallRecord(
                    next(self._numbers[index]),
                    function,
                    device,
                    float(end),
                    run + move + queue,
                    queue,
                    move,
                    run,
                    4096,
                    predicted,
                    error,
                )
            )
            done = self._done[index]
            done[function, device] = done.get((function, device), 0) + 1
        self._last[index] = now
        wave = 0.5 + 0.4 * math.sin(now / 7 + index)
        waiting = int(40 * max(0.0, math.sin(now * 0.9 + index)))
        return snapshot(
            pid,
            now,
            calls=tuple(calls),
            statistics=Summary(
                seconds=now,
                calls=tuple(
                    statistics(function, device, count, _usual(function), fallbacks=count // 900)
                    for (function, device), count in self._done[index].items()
                ),
            ),
            fallbacks=(
                FallbackRecord(now - 40, "embed", "webgpu:0", "cuda:0: OutOfMemory: 2.1 GiB asked for, 1.4 GiB free"),
                FallbackRecord(
                    now - 4, "rank", "opencl:0", "sort at service.py:41 ran on the host: no sort of float16"
                ),
            ),
            runtime=Health(
                ok=True,
                closed=None,
                waiting=waiting,
                limit=1000,
                open_tasks=waiting + 4,
                oldest_seconds=0.2,
                lanes=tuple(
                    LaneHealth(
                        device=device,
                        condition="busy",
                        running=("embed",),
                        backlog_seconds=0.03 * waiting,
                        done=int(now) % 10000,
                        batches=int(now * 10),
                        batched=int(now * 10 * (3 + index)),
                        generation=2,
                    )
                    for device in DEVICES[index : index + 2]
                ),
                tenants=(
                    TenantHealth(tenant="mobile", waiting=waiting // 2, bytes=4 << 20, seconds=412.0 + index),
                    TenantHealth(tenant="batch", waiting=waiting // 3, bytes=90 << 20, seconds=133.0),
                ),
                losses=(
                    Loss(
                        device="cuda:0",
                        generation=1,
                        why="the driver was reset",
                        restorable_from_copy=3,
                        recomputable=2,
                    ),
                )
                if index == 0
                else (),
            ),
            usage={
                "cuda:0": usage(
                    "nvidia:0",
                    load=0.5 + wave / 3,
                    memory_used=int((5 + 2 * wave) * 2**30),
                    memory_total=12 << 30,
                    temperature=61 + 12 * wave,
                    power=110 + 70 * wave,
                    power_limit=220.0,
                    clock=1.9e9,
                    throttled=(),
                ),
                "webgpu:0": usage(
                    "amd:0",
                    "sysfs",
                    load=wave,
                    memory_used=int(1.6 * 2**30),
                    memory_total=8 << 30,
                    temperature=48 + 5 * wave,
                    power=45 + 20 * wave,
                ),
                "numpy": usage(
                    "cpu", "proc", load=0.3 + wave / 4, memory_used=9 << 30, memory_total=32 << 30, temperature=55.0
                ),
            },
            memory={
                DEVICES[index % 3]: DeviceMemoryUse(
                    bytes=(700 + int(200 * wave)) << 20,
                    peak_bytes=1200 << 20,
                    by_owner={"weights": 400 << 20, "store": 150 << 20, "results": int(100 * wave) << 20},
                )
            },
            anomalies=(
                Anomaly(
                    kind="slower",
                    subject="denoise",
                    device="webgpu:0",
                    time=now - 75,
                    sentence="denoise on webgpu:0 takes 1.8 times as long since 64 calls.",
                ),
            )
            if index == 1
            else (),
            advice=(
                Advice(
                    kind="upload-again",
                    line="service.py:88",
                    cost=12.4,
                    finding="The same array of 96 MiB was uploaded 411 times.",
                    instead="Keep it on the device: weights = ag.asarray(weights).",
                ),
                Advice(
                    kind="tiny-batch",
                    line="service.py:120",
                    cost=3.1,
                    finding="Launches of resize have 1.2 tasks.",
                    instead="Submit them together: ag.map(resize, images).",
                ),
            )
            if index == 0
            else (),
        )
