"""What a call that stays on the CPU costs beyond the bare function: `python -m benchmarks.calls [--json] [--check]`.

Functions of arrays so small that no device could gain anything, called bare and offloaded in turns, with arguments of
every kind: the same ones at each call, and such that are new each time. The best of many samples counts, because others
use the machine too; the difference of medians is beside it.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import anygpu as ag
from benchmarks.placement import calibrate, settle
from benchmarks.report import Figure, arguments, publish
from benchmarks.sampling import in_turns

#: The most that a call may cost beyond the bare function, whatever its arguments are.
MICROSECONDS = 3.0
#: The same of a call with an array of anygpu's own, which returns another one.
MICROSECONDS_OF_OURS = 25.0
#: Calls before anything is measured: as many as a short function has before it is thought about, and some more.
WARM_UP = 2500
ELEMENTS = 64
#: How long each side is repeated.
SECONDS = 0.8

X, Y, Z = np.random.default_rng(0).standard_normal((3, ELEMENTS), np.float32)


class Calls(NamedTuple):
    """One kind of calls: with the bare function, and with the offloaded one."""

    name: str
    bare: Callable[[], object]
    offloaded: Callable[[], object]
    bound: float = MICROSECONDS


def of(name: str, function: Callable[..., Any], *values: Any, **keywords: Any) -> Calls:
    """Calls with the same arguments each time."""
    offloaded: Any = ag.offload(function)
    return Calls(name, lambda: function(*values, **keywords), lambda: offloaded(*values, **keywords))


def of_ours(name: str, function: Callable[..., Any], values: Any) -> Calls:
    """Calls with an array of anygpu's own, beside the bare function with NumPy's."""
    offloaded: Any = ag.offload(function)
    ours = ag.asarray(values)
    return Calls(name, lambda: function(values), lambda: offloaded(ours), MICROSECONDS_OF_OURS)


def changing(name: str, function: Callable[..., Any], new: Callable[[], Any]) -> Calls:
    """Calls with an array, and something that is new each time."""
    offloaded: Any = ag.offload(function)
    return Calls(name, lambda: function(X, new()), lambda: offloaded(X, new()))


def of_one(x: Any) -> Any:
    return x + 1


def of_two(x: Any, y: Any) -> Any:
    return x * y


def of_three(x: Any, y: Any, z: Any) -> Any:
    return x * y + z


def of_four(x: Any, y: Any, z: Any, factor: float) -> Any:
    return (x * y + z) * factor


def with_something(x: Any, something: Any = None, *, mode: str = "same", axis: int | None = None) -> Any:
    return x + 1


def of_something(something: Any) -> Any:
    return X + 1


@dataclasses.dataclass
class Settings:
    weights: Any
    rate: float
    name: str = "settings"


class Colour(enum.Enum):
    RED = 1


class Model:
    def __init__(self) -> None:
        self.weights = X

    def bare(self, y: Any) -> Any:
        return self.weights + y

    @ag.offload
    def offloaded(self, y: Any) -> Any:
        return self.weights + y


class Frame:
    """As a DataFrame: it has no hash, and anygpu knows nothing of it. For machines without pandas."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.values = X


def frame() -> Any:
    try:
        import pandas  # type: ignore[import-untyped]
    except ImportError:
        return Frame()
    return pandas.DataFrame({"a": X})


def others(make: Callable[[], Any]) -> Callable[[], Any]:
    """Another one each time. They are made beforehand, as that takes longer than a call."""
    return itertools.cycle([make() for _ in range(500)]).__next__


def kinds() -> list[Calls]:
    model, numbers, table = Model(), itertools.count(), frame()
    return [
        of("ndarray", of_one, X),
        of("2 ndarrays", of_two, X, Y),
        of("3 ndarrays", of_three, X, Y, Z),
        of("3 ndarrays and a float", of_four, X, Y, Z, 0.5),
        changing("new float", of_two, lambda: next(numbers) * 0.1),
        of("int", of_two, X, 3),
        changing("new int", of_two, lambda: next(numbers)),
        of("str", with_something, X, "same"),
        changing("new str", with_something, lambda: str(next(numbers))),
        of("tuple", with_something, X, (3, 4, "same")),
        of("dict", of_something, {"x": X, "pair": [X, Y]}),
        of("dataclass", of_something, Settings(X, 0.5)),
        of("enum", with_something, X, Colour.RED),
        of("keywords", with_something, X, mode="other", axis=0),
        of(type(table).__name__, of_something, table),
        changing(f"another {type(table).__name__}", with_something, others(frame)),
        of("object", of_something, model),
        changing("another object", with_something, others(Model)),
        Calls("bound method", lambda: model.bare(X), lambda: model.offloaded(X)),
        of_ours("Array", of_one, X),
    ]


def measure(calls: Calls) -> list[Figure]:
    for _ in range(WARM_UP):
        calls.offloaded()
    settle()
    timings = in_turns({"bare": calls.bare, "offloaded": calls.offloaded}, seconds=SECONDS, always=("offloaded",))
    receipt = ag.last_receipt()
    if receipt is None or receipt.device != "numpy":
        raise RuntimeError(f"the call with {calls.name} did not stay on the CPU: {receipt}")
    bare, ours = timings["bare"], timings["offloaded"]
    return [
        Figure(name=f"{calls.name}: bare", value=1e6 * bare.best, unit="µs"),
        Figure(name=f"{calls.name}: beyond bare", value=1e6 * (ours.best - bare.best), unit="µs", bound=calls.bound),
        Figure(name=f"{calls.name}: the same, of medians", value=1e6 * (ours.median - bare.median), unit="µs"),
    ]


def main() -> None:
    options = arguments(__doc__)
    # As in a program that has run for a while: what there is, and how fast it is, is known.
    calibrate()
    publish([figure for calls in kinds() for figure in measure(calls)], options)


if __name__ == "__main__":
    main()
