"""The runtime: a queue in front of the devices, for many callers at once, that survives what devices do.

`Runtime` is the public class: it checks options, makes jobs and gives them to a `Scheduler`. `map_over` is what `map`
of every runtime does. `default_runtime` is the one behind `anygpu.submit`.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import count
from operator import length_hint
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, Unpack

from anygpu.agreement.trust import Modes
from anygpu.base.events import Listed, drawn
from anygpu.base.forks import lock
from anygpu.base.interrupts import is_of_a_handler, whole
from anygpu.calls.call_table import CallTable
from anygpu.calls.offload import Calls, Offloaded, Result, check_callable, check_function
from anygpu.calls.options import CallOptions, Options, TaskOptions, check_names, options
from anygpu.calls.signature import function_key
from anygpu.calls.undecorated import FunctionTables, table_of, unwrapped
from anygpu.errors import InvalidOption, Overloaded, QueueFull
from anygpu.placement.call import Call
from anygpu.placement.planner import Planner, default
from anygpu.placement.retry import LockedTask
from anygpu.placement.values import bytes_of
from anygpu.receipts.notes import listeners, origin_here
from anygpu.receipts.receipt import Receipt, users_line
from anygpu.runtime.future import Future, Progress, here, showing
from anygpu.runtime.health import Health
from anygpu.runtime.intake import Submission
from anygpu.runtime.lanes import Job
from anygpu.runtime.routing import Routing
from anygpu.runtime.scheduling import Scheduler
from anygpu.runtime.task_queue import TaskQueue, Tenant, check_priority
from anygpu.workers.device_arrays.registry import DeviceRegistry
from anygpu.workers.task_lifecycle import Task

# -- `map`: a function for every item, with progress, and an outcome for each


#: The share of the queue that one `map` may fill, so that others can submit too.
_SHARE = 0.5
#: Seconds between attempts to submit while the tasks of others fill the queue.
_LOOK_AGAIN = 0.01


class Outcome(NamedTuple):
    """The outcome of one item: a value, or the error that it raised."""

    value: Any = None
    error: BaseException | None = None
    receipt: Receipt | None = None

    def __repr__(self) -> str:
        if self.error is not None:
            return f"Outcome(error={self.error!r})"
        device = f", ran on {self.receipt.device}" if self.receipt is not None else ""
        return f"Outcome({self.value!r}{device})"

    def _repr_html_(self) -> str | None:
        return drawn(self)

    @property
    def ok(self) -> bool:
        return self.error is None

    def unwrap(self) -> Any:
        """The value; raises the error if there is one."""
        if self.error is not None:
            raise self.error
        return self.value


class Stop:
    """The pending futures of a `map`, and whether it was stopped."""

    def __init__(self) -> None:
        self.waiting: deque[Future | BaseException] = deque()
        self._stopped = False

    def stop(self) -> None:
        """May be called from another thread."""
        self._stopped = True
        for each in self.waiting.copy():
            if isinstance(each, Future):
                each.cancel()

    def check(self) -> None:
        """Raises `CancelledError` if the map was stopped."""
        if self._stopped:
            raise concurrent.futures.CancelledError


class _Runtime(Protocol):
    @property
    def limit(self) -> int: ...

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **given: Any) -> Future: ...

    def submit_beyond(self, function: Callable[..., Any], /, *arguments: Any, **given: Any) -> Future: ...


def map_over(
    runtime: _Runtime,
    function: Callable[..., Any],
    iterables: tuple[Iterable[Any], ...],
    progress: Progress,
    given: Mapping[str, Any],
    stop: Stop | None = None,
) -> list[Outcome]:
    """Submits the function for every item, and returns the outcomes in order.

    At most a share of the queue's limit is submitted at once, so that a long iterable leaves room for others and is
    read as it is needed. An item's error is its own outcome. An error of the iterable, of the progress callback or
    Ctrl-C stops the rest: what waits is cancelled, and the error is raised.
    """
    stop = stop or Stop()
    hints = [length_hint(each, -1) for each in iterables]
    total = min((hint for hint in hints if hint >= 0), default=None)
    window = max(1, int(runtime.limit * _SHARE))
    outcomes: list[Outcome] = Listed()
    waiting = stop.waiting
    with showing(progress, getattr(function, "__name__", "map"), total) as tell:

        def take() -> None:
            # It stays in the deque while it is waited for, so that `stop` cancels it too.
            first = waiting[0]
            outcomes.append(_outcome(first) if isinstance(first, Future) else Outcome(error=first))
            del waiting[0]
            tell(len(outcomes))
            stop.check()

        try:
            for arguments in zip(*iterables, strict=False):
                while len(waiting) >= window:
                    take()
                waiting.append(_submitted(runtime, function, arguments, given, stop))
            while waiting:
                take()
        except BaseException:
            stop.stop()
            raise
    return outcomes


def _submitted(
    runtime: _Runtime,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    given: Mapping[str, Any],
    stop: Stop,
) -> Future | BaseException:
    """The future of one item, or its error: a bad item must not fail the others.

    While the queue is full, this waits for items of the same `map` first.
    """
    while True:
        stop.check()
        try:
            return runtime.submit(function, *arguments, **given)
        except Overloaded as error:
            pending = next((each for each in stop.waiting if isinstance(each, Future) and not each.done()), None)
            if pending is not None:
                pending.wait()
            elif isinstance(error, QueueFull):  # with tasks of others
                if here.seat is not None:
                    # Those tasks may wait for this very thread, so one item is admitted beyond the limit.
                    return runtime.submit_beyond(function, *arguments, **given)
                time.sleep(_LOOK_AGAIN)
            else:
                return error
        except Exception as error:
            if is_of_a_handler(error):  # not the item's own
                raise
            return error


def _outcome(future: Future) -> Outcome:
    """Waits for a future, and returns its value with its receipt, or its error; a cancelled task is an error too."""
    # An exception raised here, such as KeyboardInterrupt, is the caller's; the task's own error is returned.
    try:
        error = future.exception()
    except concurrent.futures.CancelledError as cancelled:
        error = cancelled
    return Outcome(future.result(), None, future.receipt) if error is None else Outcome(error=error)


#: A longer deadline counts as none.
FOR_EVER = 1e8
#: How long `close` waits for tasks that run.
_PATIENCE = 10.0


class Runtime:
    """A queue in front of the devices. Use it in a `with` block, which waits for what was submitted.

    `queue` tasks may wait at most, `deadline` seconds is what a task may take that has no deadline of its own. Calls
    of one function that wait together become one launch where that is predicted to pay, unless `batching` is false; no
    launch is made larger than `max_latency` seconds allow.
    """

    def __init__(
        self,
        *,
        queue: int = 1000,
        deadline: float | None = 300.0,
        tenants: Iterable[Tenant] = (),
        batching: bool = True,
        max_latency: float = 0.25,
        ageing: float = 0.5,
        known: DeviceRegistry | None = None,
    ) -> None:
        """Makes a queue for `queue` waiting tasks; threads are started when they are needed.

        `deadline` and `max_latency` are seconds, and `ageing` is the waiting time that outweighs one step of priority.
        Without `known` the runtime shares the planner, and so the workers, with calls of offloaded functions. Raises
        `InvalidOption`.
        """
        if deadline is not None and not deadline > 0:
            raise InvalidOption(f"deadline is a number of seconds, more than 0; got {deadline!r}.")
        if not max_latency > 0:
            raise InvalidOption(f"max_latency is a number of seconds, more than 0; got {max_latency!r}.")
        self._planner = default() if known is None else Planner(known=known)
        self._shares_planner = known is None
        self._deadline = deadline
        self._numbers = count(1)
        self._functions = FunctionTables()
        self._queue: TaskQueue[Job] = TaskQueue(most=queue, ageing=ageing, tenants=tenants)
        routing = Routing(self._planner, batching=batching, max_latency=max_latency)
        self._scheduler = Scheduler(self._planner, self._queue, routing, self._job)

    # -- tasks

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **given: Unpack[TaskOptions]) -> Future:
        """Let the function run where it is fastest, some day soon. Returns at once.

        Arguments must not be changed before the future is done. Raises `QueueFull` or `QuotaExceeded` when no more
        tasks may wait.
        """
        return self._put(function, arguments, given, _callers_line())

    def submit_beyond(self, function: Callable[..., Any], /, *arguments: Any, **given: Unpack[TaskOptions]) -> Future:
        """Like `submit`, beyond the queue's limit: a running task waits for this one."""
        return self._put(function, arguments, given, users_line(), beyond=True)

    def run(self, function: Callable[..., Any], /, *arguments: Any, **given: Unpack[TaskOptions]) -> Result:
        """Submits the function, waits, and returns `.value` and `.receipt`."""
        return _awaited(self.submit(function, *arguments, **given))

    def _run_as_task(
        self, call: Call, function: Callable[..., Any], arguments: tuple[Any, ...], given: TaskOptions
    ) -> Result:
        """Submits a call that was made already, and waits for it."""
        return _awaited(self._put(function, arguments, given, users_line(), call=call))

    def _put(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        given: TaskOptions,
        line: tuple[str, int],
        *,
        call: Call | None = None,
        beyond: bool = False,
    ) -> Future:
        """Gives a task to the scheduler, with the state of the thread that submits it, and returns its future."""
        future = Future(self._scheduler.cancel, self._scheduler.awaited)
        submission = Submission(
            future,
            function,
            arguments,
            given,
            time.monotonic(),
            listeners.get(),
            line,
            Modes.unusual(),
            call,
            origin_here(line),
        )
        self._scheduler.put(submission, beyond=beyond)
        return future

    def map(
        self,
        function: Callable[..., Any],
        /,
        *iterables: Iterable[Any],
        progress: Progress = False,
        **given: Unpack[TaskOptions],
    ) -> list[Outcome]:
        """The function for every item, as Python's `map`: outcomes in order, each with its value or its own error.

        Waits when the queue is full. Items of one shape become batches where that pays.
        """
        return map_over(self, function, iterables, progress, given)

    async def amap(
        self,
        function: Callable[..., Any],
        /,
        *iterables: Iterable[Any],
        progress: Progress = False,
        **given: Unpack[TaskOptions],
    ) -> list[Outcome]:
        """`map` for asynchronous code: it waits on another thread, and the loop goes on."""
        stop = Stop()
        try:
            return await asyncio.to_thread(map_over, self, function, iterables, progress, given, stop)
        except asyncio.CancelledError:
            stop.stop()
            raise

    # -- the whole

    @property
    def waiting(self) -> int:
        """Tasks that wait for a device."""
        return self._scheduler.waiting

    @property
    def limit(self) -> int:
        """Tasks that may wait."""
        return self._queue.most

    def health(self) -> Health:
        """Running, waiting and lost tasks of each device, as plain values."""
        return self._scheduler.health()

    def drain(self, timeout: float | None = None) -> bool:
        """Take no more tasks, and wait for those that were submitted; whether all were done in time."""
        return self._scheduler.drain(timeout)

    @whole
    def close(self, timeout: float | None = _PATIENCE) -> None:
        """Take no more tasks, cancel those that wait, and wait so long for those that run. May be called twice.

        What still runs then in a process of its own is killed, and cancelled; a function that runs in this process
        cannot be stopped, and its future waits for it.
        """
        self._scheduler.close(timeout)
        self._functions.forget()
        if not self._shares_planner:
            self._planner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Waits for all tasks if the block has not raised, and closes the runtime in any case."""
        try:
            if kind is None:
                self.drain()
        finally:
            self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, traceback)

    def __repr__(self) -> str:
        return f"<Runtime: {self._scheduler.open_tasks} open tasks, {self._scheduler.state}>"

    # -- what was asked for

    def _job(self, submission: Submission) -> Job:
        """Validate the options and create the job."""
        given, arguments = submission.given.copy(), submission.arguments
        priority, tenant = given.pop("priority", 0), given.pop("tenant", "default")
        seconds, nan = given.pop("deadline", None), given.pop("nan", "allow")
        idempotent = given.pop("idempotent", False)
        if seconds is None:
            seconds = self._deadline
        elif not seconds > 0:
            raise InvalidOption(f"deadline is a number of seconds, more than 0; got {seconds!r}.")
        if nan not in ("allow", "raise"):
            raise InvalidOption(f'nan is "allow" or "raise"; got {nan!r}.')
        check_priority(priority)
        call = submission.call
        if call is None:
            function, arguments, keywords = unwrapped(submission.function, arguments)
            call = self._calls(function, given).call(arguments, keywords)
        now = submission.submitted
        return Job(
            next(self._numbers),
            call,
            submission.future,
            LockedTask(Task(name=call.site.task, devices=()), self._scheduler.lock),
            priority=priority,
            tenant=tenant,
            submitted=now,
            until=None if seconds is None or seconds > FOR_EVER else now + seconds,
            nan=nan,
            idempotent=idempotent,
            nbytes=bytes_of(call.arguments, call.keywords),
            receipt_sinks=submission.receipt_sinks,
            line=submission.line,
            modes=submission.modes,
            origin=submission.origin,
        )

    def _calls(self, function: Callable[..., Any], given: CallOptions) -> Calls:
        """The calls of a function, with everything known from earlier ones."""
        own: Options | None = None
        if isinstance(function, Offloaded):
            if self._shares_planner and not given:
                return function
            own = function.options if not given else None
            function = function.function
        check_callable(function)
        same = function_key(function)
        key: Hashable = (same, own, tuple(given.items()))
        try:
            table = self._functions.find(key) if same is not None else None
        except TypeError:  # an option that cannot be a key
            table = same = None
        if table is None:
            check_names(given, TaskOptions)
            wanted = own or options(**given)
            if self._shares_planner:
                table = table_of(function, wanted)
            else:
                check_function(function)
                table = CallTable(wanted)
            if same is not None:
                table = self._functions.remember(key, table)
        return Calls(function, table, self._find_planner)

    def _find_planner(self) -> Planner:
        return self._planner


def _awaited(future: Future) -> Result:
    """Waits for the future, and returns its value and receipt; raises the task's error."""
    value = future.result()
    receipt = future.receipt
    assert receipt is not None, "a task that is done has a receipt"
    return Result(value, receipt)


def _callers_line() -> tuple[str, int]:
    """Like `users_line`, but faster when the user called `submit` directly."""
    frame = sys._getframe(2)
    if frame.f_globals.get("__name__", "anygpu.").startswith("anygpu."):
        return users_line()
    return frame.f_code.co_filename, frame.f_lineno


_default: Runtime | None = None
_making = lock()


def default_runtime() -> Runtime:
    """The runtime of `submit` and `map`, made when one of them is first called."""
    global _default
    if _default is None:
        with _making:
            if _default is None:
                _default = Runtime()
                atexit.register(_close_default)
    return _default


def existing_runtime() -> Runtime | None:
    """The runtime of `submit` and `map`, if one of them has been called."""
    return _default


def _close_default() -> None:
    if _default is not None:
        _default.close()


def _forked() -> None:
    """Called in a forked child, which has none of the threads."""
    global _default
    _default = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
