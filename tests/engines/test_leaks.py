"""Nothing is left behind by whole programs: memory by owner, what the driver holds, and a check that can fail."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from anygpu.engines.compiling_session import DeviceArray
from anygpu.engines.driver import ARRAYS, CONSTANTS, TEMPORARIES
from anygpu.engines.memory.resource import reclaim
from anygpu.testing import check_no_leaks
from tests.engines.compiled import NAMES, Running, running


@pytest.fixture(params=NAMES)
def opened(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(request.param) as found:
        yield found


def work(x: Any, y: Any) -> Any:
    """Temporaries, several results, and one that is a view."""
    return np.sort(np.cumsum(x @ y, axis=0), axis=1), (x @ y).sum(), x[3:]


def use(opened: Running, keep: Callable[[DeviceArray], object] = lambda array: None) -> None:
    rng = np.random.default_rng(0)
    x, y = (opened.up(rng.normal(size=shape).astype(np.float32)) for shape in ((65, 33), (33, 70)))
    results = opened.run(work, x, y)
    for each in results:
        opened.down(each)
    keep(results[0])


def held(opened: Running) -> dict[str, int]:
    gc.collect()
    return {owner: each.bytes for owner, each in opened.session.memory.snapshot().by_owner.items()}


def test_arrays_and_temporaries_go_back(opened: Running) -> None:
    use(opened)
    assert held(opened).keys() <= {CONSTANTS}
    with check_no_leaks(opened.session.memory):
        for _ in range(5):
            use(opened)


def test_the_check_sees_an_array_that_is_kept(opened: Running) -> None:
    use(opened)
    kept: list[DeviceArray] = []
    with pytest.raises(AssertionError, match="left behind: arrays has 1 blocks"), check_no_leaks(opened.session.memory):
        use(opened, kept.append)
    assert held(opened)[ARRAYS] >= kept[0].spec.nbytes
    assert TEMPORARIES not in held(opened)
    kept.clear()
    assert ARRAYS not in held(opened)


def test_a_view_keeps_what_it_is_a_view_of_and_no_more(opened: Running) -> None:
    x = opened.up(np.arange(1000, dtype=np.float32))
    (part,) = opened.run(lambda a: a[500:], x)
    del x
    assert held(opened)[ARRAYS] >= 4000
    np.testing.assert_array_equal(opened.down(part), np.arange(500, 1000, dtype=np.float32))
    del part
    assert ARRAYS not in held(opened)


def test_a_broken_rule_leaves_nothing(opened: Running) -> None:
    def pick() -> None:
        x, index = opened.up(np.arange(5, dtype=np.float32)), opened.up(np.array([9], np.int32))
        (picked,) = opened.run(lambda a, i: np.take(a, i, mode="raise"), x, index)
        with pytest.raises(IndexError):
            opened.down(picked)

    pick()
    with check_no_leaks(opened.session.memory):
        pick()


def test_the_driver_holds_no_more_after_more_uses(opened: Running) -> None:
    driver: Any = opened.session.driver
    for _ in range(3):
        use(opened)
    gc.collect()
    opened.session.synchronize()
    before = driver.live()
    for _ in range(10):
        use(opened)
    gc.collect()
    opened.session.synchronize()
    assert driver.live() == before


def test_reclaiming_gives_the_library_everything_back(opened: Running) -> None:
    driver: Any = opened.session.driver
    use(opened)
    gc.collect()
    assert driver.live().blocks > 0
    opened.session.synchronize()
    reclaim(opened.session.memory)
    opened.session.synchronize()
    gc.collect()
    assert driver.live().blocks == opened.session.memory.snapshot().blocks


def test_what_is_compiled_is_forgotten_with_its_constants(opened: Running) -> None:
    for length in range(1, 10):
        opened.run(lambda a: a + 1, opened.up(np.zeros(length, np.float32)))
    opened.session._executables.clear()
    assert not held(opened)
