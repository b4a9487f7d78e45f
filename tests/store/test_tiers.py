"""Tiers: budgets are kept, what is in use stays, and the figures are those of the engines."""

from __future__ import annotations

import gc
from pathlib import Path
from weakref import ref

import numpy as np
import pytest

import anygpu as ag
from anygpu.errors import OverBudget
from anygpu.store import HostBytes, policy
from tests.store.conftest import COUNTING, EVERY, MakeStore, in_blocks, in_use, some

SIZE = 1 << 14  # of `some(…)`


@pytest.mark.parametrize("device", EVERY)
def test_the_working_set_may_be_larger_than_all_budgets(make_store: MakeStore, device: str, tmp_path: Path) -> None:
    store = make_store(device=device, budget=3 * SIZE, host_budget=4 * SIZE, disk=tmp_path)
    before = in_use(store.device)
    tensors = [store.put(f"t{number}", some(number)) for number in range(12)]

    def check() -> None:
        now = store.statistics()
        assert now.device_bytes <= 3 * SIZE
        assert now.host_bytes <= 4 * SIZE
        if device in COUNTING:
            assert in_use(store.device) - before == in_blocks(*[SIZE] * (now.device_bytes // SIZE))

    check()
    assert {each.tier for each in tensors} == {"device", "host", "disk"}
    for number in (*range(12), 3, 3, 11, 0):
        assert np.array_equal(np.asarray(tensors[number] * 2), some(number) * 2)
        assert tensors[number].tier == "device"
        check()
    assert store.statistics().peak_device_bytes == 3 * SIZE
    assert store.statistics().evictions >= 12
    assert list(tmp_path.iterdir())
    store.close()
    assert not list(tmp_path.iterdir())


def test_without_a_disk_the_host_keeps_what_the_device_cannot(make_store: MakeStore) -> None:
    store = make_store(device="opencl", budget="32KiB", host_budget=SIZE)
    for number in range(3):
        store.put(f"t{number}", some(number))
    with pytest.raises(OverBudget, match=r"16.0 KiB on the host would exceed the budget"):
        store.put("t3", some(3))
    assert store.names() == ["t0", "t1", "t2"]
    assert all(np.array_equal(store.get(f"t{number}").host(), some(number)) for number in range(3))


@pytest.mark.parametrize("device", ["numpy", "opencl"])
def test_what_is_used_stays(make_store: MakeStore, device: str) -> None:
    store = make_store(device=device, budget=4 * SIZE)
    pinned, leased, held, viewed = (store.put(name, some(number)) for number, name in enumerate("plhv"))
    store.pin("p")
    lease = store.lease("l")
    expression = held + 1  # not computed yet
    view = viewed[3:5]
    for _ in range(2):
        with pytest.raises(OverBudget):
            store.put("more", some(9))
        assert {each.tier for each in (pinned, leased, held, viewed)} == {"device"}
    assert np.array_equal(np.asarray(expression), some(2) + 1)
    store.unpin("p")
    lease.release()
    for name in "pl":
        store.put(f"after {name}", some(ord(name)))
        assert store.get(name).tier == "host"
    del expression, view
    gc.collect()
    store.put("after h", some(10))
    store.put("after v", some(11))
    assert {each.tier for each in (pinned, leased, held, viewed)} == {"host"}


def test_an_array_that_the_user_holds_stays(make_store: MakeStore) -> None:
    store = make_store(device="opencl", budget=SIZE)
    mine = ag.asarray(some(1), device="opencl")
    tensor = store.put("a", mine)
    with pytest.raises(OverBudget):
        store.put("b", some(2))
    del mine
    store.put("b", some(2))
    assert tensor.tier == "host"


@pytest.mark.parametrize("device", ["numpy", "opencl"])
def test_the_one_that_was_not_used_for_longest_leaves(make_store: MakeStore, device: str) -> None:
    store = make_store(device=device, budget=3 * SIZE)
    tensors = {name: store.put(name, some(ord(name))) for name in "abc"}
    tensors["a"].compute()
    store.put("d", some(1))
    assert [tensors[name].tier for name in "abc"] == ["device", "host", "device"]


def test_what_does_not_fit_at_all_is_refused_and_nothing_moves(make_store: MakeStore) -> None:
    store = make_store(device="opencl", budget=SIZE)
    store.put("a", some(1))
    with pytest.raises(OverBudget, match=r"budget of 16.0 KiB"):
        store.put("b", some(2, 65, 64))
    assert store.get("a").tier == "device"
    assert "b" not in store


def test_writing_needs_no_room_beside_what_it_replaces(make_store: MakeStore) -> None:
    store = make_store(device="opencl", budget=SIZE)
    tensor = store.put("a", some(1))
    tensor += 1
    store.put("a", some(2))
    store.put("a", store.get("a") * 2)
    assert np.array_equal(tensor.host(), some(2) * 2)
    assert store.statistics().device_bytes == SIZE


@pytest.mark.parametrize("mode", ["speed", "memory", "balanced"])
@pytest.mark.parametrize("device", ["numpy", "opencl"])
def test_the_modes_differ_in_the_copies_that_they_keep(make_store: MakeStore, device: str, mode: str) -> None:
    store = make_store(device=device, budget=2 * SIZE, mode=mode)
    before = in_use(store.device)
    tensors = [store.put(f"t{number}", some(number)) for number in range(4)]
    for number in (0, 1, 2, 3, 0):
        tensors[number].compute()
    now = store.statistics()
    assert now.device_bytes == 2 * SIZE
    if device == "opencl":
        assert in_use(store.device) - before == 2 * SIZE
        # memory: each is in one place. speed: all are on the host. balanced: those that had to leave once.
        assert now.host_bytes == {"speed": 4, "memory": 2, "balanced": 4}[mode] * SIZE
    else:
        assert now.host_bytes == 2 * SIZE
        assert now.copies["to_host"].count == 0
    for number, tensor in enumerate(tensors):
        assert np.array_equal(tensor.host(), some(number))


@pytest.mark.parametrize("mode", ["speed", "memory", "balanced"])
@pytest.mark.parametrize("device", ["numpy", "opencl"])
def test_the_report_of_optimise_adds_up(make_store: MakeStore, device: str, mode: str) -> None:
    store = make_store(device=device, mode=mode, disk=True)
    tensors = [store.put(f"t{number}", some(number)) for number in range(4)]
    tensors[0][...] = some(1)  # equal to another one now
    store.synchronise("t2", "host")
    store.optimise()
    tensors[3].compute()
    store.put("t4", tensors[3] + 0)
    for _ in range(3):
        before = store.statistics()
        report = store.optimise()
        after = store.statistics()
        for tier in ("device", "host", "disk"):
            was, is_ = (getattr(each, f"{tier}_bytes") for each in (before, after))
            assert (report.before[tier], report.after[tier]) == (was, is_)
            assert was + report.gained[tier] - report.freed[tier] == is_
            assert report.saved[tier] == was - is_
    assert "nothing to save" in str(report)
    assert after.contents == 4 - 1
    assert after.bytes_saved == 2 * SIZE
    if mode == "memory":
        assert (after.device_bytes, after.host_bytes) == (0, 0)
    for number, wanted in enumerate((1, 1, 2, 3, 3)):
        assert np.array_equal(store.get(f"t{number}").host(), some(wanted))


def test_what_a_file_has_is_brought_when_it_is_used_and_dropped_for_nothing(
    make_store: MakeStore, tmp_path: Path
) -> None:
    path = tmp_path / "a.npy"
    np.save(path, some(1))
    closed: list[str] = []
    store = make_store(device="opencl", budget=SIZE, mode="memory")
    source = HostBytes(np.load(path, mmap_mode="r"), "file", lambda: closed.append("a"))
    tensor = store._put_host("a", source)
    assert (tensor.tier, store.statistics().elsewhere_bytes) == ("disk", SIZE)
    assert np.array_equal(np.asarray(tensor * 2), some(1) * 2)
    store.put("b", some(2))
    now = store.statistics()
    assert (tensor.tier, now.host_bytes, now.disk_bytes, now.copies["to_host"].count) == ("disk", 0, 0, 0)
    assert np.array_equal(tensor.host(), some(1))
    store.release("a")
    assert closed == ["a"]


def test_tensors_are_saved_and_opened_lazily(make_store: MakeStore, tmp_path: Path) -> None:
    store = make_store(device="opencl", budget=SIZE)
    for number in range(3):
        store.put(f"t{number}", some(number), owner="text", namespace="model")
    store.save(tmp_path / "model.safetensors", namespace="model")
    other = make_store(device="opencl", budget=SIZE)
    opened = other.open(tmp_path / "model.safetensors", namespace="again")
    assert list(opened) == ["t0", "t1", "t2"]
    before = other.statistics()
    assert (before.device_bytes, before.host_bytes, before.elsewhere_bytes) == (0, 0, 3 * SIZE)
    for number, tensor in enumerate(opened.values()):
        assert (tensor.owner, tensor.namespace) == ("text", ("again",))
        assert np.array_equal(np.asarray(tensor + 1), some(number) + 1)
    after = other.statistics()
    assert (after.evictions, after.copies["to_host"].count, after.host_bytes) == (2, 0, 0)
    other.open(tmp_path / "model.safetensors", ["t1"], owner="me", namespace="twice")
    assert other.statistics().contents == 3


def test_prefetch_brings_what_comes_next(make_store: MakeStore) -> None:
    store = make_store(device="opencl", budget=2 * SIZE)
    tensors = [store.put(f"t{number}", some(number)) for number in range(4)]
    store.prefetch(["t0", "t1"], wait=True)
    assert [each.tier for each in tensors] == ["device", "device", "host", "host"]
    tensors[0].compute()
    assert store.statistics().fetched_ahead == 1
    with store.lease("t0"), store.lease("t1"):
        store.prefetch("t2", wait=True)  # there is no room, and nobody is told before it is needed
    assert tensors[2].tier == "host"


def test_what_followed_which_keeps_no_released_tensor(make_store: MakeStore) -> None:
    store = make_store(device="opencl", budget=8 * SIZE)
    entries = []
    for number in range(20):
        tensor = store.put(f"step {number}", some(number))
        tensor.compute()
        entries.append(ref(tensor._entry))
        del tensor
        store.release(f"step {number}")
    gc.collect()
    assert [each() for each in entries] == [None] * 20


def test_what_usually_follows_is_fetched(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_WINDOW", 1 << 30)  # as long as nobody has found out whether it helps
    store = make_store(device="opencl", budget=3 * SIZE)
    tensors = [store.put(f"t{number}", some(number)) for number in range(6)]
    for _ in range(6):
        for number, tensor in enumerate(tensors):
            assert np.array_equal(np.asarray(tensor + 1), some(number) + 1)
            store._prefetcher.wait()
    assert store.statistics().fetched_ahead > 10


def test_what_follows_a_name_is_learnt_although_its_tensor_is_replaced(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "_WINDOW", 1 << 30)
    store = make_store(device="opencl", budget=2 * SIZE)
    weights = store.put("weights", some(0))
    for step in range(1, 9):
        store.put("x", some(step)).compute()
        gc.collect()
        store._prefetcher.wait()
        weights.compute()
        store.put("large", some(20 + step)).compute()
        store.release("large")
    assert store._prefetcher._next["x",][1] >= 8


@pytest.mark.parametrize(("with_it", "without"), [(1.0, 2.0), (2.0, 1.0)])
def test_fetching_ahead_is_kept_up_only_where_it_helps(with_it: float, without: float) -> None:
    worth = policy.PrefetchTrial()
    now = 0.0
    tried: list[bool] = []
    for _ in range(20 * 16):
        tried.append(worth.ahead)
        now += with_it if worth.ahead else without
        worth.used(now)
    assert set(tried[:40]) == {True, False}
    assert set(tried[100:]) == {with_it < without}


def test_figures_by_owner(make_store: MakeStore) -> None:
    store = make_store("figures")
    store.put("a", some(1), owner="text")
    store.put("b", some(1), owner="image")
    store.put("c", some(2), owner="image")
    now = store.statistics()
    assert {owner: (each.tensors, each.bytes) for owner, each in now.by_owner.items()} == {
        "text": (1, SIZE),
        "image": (2, 2 * SIZE),
    }
    assert (now.tensors, now.contents, now.bytes, now.bytes_saved) == (3, 2, 3 * SIZE, SIZE)
    assert str(now) == (
        "3 tensors in 2 contents: 32.0 KiB on numpy, 0 bytes on the host, 0 bytes on disk; 16.0 KiB shared"
    )


def test_the_folder_goes_with_a_store_that_nobody_closed(make_store: MakeStore, tmp_path: Path) -> None:
    from anygpu.store import Store

    store = Store(device="numpy", budget=SIZE, host_budget=0, disk=tmp_path)
    store.put("a", some(1))
    store.put("b", some(2))
    assert len(list(tmp_path.iterdir())) == 1
    assert next(tmp_path.iterdir()).stat().st_mode & 0o077 == 0
    del store
    gc.collect()
    assert not list(tmp_path.iterdir())
