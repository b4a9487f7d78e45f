"""The driver: a child of the user's process that speaks to Ray, and to nobody else.

When a cluster's head is gone, Ray ends the process that is connected to it. That is this one, and the user's goes on.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from anygpu.errors import AnyGPUError, ClusterUnavailable, DeviceUnavailable, text_of
from anygpu.fleet.driver_messages import (
    Bundle,
    Connect,
    Connected,
    CountExecutions,
    DriverAnswer,
    DriverEvent,
    DriverRequest,
    Executions,
    HomeEnded,
    HomeOpened,
    KillHome,
    MachinesRefused,
    Node,
    NodesChanged,
    OpenHome,
    ProbeNode,
    Refusal,
    RequestMachines,
    WatchNodes,
    decode_request,
    encode,
)
from anygpu.fleet.faults import AnswerLost, HomeLost, HomeRefused
from anygpu.fleet.lifelines import Lifelines
from anygpu.fleet.relay import Relay
from anygpu.workers.child_start import end_with_parent
from anygpu.workers.link import Link, LinkClosed, taken_up
from anygpu.workers.task_messages import error_to_message

if TYPE_CHECKING:
    from anygpu.fleet.ray_cluster import RayCluster

#: What Ray itself calls this; its default is a minute.
_PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"
#: The head's own server, among the servers that are watched.
_HEAD = "head"
#: What the last messages to homes may take.
_LEAVE_SECONDS = 0.3
#: How often the autoscaler is asked what it thinks of a request.
_REFUSAL_SECONDS = 2.0
#: How long a driver that is about to end tries to withdraw its request.
_WITHDRAW_SECONDS = 1


def main() -> None:
    """Run until the user's process ends, or lets go."""
    end_with_parent(watch=False)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    link = taken_up(sys.argv[1])
    try:
        request = decode_request(link.receive())
        assert isinstance(request, Connect), "the first message says where to connect to"
        cluster = _connected(link, request.address)
        if cluster is not None:
            # What is there now stays: the garbage collector need not look at it again and again.
            gc.collect()
            gc.freeze()
            driver = Driver(link, cluster)
            try:
                driver.serve()
            finally:
                driver.withdraw()
    except (LinkClosed, msgspec.DecodeError):
        pass
    sys.stderr.flush()
    os._exit(0)


def _end_with_parent() -> None:
    """Where no signal does so: on other systems, and when there is something to withdraw first."""
    os.read(0, 1)
    time.sleep(_WITHDRAW_SECONDS)
    os._exit(1)


def _connected(link: Link, address: str) -> RayCluster | None:
    try:
        from anygpu.fleet.ray_cluster import RayCluster

        cluster = RayCluster(address)
        link.send(encode(Connected(cluster.nodes(), cluster.own, cluster.versions)))
    except Exception as error:  # noqa: BLE001 - whatever Ray raises, the user is told
        link.send(encode(error_to_message(ClusterUnavailable(address, detail=text_of(error)))))
        return None
    return cluster


class _Homed(NamedTuple):
    """A home that is open, and where."""

    relay: Relay
    node: str


class Driver:
    """Takes requests, each of which is served on a thread of its own and answered on a link of its own."""

    def __init__(self, link: Link, cluster: RayCluster) -> None:
        self._link = link
        self._cluster = cluster
        self._telling = threading.Lock()
        self._homes: dict[int, _Homed] = {}
        #: What homes have executed that are gone.
        self._ended = Executions()
        #: The machines that Ray knows, and those that the user's process was told of.
        self._known: tuple[Node, ...] = ()
        self._told: frozenset[str] | None = None
        #: Guards all of these.
        self._comparing = threading.Lock()
        self._lines = Lifelines(self._line_changed)
        self._lines.watch(_HEAD, *cluster.head)
        self._wanted: tuple[Bundle, ...] = ()
        self._asked = threading.Event()
        self._asks_for_machines = False

    def serve(self) -> None:
        """Until the link closes."""
        while True:
            request = decode_request(self._link.receive())
            if isinstance(request, RequestMachines):
                self._request(request.bundles)
                continue
            answers: Link | None = None
            if isinstance(request, ProbeNode | OpenHome | CountExecutions):
                answers = Link(socket.socket(fileno=self._link.next_descriptor()), takes_descriptors=True)
            threading.Thread(target=self._do, args=(request, answers), daemon=True).start()

    def _do(self, request: DriverRequest, answers: Link | None) -> None:
        try:
            match request:
                case ProbeNode() if answers is not None:
                    self._probe(request, answers)
                case OpenHome() if answers is not None:
                    self._open(request, answers)
                case CountExecutions() if answers is not None:
                    with self._comparing:
                        found = sum([each.relay.executions for each in self._homes.values()], self._ended)
                    answers.send(encode(found))
                    answers.close()
                case KillHome(home):
                    homed = self._homes.get(home)
                    if homed is not None:
                        homed.relay.kill()
                case WatchNodes(every):
                    self._watch(every)
        except LinkClosed:
            return

    def _probe(self, request: ProbeNode, answers: Link) -> None:
        try:
            found: DriverAnswer = self._cluster.probe(request.node, request.seconds)
        except (HomeLost, AnswerLost, HomeRefused) as error:
            found = error_to_message(DeviceUnavailable("its devices", [f"it could not be probed: {error}."]))
        except Exception as error:  # noqa: BLE001 - the one who waits is told
            found = error_to_message(error)
        answers.send(encode(found))
        answers.close()

    def _open(self, request: OpenHome, answers: Link) -> None:
        try:
            self._require_line(request.node)
            home = self._cluster.open_home(request.device, request.node, request.gpus, request.seconds)
        except HomeRefused as error:
            refusal = f"{request.device} could not be opened: {error}."
            answers.send(
                encode(error_to_message(DeviceUnavailable(f'on="{request.device}"', [refusal], device=request.device)))
            )
            answers.close()
            return
        except (AnyGPUError, Exception) as error:  # noqa: BLE001 - the one who waits is told
            answers.send(encode(error_to_message(error)))
            answers.close()
            return
        relay = Relay(answers, home, request.device)
        with self._comparing:
            self._homes[request.home] = _Homed(relay, request.node)
        try:
            answers.send(encode(HomeOpened(home.pid)))
            why = relay.serve()
            if relay.lost is None:
                # Before the link closes, so that whoever sees that knows why.
                self._tell(HomeEnded(request.home, why))
        finally:
            with self._comparing:
                del self._homes[request.home]
                self._ended += relay.executions
            relay.close()

    def _watch(self, every: float) -> None:
        self._known = self._cluster.nodes()
        self._told = frozenset(each.id for each in self._known)
        while True:
            time.sleep(every)
            self._known = self._cluster.nodes()
            self._lines.keep({_HEAD, *(each.id for each in self._known)})
            self._tell_nodes()

    def _tell_nodes(self) -> None:
        """Say which machines there are, if that has changed. One that does not answer is not there."""
        with self._comparing:
            there = tuple([each for each in self._known if not self._lines.is_gone(each.id)])
            told = frozenset(each.id for each in there)
            if self._told is not None and told != self._told:
                self._told = told
                self._tell(NodesChanged(there))

    # -- whether anybody is there

    def _require_line(self, node: str) -> None:
        """Watch the machine from now on. Raises `HomeRefused` if it is known to be out of reach."""
        if self._lines.is_gone(node):
            raise HomeRefused("its machine does not answer")
        server = self._cluster.server_of(node)
        if server is not None:
            self._lines.watch(node, *server)

    def _line_changed(self, name: str, why: str | None) -> None:
        """Called by the thread of the lifelines, long before Ray takes notice."""
        if name == _HEAD:
            if why is not None:
                timer = threading.Timer(head_patience(), self._leave_if_headless, [why])
                timer.daemon = True
                timer.start()
            return
        try:
            if why is not None:
                for number, homed in list(self._homes.items()):
                    if homed.node == name:
                        self._tell(HomeEnded(number, why))
                        homed.relay.lose(why)
            self._tell_nodes()
        except LinkClosed:
            return

    def _leave_if_headless(self, why: str) -> None:
        """Without a head, Ray ends this process soon, and would leave the homes behind."""
        if not self._lines.is_gone(_HEAD):
            return
        for homed in list(self._homes.values()):
            homed.relay.leave()
        time.sleep(_LEAVE_SECONDS)
        sys.stderr.write(f"the head's server (GCS) is gone: {why}\n")
        sys.stderr.flush()
        os._exit(1)

    # -- machines

    def _request(self, bundles: tuple[Bundle, ...]) -> None:
        """On the main thread. The last request counts, and one thread passes it on, so that none is overtaken."""
        self._wanted = bundles
        self._asked.set()
        if not self._asks_for_machines:
            self._asks_for_machines = True
            # A request outlives the process that made it, and the machines cost money: from now on this process does
            # not end in the moment in which the user's does, but withdraws first.
            signal.signal(signal.SIGIO, signal.SIG_IGN)
            threading.Thread(target=self._ask_for_machines, daemon=True).start()

    def _ask_for_machines(self) -> None:
        bundles: tuple[Bundle, ...] = ()
        known: Refusal | None = None
        while True:
            is_new = self._asked.wait(_REFUSAL_SECONDS if bundles else None)
            try:
                if is_new:
                    self._asked.clear()
                    bundles, known = self._wanted, None
                    self._cluster.request(bundles)
                elif (refusal := self._cluster.refusal(bundles)) != known:
                    known = refusal
                    self._tell(MachinesRefused(len(bundles), refusal))
            except LinkClosed:
                return
            except Exception as error:  # noqa: BLE001 - the head may be away for a moment
                sys.stderr.write(f"the autoscaler could not be asked: {text_of(error)}\n")
                if is_new:
                    time.sleep(_REFUSAL_SECONDS)
                    self._asked.set()

    def withdraw(self) -> None:
        """Nobody needs what was asked for. The process ends in any case."""
        if self._asks_for_machines:
            # The kernel ends it, whatever Ray does meanwhile.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_WITHDRAW_SECONDS)
            with contextlib.suppress(Exception):
                self._cluster.request(())

    def _tell(self, event: DriverEvent) -> None:
        with self._telling:
            self._link.send(encode(event))


def head_patience() -> float:
    """How long a head may be gone before this process ends: a little less than Ray itself would wait."""
    return max(0.5, float(os.environ.get(_PATIENCE, "60")) - 1.0)


if __name__ == "__main__":
    main()
