"""One call of an offloaded function: what was passed, and what is known of such calls."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from anygpu.array.trace.traced import CallInputs, NotTraceable, Traced
from anygpu.array.trace.tracing import trace
from anygpu.placement.call_site import CallSite
from anygpu.placement.call_sites import Known
from anygpu.placement.executing import Executing
from anygpu.placement.planner import Planner
from anygpu.placement.signature import signature
from anygpu.placement.values import anygpu_arrays_in

#: A function that needs another program more often than this stays on NumPy.
MOST_RECORDINGS = 12


class Call:
    """A function with its arguments, and what is known of such calls."""

    def __init__(
        self,
        planner: Planner,
        function: Callable[..., Any],
        state: CallSite,
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
        self.cacheable = key is not None
        #: What is known of the function, with other arguments too.
        self._known = known
        self._key = key
        self._given: tuple[Traced, CallInputs] | None = None
        #: Seconds after which a worker that can be killed is.
        self.timeout = state.options.timeout
        #: Called between pieces; what it raises ends the call there.
        self.between: Callable[[], None] | None = None

    def resident(self) -> dict[str, int]:
        """Bytes of arguments that are on devices already."""
        found: dict[str, int] = {}
        for array in anygpu_arrays_in(self.arguments, self.keywords):
            found[array.device] = found.get(array.device, 0) + array.nbytes
        return found

    def given(self) -> CallInputs | None:
        """What the program takes for this call; `None` when it is not the program of this call."""
        traced = self.state.traced
        if traced is None:
            return None
        if self._given is None or self._given[0] is not traced:
            given = traced.inputs(self.function, self.arguments, self.keywords)
            if given is None:
                return None
            self._given = traced, given
        return self._given[1]

    def find_program(self) -> bool:
        """Whether one of the programs that are known is that of this call; it is the state's then."""
        state = self.state
        for traced in state.programs:
            given = traced.inputs(self.function, self.arguments, self.keywords)
            if given is not None:
                state.use_program(traced)
                self._given = traced, given
                return True
        return False

    def record(self, seconds: float | None = None, *, raises: bool = False) -> None:
        """Make a program of the function, in so many seconds, or find out that there is none.

        With `raises` an error of the function itself is raised. Otherwise it is raised where the function runs.
        """
        state = self.state
        precision = state.options.precision
        by_value = frozenset({float, int} - self._known.lifted)
        changed = None
        if state.traced is not None:
            changed = state.traced.changed(self.function, self.arguments, self.keywords)
        with Executing():
            traced = trace(
                self.function, self.arguments, self.keywords, precision=precision, by_value=by_value, seconds=seconds
            )
        if isinstance(traced, Traced) and changed is not None and state.recordings >= MOST_RECORDINGS:
            traced = NotTraceable(f"{changed} changes from call to call, and decides what it computes")
        if isinstance(traced, NotTraceable) and traced.error is not None and (raises or state.chooser.baseline is None):
            raise traced.error
        if isinstance(traced, Traced):
            if traced.by_value:
                self._known.on_value_dependence(traced.by_value)
                state = self._for_these_values()
            state.add_program(traced)
            return
        with self.planner.lock:
            if traced.for_now:
                state.give_up_recording(2 * (seconds or 0.0))
            else:
                state.refuse(traced.reason)

    def _for_these_values(self) -> CallSite:
        """The program is for these numbers only: where others use the same state, this call gets one of its own."""
        state = self.state
        if self.cacheable and self._key != signature(self.arguments, self.keywords, self._known.lifted):
            state = CallSite(
                state.task, state.options, state.chooser.baseline, has_anygpu_arrays=state.has_anygpu_arrays
            )
            self.state, self.cacheable = state, False
        return state

    def consider(self) -> None:
        with self.planner.lock:
            self.state.consider(self.planner, resident=self.resident() if self.state.has_anygpu_arrays else None)
