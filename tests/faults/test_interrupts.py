"""Ctrl-C at every moment at which Python can raise it: afterwards everything works as before, for every thread.

Python looks for signals when a function of Python begins and after a function of C has returned. Both are events that a
profiler is told of, and what a profiler raises is raised there. So each operation is called again and again, and
interrupted at its first such moment, at its second one, and so on, until it comes to its end.
"""

from __future__ import annotations

import concurrent.futures
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.residency.registry import DeviceRegistry
from anygpu.runtime.runtime import Runtime
from anygpu.store.store import Store

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PATIENCE = 30.0
X = np.arange(6.0)


def interrupted_at(moment: int, call: Callable[[], object]) -> bool:
    """Whether the call was still under way at that moment; it was interrupted then."""
    left = moment

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left
        if event in ("call", "c_return") and frame.f_code is not own:
            left -= 1
            if left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    own = interrupted_at.__code__
    try:
        sys.setprofile(profile)
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    return left <= 0


def at_every_moment(call: Callable[[], object], check: Callable[[], None], *, least: int, step: int = 1) -> None:
    moment = 1
    while interrupted_at(moment, call):
        _within_time(check)
        moment += step
    check()
    assert moment > least, "it was hardly interrupted at all"


def _within_time(check: Callable[[], None]) -> None:
    """On another thread too: it must find no lock that nobody lets go of."""
    done = concurrent.futures.Future[None]()

    def run() -> None:
        try:
            check()
            done.set_result(None)
        except BaseException as error:  # noqa: BLE001 - it is the test that fails
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    done.result(PATIENCE)


@pytest.fixture(scope="module")
def known() -> Iterator[DeviceRegistry]:
    known = DeviceRegistry()
    yield known
    known.close()


@pytest.fixture
def runtime(known: DeviceRegistry) -> Iterator[Runtime]:
    runtime = Runtime(known=known)
    yield runtime
    assert runtime.drain(PATIENCE)
    assert runtime.health().open_tasks == 0
    runtime.close()


def double(x: Any) -> Any:
    return x * 2


# -- tasks


def test_submit(runtime: Runtime) -> None:
    def check() -> None:
        assert runtime.submit(np.sum, X).result(PATIENCE) == 15

    at_every_moment(lambda: runtime.submit(np.sum, X), check, least=20)


def test_submit_to_a_tenant_with_a_limit(known: DeviceRegistry) -> None:
    with Runtime(known=known, tenants=[ag.Tenant(name="a", queued=500)]) as runtime:

        def check() -> None:
            assert runtime.submit(np.sum, X, tenant="a").result(PATIENCE) == 15

        at_every_moment(lambda: runtime.submit(np.sum, X, tenant="a"), check, least=20)


def test_result(runtime: Runtime) -> None:
    def slow(x: Any) -> Any:
        for _ in range(2000):
            x = x + 0
        return x.sum()

    def check() -> None:
        assert runtime.submit(np.sum, X).result(PATIENCE) == 15

    at_every_moment(lambda: runtime.submit(slow, X).result(PATIENCE), check, least=20)


def test_map_and_cancel(runtime: Runtime) -> None:
    def work() -> None:
        runtime.submit(np.sum, X).cancel()
        runtime.map(np.sum, [X, X])

    def check() -> None:
        assert [each.value for each in runtime.map(np.sum, [X, X])] == [15, 15]

    at_every_moment(work, check, least=50)


def test_closing(known: DeviceRegistry) -> None:
    made: list[Runtime] = []

    def work() -> None:
        with Runtime(known=known) as runtime:
            made.append(runtime)
            runtime.submit(np.sum, X)

    def check() -> None:
        for each in made:
            each.close()
        made.clear()
        with Runtime(known=known) as runtime:
            assert runtime.submit(np.sum, X).result(PATIENCE) == 15

    at_every_moment(work, check, least=50)


@pytest.mark.parametrize("device", ["numpy", "torch", "opencl"])
def test_calls(device: str) -> None:
    offloaded = ag.offload(on=device, fallback="raise")(double)
    for _ in range(3):
        offloaded(X)

    def check() -> None:
        np.testing.assert_array_equal(offloaded(X), X * 2)

    at_every_moment(lambda: offloaded(X), check, least=2, step=3)


# -- stores


def _in_a_store(device: str, work: Callable[[Store, int], object], *, least: int) -> None:
    with Store(device=device) as store:
        store.put("a", X)
        number = 0

        def call() -> None:
            nonlocal number
            number += 1
            work(store, number)

        def check() -> None:
            np.testing.assert_array_equal(np.asarray(store.get("a")), X)
            store.put("checked", X + 1)
            store.share("checked", ["other"])
            with store.lease("checked") as tensor:
                assert tensor.holders == ("main", "other")
            store.release("checked", holder="other")
            store.release("checked")
            assert "checked" not in store.names()
            store.statistics()

        at_every_moment(call, check, least=least)
        gc.collect()
        check()


WORK: dict[str, Callable[[Store, int], object]] = {
    "put": lambda store, number: store.put(f"b{number}", X * number),
    "read": lambda store, number: np.asarray(store.get("a")),
    "holders": lambda store, number: store.get("a").holders,
    "share": lambda store, number: store.share("a", [f"holder {number}"]),
    "lease": lambda store, number: store.lease("a", holder="him").release(),
    "pin": lambda store, number: (store.pin("a"), store.unpin("a")),
    "host": lambda store, number: store.get("a").host(),
    "optimise": lambda store, number: store.optimise(),
}


@pytest.mark.parametrize(
    ("device", "work"), [*(("numpy", name) for name in WORK), ("opencl", "put"), ("opencl", "read")]
)
def test_stores(device: str, work: str) -> None:
    _in_a_store(device, WORK[work], least=3)


def test_releasing_in_a_store() -> None:
    def work(store: Store, number: int) -> None:
        store.put(f"b{number}", X + number)
        store.release(f"b{number}")

    _in_a_store("numpy", work, least=10)


def test_closing_a_store() -> None:
    def work() -> None:
        with Store() as store:
            store.put("a", X)

    def check() -> None:
        with Store() as store:
            store.put("a", X)
            assert store.get("a").holders == ("main",)

    at_every_moment(work, check, least=20)


def test_no_thread_stays(known: DeviceRegistry) -> None:
    before = set(threading.enumerate())
    with Store() as store:
        for number in range(20):
            store.put(str(number), X + number)
    with Runtime(known=known) as runtime:
        runtime.submit(np.sum, X).cancel()
    assert not [each for each in threading.enumerate() if each not in before and "Dummy" in each.name]
