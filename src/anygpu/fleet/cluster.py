"""The user's side of the driver: its process, the machines that it tells of, and the actors that it opens.

`Cluster` starts the driver as a child process, and talks to it over one link; each probe and each actor gets a link of
its own. A thread listens to events and calls the `when_...` functions. `ActorChild` lets a worker use an actor as if it
were a child process of this machine.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import IO, TypeVar

import msgspec

from anygpu.errors import ClusterUnavailable, DeviceError, DeviceUnavailable, text_of
from anygpu.fleet.messages import (
    CLOSED,
    KILLED,
    ActorEnded,
    ActorOpened,
    Bundle,
    ClusterNode,
    Connect,
    Connected,
    CountExecutions,
    DriverAnswer,
    DriverEvent,
    DriverRequest,
    Executions,
    KillActor,
    MachineRefusal,
    MachinesRefused,
    NodeProbed,
    OpenActor,
    ProbeNode,
    RequestMachines,
    WatchNodes,
    decode_answer,
    decode_event,
    encode,
)
from anygpu.workers.child_messages import TaskFailed, error_from_message
from anygpu.workers.child_process import Child, how_it_ended
from anygpu.workers.child_start import child_command
from anygpu.workers.link import HAS_SOCKET_PAIRS, Invitation, Link, LinkClosed

#: A cluster that has not let us in within this time is not there.
CONNECT_SECONDS = 60.0
#: An actor that Ray has not started within this time will not be.
OPEN_SECONDS = 15.0
#: How often the driver looks which machines there are.
WATCH_SECONDS = 2.0
#: A head that does not accept a connection within this time is not there.
_ANSWER_SECONDS = 5.0
_LAST_WORDS = 4000
#: How long the reason of an actor's end may take after the end itself.
_REASON_SECONDS = 0.5

_Expected = TypeVar("_Expected", bound=DriverAnswer)


class Cluster:
    """A connection to a cluster, through a driver in a child process. Thread-safe."""

    def __init__(self, address: str, variables: Mapping[str, str] | None = None) -> None:
        """The driver's environment has `variables` beside those of this process. Raises `ClusterUnavailable`."""
        _require_somebody(address)
        if not HAS_SOCKET_PAIRS:
            raise ClusterUnavailable(address, detail="a fleet needs Linux or macOS on this side")
        self.address = address
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the driver
        invitation = Invitation()
        try:
            self._process = subprocess.Popen(
                child_command([invitation.address], "anygpu.fleet.driver"),
                # Never written to: it closes when this process ends, however it does.
                stdin=subprocess.PIPE,
                stdout=self._stderr,
                stderr=self._stderr,
                pass_fds=invitation.inherited,
                env={**os.environ, **(variables or {})},
            )
        except BaseException:
            invitation.take_back()
            self._stderr.close()
            raise
        self._link: Link = invitation.accepted()
        self._finalizer = weakref.finalize(self, _end, self._process, self._link, self._stderr, os.getpid())
        self._sending = threading.Lock()
        self._actors = itertools.count(1)
        self._ended_actors: dict[int, str] = {}
        #: By actor, its device.
        self._devices: dict[int, str] = {}
        self._news = threading.Condition()
        self._end: str | None = None
        self.when_nodes_change: Callable[[tuple[ClusterNode, ...]], None] = lambda nodes: None
        #: Told the device.
        self.when_actor_ends: Callable[[str], None] = lambda device: None
        self.when_lost: Callable[[str], None] = lambda why: None
        self.when_refused: Callable[[int, MachineRefusal | None], None] = lambda count, refusal: None
        try:
            connected = self._connected(address)
        except BaseException:
            self._finalizer()
            raise
        self.nodes = {node.id: node for node in connected.nodes}
        self.own = connected.own
        self.versions = connected.versions

    def _connected(self, address: str) -> Connected:
        """Lets the driver connect to the address; raises `ClusterUnavailable` with the driver's last words."""
        try:
            self._send(Connect(address))
            return _unwrapped(_answer(self._link, CONNECT_SECONDS), Connected)
        except (LinkClosed, TimeoutError) as error:
            raise ClusterUnavailable(address, detail=self._why(error)) from None

    def begin_watching(self) -> None:
        """Starts the daemon thread that calls `when_nodes_change`, `when_lost` and the others of this object."""
        threading.Thread(
            target=_listen, args=(weakref.ref(self), self._link), name="anygpu-fleet-events", daemon=True
        ).start()
        self._send(WatchNodes(WATCH_SECONDS))

    @property
    def ended(self) -> str | None:
        """Why there is no connection any more; `None` while there is one."""
        return self._end

    @property
    def process_id(self) -> int:
        """The id of the driver's process."""
        return self._process.pid

    def probe(self, node: str, seconds: float) -> NodeProbed:
        """Look at a machine. Raises `DeviceUnavailable`."""
        return self._answered(ProbeNode(node, seconds), NodeProbed, 4 * seconds + 60, "its devices")

    def open_actor(self, device: str, node: str, gpus: float) -> ActorChild:
        """The actor of a device, as a child that serves it. Raises `DeviceUnavailable`."""
        actor = next(self._actors)
        link = self._asked(OpenActor(actor, device, node, gpus, OPEN_SECONDS))
        try:
            opened = _unwrapped(_answer(link, OPEN_SECONDS * 2), ActorOpened)
        except BaseException as error:
            link.close()
            self.kill(actor)
            if isinstance(error, LinkClosed | TimeoutError):
                raise self._unavailable(f'on="{device}"', self._why(error), device=device) from None
            raise
        self._devices[actor] = device
        return ActorChild(self, actor, link, opened.pid)

    def executions(self) -> Executions:
        """Counts of executions on other machines, as far as these have answered. Raises `DeviceUnavailable`."""
        return self._answered(CountExecutions(), Executions, OPEN_SECONDS, "what was executed")

    def kill(self, actor: int) -> None:
        """End an actor. Does not wait for it."""
        with contextlib.suppress(LinkClosed):
            self._send(KillActor(actor))

    def request(self, bundles: tuple[Bundle, ...]) -> None:
        """Ask the cluster's autoscaler for machines. Does not wait for them; `when_refused` tells of problems."""
        with contextlib.suppress(LinkClosed):
            self._send(RequestMachines(bundles))

    def why_ended(self, actor: int) -> str:
        """Why an actor is gone, which its link has told already."""
        until = time.monotonic() + _REASON_SECONDS
        with self._news:
            while actor not in self._ended_actors and self._end is None:
                if not self._news.wait(max(0.0, until - time.monotonic())) and time.monotonic() >= until:
                    break
            return self._ended_actors.pop(actor, None) or self._end or "its actor is gone"

    def close(self) -> None:
        """Let go of the cluster, with every actor there. May be called twice."""
        if self._end is None:
            self._end = "the fleet was closed"
        self._finalizer()

    def _answered(self, request: DriverRequest, kind: type[_Expected], seconds: float, wanted: str) -> _Expected:
        """The answer to a request, on a link of its own. Raises `DeviceUnavailable` for what was wanted."""
        link = self._asked(request)
        try:
            return _unwrapped(_answer(link, seconds), kind)
        except (LinkClosed, TimeoutError) as error:
            raise self._unavailable(wanted, self._why(error)) from None
        finally:
            link.close()

    def _asked(self, request: DriverRequest) -> Link:
        """Send a request; the link is where its answer will come."""
        if self._end is not None:
            raise self._unavailable("a device of the fleet", self._end)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._send(request, theirs.fileno())
            except LinkClosed as error:
                ours.close()
                raise self._unavailable("a device of the fleet", self._why(error)) from None
        return Link(ours)

    def _send(self, request: DriverRequest, *descriptors: int) -> None:
        with self._sending:
            self._link.send(encode(request), descriptors)

    def _unavailable(self, wanted: str, why: str, device: str | None = None) -> DeviceUnavailable:
        return DeviceUnavailable(wanted, [f"the fleet is not available: {why}."], device=device)

    def _why(self, error: BaseException) -> str:
        """Returns why the driver does not answer: the time is over, or how its process ended."""
        if isinstance(error, TimeoutError):
            return "nothing came back in time"
        try:
            code = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return "the driver does not respond"
        return f"the driver process ended {how_it_ended(code)}{_head_is_gone(self._last_words())}"

    def _last_words(self) -> str:
        """Returns the end of what the driver has written to standard error."""
        try:
            self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - _LAST_WORDS))
            return self._stderr.read().decode("utf-8", "replace").strip()
        except ValueError:  # it is closed
            return ""

    # -- on the thread that listens

    def _heard(self, event: DriverEvent) -> None:
        """Handles an event of the driver, on the thread that listens to it.

        An actor that nobody here has ended is reported to `when_actor_ends`, so that its device can be opened again.
        """
        if isinstance(event, ActorEnded):
            with self._news:
                self._ended_actors[event.actor] = event.why
                self._news.notify_all()
            device = self._devices.pop(event.actor, None)
            if device is not None and event.why not in (CLOSED, KILLED):
                self.when_actor_ends(device)
        elif isinstance(event, MachinesRefused):
            self.when_refused(event.count, event.refusal)
        else:
            self.nodes = {node.id: node for node in event.nodes}
            self.when_nodes_change(event.nodes)

    def _lost(self, error: LinkClosed) -> None:
        """Notes that the driver is gone, wakes those who wait, and tells `when_lost` once."""
        if self._end is None:
            why = self._why(error)
            with self._news:
                self._end = why
                # As far as this process can tell: it hears of none of them any more.
                self.nodes = {}
                self._news.notify_all()
            self.when_lost(why)


class _ActorProcess:
    """The process of an actor, which is on another machine and known here by a number."""

    stdin: IO[bytes] | None = None
    stdout: IO[bytes] | None = None

    def __init__(self, cluster: Cluster, actor: int, pid: int) -> None:
        """Names an actor of the cluster; `pid` is the number of its process on its own machine."""
        self.pid = pid
        self._cluster = cluster
        self._actor = actor
        self._killed = False

    def poll(self) -> int | None:
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Return at once: the driver waits for the process, which is not a child of this one."""
        return 0

    def kill(self) -> None:
        """Ends the actor, once; does not wait."""
        if not self._killed:
            self._killed = True
            self._cluster.kill(self._actor)


class ActorChild(Child):
    """The actor of a device as a child: what a worker holds."""

    def __init__(self, cluster: Cluster, actor: int, link: Link, pid: int) -> None:
        """Takes over the link, on which the driver relays to the actor."""
        self.process = _ActorProcess(cluster, actor, pid)
        self.link = link
        self.has_low_priority = False
        self._cluster = cluster
        self._actor = actor

    @property
    def driver(self) -> int:
        """The process of this machine that leads there."""
        return self._cluster.process_id

    def how_it_ended(self) -> str:
        """Returns why the actor is gone, as the driver says."""
        return self._cluster.why_ended(self._actor)

    def close(self) -> None:
        if self.link is not None:
            self.link.close()


def _require_somebody(address: str) -> None:
    """Raises `ClusterUnavailable` if nothing listens at the address: Ray would try for twenty seconds."""
    host, _, port = address.rpartition(":")
    if not host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
    except OSError as error:
        raise ClusterUnavailable(address, detail=text_of(error)) from None


def _listen(reference: weakref.ref[Cluster], link: Link) -> None:
    """Hear what the driver says, until it or its cluster is gone."""
    while True:
        try:
            event = decode_event(link.receive())
        except (LinkClosed, OSError, ValueError, msgspec.DecodeError) as error:
            cluster = reference()
            if cluster is not None:
                cluster._lost(LinkClosed(text_of(error)))
            return
        cluster = reference()
        if cluster is None:
            return
        cluster._heard(event)
        del cluster


def _answer(link: Link, seconds: float) -> DriverAnswer:
    """The next message. Raises `TimeoutError` after so many seconds, of which those do not count in which this process
    was suspended: then the driver was, too."""
    for _ in range(int(seconds)):
        try:
            return decode_answer(link.receive(1.0))
        except TimeoutError:
            continue
        except msgspec.DecodeError as error:
            raise LinkClosed(f"it sent an unreadable answer: {error}") from None
    raise TimeoutError


def _unwrapped(answer: DriverAnswer, kind: type[_Expected]) -> _Expected:
    """Returns the answer if it is of that kind; raises the error that came instead."""
    if isinstance(answer, TaskFailed):
        raise error_from_message(answer, "the cluster")
    if not isinstance(answer, kind):
        raise DeviceError("the driver of the fleet answered another question. This is a bug in anygpu.")
    return answer


def _head_is_gone(words: str) -> str:
    """A driver that was ended by Ray has said so in its last words, at length."""
    if "GCS" in words or "gcs" in words:
        return ", because the head of the cluster is gone"
    last = words.splitlines()[-1] if words else ""
    return f": {last}" if last else ""


def _end(process: subprocess.Popen[bytes], link: Link, stderr: IO[bytes], owner: int) -> None:
    """End the driver, unless this process has only inherited it. Ray ends the actors of a driver that is gone."""
    if os.getpid() != owner:
        return
    link.shut_down()
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=2.0)
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=5.0)
    link.close()
    stderr.close()
