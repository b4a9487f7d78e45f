"""One call of an offloaded function: its arguments, its call site, and the program and inputs that belong to it.

`call_of` finds the call site, or makes it with the baseline that the arguments and the options imply.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any

from anygpu.agreement.trust import listening
from anygpu.calls.call_table import CallTable, name_of
from anygpu.calls.executing import Executing
from anygpu.calls.options import Options
from anygpu.calls.signature import signature
from anygpu.hardware.selection import matches_name
from anygpu.placement.call_site import CallSite
from anygpu.placement.planner import Planner, allows_numpy
from anygpu.placement.values import anygpu_arrays_in, majority_device

if TYPE_CHECKING:
    from anygpu.array.trace.traced import CallInputs, Traced
    from anygpu.placement.opaque_form import RowsOfForm

#: A function that needs another program more often than this stays on NumPy.
MOST_RECORDINGS = 12


class Call:
    """A function with its arguments, and what is known of such calls. Used by the thread that makes the call, and no
    other.
    """

    def __init__(
        self,
        planner: Planner,
        function: Callable[..., Any],
        site: CallSite,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        *,
        table: CallTable,
        key: Hashable | None,
    ) -> None:
        self.planner = planner
        self.function = function
        self.site = site
        self.arguments = arguments
        self.keywords = keywords
        #: Whether there can be another call like this one, so that learning is of use.
        self.cacheable = key is not None
        #: What is known of the function, with other arguments too.
        self.table = table
        #: The signature of the call.
        self.key = key
        self._given: CallInputs | None = None
        #: The program that `given` was read for, whatever other threads have made of the call site since.
        self.traced: Traced
        self._form: RowsOfForm | None = None
        #: Seconds after which a worker that can be killed is.
        self.timeout = site.options.timeout
        #: Whether NumPy has begun to run it, so that an error is the function's own.
        self.is_heard = False
        #: Called between pieces; what it raises ends the call there.
        self.between: Callable[[], None] | None = None
        #: Called once, when it begins to run somewhere; what it raises ends the call there.
        self.starting: Callable[[], None] | None = None

    @property
    def form(self) -> RowsOfForm:
        """The form of an opaque task, which calls with other numbers of rows share, and the rows of this call."""
        if self._form is None:
            from anygpu.placement.opaque_form import form_of  # few calls are opaque tasks

            self._form = form_of(self, self.table.forms)
        return self._form

    def with_arguments(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Call:
        """A call of the same function with other arguments."""
        key = signature(arguments, keywords, self.table.input_number_types)
        return call_of(self.function, self.table, self.planner, key, arguments, keywords)

    def start(self) -> None:
        """Call `starting`, if it has not been called: the call begins to run somewhere now."""
        starting, self.starting = self.starting, None
        if starting is not None:
            starting()

    def resident(self) -> dict[str, int]:
        """The bytes of the arguments that are on devices already, by device."""
        found: dict[str, int] = {}
        for array in anygpu_arrays_in(self.arguments, self.keywords):
            found[array.device] = found.get(array.device, 0) + array.nbytes
        return found

    def given(self) -> CallInputs | None:
        """The inputs of the current program for this call; `None` when there is no program, or it is not that of this
        call.

        They are read once for each program: `traced` is the program that they were read for.
        """
        traced = self.site.programs.current
        if traced is None:
            return None
        if self._given is None or self.traced is not traced:
            given = traced.inputs(self.function, self.arguments, self.keywords)
            if given is None:
                return None
            self.traced, self._given = traced, given
        return self._given

    def find_program(self) -> bool:
        """Whether one of the known programs is that of this call; the call site uses that one then.

        It is needed where something that decides what the function does changes back and forth, a flag for example.
        """
        site = self.site
        for traced in site.programs.known:
            given = traced.inputs(self.function, self.arguments, self.keywords)
            if given is not None:
                site.use_program(traced)
                self.traced, self._given = traced, given
                return True
        return False

    def record(self, seconds: float | None = None, *, raises: bool = False) -> None:
        """Trace the function within these seconds, and give the call site the program, or the reason why there is none.

        Where numbers turned out to be constants of the program, calls with other numbers get call sites of their own. A
        function that needs a new program more than `MOST_RECORDINGS` times is refused. An error of the function itself
        is raised with `raises`, or where NumPy may not raise it; otherwise the call runs on NumPy, which does.
        """
        from anygpu.array.trace.traced import NotTraceable, Traced
        from anygpu.array.trace.tracing import trace  # most processes are over before they trace anything
        from anygpu.engines.cpu.numpy_loops import rounding

        site = self.site
        precision = site.options.precision
        by_value = frozenset({float, int} - self.table.input_number_types)
        changed, before = None, site.programs.current
        if before is not None:
            changed = before.changed(self.function, self.arguments, self.keywords)
        heard: set[str] = set()
        with Executing():
            tracing = partial(
                trace,
                self.function,
                self.arguments,
                self.keywords,
                precision=precision,
                by_value=by_value,
                seconds=seconds,
                exact=rounding() if site.options.exact else None,
            )
            traced = contextvars.copy_context().run(listening, heard, tracing)
        if heard and isinstance(traced, Traced):
            traced = NotTraceable("it computes something from constants about which NumPy warns")
        if isinstance(traced, Traced) and changed is not None and site.programs.tracings >= MOST_RECORDINGS:
            traced = NotTraceable(f"{changed} changes from call to call, and decides what it computes")
        if isinstance(traced, NotTraceable) and traced.error is not None:
            if raises or (site.chooser.baseline is None and site.options.fallback == "raise"):
                raise traced.error
            if site.chooser.baseline is None:
                # NumPy raises it, after the warnings and errors that come before it there. The next call is traced.
                self._own_site().candidates.fall_back(traced.reason)
                return
        if isinstance(traced, Traced):
            if traced.by_value:
                self.table.on_value_dependence(traced.by_value)
                site = self._for_these_values()
            site.add_program(traced)
            return
        with self.planner.lock:
            if traced.for_now:
                site.give_up_recording(2 * (seconds or 0.0))
            else:
                site.refuse(traced.reason)

    def _for_these_values(self) -> CallSite:
        """The call site for a program that holds for these numbers only.

        Where calls with other numbers share the site, this call gets one that no later call finds.
        """
        site = self.site
        if self.cacheable and self.key != signature(self.arguments, self.keywords, self.table.input_number_types):
            site = self._own_site()
        return site

    def _own_site(self) -> CallSite:
        """Give this call a site of its own, which no later call finds."""
        site = self.site
        site = CallSite(site.task, site.options, site.chooser.baseline, has_anygpu_arrays=site.has_anygpu_arrays)
        self.site, self.cacheable = site, False
        return site

    def consider(self) -> None:
        """Predict for every device that is allowed what this call would take there. Not to be called with the planner's
        lock.
        """
        self.site.candidates.consider(self.planner, resident=self.resident() if self.site.has_anygpu_arrays else None)


def call_of(
    function: Callable[..., Any],
    table: CallTable,
    planner: Planner,
    key: Hashable,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
) -> Call:
    """The call with its call site; `key` is its signature.

    The first planned call of a kind makes the site, which learns what earlier calls took on NumPy or as native code.
    """
    site = table.sites.get(key)
    if site is None:
        ours = majority_device(arguments, keywords)
        baseline = _baseline(planner, table.options, ours)
        site = CallSite(name_of(function), table.options, baseline, has_anygpu_arrays=ours is not None)
        new = table.native.get(key) or table.new.get(key)
        if new is not None:
            planner.add_seconds(new.report_to(site.chooser))
        table.remember(key, site)
    else:
        table.used(key)
    return Call(planner, function, site, arguments, keywords, table=table, key=key)


def _baseline(planner: Planner, options: Options, ours: str | None) -> str | None:
    """The device that a call runs on unless another one is faster; `None` if the options do not allow it.

    It is NumPy, or `ours`: the device with most bytes of anygpu's own arrays among the arguments.
    """
    if ours is None or ours == "numpy":
        return "numpy" if allows_numpy(options) else None
    on = options.preference.on
    # The array's device is known; a look at the whole machine may take long.
    allowed = not on or any(matches_name(planner.places.find(ours).facts, name) for name in on)
    return ours if allowed else None
