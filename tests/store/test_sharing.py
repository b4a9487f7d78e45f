"""A store of several processes: what one puts the others find by name, and each lets go of its own side."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest

import anygpu as ag
from anygpu.errors import InvalidOption, NameTaken, UnknownTensor

_numbers = count()


@pytest.fixture
def store() -> Iterator[ag.Store]:
    with ag.Store(f"test-sharing-{os.getpid()}-{next(_numbers)}", device="numpy", shared=True) as found:
        yield found


def elsewhere(store: ag.Store, text: str, *, device: str = "numpy") -> str:
    """What another process prints that has opened the same store as `store`."""
    opened = (
        f'import numpy as np\nimport anygpu as ag\nstore = ag.Store({store.name!r}, device="{device}", shared=True)\n'
    )
    command = [sys.executable, "-W", "error", "-c", opened + text]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.strip()


def some(number: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(number).normal(size=(40, 50)).astype(np.float32)


def test_another_process_finds_it_by_name_without_a_copy(store: ag.Store) -> None:
    store.put("weights", some(), owner="text", namespace="encoder")
    printed = elsewhere(
        store,
        'print(store.keys(), ("encoder", "weights") in store)\n'
        'tensor = store.get("weights", namespace="encoder")\n'
        "print(tensor.owner, float(np.asarray(tensor, np.float64).sum()))\n"
        "print(sum(each.bytes for each in store.statistics().copies.values()))\n",
    )
    keys, found, copied = printed.splitlines()
    assert keys == "[('encoder', 'weights')] True"
    assert found == f"text {float(some().astype(np.float64).sum())}"
    assert copied == "0"


def test_what_is_on_a_device_goes_through_the_host_and_says_so(store: ag.Store) -> None:
    printed = elsewhere(
        store,
        'tensor = store.put("result", ag.asarray(np.ones((10, 10), np.float32), device="opencl") * 3)\n'
        'print(store.statistics().copies["to_host"].bytes)\n',
        device="opencl",
    )
    assert printed == "400"
    # Its process has ended, and this one was attached all the while.
    np.testing.assert_array_equal(np.asarray(store.get("result")), np.full((10, 10), 3, np.float32))


def test_others_see_what_was_written_once_it_is_synchronised(store: ag.Store) -> None:
    tensor = store.put("state", some())
    tensor += 1
    look = 'print(float(np.asarray(store.get("state"), np.float64).sum()))'
    assert float(elsewhere(store, look)) == some().astype(np.float64).sum()
    store.synchronise("state", "host")
    assert float(elsewhere(store, look)) == (some() + 1).astype(np.float64).sum()
    elsewhere(store, f'store.put("state", np.full({some().shape}, 7, np.float32))')
    assert float(np.asarray(store.get("state")).max()) == 7
    assert store.get("state") is tensor


def test_a_name_of_another_owner_is_taken_in_every_process(store: ag.Store) -> None:
    elsewhere(store, 'store.put("weights", np.ones(3, np.float32), owner="text")')
    with pytest.raises(NameTaken, match="already belongs to 'text'"):
        store.put("weights", some(), owner="search")
    assert np.asarray(store.get("weights")).sum() == 3


def test_released_by_who_published_it_nobody_finds_it_any_more(store: ag.Store) -> None:
    store.put("weights", some())
    elsewhere(store, 'store.get("weights"); store.release("weights")')
    assert "weights" in store
    store.release("weights")
    assert elsewhere(store, "print(store.keys())") == "[]"
    with pytest.raises(UnknownTensor):
        store.get("weights")


def test_a_name_that_another_process_has_published_since_is_theirs_to_withdraw(store: ag.Store) -> None:
    store.put("weights", some(0))
    keeper = ag.Store(store.name, device="numpy", shared=True)
    elsewhere(store, f'store.put("weights", np.full({some().shape}, 7, np.float32))')
    store.release("weights")
    with keeper:
        assert float(np.asarray(keeper.get("weights")).max()) == 7


def test_what_went_with_its_last_lease_is_found_again(store: ag.Store) -> None:
    elsewhere_made = ag.Store(store.name, device="numpy", shared=True)
    with elsewhere_made:
        elsewhere_made.put("weights", some())
        lease = store.lease("weights")
        store.release("weights")
        lease.release()
        np.testing.assert_array_equal(np.asarray(store.get("weights")), some())


def test_it_takes_a_name() -> None:
    with pytest.raises(InvalidOption, match="needs a name"):
        ag.Store(shared=True)
