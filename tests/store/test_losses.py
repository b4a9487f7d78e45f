"""A device that dies under a store: what has a copy or a recipe comes back, and what has none is named."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from anygpu.errors import DeviceLost
from anygpu.workers.device_arrays.registry import registry
from tests.store.conftest import MakeStore, some


@pytest.mark.parametrize("mode", ["speed", "balanced"])
def test_tensors_outlive_the_worker(make_store: MakeStore, mode: str) -> None:
    store = make_store(device="opencl", mode=mode, budget=3 * some(1).nbytes, disk=True)
    first, second = store.put("first", some(1)), store.put("second", some(2))
    computed = store.put("computed", first * 2)
    store.put("later", some(3))  # something has to leave for it
    second += 1
    registry.kill(store.device)
    assert np.array_equal(np.asarray(computed + 0), some(1) * 2)
    assert np.array_equal(second.host(), some(2) + 1)
    assert np.array_equal(np.asarray(first + 1), some(1) + 1)
    assert store.statistics().device_bytes <= 3 * some(1).nbytes


def test_what_had_one_copy_only_is_named(make_store: MakeStore) -> None:
    store = make_store("shop", device="opencl", mode="memory", budget=2 * some(1).nbytes)
    gone, other = store.put("gone", some(1)), store.put("other", some(2))
    lucky = store.put("lucky", some(3))  # "gone" is on the host now
    gone, lucky = lucky, gone
    registry.kill(store.device)
    with pytest.raises(DeviceLost, match=r"the tensor 'lucky' of the store shop .*one copy of each tensor"):
        np.asarray(gone + 1)
    with pytest.raises(DeviceLost, match="'other'"):
        other.host()
    assert np.array_equal(np.asarray(lucky + 1), some(1) + 1)
    store.put("other", some(4))
    assert np.array_equal(np.asarray(other + 1), some(4) + 1)


def test_threads_share_a_small_store(make_store: MakeStore) -> None:
    store = make_store(device="opencl", budget=8 * some(1).nbytes)
    for number in range(16):
        store.put(f"t{number}", some(number))
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        order = np.random.default_rng(seed).integers(0, 16, 25)
        try:
            for number in order:
                with store.lease(f"t{number}", holder=f"thread {seed}") as tensor:
                    assert np.array_equal(np.asarray(tensor + 1), some(number) + 1)
                store.put(f"mine {seed}", store.get(f"t{number}") * seed)
        except BaseException as error:  # noqa: BLE001 - shown by the thread that waits
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    now = store.statistics()
    assert now.leases == 0
    assert now.device_bytes <= 8 * some(1).nbytes


def in_child(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_process_ends_with_an_open_store_a_lease_and_a_prefetch_under_way() -> None:
    found = in_child(
        """
        import numpy as np
        from anygpu.store import Store
        store = Store(device="opencl", budget=1 << 20, disk=True)
        for number in range(4):
            store.put(f"t{number}", np.full(1 << 18, number, np.float32))
        lease = store.lease("t3")
        store.prefetch(["t0", "t1", "t2"])
        print(store._tiers._folder.path)
        """
    )
    assert not Path(found.strip()).exists()


def test_a_process_that_was_forked_is_not_kept_waiting() -> None:
    in_child(
        """
        import os, threading
        import numpy as np
        from anygpu.store import Store
        store = Store(device="numpy", budget=1 << 16, host_budget=0, disk=True)
        for number in range(3):
            store.put(f"t{number}", np.full(1 << 14, number, np.float32))
        store._guard.lock.acquire()  # as if another thread were at work
        child = os.fork()
        if child == 0:
            assert float(store.get("t0")[0]) == 0
            store.close()
            os._exit(0)
        store._guard.lock.release()
        assert os.waitpid(child, 0)[1] == 0
        assert float(store.get("t1")[0]) == 1
        """
    )
