"""Ray, as far as a fleet needs it. No other module imports it, and only the driver, a child process, imports this one.

A call never waits for Ray without a limit, and whatever Ray raises becomes one of `anygpu.fleet.messages`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

# Ray would report home about the cluster, and greet the user.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
#: When the head is gone, Ray ends this process after so many seconds, and not after a minute.
os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "5")

import ray
from ray import exceptions
from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
from ray.autoscaler.sdk import request_resources
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply
from ray.experimental.internal_kv import _internal_kv_get
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from anygpu.fleet import messages
from anygpu.fleet.device_actor import DeviceActor, Prober, decode
from anygpu.fleet.messages import (
    ActorLost,
    ActorRefused,
    AnswerLost,
    Bundle,
    ClusterNode,
    MachineRefusal,
    MessagePart,
    NodeProbed,
    NoRoomForParts,
)
from anygpu.placement.plan.calibration import NetworkSpeed

#: Ray neither restarts nor repeats: we make up for lost messages, so that nothing is executed twice.
_NO_MAGIC: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0}

_Answer = TypeVar("_Answer")
#: How often a question is asked that changes nothing.
_MOST_ASKS = 10

#: A machine that does not accept a connection within this time is not there.
_ANSWER_SECONDS = 2.0

#: How often, and with how much, the way to a machine is measured.
_ROUNDS, _MEASURED_BYTES = 3, 1 << 20


class RayCluster:
    """A connection to a cluster. There is one a process."""

    def __init__(self, address: str) -> None:
        """Connects this process to the cluster as a driver of Ray's, without its logs. Raises what Ray does."""
        ray.init(
            address=address,
            namespace="anygpu",
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=True,
        )
        self._names: dict[str, str] = {}
        #: Host and port of the head's own server.
        self.head = _host_and_port(ray.get_runtime_context().gcs_address)
        self.own = str(ray.get_runtime_context().get_node_id())
        self.versions = {"ray": str(ray.__version__), "python": platform.python_version()}

    def nodes(self) -> tuple[ClusterNode, ...]:
        """The machines that are alive and stay, each with a name of its own."""
        # A machine that is being drained finishes what it has, and gets nothing new.
        leaving = ray._private.state.state.get_draining_nodes()
        return tuple(
            ClusterNode(
                id=each["NodeID"],
                name=self._name(each),
                address=each["NodeManagerAddress"],
                resources={name: float(value) for name, value in each["Resources"].items()},
                labels={str(name): str(value) for name, value in (each.get("Labels") or {}).items()},
            )
            for each in ray.nodes()
            if each["Alive"] and each["NodeID"] not in leaving
        )

    def server_of(self, node: str) -> tuple[str, int] | None:
        """Host and port of the process that is Ray on a machine; `None` if that has left."""
        facts = next((each for each in ray.nodes() if each["NodeID"] == node and each["Alive"]), None)
        return None if facts is None else (facts["NodeManagerAddress"], facts["NodeManagerPort"])

    def _name(self, node: dict[str, Any]) -> str:
        """A name of its own, which stays the same as long as it lives."""
        identity, base = node["NodeID"], _base_name(node)
        if identity not in self._names:
            # The last digits: Ray's fake autoscaler counts its machines there, and elsewhere all of them are random.
            names = (base, f"{base}-{identity[-6:]}", f"{base}-{identity}")
            self._names[identity] = next(name for name in names if name not in self._names.values())
        return self._names[identity]

    def probe(self, node: str, seconds: float) -> NodeProbed:
        """Look at a machine, and measure the way there."""
        cls: Any = ray.remote(**_NO_MAGIC)(Prober)
        prober = cls.options(scheduling_strategy=_at(node)).remote()
        try:
            visited = decode(_repeated(lambda: ray.get(prober.probe.remote(seconds), timeout=3 * seconds)))
            network = _measured(prober)
        except TimeoutError:
            raise ActorRefused(f"nothing came back within {3 * seconds:g} s") from None
        finally:
            _kill(prober)
        return NodeProbed(visited.devices, visited.unavailable, visited.calibrations, network, visited.versions)

    def open_actor(self, device: str, node: str, gpus: float, seconds: float) -> RayActor:
        """The actor of a device. Raises `ActorRefused`, which says what is missing."""
        facts = next((each for each in ray.nodes() if each["NodeID"] == node and each["Alive"]), None)
        if facts is None:
            raise ActorRefused("its machine has left the cluster")
        # Ray itself finds out after a minute, and lets everybody wait until then.
        _require_answer(facts["NodeManagerAddress"], facts["NodeManagerPort"])
        resources = facts["Resources"]
        if gpus > resources.get("GPU", 0.0):
            raise ActorRefused(f"its machine offers {resources.get('GPU', 0.0):g} GPUs, and {gpus:g} are needed")
        cls: Any = ray.remote(concurrency_groups={"work": 1, "control": 1}, **_NO_MAGIC)(DeviceActor)
        handle = cls.options(scheduling_strategy=_at(node), num_gpus=gpus).remote(device)
        actor = RayActor(handle)
        try:
            actor.pid = messages.decode_pulse(_repeated(lambda: actor.pong(actor.ping(), seconds))).pid
        except TimeoutError:
            actor.kill()
            free = ray._private.state.available_resources_per_node().get(node, {}).get("GPU", 0.0)
            what = f"{free:g} of its {resources.get('GPU', 0.0):g} GPUs are free, and {gpus:g} are needed"
            raise ActorRefused(
                f"Ray has not started it within {seconds:g} s"
                + (f": {what}" if gpus and free < gpus else "; its machine may be out of reach")
            ) from None
        except (ActorLost, AnswerLost) as error:
            actor.kill()
            raise ActorRefused(str(error)) from None
        return actor

    def request(self, bundles: Sequence[Bundle]) -> None:
        """Let the autoscaler start machines for all of these; nothing withdraws what was asked for."""
        request_resources(
            bundles=[bundle.resources for bundle in bundles],
            bundle_label_selectors=[bundle.labels for bundle in bundles] or None,
        )

    def refusal(self, bundles: Sequence[Bundle]) -> MachineRefusal | None:
        """Why machines for the last request will not come. Ray itself says nothing."""
        client = ray._private.worker.global_worker.gcs_client
        status = GetClusterStatusReply.FromString(client.get_cluster_status(timeout_s=_ANSWER_SECONDS))
        state = status.autoscaling_state
        for constraint in state.infeasible_cluster_resource_constraints:
            # Not an earlier request's.
            if sum(each.count for each in constraint.resource_requests) == len(bundles):
                return "infeasible"
        if not state.autoscaler_state_version:
            report = _internal_kv_get(DEBUG_AUTOSCALING_STATUS)
            if report is None or not json.loads(report).get("autoscaler_report"):
                return "alone"
            if any(bundle.labels for bundle in bundles):
                return "labels"
        return None

    def close(self) -> None:
        ray.shutdown()


class RayActor:
    """The Ray actor of one device. Used by one thread, but for `kill`."""

    def __init__(self, handle: Any) -> None:
        """Takes over Ray's handle. Pings go to a concurrency group of their own, so that a busy actor answers them."""
        self._handle = handle
        #: The id of its process, there.
        self.pid = 0
        self._ping = handle.ping.options(concurrency_group="control")
        #: By the number of objects that are wanted.
        self._asks: dict[int, Any] = {}

    def ask(self, header: bytes, parts: Sequence[MessagePart], returns: int) -> list[Any]:
        """Ask, without waiting: what `get` takes."""
        method = self._asks.get(returns)
        if method is None:
            method = self._asks[returns] = self._handle.ask.options(concurrency_group="work", num_returns=returns)
        with _translated():
            # Ray puts what is larger than a part into its store.
            found = method.remote(header, *parts)
        return [found] if returns == 1 else found

    def get(self, answer: list[Any], seconds: float) -> list[MessagePart]:
        """The objects of an answer. Raises `TimeoutError`, `ActorLost` or `AnswerLost`."""
        with _translated():
            found: list[MessagePart] = ray.get(answer, timeout=seconds)
            return found

    def ping(self) -> Any:
        """A question to which an actor has an answer also while it is busy: what `pong` takes."""
        with _translated():
            return self._ping.remote()

    def pong(self, ping: Any, seconds: float) -> bytes:
        """The answer. Raises as `get` does."""
        with _translated():
            found: bytes = ray.get(ping, timeout=seconds)
            return found

    def kill(self) -> None:
        _kill(self._handle)

    def leave(self) -> None:
        """Let it end itself, without waiting for that. `kill` needs the head."""
        with contextlib.suppress(Exception):
            self._handle.leave.options(concurrency_group="control").remote()


def _base_name(node: dict[str, Any]) -> str:
    """The name of a node: its label, or the name of its host."""
    name = str(node.get("NodeName") or "")
    given = name and name != node["NodeManagerAddress"]
    base = name if given else str(node["NodeManagerHostname"])
    # It becomes a part of device names.
    return "".join(each if each.isalnum() or each in "-_." else "-" for each in base.lower()) or node["NodeID"][:6]


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _require_answer(address: str, port: int) -> None:
    """Raises `ActorRefused` if the machine's port takes no connection: Ray itself would wait for much longer."""
    try:
        socket.create_connection((address, port), timeout=_ANSWER_SECONDS).close()
    except OSError as error:
        raise ActorRefused(f"its machine does not answer ({error})") from None


def _at(node: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)


def _repeated(ask: Callable[[], _Answer]) -> _Answer:
    """The answer to a question that may be asked again, which it is when a message was lost."""
    for _ in range(_MOST_ASKS - 1):
        with contextlib.suppress(AnswerLost), _translated():
            return ask()
    with _translated():
        return ask()


def _kill(handle: Any) -> None:
    with contextlib.suppress(Exception):
        ray.kill(handle, no_restart=True)


def _measured(prober: Any) -> NetworkSpeed:
    """The best of a few rounds: one that waited for a busy processor says nothing about the way."""
    parts = [bytes(messages.PART)] * (_MEASURED_BYTES // messages.PART)

    def seconds(sent: Sequence[bytes], returns: int) -> float:
        def once() -> float:
            size = messages.PART if returns > 1 else 8
            begin = time.perf_counter()
            _repeated(
                lambda: ray.get(prober.echo.options(num_returns=returns).remote(returns, size, *sent), timeout=30.0)
            )
            return time.perf_counter() - begin

        return min(once() for _ in range(_ROUNDS))

    latency = seconds((), 1)
    moved = float(messages.PART * len(parts))
    return NetworkSpeed(
        latency=latency,
        sent_per_second=moved / max(1e-6, seconds(parts, 1) - latency),
        received_per_second=moved / max(1e-6, seconds((), len(parts)) - latency),
    )


#: Most special first: several of them are children of others.
_LOST: tuple[tuple[type[BaseException], Callable[[str], Exception]], ...] = (
    (exceptions.ObjectStoreFullError, NoRoomForParts),
    (exceptions.OutOfDiskError, NoRoomForParts),
    (exceptions.ActorUnavailableError, AnswerLost),
    (exceptions.ObjectLostError, AnswerLost),
    (exceptions.RayError, ActorLost),
)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Ray's errors become ours. `GetTimeoutError` is a `TimeoutError`, and stays one."""
    try:
        yield
    except exceptions.GetTimeoutError:
        raise TimeoutError from None
    except exceptions.RayError as error:
        for kind, ours in _LOST:
            if isinstance(error, kind):
                raise ours(_sentence(error)) from None
        raise


def _sentence(error: BaseException) -> str:
    """The part of Ray's report that tells what happened: it has a page of advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if line.startswith("The actor is dead because")), None)
    first = told or (lines[0] if lines else type(error).__name__)
    return first.rstrip(".")
