"""Nothing of the user's is kept alive: no instance, no closure, no class, also while calls go on."""

from __future__ import annotations

import functools
import gc
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.calls import class_signatures
from anygpu.placement.planner import default

MANY = 10_000
#: After so many new ones everything that is bounded is full.
_FULL = 1100
X = np.ones(3)


class Leaks(Exception):
    pass


def check_that_nothing_stays(make_and_use: Callable[[int], Any], count: int = MANY) -> None:
    """`make_and_use` makes a thing, uses it and returns it; raises `Leaks` if such things or their memory are kept."""
    refs = [weakref.ref(make_and_use(number)) for number in range(count)]
    gc.collect()
    alive = sum(each() is not None for each in refs)
    if alive:
        raise Leaks(f"{alive} of {count} are still alive")
    del refs
    grown = []
    tracemalloc.start()
    try:
        before = 0
        for _ in range(5):
            for number in range(_FULL):
                make_and_use(number)
            default().settle(60)  # a look at the devices of the machine may be under way
            gc.collect()
            now = tracemalloc.get_traced_memory()[0]
            grown.append(now - before)
            before = now
            # What a device's worker or a module takes once is no leak: one of those grows every time.
            if len(grown) > 1 and grown[-1] <= 64 * _FULL:
                return
    finally:
        tracemalloc.stop()
    raise Leaks(f"{grown} bytes more are in use after {_FULL} further calls each")


class Model:
    def __init__(self, weight: float = 2.0) -> None:
        self.weight = np.full(3, weight)

    @ag.offload
    def predict(self, x: Any) -> Any:
        return self.weight * x

    def plain(self, x: Any) -> Any:
        return self.weight * x

    def __call__(self, x: Any) -> Any:
        return self.weight * x


def closure(number: int) -> Callable[[Any], Any]:
    captured = np.full(3, number)
    return lambda x: x + captured


# -- the check itself


def test_the_check_finds_objects_that_are_kept() -> None:
    kept: list[Any] = []

    def make_and_use(number: int) -> Any:
        made = Model()
        if number % 100 == 0:
            kept.append(made)
        return made

    with pytest.raises(Leaks, match="2 of 200 are still alive"):
        check_that_nothing_stays(make_and_use, 200)


def test_the_check_finds_memory_that_grows() -> None:
    kept: dict[int, bytes] = {}

    def make_and_use(number: int) -> Any:
        kept[len(kept)] = bytes(100)
        return Model()

    with pytest.raises(Leaks, match="bytes more"):
        check_that_nothing_stays(make_and_use, 200)


def test_the_check_finds_keys_that_hold_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        class_signatures, "_whole", lambda token: lambda value, parts, input_number_types: parts.append(value)
    )
    function = ag.offload(lambda x, thing: x)

    class Fresh:
        """Not looked at before."""

    def make_and_use(number: int) -> Any:
        made = Fresh()
        function(X, made)
        return made

    with pytest.raises(Leaks, match="still alive"):
        check_that_nothing_stays(make_and_use, 50)


# -- offloaded functions


def test_instances_with_a_decorated_method() -> None:
    def make_and_use(number: int) -> Any:
        made = Model()
        made.predict(X)
        made.predict(2.0)
        return made

    check_that_nothing_stays(make_and_use)


class Opened:
    """Neither hashable nor known to anygpu."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.values = np.ones(3)


@pytest.mark.parametrize("kind", [Model, Opened])
def test_arguments(kind: Any) -> None:
    @ag.offload
    def function(x: Any, thing: Any, *, other: Any = None) -> Any:
        return x + 1

    def make_and_use(number: int) -> Any:
        made = kind()
        function(X, made)
        function(X, made, other={"nested": [made]})
        return made

    check_that_nothing_stays(make_and_use)


def test_functions_as_arguments() -> None:
    function = ag.offload(lambda x, other: other(x))

    def make_and_use(number: int) -> Any:
        made = closure(number)
        np.testing.assert_array_equal(function(X, made), X + number)
        return made

    check_that_nothing_stays(make_and_use)


def test_classes_that_are_made_in_a_loop() -> None:
    function = ag.offload(lambda x, thing: x * thing.factor)

    def make_and_use(number: int) -> Any:
        made = type("Made", (), {"factor": number})
        np.testing.assert_array_equal(function(X, made()), X * number)
        return made

    check_that_nothing_stays(make_and_use, 500)


@pytest.mark.full
def test_functions_that_are_decorated_in_a_loop() -> None:
    def make_and_use(number: int) -> Any:
        made = ag.offload(closure(number))
        np.testing.assert_array_equal(made(X), X + number)
        return made.function

    check_that_nothing_stays(make_and_use)


# -- run, submit, map, explain


@pytest.mark.full
@pytest.mark.parametrize("wrap", [lambda f: f, functools.partial], ids=["closure", "partial"])
def test_closures_that_are_run(wrap: Any) -> None:
    def make_and_use(number: int) -> Any:
        made = closure(number)
        np.testing.assert_array_equal(ag.run(wrap(made), X).value, X + number)
        return made

    check_that_nothing_stays(make_and_use, 1000)


@pytest.mark.full
def test_methods_and_callable_objects_that_are_run() -> None:
    def make_and_use(number: int) -> Any:
        made = Model(number)
        for each in (made.plain, made.predict, made):
            np.testing.assert_array_equal(ag.run(each, X).value, X * number)
        return made

    check_that_nothing_stays(make_and_use, 1000)


def test_closures_that_are_submitted() -> None:
    def make_and_use(number: int) -> Any:
        made = closure(number)
        np.testing.assert_array_equal(ag.submit(made, X).result(60), X + number)
        return made

    check_that_nothing_stays(make_and_use, 1000)


@pytest.mark.full
def test_closures_that_are_mapped() -> None:
    def make_and_use(number: int) -> Any:
        made = closure(number)
        np.testing.assert_array_equal(ag.map(made, [X])[0].unwrap(), X + number)
        return made

    check_that_nothing_stays(make_and_use, 1000)


@pytest.mark.parametrize("on", ["opencl", "webgpu"])
def test_closures_methods_and_arguments_of_programs_on_a_device(on: Any) -> None:
    x = np.ones(3, np.float32)
    refs: list[weakref.ref[Any]] = []
    for number in range(40):
        model = Model(number)
        model.weight = model.weight.astype(np.float32)
        function = closure(number)
        refs += [weakref.ref(model), weakref.ref(function)]
        for each in (model.plain, model.predict, model, lambda x, m=model: x * m.weight, function):
            result = ag.run(each, x, on=on, fallback="raise")
            np.testing.assert_array_equal(result.value, x + number if each is function else x * number)
            assert result.receipt.device.startswith(on)
        del model, function, each, result
    gc.collect()
    assert sum(each() is not None for each in refs) == 0


@pytest.fixture
def captured() -> Iterator[list[weakref.ref[Any]]]:
    yield []
    default().settle(60)


def test_closures_of_a_runtime_that_was_closed(captured: list[weakref.ref[Any]]) -> None:
    for number in range(20):
        with ag.Runtime() as runtime:
            made = closure(number)
            captured.append(weakref.ref(made))
            runtime.submit(made, X).result(60)
            del made
    del runtime
    gc.collect()
    assert sum(each() is not None for each in captured) == 0


def second(x: Any, text: str) -> Any:
    return x


def test_what_is_remembered_is_bounded() -> None:
    function = ag.offload(second)
    for number in range(5000):
        function(X, str(number))
    assert len(function._table.new) <= 256
    assert len(function._table.sites) <= 1024


@pytest.mark.software_devices("calls are planned where there may be a GPU")
@pytest.mark.native_off("calls are planned, and no native code is tried")
def test_arguments_that_are_new_with_every_call_do_not_drive_out_what_was_learnt() -> None:
    function = ag.offload(second)
    while not function._table.sites:  # some run before anything is asked
        function(X, "steady")
    (learnt,) = function._table.sites.values()
    for number in range(5000):
        function(X, str(number))
    assert learnt in function._table.sites.values()
