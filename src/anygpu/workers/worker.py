"""The interface of workers: one owns an open device and executes programs on it, in a thread or another process.

A worker takes programs and arrays, never code. It is used by one caller at a time (it has a lock of its own), and a
call returns when its results are there. Whether it lives in this process or in a child makes no difference to callers,
except in what a crash takes with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from anygpu.base.typing import HostArray
from anygpu.base.units import bytes_from
from anygpu.engines import ISOLATIONS_HERE, Isolation
from anygpu.engines.catalogue import EngineEntry
from anygpu.engines.protocol import Lack, Memory
from anygpu.errors import InvalidOption
from anygpu.hardware.device import Device
from anygpu.program.graph import Program
from anygpu.program.primitives import Spec
from anygpu.receipts.receipt import Account, DriverWork, HostOperation, NetworkUse, Phases

if TYPE_CHECKING:
    from anygpu.workers.child_process import Child


class Handle(Protocol):
    """An array that stays on a worker's device. Its memory is freed with the last reference to it.

    Once its worker is gone, every use raises `DeviceLost` with the generation that the handle belonged to.
    """

    @property
    def spec(self) -> Spec: ...

    @property
    def generation(self) -> int: ...


#: An argument of a program: values of the host, or an array on the worker's device.
Argument = HostArray | Handle


class Ran(NamedTuple):
    """The results of one run, its times and its transfers."""

    #: Values on the host, or handles if the caller wanted them left there.
    results: list[Any]
    #: The phases of the call as its caller waited for it; `trace` and `plan` are 0, `other` is the way there and back.
    phases: Phases
    bytes_to_device: int
    bytes_to_host: int
    #: Bytes of arguments that were on the device already, and of results that stay there.
    bytes_skipped: int
    device_seconds: float | None
    peak_bytes: int | None
    kernels: int | None
    driver: DriverWork | None
    host_operations: tuple[HostOperation, ...]
    #: For each of the fields that is `None`: why.
    unknown: dict[str, str]
    #: Whether its arguments were uploaded while another call ran: `phases.queue` is what it waited for that one then.
    overlapped: bool = False
    #: The network's share, for a worker on another machine; `None` on this one.
    network: NetworkUse | None = None
    #: The bits that native code has noted on the way to the results.
    noted: int = 0


def ran_by(
    account: Account, program: Program, results: list[Any], *, queue: float, write: float, read: float, total: float
) -> Ran:
    """A run as its caller saw it: the account, with the seconds that were measured here.

    Seconds that no phase claims are `other`. Lines of the user are added here, because a child does not know them.
    """
    named = queue + write + account.compile + account.run + read
    driver = account.driver
    return Ran(
        results,
        Phases(
            compile=account.compile,
            queue=queue,
            write=write,
            run=account.run,
            read=read,
            other=max(0.0, total - named),
        ),
        account.bytes_to_device,
        account.bytes_to_host,
        account.bytes_skipped,
        account.device_seconds,
        account.peak_bytes,
        driver.dispatches if driver is not None else None,
        driver,
        tuple([msgspec.structs.replace(each, line=line_of(program, node)) for node, each in account.hosted]),
        account.unknown,
        noted=account.noted,
    )


def line_of(program: Program, position: int) -> str | None:
    """The user's line of a node, as `file:line`."""
    line = program.lines[position]
    return f"{line[0]}:{line[1]}" if line is not None else None


@runtime_checkable
class Lending(Protocol):
    """A worker to which values cross in memory that can be kept."""

    def upload_and_lend(self, values: HostArray) -> tuple[Handle, HostArray | None]:
        """Upload, and return the values in the memory that they crossed in, which stays unchanged as long as they live.

        `None` if there is no such memory, or none to spare.
        """


@runtime_checkable
class Overlapping(Protocol):
    """A worker to which two threads may give large calls at once: one transfers while the other one runs."""

    @property
    def overlaps(self) -> bool: ...


class Worker(Protocol):
    """One open device."""

    @property
    def device(self) -> Device: ...

    @property
    def isolation(self) -> Isolation: ...

    @property
    def generation(self) -> int:
        """1 for the first worker of a device, one more for each that replaces it."""

    @property
    def alive(self) -> bool: ...

    @property
    def ended(self) -> str | None:
        """Why it is not alive any more; `None` while it is."""

    def supports(self, program: Program) -> list[Lack]:
        """The operations of the program that the device lacks, cached by the program's key."""

    def prepare(self, program: Program) -> float:
        """Compile it, so that the next run does not have to: the seconds that took."""

    def run(
        self,
        program: Program,
        arguments: Sequence[Argument],
        *,
        keep: bool = False,
        timeout: float | None = None,
        wait: bool = True,
        timed: bool = False,
        starting: Callable[[], None] | None = None,
    ) -> Ran:
        """Run and wait. With `keep` the results stay on the device, as handles.

        What the device lacks runs on the host, node by node, and is listed in the result. When the time is over the
        worker is killed, where it is a process, and `DeviceHung` is raised. Without `wait`, results that are kept
        may still be in the making on return; then `phases.run` is the time it took to start them. With `timed` the
        device's own clock is read where it has one, which costs some engines one more submission. `starting` is called
        once, when the device is free and the program is about to run: what it raises ends the call there. Arguments
        may have been uploaded before that, while another call ran.
        """

    def upload(self, values: HostArray) -> Handle: ...

    def download(self, handle: Handle) -> HostArray: ...

    def native(self, handle: Handle) -> Any:
        """The library's own array, which speaks DLPack; a copy on the host where there is none."""

    def adopt(self, array: Any) -> Handle: ...

    def memory(self) -> Memory: ...

    def reclaim(self) -> int:
        """Give back the memory that is cached for later calls, and that of arrays without a reference.

        How many bytes of the device's memory that was, as far as the engine counts them.
        """

    def kill(self) -> None:
        """Ends its process, if it has one, while it is busy. A waiting caller gets `DeviceLost`.

        Any thread may call it.
        """

    def close(self) -> None:
        """Let go of the device. May be called twice."""


# -- opens the worker of a device, in a thread or in a child process


ISOLATION = "ANYGPU_ISOLATION"
MEMORY = "ANYGPU_MEMORY"


def isolation_of(entry: EngineEntry, isolation: Isolation | None = None) -> Isolation:
    """Returns where a worker of that engine lives: as asked, as the variable says, or as suits the engine."""
    wanted = isolation or os.environ.get(ISOLATION) or entry.traits.isolation
    for known in ISOLATIONS_HERE:
        if wanted == known:
            return known
    source = "isolation=" if isolation else f"the variable {ISOLATION}"
    raise InvalidOption(f'{source} is "thread" or "process"; got {wanted!r}.')


def default_budget() -> int | None:
    """The most bytes of a device's memory that anygpu may take, as the variable says; `None` for no limit."""
    text = os.environ.get(MEMORY)
    if not text:
        return None
    budget = bytes_from(text)
    if budget is None:
        raise InvalidOption(f'{MEMORY} is a number of bytes such as "2GB", "512MiB" or "4096"; got {text!r}.')
    return budget


def open_worker(
    entry: EngineEntry,
    device: Device,
    *,
    isolation: Isolation | None = None,
    generation: int = 1,
    budget: int | None = None,
    adopted: Child | None = None,
) -> Worker:
    """The device, open. `adopted` is the child that verified it, which becomes its worker if it is to live in one."""
    budget = default_budget() if budget is None else budget
    if isolation_of(entry, isolation) == "process":
        from anygpu.workers.process import ProcessWorker

        if adopted is not None and adopted.link is not None and adopted.process.poll() is None:
            return ProcessWorker(adopted, entry, device, generation=generation, budget=budget)
        return ProcessWorker.start(entry, device, generation=generation, budget=budget)
    from anygpu.workers.executor import open_engine
    from anygpu.workers.thread import ThreadWorker

    if adopted is not None:
        adopted.kill()
        adopted.close()
    return ThreadWorker(open_engine(entry, device, budget), device, generation=generation)
