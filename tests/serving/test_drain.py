"""The end of a server under load: SIGTERM, and not one request fails."""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anygpu.runtime.serving import http
from anygpu.runtime.serving.http import _FIRST_REQUEST_TURNS, _LAST_TURNS, HttpServer, _refuse_new
from benchmarks.serving_client import Connection, http_request, infer_request, output_of
from tests.serving.conftest import Serve, X, double

MODULE = """
import time
import numpy as np

def slow(x):
    time.sleep(0.02)
    return x * 2
"""


class Client(threading.Thread):
    """Asks until nobody answers, as a balancer's upstream does: a new connection when the old one is closed."""

    def __init__(self, port: int, model: str) -> None:
        super().__init__()
        self.port, self.model = port, model
        self.answered = 0
        self.failures: list[str] = []
        self.ready = threading.Event()

    def run(self) -> None:
        number = 0
        while True:
            try:
                connection = Connection(self.port)
            except ConnectionRefusedError:
                return  # the server is gone, and has said so
            with connection:
                try:
                    while True:
                        number += 1
                        reply = connection.ask(infer_request(self.model, {"x": X + number}))
                        if reply.status != 200 or not np.array_equal(output_of(reply), (X + number) * 2):
                            self.failures.append(f"{reply.status}: {reply.body[:200]!r}")
                        self.answered += 1
                        self.ready.set()
                        if reply.closes:
                            break
                except (OSError, ValueError) as error:
                    self.failures.append(repr(error))


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("model", ["slow", "double"])
def test_sigterm_under_load_fails_no_request(tmp_path: Path, model: str) -> None:
    # The notice is longer than a busy machine keeps a client from asking: an idle connection is closed after it.
    (tmp_path / "models.py").write_text(MODULE + "\ndef double(x):\n    return x * 2\n")
    command = [sys.executable, "-m", "anygpu", "serve", f"models:{model}", "--port", "0", "--notice", "5"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            first = server.stdout.readline()
            port = int(first.split("/v2")[0].rpartition(":")[2])
            clients = [Client(port, model) for _ in range(8)]
            for client in clients:
                client.start()
            for client in clients:
                assert client.ready.wait(120), client.failures
            server.send_signal(signal.SIGTERM)
            out, err = server.communicate(timeout=120)
            for client in clients:
                client.join(120)
        finally:
            server.kill()
    assert [client.failures for client in clients] == [[]] * len(clients)
    assert server.returncode == 0, err
    assert out == "Stopped: every open request was answered.\n"
    assert err == ""


def test_a_server_that_drains_is_not_ready_but_answers(serve: Serve) -> None:
    entered, opened = threading.Event(), threading.Event()

    def wait(x: Any) -> Any:
        entered.set()
        opened.wait(120)
        return x * 2

    server = serve({"wait": wait, "double": double}, notice=600.0)
    with Connection(server.port) as waiting, Connection(server.port) as other:
        waiting.socket.sendall(infer_request("wait", {"x": X}))
        assert entered.wait(120)
        assert other.ask(http_request("/v2/health/ready", method="GET")).status == 200
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        while (ready := other.ask(http_request("/v2/health/ready", method="GET"))).status == 200:
            pass
        assert ready.status == 503
        assert ready.closes
        with Connection(server.port) as new:
            live = new.ask(http_request("/v2/health/live", method="GET"))
            assert (live.status, live.closes) == (200, True)
        with Connection(server.port) as new:
            np.testing.assert_array_equal(output_of(new.ask(infer_request("double", {"x": X}))), X * 2)
        server.stop()  # the second time it does not wait for new ones
        opened.set()
        stopping.join(120)
    assert not stopping.is_alive()
    assert not server.finished, "one request was open, and got no answer"
    with pytest.raises(ConnectionRefusedError):
        Connection(server.port)


@pytest.mark.parametrize("idle", [True, False])
def test_a_server_that_stood_still_hears_what_was_sent_before_it_ends(
    idle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two turns of its loop it reads, so that turns are counted, however late they come."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        server = HttpServer(SimpleNamespace(draining=False), listener, notice=1.0, patience=1.0)  # type: ignore[arg-type]
        server.servers = []
        server.server_state.connections = [SimpleNamespace(cycle=object() if idle else None)]  # type: ignore[assignment]
        now = itertools.count(step=1000.0)
        monkeypatch.setattr(http, "time", SimpleNamespace(monotonic=lambda: next(now)))
        server.drain()

        async def turns() -> int:
            found = 1
            while not await server.on_tick(found):
                found += 1
            return found

        assert asyncio.run(turns()) == 1 + (_LAST_TURNS if idle else _FIRST_REQUEST_TURNS)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no filters on sockets")
def test_nobody_connects_between_the_last_look_and_the_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as late:
        address = listener.getsockname()
        with socket.create_connection(address) as early:
            _refuse_new(listener)
            late.setblocking(False)
            with pytest.raises(BlockingIOError):
                late.connect(address)
            accepted, _ = listener.accept()
            with accepted:
                early.sendall(b"a request")
                assert accepted.recv(9) == b"a request", "those before it are served"
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()
