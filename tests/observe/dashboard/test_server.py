"""Who is let in, who is not, and that nobody waits for anybody."""

from __future__ import annotations

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

from anygpu.observe.dashboard.server import Dashboard, PortTaken
from tests.observe.dashboard.invented import Invented
from tests.observe.dashboard.serving import served


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
        '<script src="bokeh.min.js" defer>',
        '<script src="page.js" defer>',
    ]


@pytest.mark.parametrize("name", ["page.css", "page.js", "bokeh.min.js", "figures.json", "columns.json"])
def test_the_files_of_the_page_are_served(dashboard: Dashboard, name: str) -> None:
    status, headers, text = get(dashboard, urlsplit(dashboard.url).path + name)

    assert status == 200
    assert len(text) > 1000
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/app",
        "/wrong/",
        "/wrong/columns.json",
        "/bokeh.min.js",
        "/columns.json",
        "//",
        "/%00/",
        "/../",
        "/favicon.ico",
    ],
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


def test_data_needs_the_secret_the_host_and_the_origin(dashboard: Dashboard) -> None:
    path = urlsplit(dashboard.url).path + "columns.json?tab=devices"
    ours = f"http://127.0.0.1:{dashboard.port}"

    assert get(dashboard, path, Origin=ours)[0] == 200
    assert get(dashboard, path, Origin="http://evil.example")[0] == 403
    assert get(dashboard, path, Host="evil.example")[0] == 403
    assert get(dashboard, "/columns.json", Origin=ours)[0] == 403
    assert get(dashboard, "/wrong/columns.json", Origin=ours)[0] == 403
    assert get(dashboard, urlsplit(dashboard.url).path + "history.json")[0] == 404


def test_a_slow_browser_keeps_nobody_waiting() -> None:
    with served(Invented(time.time), interval=0.02) as dashboard:
        path = urlsplit(dashboard.url).path
        slow = [socket.create_connection(("127.0.0.1", dashboard.port)) for _ in range(8)]
        for each in slow:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            # It asks, and never reads what it gets.
            each.sendall(f"GET {path}bokeh.min.js HTTP/1.1\r\nHost: 127.0.0.1:{dashboard.port}\r\n\r\n".encode())
        for _ in range(100):
            status, _, text = get(dashboard, f"{path}columns.json")
            assert status == 200
            assert json.loads(text)["tiles"]
        for each in slow:
            each.close()


def test_what_a_browser_sends_is_not_believed(dashboard: Dashboard) -> None:
    path = urlsplit(dashboard.url).path
    for nonsense in ("?", "?tab", "?tab=%00", "?tab=page", "?tab=x&window=y", f"?process={'9' * 5000}", "?tab=%ff%fe"):
        status, _, text = get(dashboard, f"{path}columns.json{nonsense}")
        assert status == 200
        assert "timeline" in json.loads(text)
    connection = http.client.HTTPConnection("127.0.0.1", dashboard.port, timeout=60)
    connection.request("POST", f"{path}columns.json", body=b"x" * 1000)
    assert connection.getresponse().status == 405
    connection.close()


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
