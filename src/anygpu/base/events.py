"""Events: how a package tells and asks those above it, which it cannot import.

An `Event` is the list of its subscribers, which are called on the thread that it happened on. Most are empty in most
processes, so that a publisher looks whether anyone listens before it makes the record. What is asked (`html_of` and
those beside it) is a function that `anygpu.api` sets when it is imported.

`drawn` and `Listed` are what classes need for `_repr_html_`: the code that draws is above all that is drawn, and is
loaded when a notebook first shows something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Event(list[Callable[P, Any]]):
    """Functions to be called when it happens: `append` one to subscribe, `remove` it to unsubscribe."""

    __slots__ = ()

    def tell(self, *given: P.args, **named: P.kwargs) -> None:
        for subscriber in self:
            subscriber(*given, **named)


#: A call ended: its receipt, note or failure (`anygpu.receipts.notes.Seen`), and its `Origin` if it was a task.
calls: Event[[Any, Any]] = Event()
#: A call returned: its receipt or note, its function, arguments and result (`Given`), and the user's line of a task.
returned: Event[[Any, Any, tuple[str, int] | None]] = Event()
#: An operation of arrays ran on the host (`anygpu.receipts.receipt.HostOperation`).
host_operations: Event[[Any]] = Event()
#: Arrays were copied, or a program ran on them, outside of calls (`anygpu.array.core.device.ArrayWork`).
array_work: Event[[Any]] = Event()
#: A function was traced (`anygpu.program.graph.Program`).
programs: Event[[Any]] = Event()
#: A worker was opened, lost or replaced (`anygpu.workers.device_arrays.handle.WorkerEvent`).
workers: Event[[Any]] = Event()
#: The served metrics are asked for: subscribers return families of their own (`base.metric_families.Family`).
scrapes: Event[[]] = Event()


def _not_provided(*given: Any) -> Any:
    raise NotImplementedError("`import anygpu` provides it")


#: Provided by `anygpu.api`: a value as HTML for notebooks, the usage of a device's card, the device of a name.
html_of: Callable[[Any], str | None] = _not_provided
usage_of: Callable[[Any, float], Any] = _not_provided
array_device: Callable[[str | None], Any] = _not_provided


#: The processes that have a device open, by the device's id.
WorkerProcesses = Callable[[str], Iterable[int]]


def _no_processes(device: str) -> Iterable[int]:
    return ()


#: Set by the registry of devices.
worker_processes: WorkerProcesses = _no_processes


def drawn(value: Any) -> str | None:
    """The value as HTML; `None` where there is none, and a notebook shows the text."""
    return html_of(value)


class Listed(list[T]):
    """A list that notebooks show as a table. It is a list in everything else."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        return drawn(self)
