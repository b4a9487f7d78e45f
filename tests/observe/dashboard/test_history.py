"""What the dashboard remembers, in a fixed memory."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from anygpu.observe.dashboard import panels
from anygpu.observe.dashboard.history import (
    BLOCKS,
    CALLS,
    DEAD_SECONDS,
    KEPT_SECONDS,
    MOST_NAMES,
    OTHER,
    PROCESSES,
    SAMPLES,
    DashboardHistory,
    NameNumbers,
    Ring,
)
from anygpu.observe.dashboard.panels import HistoryView
from anygpu.observe.snapshot import DeviceMemoryUse, ProcessInfo
from tests.observe.dashboard.invented import Invented, call, snapshot, usage


def test_a_ring_has_the_latest_rows_in_order() -> None:
    ring = Ring(5, 1)
    for first in (0, 3, 6):
        ring.extend(np.arange(first, first + 3.0)[:, None])

    assert ring.rows()[:, 0].tolist() == [4, 5, 6, 7, 8]
    ring.extend(np.arange(100.0)[:, None])
    assert ring.rows()[:, 0].tolist() == [95, 96, 97, 98, 99]
    assert len(ring) == 5


def test_too_many_names_are_told_together() -> None:
    names = NameNumbers()

    numbers = [names.number(f"function {number}") for number in range(1000)]

    assert len(names.list) == MOST_NAMES
    assert names.list[-1] == OTHER
    assert numbers[0] == 0
    assert numbers[-1] == MOST_NAMES - 1
    assert names.number("function 3") == 3


def test_calls_are_counted_once_even_if_they_are_told_twice() -> None:
    history = DashboardHistory()
    history.add({7: snapshot(7, 10.0, calls=tuple(call(number, number) for number in (1, 2, 3)))}, 10.0)
    history.add({7: snapshot(7, 11.0, calls=tuple(call(number, number) for number in (2, 3, 4)))}, 11.0)

    assert history.since() == {7: 4}
    assert history.processes[7].blocks.rows()[:, CALLS].sum() == 4
    assert history.processes[7].missed == 0


def test_calls_that_came_too_fast_are_known_to_be_missing() -> None:
    history = DashboardHistory()
    history.add({7: snapshot(7, 10.0, calls=(call(1, 1.0),))}, 10.0)
    history.add({7: snapshot(7, 11.0, calls=(call(51, 2.0),))}, 11.0)

    assert history.processes[7].missed == 49


def test_a_process_that_has_ended_is_remembered_for_a_while() -> None:
    history = DashboardHistory()
    history.add({7: snapshot(7, 10.0), 8: snapshot(8, 10.0)}, 10.0)
    history.add({8: snapshot(8, 11.0)}, 11.0)

    assert not history.processes[7].alive
    assert history.processes[8].alive
    assert history.since() == {8: 0}
    history.add({8: snapshot(8, 12.0)}, 11.0 + DEAD_SECONDS)
    assert list(history.processes) == [8]


def test_a_process_that_is_silent_has_not_ended() -> None:
    history = DashboardHistory()
    history.add({7: snapshot(7, 10.0)}, 10.0)
    history.add({7: None}, 11.0)

    assert history.processes[7].alive
    assert history.processes[7].silent


def test_another_process_with_the_same_id_starts_afresh() -> None:
    history = DashboardHistory()
    history.add({7: snapshot(7, 10.0, calls=(call(900, 1.0),))}, 10.0)
    process = ProcessInfo(pid=7, command="other.py", version="0", since=2000.0, processor_seconds=0.0, memory_bytes=0)
    history.add({7: snapshot(7, 11.0, process=process, calls=(call(1, 2.0),))}, 11.0)

    assert history.since() == {7: 1}
    assert len(history.processes[7].blocks) == 1


def test_devices_of_software_are_summed_and_cards_are_not() -> None:
    history = DashboardHistory()
    looks = {
        pid: snapshot(
            pid, 10.0, usage={"cuda:0": usage("nvidia:0", load=0.5), "webgpu:0": usage("webgpu:0", "worker", load=0.4)}
        )
        for pid in (7, 8, 9)
    }
    history.add(looks, 10.0)

    assert history.device_samples["cuda:0"][-1].load == 0.5
    assert history.device_samples["webgpu:0"][-1].load == pytest.approx(1.0)
    assert math.isnan(history.device_samples["cuda:0"][-1].power)


def test_what_is_not_known_is_not_full_load() -> None:
    history = DashboardHistory()
    history.add({7: snapshot(7, 10.0, usage={"cuda:0": usage("nvidia:0")})}, 10.0)

    assert math.isnan(history.device_samples["cuda:0"][-1].load)


def test_devices_that_nobody_tells_of_any_more_are_forgotten() -> None:
    history = DashboardHistory()
    history.add({7: snapshot(7, 10.0, usage={"cuda:0": usage("nvidia:0", load=0.5)})}, 10.0)
    history.add({7: snapshot(7, 11.0)}, 11.0 + KEPT_SECONDS)

    assert not history.device_samples
    assert not history.usage


def test_memory_is_that_of_owners_and_the_rest() -> None:
    history = DashboardHistory()
    memory = {"cuda:0": DeviceMemoryUse(bytes=100, peak_bytes=100, by_owner={"weights": 60})}
    history.add({7: snapshot(7, 10.0, memory=memory)}, 10.0)

    assert history.memory[-1][1] == {(7, "cuda:0", "weights"): 60, (7, "cuda:0", OTHER): 40}


def test_memory_does_not_grow() -> None:
    clock = itertools.count(1, 0.5)
    moment = [0.5]
    source = Invented(lambda: moment[0], rate=8000.0)
    history = DashboardHistory()
    for moment[0] in itertools.islice(clock, 60):
        history.add(source.snapshots(history.since()), moment[0])
    assert len(history.since()) == 4
    for pid in range(100_000, 100_200):
        moment[0] = next(clock)
        history.add({pid: snapshot(pid, moment[0])}, moment[0])

    assert len(history.processes) <= PROCESSES
    assert all(len(each.blocks) <= BLOCKS for each in history.processes.values())
    assert len(history.memory) <= SAMPLES


def test_of_owners_with_as_much_memory_the_one_seen_first_is_lowest() -> None:
    """Whatever the seed of hashes is: a chart must not look otherwise after each start."""
    owners = [f"owner {number}" for number in range(6)]
    history = DashboardHistory()
    held = DeviceMemoryUse(bytes=600, peak_bytes=600, by_owner=dict.fromkeys(owners, 100))
    history.add({7: snapshot(7, 10.0, memory={"opencl:0": held})}, 10.0)

    assert panels.owners(history, HistoryView(now=11.0, window=60.0))["name"] == [
        f"{each} on opencl:0" for each in owners
    ]
