"""A fleet: the runtime of this process, with the devices of other machines beside its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Unpack

from anygpu.fleet.cluster import Cluster
from anygpu.fleet.driver_messages import Node
from anygpu.fleet.machines import Machines
from anygpu.fleet.registry import FleetRegistry
from anygpu.fleet.scaler import FleetHealth, Scaler
from anygpu.fleet.scaling import Scaling, bundle_of
from anygpu.hardware.device import Device, Unavailable
from anygpu.placement.offload import unwrapped
from anygpu.placement.options import CallOptions
from anygpu.plan.plan import Plan
from anygpu.residency.registry import DeviceRegistry, registry
from anygpu.runtime.runtime import Runtime
from anygpu.tasks.tenants import Tenant


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
        self._machines = Machines(cluster, devices, with_own=not local)
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
        cluster.when_home_ends = self._places.home_ended
        cluster.when_lost = self._machines.lost
        cluster.begin_watching()
        self._machines.probe_all()
        known.join(self._places)
        self._scaler = Scaler(cluster, self._machines, self._places, self._scheduler, scaling)

    def devices(self) -> list[Device]:
        """Every device that a call may run on now, those of this machine first."""
        return self._places.devices()

    def unavailable(self) -> list[Unavailable]:
        """What could have been a device, here or on another machine, and why it is not."""
        return self._places.unavailable()

    def nodes(self) -> list[Node]:
        """The machines of the cluster."""
        return list(self._cluster.nodes.values())

    def explain(self, function: Callable[..., Any], /, *arguments: Any, **given: Unpack[CallOptions]) -> Plan:
        """Where the next such call would run, and why, with what the network takes. Nothing is computed."""
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
        """As `Runtime.health`, with the machines that were asked for."""
        return self._scaler.health(super().health())

    def close(self, timeout: float | None = 10.0) -> None:
        """As `Runtime.close`, and then let go of the cluster."""
        self._scaler.close()
        try:
            super().close(timeout)
        finally:
            self._places.close()

    def __repr__(self) -> str:
        lost = f", lost: {self._cluster.ended}" if self._cluster.ended else ""
        return f"<Fleet at {self._cluster.address}: {len(self._machines.devices())} remote devices{lost}>"
