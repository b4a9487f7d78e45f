"""A fleet: the runtime of this process, with the devices of other machines beside its own.

`Fleet` joins a cluster, its machines, their registry and a scaler to a `Runtime`, and closes all of them. `TasksOn` is
the runtime that a server uses for one device name. `connect`, at the end, checks who may use the cluster before
anything is sent there.
"""

from __future__ import annotations

import asyncio
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from anygpu.calls.offload import Result
from anygpu.calls.options import CallOptions, TaskOptions
from anygpu.calls.undecorated import unwrapped
from anygpu.errors import AnyGPUError, InvalidOption, MissingExtra
from anygpu.fleet.cluster import Cluster
from anygpu.fleet.device_actor import installed_versions, warnings_of
from anygpu.fleet.machines import FleetRegistry, Machines
from anygpu.fleet.messages import ClusterNode
from anygpu.fleet.scaling import FleetHealth, Scaler, Scaling, bundle_of
from anygpu.fleet.security import check_access
from anygpu.hardware.device import Device, Unavailable, node_of
from anygpu.placement.call import Call
from anygpu.placement.place_call import choose, run_with_retries, trace_and_predict
from anygpu.placement.plan.plan import Plan
from anygpu.receipts.notes import publish
from anygpu.receipts.receipt import PhaseTimer
from anygpu.runtime.future import Future, here
from anygpu.runtime.health import Health
from anygpu.runtime.runtime import FOR_EVER, Runtime
from anygpu.runtime.task_queue import Tenant
from anygpu.workers.device_arrays.registry import DeviceRegistry, registry

if TYPE_CHECKING:
    from anygpu.runtime.serving.limits import TokenMapping
    from anygpu.runtime.serving.server import Server


# -- A fleet as the runtime of a server: requests become its tasks, with the devices that were named for them


class TasksOn:
    """Tasks of a runtime on the devices of that name; those of a function that names its own go there."""

    def __init__(self, runtime: Runtime, on: str) -> None:
        """Makes a runtime whose tasks go to the devices of that name, over a runtime that it does not own."""
        self._runtime = runtime
        self._options: TaskOptions = {"on": on}

    @property
    def waiting(self) -> int:
        return self._runtime.waiting

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **given: Any) -> Future:
        """Submits a task with `on=` set, unless the caller sets it."""
        return self._runtime.submit(function, *arguments, **{**self._options, **given})

    def health(self) -> Health:
        return self._runtime.health()


#: Options that only mean something in a queue.
_QUEUED = frozenset(("priority", "tenant", "nan", "idempotent"))


class ServerOptions(TypedDict, total=False):
    """Options of `Fleet.serve`."""

    port: int
    host: str
    on: str | None
    tokens: TokenMapping | str | os.PathLike[str] | None
    examples: Mapping[str, Sequence[Any]] | None
    max_body: int | str
    notice: float
    patience: float
    insecure: bool


class Fleet(Runtime):
    """A `Runtime` that knows the devices of a cluster. Made by `connect`; use it in a `with` block.

    Its devices have their machine's name, as in `torch:cuda:0@node-7`. `on="gpu"` means those of this machine and of
    others, `on="fleet"` those of others, `on="@node-7"` those of one, and without `on=` a call goes where it is
    predicted to be done first, with what the network takes.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        devices: Iterable[str],
        local: bool,
        other_versions: bool = False,
        known: DeviceRegistry = registry,
        queue: int = 1000,
        deadline: float | None = 300.0,
        tenants: Iterable[Tenant] = (),
        scaling: Scaling | None = None,
        batching: bool = True,
        max_latency: float = 0.25,
        ageing: float = 0.5,
    ) -> None:
        """Takes the connection over, and looks at every machine."""
        self._cluster = cluster
        self._machines = Machines(cluster, devices, with_own=not local, other_versions=other_versions)
        self._places = FleetRegistry(cluster, self._machines, known, uses_local=local)
        super().__init__(
            queue=queue,
            deadline=deadline,
            tenants=tenants,
            batching=batching,
            max_latency=max_latency,
            ageing=ageing,
            known=self._places,
        )
        self._places.while_opening = self._planner.using
        self._machines.when_changed = self._planner.forget_machine
        cluster.when_nodes_change = self._machines.nodes_changed
        cluster.when_actor_ends = self._places.actor_ended
        cluster.when_lost = self._machines.lost
        cluster.begin_watching()
        self._machines.probe_all()
        known.join(self._places)
        self._scaler = Scaler(cluster, self._machines, self._places, self._scheduler, scaling)

    def devices(self) -> list[Device]:
        """Every device that a call may run on now, those of this machine first."""
        return self._places.devices()

    def unavailable(self) -> list[Unavailable]:
        """Devices that cannot be used, here or on another machine, with the reasons."""
        return self._places.unavailable()

    def nodes(self) -> list[ClusterNode]:
        """The machines of the cluster."""
        return list(self._cluster.nodes.values())

    def run(self, function: Callable[..., Any], /, *arguments: Any, **given: Unpack[TaskOptions]) -> Result:
        """Runs the function, waits, and returns `.value` and `.receipt`.

        While nothing else is open, a call to another machine is made on the caller's own thread; otherwise it is a
        task.
        """
        # What concerns the queue goes there, and so does a task of a task, or of a loop, which must not be blocked.
        if here.seat is not None or not _QUEUED.isdisjoint(given) or asyncio._get_running_loop() is not None:
            return super().run(function, *arguments, **given)
        options = given.copy()
        seconds = options.pop("deadline", None)
        plain, wrapped, keywords = unwrapped(function, arguments)
        call = self._calls(plain, options).call(wrapped, keywords)
        found = self._run_here(call, self._deadline if seconds is None else seconds)
        return found if found is not None else self._run_as_task(call, function, arguments, given)

    def _run_here(self, call: Call, seconds: float | None) -> Result | None:
        """Runs a call on the caller's thread, and returns its result; `None` if it has to be a task.

        It must go to one device of another machine as a whole, with nothing else open, and without a comparison to be
        made.
        """
        planner, site, scheduler = call.planner, call.site, self._scheduler
        if not site.candidates.evaluated or site.host.skip_planning > 0 or site.options.engine is not None:
            return None
        if scheduler.open_tasks or not (seconds is None or seconds > 0):
            return None
        deadline = None if seconds is None or seconds > FOR_EVER else (seconds, time.monotonic() + seconds)
        timer = PhaseTimer(planner.clock)
        with timer.phase("plan"):
            site.host.flush_timings(planner)
            trace_and_predict(call, timer)
            choice = choose(call)
        device = choice.candidate
        facts = call.site.candidates.predictions.get(device)
        if choice.checks is not None or facts is None or facts.chunks is not None:
            return None
        visit = scheduler.visit(site.task, device, site.chooser.estimate(device) or 0.0) if node_of(device) else None
        if visit is None:
            return None
        succeeded = False
        try:
            value, receipt = run_with_retries(call, choice, timer, deadline)
            succeeded = True
        except AnyGPUError:
            if scheduler.state == "closed":
                raise CancelledError from None
            raise
        finally:
            scheduler.visited(visit, "default", time.monotonic() - visit.began, succeeded=succeeded)
            visit.end()
        publish(receipt)
        return Result(value, receipt)

    def explain(self, function: Callable[..., Any], /, *arguments: Any, **given: Unpack[CallOptions]) -> Plan:
        """Returns the plan of the next such call: its device, the reason, and the predicted times.

        Nothing is computed.
        """
        function, arguments, keywords = unwrapped(function, arguments)
        return self._calls(function, given).explain(*arguments, **keywords)

    def scale(
        self, *, gpu: int = 0, cpu: int = 0, labels: Mapping[str, str] | None = None, timeout: float = 0.0
    ) -> bool:
        """Let the cluster have at least so many GPUs or CPUs, on machines with these labels; none ends that.

        Waits so many seconds until they are there and their devices are known. Returns whether they are; if they
        are not, `health().missing` may say why.
        """
        each = labels or {}
        bundles = (bundle_of(1, 0, each),) * gpu + (bundle_of(0, 1, each),) * cpu
        return self._scaler.scale(bundles, timeout)

    def health(self) -> FleetHealth:
        """Returns `Runtime.health`, with the machines that were asked for."""
        return self._scaler.health(super().health())

    def server(
        self,
        models: Mapping[str, Any],
        *,
        port: int = 8000,
        host: str = "127.0.0.1",
        on: str | None = None,
        tokens: TokenMapping | str | os.PathLike[str] | None = None,
        examples: Mapping[str, Sequence[Any]] | None = None,
        max_body: int | str = "64MB",
        notice: float = 1.0,
        patience: float = 30.0,
        insecure: bool = False,
    ) -> Server:
        """A `Server` whose requests are tasks of this fleet: `with fleet.server({"score": score}) as server:` serves.

        `on` names the devices, as for `run`; without it each request goes where it is predicted to be done first. The
        other arguments are those of `Server`. The fleet stays open when the server ends.
        """
        from anygpu.runtime.serving.server import Server

        return Server(
            models,
            port=port,
            host=host,
            runtime=self if on is None else TasksOn(self, on),
            tokens=tokens,
            examples=examples,
            max_body=max_body,
            notice=notice,
            patience=patience,
            insecure=insecure,
        )

    def serve(self, models: Mapping[str, Any], **given: Unpack[ServerOptions]) -> None:
        """Serve functions over HTTP until SIGTERM or Ctrl-C, as `anygpu.serve` does, on the devices of this fleet.

        Takes the arguments of `server`, and needs the extra `serve`.
        """
        self.server(models, **given).run()

    def close(self, timeout: float | None = 10.0) -> None:
        """Closes the runtime as `Runtime.close` does, and then lets go of the cluster, whatever that raised."""
        self._scaler.close()
        try:
            super().close(timeout)
        finally:
            self._places.close()

    def __repr__(self) -> str:
        lost = f", lost: {self._cluster.ended}" if self._cluster.ended else ""
        return f"<Fleet at {self._cluster.address}: {len(self._machines.devices())} remote devices{lost}>"


# -- `connect`: from the address of a cluster to a fleet


_SCHEME = "ray://"


def connect(
    address: str = "auto",
    *,
    devices: str | Sequence[str] = "all",
    tenants: Iterable[Tenant] = (),
    scaling: Scaling | None = None,
    insecure: bool = False,
    local: bool = True,
    other_versions: bool = False,
    queue: int = 1000,
    deadline: float | None = 300.0,
    batching: bool = True,
    max_latency: float = 0.25,
) -> Fleet:
    """Connect to a Ray cluster: a `Runtime` whose calls may also run on devices of its machines.

    `address` is the head's host and port, or "auto" for RAY_ADDRESS or the cluster that this user has started or joined
    on this machine; an address that other users may have written is refused. `devices` are the names of what is wanted
    of other machines, as in `on=`; with `local=False` nothing but NumPy runs on this one. A cluster without a
    token is refused unless `insecure=True`. Machines with other minor versions of anygpu or NumPy, and devices whose
    engine's library has another one, may compute other values: they are left out, with a warning, unless
    `other_versions=True`. With `scaling` the cluster's autoscaler is asked for machines while much waits. The other
    options are those of `Runtime`.

    Raises `MissingExtra` without Ray, `ClusterUnavailable` when there is no such cluster, and `InsecureCluster`.
    """
    wanted = (devices,) if isinstance(devices, str) else tuple(devices)
    if not wanted or not all(name.strip() for name in wanted):
        raise InvalidOption(f'devices= takes names such as "all" or "gpu"; got {devices!r}.')
    if find_spec("ray") is None:
        raise MissingExtra("ray", "ray")
    address = plain_address(address)
    admission = check_access(address, insecure)
    if not insecure:
        for finding in admission.findings:
            warnings.warn(" ".join((finding.title, *finding.fix)), stacklevel=2)
    # "auto" could mean another cluster to Ray than the one that was asked whether it is safe.
    cluster = Cluster(admission.address, admission.variables)
    try:
        fleet = Fleet(
            cluster,
            devices=wanted,
            local=local,
            other_versions=other_versions,
            queue=queue,
            deadline=deadline,
            tenants=tenants,
            scaling=scaling,
            batching=batching,
            max_latency=max_latency,
        )
        for sentence in warnings_of(fleet.unavailable(), installed_versions()):
            warnings.warn(sentence, stacklevel=2)
    except BaseException:
        cluster.close()
        raise
    return fleet


def plain_address(address: str) -> str:
    """ "auto", or host and port."""
    plain = address.removeprefix(_SCHEME)
    if plain == "auto":
        return plain
    host, colon, port = plain.rpartition(":")
    if not (host and colon and port.isdigit()) or (plain != address and port == "10001"):
        raise InvalidOption(
            'address is "auto", or the host and the port of the cluster\'s head, as "10.0.0.1:6379"; '
            f"got {address!r}. Ray Client's own addresses (port 10001) are not used."
        )
    return plain
