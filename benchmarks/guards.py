"""What it costs to read and compare what a traced function depends on, before every call on a device."""

from __future__ import annotations

import types
from collections.abc import Callable
from timeit import timeit
from typing import Any

import numpy as np

from anygpu.array.trace.traced import Traced
from anygpu.array.trace.tracing import trace
from benchmarks.report import Figure, arguments, publish

#: Captures of one kind in a function, so that one costs a part of it.
MANY = 20
#: No guard may cost more than this, in microseconds.
BOUND = 1.5


class Thing:
    def __init__(self) -> None:
        self.gain = 2.0


def _helper(x: Any) -> Any:
    return x


KINDS: dict[str, Callable[[int], Any]] = {
    "array": lambda number: np.ones((3, 4)),
    "number": lambda number: 2.5,
    "string": lambda number: f"text {number}",
    "function": lambda number: types.FunctionType(_helper.__code__, {}, f"f{number}"),
    "list of one number": lambda number: [2.5],
    "dict of one number": lambda number: {"gain": 2.5},
    "object with one attribute": lambda number: Thing(),
    "class": lambda number: type(f"Made{number}", (), {}),
    "module": lambda number: types.ModuleType(f"made{number}"),
    "dtype": lambda number: np.dtype("float32"),
    "unknown": lambda number: {number},
}


def _made(things: list[Any]) -> Callable[[Any], Any]:
    """A function that names all of them, and its attribute."""
    names = [f"thing{number}" for number in range(len(things))]
    uses = f"    if False: ({', '.join(names)}, thing0.gain)\n" if names else ""
    around: dict[str, Any] = {"np": np, **dict(zip(names, things, strict=True))}
    # A condition that the compiler does not see through keeps the names in the code.
    source = f"def function(x):\n{uses.replace('False', 'x.ndim == 9')}    return x * 2\n"
    exec(source, around)
    made: Callable[[Any], Any] = around["function"]
    return made


def microseconds(make: Callable[[int], Any], rounds: int = 60, calls: int = 60) -> float:
    """For one capture with what is inside of it: the best of many rounds, interleaved with those of a bare function."""
    x = np.ones(3)
    functions = (_made([]), _made([make(number) for number in range(MANY)]))
    programs = [trace(function, (x,), {}) for function in functions]
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        for which, (function, program) in enumerate(zip(functions, programs, strict=True)):
            assert isinstance(program, Traced), program
            assert program.read(function, (x,), {}) is not None
            seconds = timeit(lambda f=function, p=program: p.read(f, (x,), {}), number=calls) / calls  # type: ignore[misc]
            best[which] = min(best[which], seconds)
    return (best[1] - best[0]) / MANY * 1e6


def main() -> None:
    options = arguments(__doc__)
    figures = [Figure(name=kind, value=microseconds(make), unit="µs", bound=BOUND) for kind, make in KINDS.items()]
    publish(figures, options)


if __name__ == "__main__":
    main()
