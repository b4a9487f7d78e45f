"""Who is let in, who is not, and that nobody waits for anybody."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from anygpu.observe.dashboard.server import Dashboard, PortTaken
from tests.observe.dashboard.invented import Invented
from tests.observe.dashboard.serving import served
from tests.support.browser import closed


@pytest.fixture(scope="module")
def dashboard() -> Iterator[Dashboard]:
    with served(Invented(time.time)) as found:
        yield found


def get(dashboard: Dashboard, path: str | None = None, **headers: str) -> tuple[int, http.client.HTTPMessage, str]:
    connection = http.client.HTTPConnection("127.0.0.1", dashboard.port, timeout=60)
    connection.request("GET", urlsplit(dashboard.url).path if path is None else path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, text


def session_of(text: str) -> dict[str, str]:
    found = re.search(r'id="session">(.*?)</script>', text)
    assert found is not None
    item: dict[str, str] = json.loads(found[1])["item"]
    return item


def socket_request(dashboard: Dashboard, path: str | None = None, **headers: str) -> HTTPRequest:
    path = urlsplit(dashboard.url).path + "app/ws" if path is None else path
    return HTTPRequest(f"ws://127.0.0.1:{dashboard.port}{path}", headers=headers)


def test_the_page_has_nothing_of_other_hosts(dashboard: Dashboard) -> None:
    status, headers, text = get(dashboard)

    assert status == 200
    assert "http://" not in text
    assert "https://" not in text
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe-eval" not in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer"
    # All its scripts are files: none is within.
    assert re.findall(r"<script[^>]*>", text) == [
        '<script src="static/js/bokeh.min.js" defer>',
        '<script src="page.js" defer>',
        '<script type="application/json" id="session">',
    ]


@pytest.mark.parametrize("name", ["page.css", "page.js", "static/js/bokeh.min.js"])
def test_the_files_of_the_page_are_served(dashboard: Dashboard, name: str) -> None:
    status, headers, text = get(dashboard, urlsplit(dashboard.url).path + name)

    assert status == 200
    assert len(text) > 1000
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path", ["/", "/app", "/wrong/", "/wrong/app/ws", "/static/js/bokeh.min.js", "//", "/%00/", "/../", "/favicon.ico"]
)
def test_without_the_secret_there_is_nothing(dashboard: Dashboard, path: str) -> None:
    status, _, text = get(dashboard, path)

    assert status == 403
    assert "whole address" in text


def test_almost_the_secret_is_not_the_secret(dashboard: Dashboard) -> None:
    path = urlsplit(dashboard.url).path

    assert get(dashboard, path[:-2] + "/")[0] == 403
    assert get(dashboard, path[:-1] + "x/")[0] == 403
    assert get(dashboard, path.swapcase())[0] == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil:{port}"]
)
def test_the_names_of_other_hosts_are_refused(dashboard: Dashboard, host: str) -> None:
    assert get(dashboard, Host=host.format(port=dashboard.port))[0] == 403


def test_localhost_is_this_machine(dashboard: Dashboard) -> None:
    assert get(dashboard, Host=f"localhost:{dashboard.port}")[0] == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "https://127.0.0.1:{port}", "null", "http://127.0.0.1:1", ""]
)
def test_pages_of_others_are_refused(dashboard: Dashboard, origin: str) -> None:
    assert get(dashboard, Origin=origin.format(port=dashboard.port))[0] == 403


async def refused(request: HTTPRequest, protocols: list[str]) -> bool:
    """Whether the socket is refused, or closed before it has said anything."""
    try:
        connection = await websocket_connect(request, subprotocols=protocols)
    except Exception:  # noqa: BLE001 - however it says so
        return True
    message = await asyncio.wait_for(connection.read_message(), 30)
    if message is not None:
        await closed(connection)
        return False
    # The server has said good-bye and waits for nothing more; the client's own end is still open.
    stream = connection.protocol.stream if connection.protocol is not None else None
    if stream is not None:
        stream.close()
    connection.close()
    return True


def test_sockets_need_the_secret_the_origin_and_a_session(dashboard: Dashboard) -> None:
    token = session_of(get(dashboard)[2])["token"]
    ours = f"http://127.0.0.1:{dashboard.port}"

    async def look() -> None:
        assert not await refused(socket_request(dashboard, Origin=ours), ["bokeh", token])
        assert await refused(socket_request(dashboard, Origin="http://evil.example"), ["bokeh", token])
        assert await refused(socket_request(dashboard, Host="evil.example"), ["bokeh", token])
        assert await refused(socket_request(dashboard, "/app/ws", Origin=ours), ["bokeh", token])
        assert await refused(socket_request(dashboard, "/wrong/app/ws", Origin=ours), ["bokeh", token])
        # Sessions are signed: who has not seen the page has none.
        assert await refused(socket_request(dashboard, Origin=ours), ["bokeh", token[:-4] + "AAAA"])
        assert await refused(socket_request(dashboard, Origin=ours), ["bokeh"])

    asyncio.run(look())


async def messages(connection: WebSocketClientConnection, count: int) -> None:
    for _ in range(count):
        assert await asyncio.wait_for(connection.read_message(), 60) is not None


# What the server had still to say to the slow one is dropped with the server.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_slow_browser_keeps_nobody_waiting() -> None:
    with served(Invented(time.time), interval=0.02) as dashboard:
        slow = socket.create_connection(("127.0.0.1", dashboard.port))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        token = session_of(get(dashboard)[2])["token"]
        path = urlsplit(dashboard.url).path + "app/ws"
        head = (
            f"GET {path} HTTP/1.1",
            f"Host: 127.0.0.1:{dashboard.port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Protocol: bokeh, {token}",
        )
        # It asks, and never reads what it gets.
        slow.sendall("\r\n".join((*head, "", "")).encode())
        other = session_of(get(dashboard)[2])["token"]

        async def look() -> None:
            connection = await websocket_connect(socket_request(dashboard), subprotocols=["bokeh", other])
            await messages(connection, 600)
            await closed(connection)

        asyncio.run(look())
        assert get(dashboard)[0] == 200
        slow.close()


def test_what_a_browser_sends_is_not_believed(dashboard: Dashboard) -> None:
    token = session_of(get(dashboard)[2])["token"]

    async def look() -> None:
        for nonsense in ("{", "[]", "\0", "x" * (1 << 20), '{"msgid": "1", "msgtype": "PATCH-DOC"}'):
            connection = await websocket_connect(socket_request(dashboard), subprotocols=["bokeh", token])
            await messages(connection, 3)
            await connection.write_message(nonsense)
            await closed(connection)

    asyncio.run(look())
    assert get(dashboard)[0] == 200


def test_a_port_that_is_taken_is_named(dashboard: Dashboard) -> None:
    with pytest.raises(PortTaken, match=rf"port {dashboard.port}: .*Leave out --port"):
        Dashboard(Invented(time.time), port=dashboard.port)


def test_without_bokeh_the_command_names_the_extra() -> None:
    begin = "import sys; sys.modules['bokeh'] = None; sys.argv = ['anygpu', 'dashboard']; "
    code = begin + "import anygpu.cli; anygpu.cli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)

    assert done.returncode == 1
    assert "bokeh is not installed. Install it with: pip install bokeh" in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_else_imports_bokeh() -> None:
    code = "import sys, anygpu, anygpu.cli, anygpu.observe; print([each for each in sys.modules if 'bokeh' in each])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)

    assert done.stdout.strip() == "[]"
