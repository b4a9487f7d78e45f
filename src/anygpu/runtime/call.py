"""One call of an offloaded function: what was passed, and what is known of such calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from anygpu.array.array import Array
from anygpu.array.structure import flatten
from anygpu.array.tracing import NotTraceable, trace
from anygpu.runtime.runtime import Runtime
from anygpu.runtime.state import State


class Call:
    """A function with its arguments, and what is known of such calls."""

    def __init__(
        self,
        runtime: Runtime,
        function: Callable[..., Any],
        state: State,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        *,
        lasting: bool,
    ) -> None:
        self.runtime = runtime
        self.function = function
        self.state = state
        self.arguments = arguments
        self.keywords = keywords
        #: Whether there can be another call like this one, so that learning is of use.
        self.lasting = lasting
        self.floats_decide = False

    def resident(self) -> dict[str, int]:
        """Bytes of arguments that are on devices already."""
        found: dict[str, int] = {}
        for array in ours_among(self.arguments, self.keywords):
            found[array.device] = found.get(array.device, 0) + array.nbytes
        return found

    def record(self) -> None:
        state = self.state
        traced = trace(self.function, self.arguments, self.keywords, precision=state.options.precision)
        if isinstance(traced, NotTraceable):
            state.traced, state.not_recorded = None, traced.reason
        else:
            state.traced, state.not_recorded = traced, None
            self.floats_decide = not traced.lifted
        state.considered = state.refined = False

    def consider(self) -> None:
        with self.runtime.lock:
            self.state.consider(self.runtime, resident=self.resident() if self.state.ours else None)


def ours_among(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Iterator[Array]:
    for each in (*arguments, *keywords.values()):
        if type(each) is Array:
            yield each
        elif isinstance(each, dict | tuple | list) or hasattr(type(each), "__dataclass_fields__"):
            yield from (leaf for leaf in flatten(each)[0] if isinstance(leaf, Array))


def home_of_ours(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str | None:
    """The device that has most of the bytes of anygpu's own arrays; `None` when there are none."""
    found: dict[str, int] = {}
    for array in ours_among(arguments, keywords):
        found[array.device] = found.get(array.device, 0) + array.nbytes
    return max(found, key=lambda device: found[device]) if found else None
