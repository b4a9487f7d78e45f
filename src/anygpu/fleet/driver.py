"""The driver: a child of the user's process that speaks to Ray, and to nobody else.

When a cluster's head is gone, Ray ends the process that is connected to it. That is this one, and the user's goes on.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from anygpu.errors import ClusterUnavailable, DeviceUnavailable, text_of
from anygpu.fleet.messages import (
    ActorEnded,
    ActorLost,
    ActorOpened,
    ActorRefused,
    AnswerLost,
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
    NodesChanged,
    OpenActor,
    ProbeNode,
    RequestMachines,
    WatchNodes,
    decode_request,
    encode,
)
from anygpu.fleet.relay import Relay
from anygpu.workers.child_messages import error_to_message
from anygpu.workers.child_start import end_with_parent
from anygpu.workers.link import Link, LinkClosed, taken_up

if TYPE_CHECKING:
    from anygpu.fleet.ray_cluster import RayCluster


# -- idle connections to the servers of a cluster: when one of these dies, its kernel says so at once
#
# Ray asks its machines every few seconds and is patient with them: it takes a quarter of a minute to say that one is
# gone that was killed, and a minute for one that is out of reach. A connection that nothing is sent through is closed
# within milliseconds when the server's process ends, and within seconds when no packet passes any more. Nothing is said
# or read through it.


#: When nothing passes: the first question of the kernel, the time between the next ones, and how many may be lost.
KEEPALIVE_IDLE, KEEPALIVE_EVERY, KEEPALIVE_LOST = 2, 1, 4
#: Seconds that connecting may take, and after which it is tried again.
CONNECT_SECONDS, AGAIN_SECONDS = 1.0, 0.25
#: When connecting to a server is tried again that has never answered.
UNSEEN_SECONDS = 5.0


class _LivenessConnection:
    """One server that is watched, and the TCP connection to it."""

    def __init__(self, name: str, host: str, port: int) -> None:
        """Begins without a connection; the server counts as being up until the opposite is known."""
        self.name = name
        self.host, self.port = host, port
        self.socket: socket.socket | None = None
        self.is_connected = False
        #: Whether the server counts as being there: also while a connection that it has closed is made anew, and as
        #: long as there never was one, as where a firewall does not want it.
        self.is_up = True
        self.was_up = False
        #: When connecting is given up, or tried again.
        self.until = 0.0


class LivenessConnections:
    """A thread with one connection to each server that is watched. Thread-safe."""

    def __init__(self, when_changed: Callable[[str, str | None], None]) -> None:
        """`when_changed` is called on the thread: with a name, and with why that server is gone, or `None`: it is back.

        It must not wait for anything.
        """
        self._tell = when_changed
        self._lock = threading.Lock()
        self._lines: dict[str, _LivenessConnection] = {}
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        threading.Thread(target=self._watch, name="anygpu-liveness", daemon=True).start()

    def watch(self, name: str, host: str, port: int) -> None:
        """Watches a server from now on, if it is not watched already; it counts as up until the opposite is known."""
        with self._lock:
            if name not in self._lines:
                self._lines[name] = _LivenessConnection(name, host, port)
                self._wake.send(b"\0")

    def forget(self, name: str) -> None:
        """Watch it no more."""
        with self._lock:
            line = self._lines.pop(name, None)
            if line is not None:
                self._close(line)

    def keep(self, names: Collection[str]) -> None:
        """Watch no others any more."""
        for name in list(self._lines):
            if name not in names:
                self.forget(name)

    def is_gone(self, name: str) -> bool:
        """Whether a server that is watched is not there."""
        line = self._lines.get(name)
        return line is not None and not line.is_up

    # -- on the thread

    def _watch(self) -> None:
        """The thread: connects what is due, and waits until a connection changes or the next attempt is due.

        Listeners are called without the lock, so that they may ask or change what is watched.
        """
        while True:
            with self._lock:
                now = time.monotonic()
                news = [self._connect(line, now) for line in self._lines.values() if self._is_due(line, now)]
                until = min((each.until for each in self._lines.values() if not each.is_connected), default=now + 60)
            self._say(news)
            ready = self._selector.select(max(0.0, until - time.monotonic()))
            with self._lock:
                news = [self._look(key.data) for key, _ in ready if key.data is not None]
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
            self._say(news)

    def _is_due(self, line: _LivenessConnection, now: float) -> bool:
        return not line.is_connected and now >= line.until

    def _connect(self, line: _LivenessConnection, now: float) -> tuple[str, str | None] | None:
        """Begin to connect. The news, if the time of an earlier attempt is over."""
        if line.socket is not None:
            self._close(line)
            line.until = now + AGAIN_SECONDS
            return self._down(line, "its machine does not answer")
        line.until = now + CONNECT_SECONDS
        try:
            line.socket = made = _keeping_alive(socket.socket(_family(line.host), socket.SOCK_STREAM))
            made.setblocking(False)
            code = made.connect_ex((line.host, line.port))
        except OSError as error:
            code = error.errno or errno.EIO
        if code in (0, errno.EINPROGRESS) and line.socket is not None:
            self._selector.register(line.socket, selectors.EVENT_WRITE, line)
            return None
        return self._failed(line, code)

    def _look(self, line: _LivenessConnection) -> tuple[str, str | None] | None:
        """Something happened to the connection."""
        if line.socket is None:
            return None
        code = line.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not line.is_connected:
            if code:
                return self._failed(line, code)
            line.is_connected = True
            self._selector.modify(line.socket, selectors.EVENT_READ, line)
            return self._up(line)
        if not code:
            try:
                if line.socket.recv(4096):
                    return None  # a greeting, which nobody answers
            except BlockingIOError:
                return None
            except OSError as error:
                code = error.errno or errno.EIO
        self._close(line)
        if code in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH):
            return self._failed(line, code)
        # Closed by a server that waits for a greeting no longer, or that is gone: whether one answers will tell.
        line.until = 0.0
        return None

    def _failed(self, line: _LivenessConnection, code: int) -> tuple[str, str | None] | None:
        """A connection failed: it is tried again later. Returns the news if the server was up."""
        self._close(line)
        line.until = time.monotonic() + AGAIN_SECONDS
        return self._down(line, f"its machine does not answer ({os.strerror(code)})")

    def _down(self, line: _LivenessConnection, why: str) -> tuple[str, str | None] | None:
        """Marks a server as gone, and returns the news, once. One that never answered is only tried again later."""
        if not line.was_up:
            line.until = time.monotonic() + UNSEEN_SECONDS
            return None
        was_up, line.is_up = line.is_up, False
        return (line.name, why) if was_up else None

    def _up(self, line: _LivenessConnection) -> tuple[str, str | None] | None:
        """A connection is there. Returns the news if the server was gone."""
        was_up, line.is_up, line.was_up = line.is_up, True, True
        return None if was_up else (line.name, None)

    def _close(self, line: _LivenessConnection) -> None:
        """Closes the connection to a server, if there is one."""
        if line.socket is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(line.socket)
            line.socket.close()
        line.socket, line.is_connected = None, False

    def _say(self, news: list[tuple[str, str | None] | None]) -> None:
        """Tells the news. The lock is not held, because who is told may ask."""
        for each in news:
            if each is not None:
                self._tell(*each)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _keeping_alive(made: socket.socket) -> socket.socket:
    """Lets the system notice within seconds that the other machine is gone, by TCP keepalives."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # macOS has another name for the first of them.
    for names, value in (
        (("TCP_KEEPIDLE", "TCP_KEEPALIVE"), KEEPALIVE_IDLE),
        (("TCP_KEEPINTVL",), KEEPALIVE_EVERY),
        (("TCP_KEEPCNT",), KEEPALIVE_LOST),
    ):
        option = next((getattr(socket, name) for name in names if hasattr(socket, name)), None)
        if option is not None:
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


#: Ray's own variable for this; its default is a minute.
_PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"
#: The head's own server, among the servers that are watched.
_HEAD = "head"
#: Seconds that the last messages to actors may take.
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
            driver = RayDriver(link, cluster)
            try:
                driver.serve()
            finally:
                driver.withdraw()
    except (LinkClosed, msgspec.DecodeError):
        pass
    sys.stderr.flush()
    os._exit(0)


def _end_with_parent() -> None:
    """Ends this process some seconds after its parent, in which a request for machines can be withdrawn.

    It is for systems that send no signal at the parent's end, and for the time after a request was made.
    """
    os.read(0, 1)
    time.sleep(_WITHDRAW_SECONDS)
    os._exit(1)


def _connected(link: Link, address: str) -> RayCluster | None:
    """Connects to Ray and answers with the machines; `None` if that failed, which the user is told."""
    try:
        from anygpu.fleet.ray_cluster import RayCluster

        cluster = RayCluster(address)
        link.send(encode(Connected(cluster.nodes(), cluster.own, cluster.versions)))
    except Exception as error:  # noqa: BLE001 - whatever Ray raises, the user is told
        link.send(encode(error_to_message(ClusterUnavailable(address, detail=text_of(error)))))
        return None
    return cluster


class _OpenedActor(NamedTuple):
    """An actor that is open, and where."""

    relay: Relay
    node: str


class RayDriver:
    """Takes requests, each of which is served on a thread of its own and answered on a link of its own."""

    def __init__(self, link: Link, cluster: RayCluster) -> None:
        """Serves one connected cluster, whose head is watched from now on. Actors are by their number."""
        self._link = link
        self._cluster = cluster
        self._telling = threading.Lock()
        self._actors: dict[int, _OpenedActor] = {}
        #: Executions of actors that are gone.
        self._ended = Executions()
        #: The machines that Ray knows, and those that the user's process was told of.
        self._known: tuple[ClusterNode, ...] = ()
        self._told: frozenset[str] | None = None
        #: Guards all of these.
        self._comparing = threading.Lock()
        self._lines = LivenessConnections(self._line_changed)
        self._lines.watch(_HEAD, *cluster.head)
        self._wanted: tuple[Bundle, ...] = ()
        self._asked = threading.Event()
        self._asks_for_machines = False

    def serve(self) -> None:
        """Takes requests until the link closes, which raises `LinkClosed`.

        Each is served on a daemon thread of its own.
        """
        while True:
            request = decode_request(self._link.receive())
            if isinstance(request, RequestMachines):
                self._request(request.bundles)
                continue
            answers: Link | None = None
            if isinstance(request, ProbeNode | OpenActor | CountExecutions):
                answers = Link(socket.socket(fileno=self._link.next_descriptor()), takes_descriptors=True)
            threading.Thread(target=self._do, args=(request, answers), daemon=True).start()

    def _do(self, request: DriverRequest, answers: Link | None) -> None:
        """Serve one request on its own thread, and answer it on its own link."""
        try:
            match request:
                case ProbeNode() if answers is not None:
                    self._probe(request, answers)
                case OpenActor() if answers is not None:
                    self._open(request, answers)
                case CountExecutions() if answers is not None:
                    with self._comparing:
                        found = sum([each.relay.executions for each in self._actors.values()], self._ended)
                    _reply(answers, found)
                case KillActor(actor):
                    opened = self._actors.get(actor)
                    if opened is not None:
                        opened.relay.kill()
                case WatchNodes(every):
                    self._watch(every)
        except LinkClosed:
            return

    def _probe(self, request: ProbeNode, answers: Link) -> None:
        """Probes a machine, and answers on a link of its own, which is closed afterwards."""
        try:
            found: DriverAnswer = self._cluster.probe(request.node, request.seconds)
        except (ActorLost, AnswerLost, ActorRefused) as error:
            found = error_to_message(DeviceUnavailable("its devices", [f"it could not be probed: {error}."]))
        except Exception as error:  # noqa: BLE001 - the one who waits is told
            found = error_to_message(error)
        _reply(answers, found)

    def _open(self, request: OpenActor, answers: Link) -> None:
        """Open the actor of a device, and relay tasks to it until its link closes."""
        try:
            self._require_line(request.node)
            actor = self._cluster.open_actor(request.device, request.node, request.gpus, request.seconds)
        except ActorRefused as error:
            refusal = f"{request.device} could not be opened: {error}."
            why = DeviceUnavailable(f'on="{request.device}"', [refusal], device=request.device)
            return _reply(answers, error_to_message(why))
        except Exception as error:  # noqa: BLE001 - the one who waits is told
            return _reply(answers, error_to_message(error))
        relay = Relay(answers, actor, request.device)
        with self._comparing:
            self._actors[request.actor] = _OpenedActor(relay, request.node)
        try:
            answers.send(encode(ActorOpened(actor.pid)))
            ended = relay.serve()
            if relay.lost is None:
                # Before the link closes, so that whoever sees that knows why.
                self._tell(ActorEnded(request.actor, ended))
        finally:
            with self._comparing:
                del self._actors[request.actor]
                self._ended += relay.executions
            relay.close()

    def _watch(self, every: float) -> None:
        """Looks every `every` seconds which machines Ray lists, and tells of changes. Never returns."""
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
        """Watch the machine from now on. Raises `ActorRefused` if it is known to be out of reach."""
        if self._lines.is_gone(node):
            raise ActorRefused("its machine does not answer")
        server = self._cluster.server_of(node)
        if server is not None:
            self._lines.watch(node, *server)

    def _line_changed(self, name: str, why: str | None) -> None:
        """Called by the thread of the liveness connections, long before Ray takes notice."""
        if name == _HEAD:
            if why is not None:
                timer = threading.Timer(head_patience(), self._leave_if_headless, [why])
                timer.daemon = True
                timer.start()
            return
        try:
            if why is not None:
                for number, opened in list(self._actors.items()):
                    if opened.node == name:
                        self._tell(ActorEnded(number, why))
                        opened.relay.lose(why)
            self._tell_nodes()
        except LinkClosed:
            return

    def _leave_if_headless(self, why: str) -> None:
        """Ends the actors and this process if the cluster's head is gone.

        Ray would end the process and leave the actors behind.
        """
        if not self._lines.is_gone(_HEAD):
            return
        for opened in list(self._actors.values()):
            opened.relay.leave()
        time.sleep(_LEAVE_SECONDS)
        sys.stderr.write(f"the head's server (GCS) is gone: {why}\n")
        sys.stderr.flush()
        os._exit(1)

    # -- machines

    def _request(self, bundles: tuple[Bundle, ...]) -> None:
        """Takes the last request for machines, which one thread passes on in order. Called on the main thread."""
        self._wanted = bundles
        self._asked.set()
        if not self._asks_for_machines:
            self._asks_for_machines = True
            # A request outlives the process that made it, and the machines cost money: from now on this process does
            # not end in the moment in which the user's does, but withdraws first.
            signal.signal(signal.SIGIO, signal.SIG_IGN)
            threading.Thread(target=self._ask_for_machines, daemon=True).start()

    def _ask_for_machines(self) -> None:
        """The thread that requests machines from Ray's autoscaler, and reports when it refuses them."""
        bundles: tuple[Bundle, ...] = ()
        known: MachineRefusal | None = None
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
        """Withdraw the request for machines. The process ends in any case."""
        if self._asks_for_machines:
            # The kernel ends it, whatever Ray does meanwhile.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_WITHDRAW_SECONDS)
            with contextlib.suppress(Exception):
                self._cluster.request(())

    def _tell(self, event: DriverEvent) -> None:
        """Sends an event to the user's process. Any thread may call it."""
        with self._telling:
            self._link.send(encode(event))


def _reply(answers: Link, answer: DriverAnswer) -> None:
    """Answers a request, and closes its link."""
    answers.send(encode(answer))
    answers.close()


def head_patience() -> float:
    """How long a head may be gone before this process ends: a little less than Ray itself would wait."""
    return max(0.5, float(os.environ.get(_PATIENCE, "60")) - 1.0)


if __name__ == "__main__":
    main()
