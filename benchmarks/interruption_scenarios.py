"""What is interrupted, and what has to be true afterwards: of runtimes, stores, calls and streams."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import itertools
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import anygpu as ag
from anygpu.runtime.runtime import Runtime
from anygpu.store.shared_store import SharedTensors, open_shared
from anygpu.store.store import Store
from anygpu.workers.device_arrays.registry import DeviceRegistry

#: Seconds until something counts as hung. The whole process may be stopped for two minutes by others who measure.
PATIENCE = 150.0
X = np.arange(6.0)
#: Tasks of another thread, under way while this one is interrupted.
NEIGHBOURS = 2


class Broken(AssertionError):
    """Something that has to be true after an interruption is not."""


def expect(condition: object, otherwise: str) -> None:
    if not condition:
        raise Broken(otherwise)


def eventually(condition: Callable[[], object], otherwise: Callable[[], str]) -> None:
    """Some things are done by other threads in a moment, or by the collector of garbage."""
    begin = time.monotonic()
    collected = False
    while not condition():
        passed = time.monotonic() - begin
        expect(passed < PATIENCE, otherwise())
        if passed > 0.05 and not collected:
            gc.collect()
            collected = True
        time.sleep(0.0005)


class Scenario:
    """One kind of calls. `begin`, `work` and `check` belong together; `begin` and `check` run on another thread."""

    #: Calls of the main thread, each of which is interrupted by itself.
    works: Sequence[Callable[[], object]] = ()

    def begin(self) -> None:
        """Let others begin what must not be disturbed."""

    def check(self) -> None:
        """Raises `Broken` for what is not as it should be."""

    def close(self) -> None: ...


# -- runtimes


def twice(x: Any) -> Any:
    return x * 2


def tasks_left(runtime: Runtime) -> list[str]:
    """What is left of tasks in a runtime that should be at rest. Nothing of it waits for a lock without end."""
    scheduler = runtime._scheduler
    if not scheduler.lock.acquire(timeout=PATIENCE):
        return ["the lock is taken"]
    try:
        queue = scheduler._queue
        found = {
            "open tasks": len(scheduler._jobs),
            "tasks in the intake": len(scheduler._intake),
            "calls in the intake": len(scheduler._intake._calls),
            "waiting tasks": len(queue),
            "tasks in the queue's books": len(queue._entries),
            "deadlines": len(scheduler._deadlines.items),
            "errors on their way": scheduler._telling,
            "missing reserved places": sum(line.reserved for line in queue._lines.values()) - queue._reserved,
        }
        for name, line in queue._lines.items():
            found[f"waiting tasks of {name}"] = line.waiting
            found[f"open tasks of {name}"] = line.open_tasks
            found[f"bytes of {name}"] = line.nbytes
        for lane in scheduler._lanes:
            found[f"running on {lane.name}"] = len(lane.running)
            found[f"awaited on {lane.name}"] = len(lane.awaited)
            found[f"blocked on {lane.name}"] = lane.blocked
            found[f"bytes on {lane.name}"] = lane.used_bytes
            found[f"microseconds of backlog on {lane.name}"] = round(1e6 * lane.backlog)
        return [f"{count} {name}" for name, count in found.items() if count]
    finally:
        scheduler.lock.release()


class Tasks(Scenario):
    """A runtime that goes on: other threads use it all the while."""

    def __init__(self, what: str) -> None:
        self._known = DeviceRegistry()
        self.runtime = Runtime(known=self._known, tenants=[ag.types.Tenant(name="guests", queued=100, bytes=1 << 20)])
        self._others: list[tuple[Any, float]] = []
        self._numbers = itertools.count()
        self.works = {
            "submit": (self._submit, self._submit_to_a_tenant),
            "map": (self._map,),
            "run": (self._run,),
            "result": (self._result, self._cancel, self._wait_for_several),
            "asyncio": (self._cancel_at_a_step, self._cancel_after_a_moment, self._time_out),
        }[what]
        for work in self.works:
            work()
        self.check()

    def _submit(self) -> None:
        self.runtime.submit(np.sum, X)
        self.runtime.submit(twice, X, priority=3, deadline=60.0)

    def _submit_to_a_tenant(self) -> None:
        self.runtime.submit(np.sum, X, tenant="guests")

    def _map(self) -> None:
        found = [each.value for each in self.runtime.map(np.sum, [X, X + 1])]
        expect(found == [15, 21], f"map gave {found}")

    def _run(self) -> None:
        value = self.runtime.run(np.sum, X).value
        expect(value == 15, f"run gave {value}")

    def _result(self) -> None:
        future = self.runtime.submit(np.sum, X)
        future.add_done_callback(lambda _: None)
        value = future.result(PATIENCE)
        expect(value == 15, f"a future gave {value}")

    def _cancel(self) -> None:
        future = self.runtime.submit(np.sum, X)
        future.cancel()
        future.wait()
        self.runtime.health()

    def _wait_for_several(self) -> None:
        futures = [self.runtime.submit(np.sum, X) for _ in range(2)]
        concurrent.futures.wait(futures, PATIENCE)
        for each in concurrent.futures.as_completed(futures, PATIENCE):
            expect(each.result() == 15, "a future gave something else")

    async def _use(self) -> None:
        values = await asyncio.gather(*(self.runtime.submit(np.sum, X) for _ in range(2)))
        expect(values == [15, 15], f"awaiting gave {values}")
        expect(await self.runtime.submit(np.sum, X) == 15, "awaiting gave something else")
        outcomes = await self.runtime.amap(np.sum, [X])
        expect(outcomes[0].value == 15, f"amap gave {outcomes}")

    def _cancel_at_a_step(self) -> None:
        """After another number of the loop's turns each time."""

        async def main() -> None:
            task = asyncio.create_task(self._use())
            for _ in range(next(self._numbers) % 40):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        asyncio.run(main())

    def _cancel_after_a_moment(self) -> None:
        """By another thread, as Ctrl-C does where asyncio handles it."""

        async def main() -> None:
            task, loop = asyncio.create_task(self._use()), asyncio.get_running_loop()

            def cancel() -> None:
                time.sleep(5e-5 * (next(self._numbers) % 60))
                with contextlib.suppress(RuntimeError):  # the loop is over
                    loop.call_soon_threadsafe(task.cancel)

            thread = threading.Thread(target=cancel)
            thread.start()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            thread.join()

        asyncio.run(main())

    def _time_out(self) -> None:
        async def use() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1e-4 * (next(self._numbers) % 8)):
                    await asyncio.gather(*(self.runtime.submit(np.sum, X) for _ in range(4)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1e-4 * (next(self._numbers) % 8)):
                    await self.runtime.amap(np.sum, [X, X])

        asyncio.run(use())

    def begin(self) -> None:
        for _ in range(NEIGHBOURS):
            number = float(next(self._numbers))
            self._others.append((self.runtime.submit(np.sum, X + number, tenant="guests"), 15 + 6 * number))

    def check(self) -> None:
        for future, wanted in self._others:
            value = future.result(PATIENCE)
            expect(value == wanted, f"another's task gave {value} instead of {wanted}")
        self._others.clear()
        value = self.runtime.submit(twice, X).result(PATIENCE)
        expect((value == X * 2).all(), f"a new task gave {value}")
        eventually(lambda: not tasks_left(self.runtime), lambda: f"left behind: {tasks_left(self.runtime)}")
        health = self.runtime.health()
        expect(health.open_tasks == health.waiting == 0 and health.ok, f"the health is {health}")

    def close(self) -> None:
        expect(self.runtime.drain(PATIENCE), "the runtime does not come to rest")
        self.runtime.close()
        self._known.close()


class Closing(Scenario):
    """Runtimes that are made, used and closed. What was not closed because of an interruption is closed again."""

    def __init__(self) -> None:
        self._known = DeviceRegistry()
        self._made: list[Runtime] = []
        self._other = Runtime(known=self._known)
        self._future: Any = None
        self.works = (self._with, self._close, self._drain)
        for work in self.works:
            work()
        self.check()

    def _new(self) -> Runtime:
        runtime = Runtime(known=self._known)
        self._made.append(runtime)
        return runtime

    def _with(self) -> None:
        with self._new() as runtime:
            runtime.submit(np.sum, X)

    def _close(self) -> None:
        runtime = self._new()
        runtime.submit(np.sum, X)
        runtime.close()

    def _drain(self) -> None:
        runtime = self._new()
        future = runtime.submit(np.sum, X)
        expect(runtime.drain(PATIENCE), "a runtime was not drained in time")
        expect(future.result() == 15, "a drained task gave something else")
        runtime.close()

    def begin(self) -> None:
        self._future = self._other.submit(np.sum, X)

    def check(self) -> None:
        if self._future is not None:
            expect(self._future.result(PATIENCE) == 15, "another runtime's task gave something else")
        for runtime in self._made:
            runtime.close()
            eventually(lambda: not tasks_left(runtime), lambda: f"left behind: {tasks_left(runtime)}")  # noqa: B023
            for lane in runtime._scheduler._lanes:
                eventually(
                    lambda: not any(each.is_alive() for each in (*lane.threads, *lane.spare)),  # noqa: B023
                    lambda: "a thread of a closed runtime goes on",
                )
        self._made.clear()
        expect(self._other.submit(np.sum, X).result(PATIENCE) == 15, "another runtime does not go on")

    def close(self) -> None:
        self._other.close()
        self._known.close()


# -- stores


def store_faults(store: Store) -> list[str]:
    """What is wrong in a store that nobody uses at the moment."""
    guard, tiers, names = store._guard, store._tiers, store._names
    store.statistics()  # which does what was put off
    if not guard.lock.acquire(timeout=PATIENCE):
        return ["the lock is taken"]
    try:
        wrong = []
        if tiers._coming:
            wrong.append(f"{tiers._coming} bytes are on their way for ever")
        if guard.has_notes:
            wrong.append("something that was put off was not done")
        for key, entry in names.entries.items():
            if entry.leases or entry.pins:
                wrong.append(f"{key} has leases of {dict(entry.leases)} and {entry.pins} pins")
            if entry not in entry.content.tensors or tiers.contents.get(entry.content.key) is not entry.content:
                wrong.append(f"{key} has a content that the store does not know")
            if entry.released or not entry.holders:
                wrong.append(f"{key} was released, and is there")
        for content in tiers.contents.values():
            if content.moving or content.closed:
                wrong.append(f"content {content.key} moves for ever, or is closed")
            if any(names.entries.get(entry.key) is not entry for entry in content.tensors) or not content.tensors:
                wrong.append(f"content {content.key} has no name")
        for digest, content in (*tiers.by_digest.items(), *tiers.by_claimed_hash.items()):
            if tiers.contents.get(content.key) is not content:
                wrong.append(f"the hash {digest[:8]} leads to a content that is gone")
        return wrong
    finally:
        guard.lock.release()


class Tensors(Scenario):
    """A store that goes on, private or shared. Another thread has tensors in it, and leases one meanwhile."""

    def __init__(self, device: str = "numpy", *, shared: bool = False) -> None:
        self.name = f"interruptions-{os.getpid()}-{secrets.token_hex(4)}"
        self.shared = shared
        self._folder = tempfile.TemporaryDirectory(prefix="anygpu-interruptions-")
        self._file = Path(self._folder.name) / "a.safetensors"
        self.store = self._opened(device)
        self.store.put("a", X)
        self.store.put("theirs", X + 1, owner="them")
        self.store.save(self._file, ["a"])
        self._lease: Any = None
        #: Another process's way to it, as far as files and locks are concerned.
        self._aside: SharedTensors | None = open_shared(self.name) if shared else None
        self._numbers = itertools.count(1)
        self._device = device
        self.works = (
            self._put,
            self._replace,
            self._read,
            self._share,
            self._lease_it,
            self._drop_a_lease,
            self._pin,
            self._write,
            self._look,
            self._synchronise,
            self._optimise,
            self._files,
            self._open_and_close,
            self._holder_objects,
            *((self._news, self._reserve) if shared else ()),
        )
        for work in self.works:
            self.begin()
            work()
            self.check()

    def _opened(self, device: str, name: str | None = None) -> Store:
        return Store(name or self.name, device=device, budget="1MiB", host_budget="4MiB", shared=self.shared)

    # -- the main thread's

    def _put(self) -> None:
        number = next(self._numbers)
        self.store.put(f"mine {number}", X * number)
        self.store.release(f"mine {number}")

    def _replace(self) -> None:
        number = next(self._numbers)
        self.store.put("again", X * number)
        self.store.put("again", np.ones(number % 5 + 1))

    def _read(self) -> None:
        values = np.asarray(self.store.get("a"))
        expect((values == X).all(), f"a is {values}")
        expect((self.store.get("a") + 1).compute() is not None, "nothing")

    def _share(self) -> None:
        self.store.share("a", ["somebody"])
        self.store.release("a", holder="somebody")

    def _lease_it(self) -> None:
        with self.store.lease("a", holder="me") as tensor:
            expect(tensor.tier == "device", "a leased tensor is elsewhere")

    def _drop_a_lease(self) -> None:
        self.store.lease("a", holder="me")

    def _pin(self) -> None:
        self.store.pin("pinned" if "pinned" in self.store else "a")
        self.store.unpin("a")

    def _write(self) -> None:
        tensor = self.store.put("written", X)
        tensor += 1
        values = np.asarray(tensor)
        expect((values == X + 1).all(), f"what was written is {values}")

    def _look(self) -> None:
        tensor = self.store.get("a")
        str(self.store), str(tensor), tensor.holders, tensor.tier, tensor.dirty, len(self.store), "b" in self.store
        list(self.store), self.store.names(), self.store.keys()
        self.store.namespace("n").names()
        view = self.store.view("a", slice(1, 3))
        expect((np.asarray(view) == X[1:3]).all(), "a view is wrong")

    def _synchronise(self) -> None:
        self.store.synchronise("a", "host")
        self.store.synchronise("a", "device")
        self.store.get("a").host()
        self.store.prefetch("a", wait=True)

    def _optimise(self) -> None:
        self.store.optimise()
        self.store.statistics()

    def _files(self) -> None:
        self.store.open(self._file, namespace="file")
        self.store.release("a", namespace="file")
        self.store.save(self._file, ["a"])

    def _open_and_close(self) -> None:
        with self._opened(self._device, f"{self.name}-more") as store:
            store.put("b", X)
            store.lease("b")

    def _holder_objects(self) -> None:
        holder = _Holder()
        self.store.share("a", [holder])

    def _news(self) -> None:
        assert self._aside is not None
        self._aside.publish(("news",), X * next(self._numbers), owner="them")
        self.store.get("news")
        self._aside.remove(("news",))
        with contextlib.suppress(ag.errors.UnknownTensor):
            self.store.release("news", holder="them")

    def _reserve(self) -> None:
        assert self._aside is not None
        segment = self._aside.reserve((3,), "float64")
        segment.values[:] = 1
        self._aside.publish(("reserved",), segment, owner="me")
        self._aside.remove(("reserved",))

    # -- another thread's

    def begin(self) -> None:
        self._lease = self.store.lease("theirs", holder="them")

    def check(self) -> None:
        if self._lease is not None:
            values = np.asarray(self._lease.tensor)
            expect((values == X + 1).all(), f"another's tensor is {values}")
            self._lease.release()
            self._lease = None
        store = self.store
        values = np.asarray(store.get("a"))
        expect((values == X).all(), f"a is {values}")
        self._drop_what_was_put()
        for name in store.get("a").holders:
            if name == "somebody":
                store.release("a", holder=name)
        eventually(
            lambda: store.get("a").holders == ("main",), lambda: f"a is held by {store.get('a').holders}, nobody asked"
        )
        if "a" in store.names("file"):
            store.release("a", namespace="file")
        store.put("checked", X + 2)
        expect((np.asarray(store.get("checked")) == X + 2).all(), "a new tensor has other values")
        store.release("checked")
        eventually(self._is_in_order, lambda: f"in the store: {store_faults(store)}")
        self._check_files()
        if self._aside is not None:
            self._check_aside(self._aside)

    def _drop_what_was_put(self) -> None:
        """A put or a release that was interrupted comes to its end, and may still be at work."""
        store = self.store
        for name in store.names():
            if name.startswith(("again", "written", "mine")):
                with contextlib.suppress(ag.errors.UnknownTensor, ag.errors.NotHeld):
                    expect(np.isfinite(np.asarray(store.get(name))).all(), f"{name} has no values")
                    for holder in store.get(name).holders:
                        store.release(name, holder=holder)

    def _is_in_order(self) -> bool:
        """But for pins of the caller: one that was interrupted comes to its end, and may still be at work."""
        while self.store._names.entries[("a",)].pins:
            self.store.unpin("a")
        return not store_faults(self.store)

    def _check_files(self) -> None:
        """A save comes to its end also when its caller is interrupted, so it may still be at work."""
        folder = Path(self._folder.name)
        eventually(
            lambda: [each.name for each in folder.iterdir()] == ["a.safetensors"],
            lambda: f"there is {list(folder.iterdir())}",
        )

    def _check_aside(self, aside: SharedTensors) -> None:
        found = aside.find(("theirs",))
        expect(found is not None and (found.values == X + 1).all(), "another process does not find its tensor")
        if ("news",) in aside.names():
            aside.remove(("news",))
            with contextlib.suppress(ag.errors.UnknownTensor):
                self.store.release("news", holder="them")
        if ("reserved",) in aside.names():
            aside.remove(("reserved",))
        aside.publish(("aside",), X, owner="aside")
        aside.remove(("aside",))
        eventually(lambda: not _leftovers(aside), lambda: f"in shared memory: {_leftovers(aside)}")
        more = _shared_folder(f"{self.name}-more")
        eventually(
            lambda: not more.exists(), lambda: f"a closed store is there: {[each.name for each in more.iterdir()]}"
        )

    def close(self) -> None:
        self.store.close()
        if self._aside is not None:
            self._aside.close()
            expect(not self._aside.path.exists(), f"{self._aside.path} is there after all have closed it")
        self._folder.cleanup()


class _Holder:
    """An object that holds a tensor as long as it is there."""


def _shared_folder(name: str) -> Path:
    from anygpu.store.shared_store import _path

    return _path(name, None)


def _leftovers(shared: SharedTensors) -> list[str]:
    """Segments that the directory does not name, and files that were not finished."""
    with shared._using(), shared._folder.locked():
        wanted = shared._directory().segments()
        return [
            name
            for name in shared._folder.names()
            if name.startswith("new-") or (name.startswith("segment-") and name not in wanted)
        ]


# -- calls and streams


class Calls(Scenario):
    """Offloaded calls on one device, from the main thread and from another."""

    def __init__(self, device: str) -> None:
        self._offloaded = ag.offload(on=device, fallback="raise")(twice)
        self._larger = np.arange(5000.0, dtype=np.float32)
        self.works = (self._call, self._call_with_more, self._arrays)
        for _ in range(3):
            for work in self.works:
                work()
        self.device = device

    def _call(self) -> None:
        found = self._offloaded(X)
        expect((found == X * 2).all(), f"a call gave {found}")

    def _call_with_more(self) -> None:
        found = self._offloaded(self._larger)
        expect((found == self._larger * 2).all(), "a call gave something else")

    def _arrays(self) -> None:
        with contextlib.suppress(ag.DeviceUnavailable):
            array = ag.asarray(self._larger, device=self.device) if hasattr(self, "device") else None
            if array is not None:
                expect((np.asarray(array + 1) == self._larger + 1).all(), "an array has other values")

    def check(self) -> None:
        self._call()
        self._call_with_more()


class Streams(Scenario):
    """Streams from memory and from a file to a file."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="anygpu-interruptions-")
        self._source = Path(self._folder.name) / "x.npy"
        self._sink = Path(self._folder.name) / "y.npy"
        self._x = np.arange(2000.0).reshape(200, 10)
        np.save(self._source, self._x)
        self.works = (self._in_memory, self._files)
        for work in self.works:
            work()
        self.check()

    def _in_memory(self) -> None:
        found = ag.stream(twice, self._x, on="numpy").value
        expect((found == self._x * 2).all(), "a stream gave something else")

    def _files(self) -> None:
        ag.stream(twice, str(self._source), str(self._sink), on="numpy")
        expect((np.load(self._sink) == self._x * 2).all(), "a stream wrote something else")

    def check(self) -> None:
        eventually(
            lambda: not [each for each in threading.enumerate() if each.name.startswith("anygpu-stream")],
            lambda: "a thread of a stream goes on",
        )
        names = sorted(each.name for each in Path(self._folder.name).iterdir())
        expect(set(names) <= {"x.npy", "y.npy"}, f"there is {names}")
        if self._sink.exists():
            expect((np.load(self._sink) == self._x * 2).all(), "the file of a stream is not whole")
        self._files()

    def close(self) -> None:
        self._folder.cleanup()


SCENARIOS: dict[str, Callable[[], Scenario]] = {
    "submit": lambda: Tasks("submit"),
    "map": lambda: Tasks("map"),
    "run": lambda: Tasks("run"),
    "result": lambda: Tasks("result"),
    "asyncio": lambda: Tasks("asyncio"),
    "close": Closing,
    "store": Tensors,
    "shared_store": lambda: Tensors(shared=True),
    "offload": lambda: Calls("numpy"),
    "offload_torch": lambda: Calls("torch"),
    "offload_opencl": lambda: Calls("opencl"),
    "stream": Streams,
}
