"""Deferred calls: nothing of ours is left behind, and code that asks what a stand-in cannot answer is refused."""

from __future__ import annotations

import collections
import collections.abc
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.placement.own_code import Reach, why_not_deferred
from tests.support.deferred_placement import always_deferred

X = np.arange(6.0)


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ANYGPU_NATIVE", "off")
    with always_deferred():
        yield


class _Slots:
    __slots__ = ("kept",)

    kept: Any


def _is_numpys(value: Any) -> bool:
    return type(value) in (np.ndarray, np.float64, np.int64)


def test_no_container_keeps_one_of_ours() -> None:
    slots, queue, keys, inside = _Slots(), collections.deque[Any](), dict[Any, Any](), list[Any]()
    numbers, objects = set[Any](), np.empty(1, object)

    @ag.offload(deferred=True)
    def keeps(x: Any) -> Any:
        y = x * 2
        slots.kept = y
        queue.append(y + 1)
        keys[y.sum()] = 1
        inside.append((y, (y[1:], 3)))
        numbers.add(y.max())
        made = (each * 2 for each in (y, x))
        objects[0] = x
        return made, objects, {y.min(): y}, frozenset([y.max()])

    for _ in range(2):
        made, held, table, frozen = keeps(X)
    assert all(map(_is_numpys, [slots.kept, *queue, *keys, *numbers, held[0], *table, *table.values(), *frozen]))
    (y, (view, _)) = inside[-1]
    assert _is_numpys(y)
    assert view.base is y
    assert all(map(_is_numpys, made))
    assert keeps.why_plain is not None  # type: ignore[attr-defined]


def test_a_call_that_raises_keeps_none_either() -> None:
    kept: list[Any] = []

    class Failed(Exception):
        pass

    @ag.offload(deferred=True)
    def fails(x: Any) -> Any:
        kept[:] = [x * 2, {"a": (x[1:],)}] if kept else [0]
        if len(kept) == 1:
            return None  # the first call is a plain one
        error = Failed(x + 1)
        error.more = [x]  # type: ignore[attr-defined]
        raise error

    fails(X)
    for call in range(5):
        with pytest.raises(Failed) as caught:
            fails(X)
        error: Any = caught.value
        assert all(map(_is_numpys, [kept[0], kept[1]["a"][0], error.args[0], error.more[0]])), call
        assert error.more[0] is X
    assert fails.why_plain == "3 of them have raised."  # type: ignore[attr-defined]


def test_results_die_with_the_last_who_holds_them() -> None:
    @ag.offload(deferred=True)
    def doubles(x: Any) -> Any:
        y = x * 2
        return y, y[1:], y.sum()

    for _ in range(4):
        y, view, _ = doubles(X)
        dead = weakref.ref(y)
        del y, view
        assert dead() is None
    given = X.copy()
    doubles(given)
    dead = weakref.ref(given)
    del given
    assert dead() is None
    gc.collect()


def _asks_hash(x: Any) -> Any:
    return isinstance(x, collections.abc.Hashable)


def _asks_iterable(x: Any) -> Any:
    return isinstance(x.sum(), collections.abc.Iterable)


def _asks_name(x: Any) -> Any:
    return hasattr(x.sum(), "__len__")


def _asks_ours(x: Any) -> Any:
    return getattr(x, "_value", 3)


def _is_it(x: Any, y: Any) -> Any:
    return x is y


def _is_global(x: Any) -> Any:
    return x is X


def _shuffles(x: Any) -> Any:
    np.random.default_rng(0).shuffle(x)
    return x


def _generates(x: Any) -> Any:
    yield x * 2


async def _waits(x: Any) -> Any:
    return x * 2


def _is_constant(x: Any, y: Any = None) -> Any:
    return x if y is None or y is np.add else y is not True


@pytest.mark.parametrize(
    "function", [_asks_hash, _asks_iterable, _asks_name, _asks_ours, _is_it, _is_global, _shuffles, _generates, _waits]
)
def test_code_that_asks_what_ours_cannot_answer_is_refused(function: Callable[..., Any]) -> None:
    assert why_not_deferred(function) is not None


def test_constants_may_be_compared_by_identity() -> None:
    assert why_not_deferred(_is_constant) is None


def test_no_object_is_asked_that_answers_itself() -> None:
    class Strict:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(f"no {name} here")

    strict = Strict()

    def function(x: Any) -> Any:
        return x, strict

    assert why_not_deferred(function) is None
    assert not Reach(function).holds()


class _Result(tuple[Any, ...]):
    """A result that keeps what it was computed of."""

    def __new__(cls, value: Any, x: Any) -> Any:
        made = super().__new__(cls, (value,))
        made.x = x  # type: ignore[attr-defined]
        return made


def test_attributes_of_what_is_returned_are_numpys() -> None:
    ours: Any = ag.offload(deferred=True)(lambda x: _Result(x.sum(), x * 2.0))
    x = np.ones(20_000)
    for _ in range(4):
        result = ours(x)
        assert type(result.x) is np.ndarray
        assert type(result[0]) is np.float64
    assert ours.why_plain is None
