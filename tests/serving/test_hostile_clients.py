"""Clients that hold what a server has: each limit of the table in `docs/how-to/serve-over-http.md` is reached here, for
the server of models and for that of metrics, and other callers are answered beside it and afterwards.

Deadlines are short, and the end of each is an event: the server closes the connection or answers.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anygpu.observe import servers
from anygpu.observe.servers import MOST_BYTES, MOST_CONNECTIONS, MetricsServer
from anygpu.runtime.serving import limits as module
from anygpu.runtime.serving.limits import MAX_HEAD, MAX_HEADERS, MAX_INPUTS, MAX_JSON, MAX_RANK, HeldRequests, Limits
from anygpu.runtime.serving.server import Server
from benchmarks.serving_client import Connection, Reply, http_request, infer_request, output_of
from tests.serving.conftest import Serve, X, double

EVE, BOB = "eve-0123456789abcdef", "bob-0123456789abcdef"
TOKENS = {EVE: "eve", BOB: "bob"}
#: More bytes than are ever sent.
ENDLESS = {"content-length": str(10**12)}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def status_for(server: Server, token: str | None = None) -> int:
    """What another caller gets, with a new connection."""
    with Connection(server.port) as connection:
        headers = {} if token is None else bearer(token)
        return connection.ask(infer_request("double", {"x": X}, headers)).status


def answers_again(server: Server, token: str | None = None) -> None:
    """Returns when another caller is answered. It may be too slow for a short deadline, and asks again then."""
    status: int | None = None
    while status != 200:
        with contextlib.suppress(ConnectionError):
            status = status_for(server, token)


def until_closed(client: socket.socket, drip: bytes = b"") -> bytes:
    """All that the server says until it closes the connection, while a byte is sent to it now and then."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while True:
            readable, _, _ = select.select([client], [], [], 0.02 if drip else 60)
            if readable:
                part = client.recv(65536)
                if not part:
                    break
                received += part
            elif not drip:
                raise TimeoutError("the server has not closed the connection")
            else:
                client.sendall(drip)
    return received


def metrics(server: Server) -> str:
    with Connection(server.port) as connection:
        return connection.ask(http_request("/metrics", method="GET")).body.decode()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers on free ports, which are stopped after the test without waiting for their clients."""
    with contextlib.ExitStack() as stack:

        def start(models: dict[str, Any], **options: Any) -> Server:
            server = stack.enter_context(Server(models, port=0, notice=0.0, **options))
            assert server._server is not None
            stack.callback(server._server.drain)  # `stop` is the second request, and ends it at once
            return server

        yield start


Clients = Callable[[Server], Connection]


@pytest.fixture
def clients() -> Iterator[Callable[[Server], Connection]]:
    """Opens connections, which are closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda server: stack.enter_context(Connection(server.port))


# -- upgrades


def upgrade(protocol: str) -> dict[str, str]:
    version = {"sec-websocket-version": "13", "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}
    return {"connection": "keep-alive, Upgrade", "upgrade": protocol, **version}


@pytest.mark.parametrize("protocol", ["websocket", "WebSocket", "h2c, websocket"])
@pytest.mark.parametrize("path", ["/v2", "/v2/models/double/infer", "/ws"])
def test_a_websocket_is_refused_at_once(serve: Serve, clients: Clients, path: str, protocol: str) -> None:
    server = serve({"double": double}, limits=Limits(head_seconds=600, idle_seconds=600, rest_seconds=600))
    client = clients(server)
    client.socket.sendall(http_request(path, method="GET", headers=upgrade(protocol)))
    head, _, body = until_closed(client.socket).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in head
    assert "no websockets" in json.loads(body)["error"]
    answers_again(server)


def test_other_upgrades_are_ignored(serve: Serve, clients: Clients) -> None:
    """Some clients offer HTTP/2 with each first request."""
    server = serve({"double": double})
    client = clients(server)
    requests = [infer_request("double", {"x": X + each}, upgrade("h2c")) for each in range(3)]
    for each, request in enumerate(requests):
        np.testing.assert_array_equal(output_of(client.ask(request)), (X + each) * 2)
    for each in b"".join(requests):
        client.socket.sendall(bytes([each]))
    for each in range(3):
        np.testing.assert_array_equal(output_of(client.reply()), (X + each) * 2)
    client.socket.sendall(b"".join(requests))
    for each in range(3):
        np.testing.assert_array_equal(output_of(client.reply()), (X + each) * 2)
    assert client.ask(http_request("/v2", method="GET", headers=upgrade("h2c"))).status == 200
    assert client.ask(http_request("/v2", method="CONNECT", headers=upgrade("h2c"))).status == 501
    assert not until_closed(client.socket)


# -- deadlines


@pytest.mark.parametrize("begin", [b"", b"GET /v2 HT", b"\r\n"])
@pytest.mark.parametrize("drip", [b"", b"a"])
def test_a_head_has_a_deadline(serve: Serve, clients: Clients, begin: bytes, drip: bytes) -> None:
    server = serve({"double": double}, limits=Limits(head_seconds=0.2))
    slow = clients(server)
    slow.socket.sendall(begin)
    until_closed(slow.socket, drip)
    answers_again(server)


def test_the_head_of_a_second_request_has_a_deadline(serve: Serve, clients: Clients) -> None:
    server = serve({"double": double}, limits=Limits(head_seconds=0.5))
    slow = clients(server)
    slow.socket.sendall(infer_request("double", {"x": X}))
    slow.reply()
    slow.socket.sendall(b"GET /v2 HTTP/1.1\r\nx: ")
    until_closed(slow.socket, b"y")
    answers_again(server)


@pytest.mark.parametrize("begin", [b"", b"{"])
@pytest.mark.parametrize("drip", [b"", b" "])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_has_a_deadline(serve: Serve, clients: Clients, begin: bytes, drip: bytes, chunked: bool) -> None:
    server = serve({"double": double}, limits=Limits(body_seconds=0.2))
    slow = clients(server)
    request = http_request("/v2/models/double/infer", headers={"content-length": "1000000"})
    if chunked:
        request = request.replace(b"content-length: 1000000", b"transfer-encoding: chunked")
        begin, drip = (b"1\r\n%s\r\n" % each if each else b"" for each in (begin, drip))
    slow.socket.sendall(request + begin)
    received = until_closed(slow.socket, drip)
    assert received.startswith(b"HTTP/1.1 408 "), received
    assert b"did not arrive within 0.2 s" in received
    answers_again(server)
    assert "anygpu_held_bytes 0.0" in metrics(server)


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/v2/models/double/infer", "POST", 401),
        ("/v2/models/none/infer", "POST", 401),
        ("/v2/health/live", "GET", 200),
        ("/nowhere", "PUT", 401),
    ],
)
@pytest.mark.parametrize("drip", [b"", b"x"])
def test_the_rest_of_an_answered_body_has_a_deadline(
    serve: Serve, clients: Clients, path: str, method: str, status: int, drip: bytes
) -> None:
    server = serve({"double": double}, tokens=TOKENS, limits=Limits(rest_seconds=0.2))
    slow = clients(server)
    slow.socket.sendall(http_request(path, method=method, headers=ENDLESS))
    assert slow.reply().status == status
    until_closed(slow.socket, drip)
    answers_again(server, BOB)


@pytest.mark.parametrize("late", [False, True])
def test_an_idle_connection_has_a_deadline(serve: Serve, clients: Clients, late: bool) -> None:
    """Also one whose body came only after its answer: uvicorn has no timer then."""
    server = serve({"double": double}, limits=Limits(idle_seconds=0.2))
    idle = clients(server)
    idle.socket.sendall(http_request("/nowhere", headers={"content-length": "5"}))
    if late:
        assert idle.reply().status == 404
    idle.socket.sendall(b"12345")
    until_closed(idle.socket)
    answers_again(server)


def test_an_answered_body_that_arrives_leaves_the_connection_open(serve: Serve, clients: Clients) -> None:
    server = serve({"double": double})
    client = clients(server)
    client.socket.sendall(http_request("/nowhere", headers={"content-length": "5"}))
    assert client.reply().status == 404
    client.socket.sendall(b"12345")
    assert client.ask(infer_request("double", {"x": X})).status == 200


def deaf_client(port: int, request: bytes) -> socket.socket:
    """Asks, and reads nothing. Its system takes little, so that the answer stays with the server."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(60)
    client.connect(("127.0.0.1", port))
    client.sendall(request)
    return client


def large(x: Any) -> Any:
    return np.ones((int(x[0, 0]) + 4, 1 << 20), np.float32)


def test_an_answer_that_is_not_read_has_a_deadline_and_is_held_until_then(serve: Serve) -> None:
    server = serve({"large": large, "double": double}, limits=Limits(answer_seconds=0.5))
    with deaf_client(server.port, infer_request("large", {"x": X})):
        while "anygpu_held_bytes 0.0" in metrics(server):
            pass
        answers_again(server)
        while "anygpu_held_bytes 0.0" not in metrics(server):
            pass
        while "anygpu_requests_open 1.0" not in metrics(server):  # the one that asks
            pass


def test_the_last_answer_of_a_connection_has_a_deadline_too(serve: Serve) -> None:
    """The server would close it, and waits until the answer is read."""
    server = serve({"large": large, "double": double}, limits=Limits(answer_seconds=0.5))
    with deaf_client(server.port, infer_request("large", {"x": X}, {"connection": "close"})):
        while "anygpu_held_bytes 0.0" in metrics(server):
            pass
        while "anygpu_held_bytes 0.0" not in metrics(server):
            pass
    answers_again(server)


# -- bytes and connections


def test_a_body_that_is_announced_is_not_held(serve: Serve, clients: Clients) -> None:
    server = serve({"double": double}, max_body=100_000)
    for _ in range(20):
        silent = clients(server)
        silent.socket.sendall(http_request("/v2/models/double/infer", headers={"content-length": "100000"}))
    assert status_for(server) == 200
    assert "anygpu_held_bytes 0.0" in metrics(server)


def fill(server: Server, clients: Clients, token: str) -> list[Connection]:
    """Sends all but the last byte of largest bodies until they are refused."""
    held: list[Connection] = []
    while True:
        client = clients(server)
        headers = bearer(token) | {"content-length": "100000"}
        client.socket.sendall(http_request("/v2/models/double/infer", headers=headers) + b" " * 99_999)
        if select.select([client.socket], [], [], 0.05)[0]:
            assert client.reply().status == 429
            return held
        held.append(client)


def test_one_tenant_holds_half_of_the_bytes(serve: Serve, clients: Clients) -> None:
    server = serve({"double": double}, tokens=TOKENS, max_body=100_000)
    held = fill(server, clients, EVE)
    assert len(held) >= 4
    assert status_for(server, BOB) == 200
    for each in held:
        each.close()
    answers_again(server, EVE)


def test_what_is_held_is_bounded() -> None:
    held = HeldRequests(Limits(10, connections=6), tenants=3)
    assert held.grow("a", 40)
    assert not held.grow("a", 1), "half of eight bodies"
    assert held.grow("b", 40)
    assert not held.grow("c", 1), "all of them"
    held.release("a", 40)
    assert held.grow("c", 1)
    held.release("c", 1)
    held.release("b", 40)
    assert held.total == 0
    assert [held.enter("a") for _ in range(4)] == [True, True, True, False]
    assert held.enter("b")
    held.leave("a")
    assert held.enter("a")
    alone = HeldRequests(Limits(10, connections=6), tenants=1)
    assert alone.grow("a", 80)
    assert [alone.enter("a") for _ in range(7)].count(True) == 6


def test_one_tenant_has_half_of_the_open_requests(serve: Serve, clients: Clients) -> None:
    entered, opened = threading.Semaphore(0), threading.Event()

    def wait(x: Any) -> Any:
        entered.release()
        opened.wait(60)
        return x

    server = serve({"wait": wait, "double": double}, tokens=TOKENS, limits=Limits(connections=8))
    try:
        for _ in range(4):
            clients(server).socket.sendall(infer_request("wait", {"x": X}, bearer(EVE)))
        entered.acquire()
        fifth = clients(server)
        fifth.socket.sendall(infer_request("wait", {"x": X}, bearer(EVE)))
        assert fifth.reply().status == 429
        request = http_request("/v2/models", method="GET", headers=bearer(BOB))
        assert clients(server).ask(request).status == 200
    finally:
        opened.set()
    answers_again(server, EVE)


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"GET /v2 HTTP/1.1\r\n",
        http_request("/v2/models/double/infer", headers={"content-length": "1000"}),
        http_request("/nowhere", headers=ENDLESS),
        http_request("/v2", method="GET"),
    ],
    ids=["silent", "head", "body", "answered", "idle"],
)
def test_connections_are_bounded_and_the_longest_wait_ends(serve: Serve, clients: Clients, request_: bytes) -> None:
    server = serve({"double": double}, limits=Limits(connections=8))
    first = clients(server)
    first.socket.sendall(request_)
    for _ in range(24):
        with contextlib.suppress(ConnectionError):
            clients(server).socket.sendall(request_)
    answers_again(server)
    until_closed(first.socket)


def test_idle_connections_are_closed_last(serve: Serve, clients: Clients) -> None:
    server = serve({"double": double}, limits=Limits(connections=8))
    polite = clients(server)
    assert polite.ask(infer_request("double", {"x": X})).status == 200
    silent = [clients(server) for _ in range(30)]
    until_closed(silent[0].socket)
    assert polite.ask(infer_request("double", {"x": X})).status == 200


def test_connections_that_compute_are_not_closed_for_others(serve: Serve, clients: Clients) -> None:
    entered, opened = threading.Semaphore(0), threading.Event()

    def wait(x: Any) -> Any:
        entered.release()
        opened.wait(60)
        return x * 2

    server = serve({"wait": wait}, limits=Limits(connections=2))
    try:
        computing = [clients(server) for _ in range(2)]
        for each in computing:
            each.socket.sendall(infer_request("wait", {"x": X}))
            entered.acquire()
        late = clients(server)
        assert late.reply().status == 503
        until_closed(late.socket)
    finally:
        opened.set()
    for each in computing:
        np.testing.assert_array_equal(output_of(each.reply()), X * 2)


# -- what is too long, and who asks


def refused_head(server: Server, parts: list[bytes]) -> Reply | None:
    """The answer to a head that is sent in parts; `None` if the connection was closed before it could be read."""
    with Connection(server.port) as connection:
        try:
            for part in parts:
                connection.socket.sendall(part)
            return connection.reply()
        except ConnectionError:  # closed before all was sent
            return None


@pytest.mark.parametrize(
    "parts",
    [
        [b"GET /v2 HTTP/1.1\r\nhost: a\r\nx: " + b"y" * MAX_HEAD + b"\r\n\r\n"],
        [b"GET /" + b"x" * (MAX_HEAD + 20)],
        [b"GET /v2 HTTP/1.1\r\nx: ", b"y" * (MAX_HEAD // 2), b"y" * (MAX_HEAD // 2)],
    ],
    ids=["whole", "line", "parts"],
)
def test_a_head_is_bounded(server: Server, parts: list[bytes]) -> None:
    reply = refused_head(server, parts)
    while reply is None:
        reply = refused_head(server, parts)
    assert reply.status == 431
    # The client has read as many bytes as were announced; they are the whole message.
    assert json.loads(reply.body)["error"] == "a request line and its headers have at most 65,536 bytes."
    assert status_for(server) == 200


def test_the_longest_head_is_answered(server: Server) -> None:
    headers = {"host": "127.0.0.1", "content-length": "0", "x": ""}
    room = MAX_HEAD - len("/v2") - sum(len(name) + len(value) + 4 for name, value in headers.items())
    with Connection(server.port) as connection:
        assert connection.ask(http_request("/v2", method="GET", headers={"x": "y" * room})).status == 200
        connection.socket.sendall(http_request("/v2", method="GET", headers={"x": "y" * (room + 1)}))
        assert connection.reply().status == 431


def test_what_is_no_request_gets_a_whole_answer(server: Server) -> None:
    with Connection(server.port) as connection:
        connection.socket.sendall(b"\x16\x03\x01 this is TLS\r\n\r\n")
        reply = connection.reply()
    assert reply.status == 400
    assert json.loads(reply.body) == {"error": "this is not a request of HTTP/1.1."}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost:8000"}, 200),
        ({"host": "[::1]"}, 200),
        ({"host": "evil.example:8000"}, 403),
        ({"host": ""}, 403),
        ({"origin": "http://evil.example:8000"}, 403),
        ({"origin": "null", "content-type": "text/plain"}, 403),
    ],
)
def test_pages_of_a_browser_are_refused_without_tokens(serve: Serve, headers: dict[str, str], status: int) -> None:
    called = []

    def buy(x: Any) -> Any:
        called.append(1)
        return x

    server = serve({"buy": buy})
    with Connection(server.port) as connection:
        for request in (
            infer_request("buy", {"x": X}, headers),
            http_request("/v2/models", method="GET", headers=headers),
            http_request("/metrics", method="GET", headers=headers),
        ):
            assert connection.ask(request).status == status
        assert len(called) == (status == 200)
        assert connection.ask(infer_request("buy", {"x": X})).status == 200


@pytest.mark.parametrize("options", [{"tokens": TOKENS}, {"insecure": True}])
def test_who_has_a_token_or_a_proxy_may_use_any_name(serve: Serve, options: dict[str, Any]) -> None:
    server = serve({"double": double}, **options)
    headers = bearer(BOB) | {"host": "models.example", "origin": "https://models.example"}
    with Connection(server.port) as connection:
        assert connection.ask(infer_request("double", {"x": X}, headers)).status == 200


def test_a_token_for_some_models_sees_nothing_of_others(serve: Serve) -> None:
    tokens = {EVE: ("eve", ["double", "gone"]), BOB: "bob"}
    server = serve({"double": double, "merger": double}, tokens=tokens)
    with Connection(server.port) as connection:
        assert connection.ask(infer_request("merger", {"x": X}, bearer(BOB))).status == 200
        for path in ("/metrics", "/v2", "/v2/models", "/v2/models/merger", "/v2/models/none", "/v2/models/gone"):
            reply = connection.ask(http_request(path, method="GET", headers=bearer(EVE)))
            if path != "/v2/models/merger":  # it is named in the request
                assert b"merger" not in reply.body, path
            assert b"bob" not in reply.body, path
            assert reply.status == {"/v2": 200, "/v2/models": 200, "/v2/models/gone": 404}.get(path, 403), path
        everything = connection.ask(http_request("/metrics", method="GET", headers=bearer(BOB)))
        assert b'model="merger",tenant="bob"' in everything.body


# -- metrics


def scrape(server: MetricsServer) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return until_closed(connection)


@pytest.mark.parametrize("drip", [b"", b"x"])
def test_a_request_for_metrics_has_a_deadline(drip: bytes) -> None:
    with (
        MetricsServer(lambda: "up 1\n", 0, request_seconds=0.2) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as slow,
    ):
        slow.sendall(b"GET /metrics HTTP/1.1\r\nx: ")
        assert until_closed(slow, drip).startswith(b"HTTP/1.1 408 ")
        while not scrape(server).endswith(b"up 1\n"):
            pass


def test_a_request_for_metrics_is_bounded() -> None:
    with MetricsServer(lambda: "up 1\n", 0) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(b"x" * (2 * MOST_BYTES))
            assert until_closed(connection)[:12] in (b"HTTP/1.1 431", b"")
        assert scrape(server).endswith(b"up 1\n")


def test_metrics_that_are_not_read_have_a_deadline_and_are_bounded() -> None:
    with MetricsServer(lambda: "x" * (4 << 20), 0, answer_seconds=1.0) as server, contextlib.ExitStack() as stack:
        request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(MOST_CONNECTIONS + 8):
            stack.enter_context(deaf_client(server.port, request))
        assert len(server._server.connections) <= MOST_CONNECTIONS
        while server._server.connections:
            pass
        assert len(scrape(server)) > 4 << 20


# -- the table


def test_every_limit_is_in_the_table() -> None:
    text = Path("docs/how-to/serve-over-http.md").read_text()
    table = text[text.index("## Limits") : text.index("## Tokens")]
    for name in Limits.__struct_fields__:
        assert f"`{name}`" in table, name
    shown = [each.replace(",", "") for each in re.findall(r"\d[\d,]*", table)]
    defaults = Limits(connections=1)
    for value in (
        *(getattr(defaults, name) for name in Limits.__struct_fields__ if name.endswith("_seconds")),
        *(MAX_HEADERS, MAX_INPUTS, MAX_RANK, MAX_HEAD >> 10, MAX_JSON >> 20, defaults.body >> 20),
        *(servers.REQUEST_SECONDS, servers.ANSWER_SECONDS, MOST_BYTES >> 10, MOST_CONNECTIONS),
        *(module._CONNECTIONS, module._MOST_CONNECTIONS),
    ):
        assert f"{value:g}" in shown, value
