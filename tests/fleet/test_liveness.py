"""Idle connections to servers, which tell when one is gone and when it is back."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator

import pytest

from anygpu.fleet import driver
from anygpu.fleet.driver import LivenessConnections

SECONDS = 120.0

News = queue.Queue[tuple[str, str | None]]


@pytest.fixture
def news() -> News:
    return queue.Queue()


@pytest.fixture
def lines(news: News) -> LivenessConnections:
    return LivenessConnections(lambda name, why: news.put((name, why)))


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(SECONDS)
        yield made


def test_a_server_that_ends_is_gone_and_one_that_is_started_again_is_back(
    lines: LivenessConnections, news: News, server: socket.socket
) -> None:
    host, port = server.getsockname()
    lines.watch("node", host, port)
    line, _ = server.accept()
    server.close()
    assert not lines.is_gone("node")
    line.close()
    name, why = news.get(timeout=SECONDS)
    assert name == "node"
    assert "does not answer" in (why or "")
    assert lines.is_gone("node")
    with socket.create_server((host, port)) as again:
        again.settimeout(SECONDS)
        held, _ = again.accept()
        assert news.get(timeout=SECONDS) == ("node", None)
        assert not lines.is_gone("node")
        held.close()


def test_a_server_that_closes_an_idle_connection_is_not_gone(
    lines: LivenessConnections, news: News, server: socket.socket
) -> None:
    lines.watch("node", *server.getsockname())
    for _ in range(3):
        line, _ = server.accept()
        line.send(b"a greeting that nobody answers")
        line.close()
    held, _ = server.accept()
    assert news.empty()
    held.close()


def test_a_server_that_was_never_reached_is_not_gone(
    lines: LivenessConnections, news: News, server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a firewall: nothing is known of it."""
    monkeypatch.setattr(driver, "UNSEEN_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as other:
        closed = other.getsockname()
    lines.watch("behind a wall", *closed)
    lines.watch("node", *server.getsockname())
    server.accept()[0].close()
    server.accept()[0].close()
    assert news.empty()
    assert not lines.is_gone("behind a wall")


def test_a_server_that_is_forgotten_is_not_told_of(
    lines: LivenessConnections, news: News, server: socket.socket
) -> None:
    lines.watch("node", *server.getsockname())
    line, _ = server.accept()
    lines.keep({"other"})
    assert line.recv(1) == b"", "the connection is closed"
    line.close()
    lines.watch("other", *server.getsockname())
    other, _ = server.accept()
    server.close()
    other.close()
    assert news.get(timeout=SECONDS)[0] == "other"
    assert news.empty()
    assert not lines.is_gone("node")
