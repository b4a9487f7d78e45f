"""The driver: a child of the user's process that speaks to Ray, and to nobody else.

When a cluster's head is gone, Ray ends the process that is connected to it. That is this one, and the user's goes on.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from anygpu.errors import AnyGPUError, ClusterUnavailable, DeviceUnavailable, text_of
from anygpu.fleet.driver_messages import (
    Connect,
    Connected,
    DriverAnswer,
    DriverEvent,
    DriverRequest,
    HomeEnded,
    HomeOpened,
    KillHome,
    NodesChanged,
    OpenHome,
    ProbeNode,
    WatchNodes,
    decode_request,
    encode,
)
from anygpu.fleet.faults import AnswerLost, HomeLost, HomeRefused
from anygpu.fleet.relay import Relay
from anygpu.workers.error_transport import written
from anygpu.workers.link import Link, LinkClosed, taken_up
from anygpu.workers.orphans import end_with_parent

if TYPE_CHECKING:
    from anygpu.fleet.ray_cluster import RayCluster


def main() -> None:
    """Run until the user's process ends, or lets go."""
    end_with_parent()
    link = taken_up(sys.argv[1])
    try:
        request = decode_request(link.receive())
        assert isinstance(request, Connect), "the first message says where to connect to"
        cluster = _connected(link, request.address)
        if cluster is not None:
            # What is there now stays: the garbage collector need not look at it again and again.
            gc.collect()
            gc.freeze()
            Driver(link, cluster).serve()
            cluster.close()
    except (LinkClosed, msgspec.DecodeError):
        pass
    sys.stderr.flush()
    os._exit(0)


def _connected(link: Link, address: str) -> RayCluster | None:
    try:
        from anygpu.fleet.ray_cluster import RayCluster

        cluster = RayCluster(address)
        link.send(encode(Connected(cluster.nodes(), cluster.own, cluster.versions)))
    except Exception as error:  # noqa: BLE001 - whatever Ray raises, the user is told
        link.send(encode(written(ClusterUnavailable(address, detail=text_of(error)))))
        return None
    return cluster


class Driver:
    """Takes requests, each of which is served on a thread of its own and answered on a link of its own."""

    def __init__(self, link: Link, cluster: RayCluster) -> None:
        self._link = link
        self._cluster = cluster
        self._telling = threading.Lock()
        self._relays: dict[int, Relay] = {}

    def serve(self) -> None:
        """Until the link closes."""
        while True:
            request = decode_request(self._link.receive())
            answers: Link | None = None
            if isinstance(request, ProbeNode | OpenHome):
                answers = Link(socket.socket(fileno=self._link.next_descriptor()), takes_descriptors=True)
            threading.Thread(target=self._do, args=(request, answers), daemon=True).start()

    def _do(self, request: DriverRequest, answers: Link | None) -> None:
        try:
            match request:
                case ProbeNode() if answers is not None:
                    self._probe(request, answers)
                case OpenHome() if answers is not None:
                    self._open(request, answers)
                case KillHome(home):
                    relay = self._relays.get(home)
                    if relay is not None:
                        relay.kill()
                case WatchNodes(every):
                    self._watch(every)
        except LinkClosed:
            return

    def _probe(self, request: ProbeNode, answers: Link) -> None:
        try:
            found: DriverAnswer = self._cluster.probe(request.node, request.seconds)
        except (HomeLost, AnswerLost, HomeRefused) as error:
            found = written(DeviceUnavailable("its devices", [f"it could not be probed: {error}."]))
        except Exception as error:  # noqa: BLE001 - the one who waits is told
            found = written(error)
        answers.send(encode(found))
        answers.close()

    def _open(self, request: OpenHome, answers: Link) -> None:
        try:
            home = self._cluster.open_home(request.device, request.node, request.gpus, request.seconds)
        except HomeRefused as error:
            refusal = f"{request.device} could not be opened: {error}."
            answers.send(encode(written(DeviceUnavailable(f'on="{request.device}"', [refusal], device=request.device))))
            answers.close()
            return
        except (AnyGPUError, Exception) as error:  # noqa: BLE001 - the one who waits is told
            answers.send(encode(written(error)))
            answers.close()
            return
        relay = self._relays[request.home] = Relay(answers, home, request.device)
        try:
            answers.send(encode(HomeOpened(home.pid)))
            # Before the link closes, so that whoever sees that knows why.
            self._tell(HomeEnded(request.home, relay.serve()))
        finally:
            del self._relays[request.home]
            relay.close()

    def _watch(self, every: float) -> None:
        known = self._cluster.nodes()
        while True:
            time.sleep(every)
            now = self._cluster.nodes()
            if {each.id for each in now} != {each.id for each in known}:
                self._tell(NodesChanged(now))
            known = now

    def _tell(self, event: DriverEvent) -> None:
        with self._telling:
            self._link.send(encode(event))


if __name__ == "__main__":
    main()
