"""One call of an offloaded function: what was passed, and what is known of such calls."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from anygpu.array.tracing import NotTraceable, trace
from anygpu.runtime.known import Known
from anygpu.runtime.planner import Planner
from anygpu.runtime.signature import signature
from anygpu.runtime.state import State
from anygpu.runtime.values import ours_among


class Call:
    """A function with its arguments, and what is known of such calls."""

    def __init__(
        self,
        planner: Planner,
        function: Callable[..., Any],
        state: State,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        *,
        known: Known,
        key: Hashable | None,
    ) -> None:
        self.planner = planner
        self.function = function
        self.state = state
        self.arguments = arguments
        self.keywords = keywords
        #: Whether there can be another call like this one, so that learning is of use.
        self.lasting = key is not None
        #: What is known of the function, with other arguments too.
        self._known = known
        self._key = key
        #: Seconds after which a worker that can be killed is.
        self.timeout = state.options.timeout
        #: Called between pieces; what it raises ends the call there.
        self.between: Callable[[], None] | None = None

    def resident(self) -> dict[str, int]:
        """Bytes of arguments that are on devices already."""
        found: dict[str, int] = {}
        for array in ours_among(self.arguments, self.keywords):
            found[array.device] = found.get(array.device, 0) + array.nbytes
        return found

    def inputs(self) -> list[Any]:
        """What the program takes, from this call."""
        assert self.state.traced is not None
        return self.state.traced.inputs(self.arguments, self.keywords)

    def record(self, seconds: float | None = None) -> None:
        """Make a program of the function, in so many seconds, or find out that there is none."""
        state = self.state
        precision = state.options.precision
        traced = trace(self.function, self.arguments, self.keywords, precision=precision, seconds=seconds)
        if isinstance(traced, NotTraceable) and traced.for_now:
            state.recording = 2 * (seconds or 0.0)
            self._forget_program()
        elif isinstance(traced, NotTraceable):
            state.not_recorded = traced.reason
            self._forget_program()
        else:
            deciding: frozenset[type] = frozenset() if traced.lifted else frozenset((float,))
            if deciding:
                self._known.decide(deciding)
                state = self._for_these_values()
            state.traced, state.not_recorded = traced, None
        state.considered = state.refined = False

    def _for_these_values(self) -> State:
        """The program is for these numbers only: where others use the same state, this call gets one of its own."""
        state = self.state
        if self.lasting and self._key != signature(self.arguments, self.keywords, self._known.lifted):
            state = State(state.task, state.options, state.cell.home, ours=state.ours)
            self.state, self.lasting = state, False
        return state

    def _forget_program(self) -> None:
        with self.planner.lock:
            self.state.forget_program()

    def consider(self) -> None:
        with self.planner.lock:
            self.state.consider(self.planner, resident=self.resident() if self.state.ours else None)
