"""The endpoint for Prometheus: it answers one question, to programs of this machine, and goes on whatever comes."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest

import anygpu as ag
from anygpu import observe
from anygpu.errors import InvalidOption
from anygpu.observe.servers import MOST_BYTES, MOST_CONNECTIONS, MetricsServer
from anygpu.runtime.serving.server import Server


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    with MetricsServer(lambda: "up 1\n", 0) as server:
        yield server


def ask(server: MetricsServer, request: bytes) -> bytes:
    """All that comes back until the connection is closed."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        with contextlib.suppress(OSError):  # it has been refused already
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
        return received(connection)


def received(connection: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(ConnectionError):  # closed while something was on its way
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def get(path: str = "/metrics", host: str = "127.0.0.1:9", extra: str = "", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{extra}\r\n".encode()


def test_the_page(server: MetricsServer) -> None:
    with urllib.request.urlopen(server.url) as answer:
        assert answer.read() == b"up 1\n"
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert server.url in repr(server)


def test_it_listens_on_the_loopback_address_alone(server: MetricsServer) -> None:
    assert server._server.listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get(), 200),
        (get(host="localhost"), 200),
        (get(host="LOCALHOST:80"), 200),
        (get(host="[::1]:9090"), 200),
        (get("/metrics?match=1"), 200),
        (get(host="evil.example"), 403),
        (get(host="127.0.0.1.evil.example"), 403),
        (get(host="evil.example:127.0.0.1"), 403),
        (get(host=""), 403),
        (get(extra="Host: localhost\r\n"), 403),
        (b"GET /metrics HTTP/1.0\r\n\r\n", 403),
        (get(extra="Origin: http://evil.example\r\n"), 403),
        (get(extra="origin: null\r\n"), 403),
        (get("/"), 404),
        (get("/metrics/../etc/passwd"), 404),
        (get("http://127.0.0.1/metrics"), 404),
        (get(method="POST"), 405),
        (get(method="DELETE"), 405),
        (get(method="OPTIONS"), 405),
        (b"\r\n\r\n", 400),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET /metrics HTTP/2.0\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost\r\n\r\n", 400),
        ("GET /metrics HTTP/1.1\r\nHost: löcalhost\r\n\r\n".encode(), 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ],
)
def test_what_is_answered(server: MetricsServer, request_: bytes, status: int) -> None:
    answer = ask(server, request_)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer
    assert (b"up 1" in answer) == (status == 200)
    assert b"connection: close" in answer.lower()


def test_a_request_that_does_not_end_is_refused(server: MetricsServer) -> None:
    answer = ask(server, b"GET /metrics HTTP/1.1\r\nx: " + b"y" * (4 * MOST_BYTES))
    assert answer[:12] in (b"HTTP/1.1 431", b""), "closed, perhaps before its answer was read"
    assert ask(server, get()).endswith(b"up 1\n")


def test_slow_requests_are_given_up() -> None:
    with (
        MetricsServer(lambda: "up 1\n", 0, request_seconds=0.2) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as slow,
    ):
        slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: loc")
        answer = received(slow)
        assert answer.startswith(b"HTTP/1.1 408"), answer
        assert b"within 0.2 s" in answer


def test_those_who_keep_it_waiting_do_not_keep_others_out(server: MetricsServer) -> None:
    """A slowloris: many connections that send a little and stop."""
    slow = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(3 * MOST_CONNECTIONS)]
    try:
        for each in slow:
            with contextlib.suppress(ConnectionError):  # closed already for one that came after it
                each.sendall(b"GET /met")
        for _ in range(5):
            assert ask(server, get()).endswith(b"up 1\n")
        assert len(server._server.connections) <= MOST_CONNECTIONS
    finally:
        for each in slow:
            each.close()


def test_who_reads_nothing_holds_nobody_up() -> None:
    with (
        MetricsServer(lambda: "x" * (8 << 20), 0) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as deaf,
    ):
        deaf.sendall(get())
        assert len(ask(server, get())) > 8 << 20


def test_a_failure_is_told_and_the_next_request_answered(caplog: pytest.LogCaptureFixture) -> None:
    answers: Iterator[Exception | str] = iter([ZeroDivisionError("secret"), "up 1\n"])

    def text() -> str:
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    with MetricsServer(text, 0) as server:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(server.url)
        assert refused.value.code == 500
        assert b"secret" not in refused.value.read()
        assert urllib.request.urlopen(server.url).read() == b"up 1\n"
    assert "/metrics could not be answered" in caplog.text


def test_mutated_requests_do_no_harm(server: MetricsServer) -> None:
    """Without a connection: each has a status, and none but the right one gets the page."""
    chance = random.Random(0)
    right = get(extra="User-Agent: Prometheus/2.42.0\r\nAccept-Encoding: gzip\r\n")
    for _ in range(20_000):
        data = bytearray(right)
        for _ in range(chance.randrange(1, 6)):
            place = chance.randrange(len(data))
            match chance.randrange(3):
                case 0:
                    data[place] = chance.randrange(256)
                case 1:
                    del data[place : place + chance.randrange(1, 9)]
                case _:
                    data[place:place] = chance.randbytes(chance.randrange(1, 9))
        status = server._server._answer_to(bytes(data)).status
        assert status in (200, 400, 403, 404, 405)
        if status == 200:
            assert data.startswith(b"GET /metrics")


def test_closing_twice_and_the_port_is_free_again() -> None:
    server = MetricsServer(lambda: "", 0)
    port = server.port
    server.close()
    server.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=10)
    with MetricsServer(lambda: "", port):
        pass
    assert not [each for each in threading.enumerate() if each.name == "anygpu metrics"]


def test_a_port_that_is_taken_is_named(server: MetricsServer) -> None:
    with pytest.raises(InvalidOption, match=rf"port {server.port} of 127\.0\.0\.1.*port=0 for any"):
        MetricsServer(lambda: "", server.port)
    with pytest.raises(InvalidOption, match="Pass another port="):
        MetricsServer(lambda: "", 99999)
    with pytest.raises(InvalidOption, match="Pass another port="):
        observe.serve_metrics("9090")  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore")  # other libraries warn of forks
def test_a_forked_child_leaves_the_port_to_its_parent(server: MetricsServer) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0 if server._server.listener.fileno() == -1 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert ask(server, get()).endswith(b"up 1\n")


@ag.offload
def half(x: np.ndarray) -> np.ndarray:
    return x / 2


def test_serve_metrics_observes_and_serves() -> None:
    observe.stop()
    try:
        with observe.serve_metrics(port=0) as server:
            for _ in range(3):
                half(np.ones(4))
            text = urllib.request.urlopen(server.url).read().decode()
        assert 'anygpu_calls_total{function="half",device="numpy"} 3.0' in text
        assert "process_resident_memory_bytes" in text
        assert observe.summary().observed, "closing the endpoint does not end the observation"
    finally:
        observe.stop()


def test_a_model_server_shows_the_calls_of_its_process_while_it_is_observed() -> None:
    with Server({"half": half}, port=0, notice=0.0) as server:

        def text() -> str:
            page: bytes = urllib.request.urlopen(f"{server.url}/metrics").read()
            return page.decode()

        assert "anygpu_calls_total" not in text()
        observe.start()
        try:
            half(np.ones(4))
            page = text()
        finally:
            observe.stop()
        assert 'anygpu_calls_total{function="half",device="numpy"} 1.0' in page
        names = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
        assert len(names) == len(set(names)), "no family is there twice"
        assert "anygpu_calls_total" not in text()
