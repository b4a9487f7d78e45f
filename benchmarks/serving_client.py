"""A small HTTP client over raw sockets, for loads and for requests that no proper client would send."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from anygpu.base.typing import HostArray

Headers = Mapping[str, str]


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def closes(self) -> bool:
        return self.headers.get("connection", "").lower() == "close"


class Connection:
    """One connection, one request at a time."""

    def __init__(self, port: int, timeout: float = 120.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pending = b""

    def ask(self, request: bytes) -> Reply:
        self.socket.sendall(request)
        return self.reply()

    def reply(self) -> Reply:
        """Raises `ConnectionError` when the server has closed before there was one."""
        while b"\r\n\r\n" not in self._pending:
            self._receive()
        head, _, rest = self._pending.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._pending = rest
        length = int(headers.get("content-length", "0"))
        while len(self._pending) < length:
            self._receive()
        body, self._pending = self._pending[:length], self._pending[length:]
        status = int(first.split()[1])
        return Reply(status, headers, body) if status != 100 else self.reply()

    def end(self) -> None:
        """Send no more, so that the server does not wait for the rest."""
        self.socket.shutdown(socket.SHUT_WR)

    def _receive(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the server has closed the connection")
        self._pending += data

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def http_request(path: str, body: bytes = b"", method: str = "POST", headers: Headers | None = None) -> bytes:
    given = {"host": "127.0.0.1", "content-length": str(len(body))} | dict(headers or {})
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def infer_request(
    model: str, inputs: dict[str, HostArray], headers: Headers | None = None, *, binary: bool = True
) -> bytes:
    """A request as the protocol has it; all tensors are of float32."""
    described: list[dict[str, Any]] = []
    data = []
    for name, array in inputs.items():
        each: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": "FP32"}
        if binary:
            each["parameters"] = {"binary_data_size": array.nbytes}
            data.append(array.tobytes())
        else:
            each["data"] = array.ravel().tolist()
        described.append(each)
    head = json.dumps({"inputs": described, "parameters": {"binary_data_output": binary}}).encode()
    lengths = {"inference-header-content-length": str(len(head))} if binary else {}
    return http_request(f"/v2/models/{model}/infer", b"".join([head, *data]), headers=lengths | dict(headers or {}))


def output_of(reply: Reply) -> HostArray:
    """The first output of a response, of float32."""
    length = reply.headers.get("inference-header-content-length")
    head = json.loads(reply.body if length is None else reply.body[: int(length)])
    first = head["outputs"][0]
    flat = (
        np.array(first["data"], np.float32) if length is None else np.frombuffer(reply.body[int(length) :], np.float32)
    )
    return flat.reshape(first["shape"])


class Load(NamedTuple):
    """What some clients saw, each asking again as soon as it had its answer."""

    requests: int
    seconds: float
    #: Sorted, in seconds.
    latencies: list[float]
    #: Responses with another status than 200.
    refused: int

    @property
    def rate(self) -> float:
        return self.requests / self.seconds

    def quantile(self, part: float) -> float:
        return self.latencies[min(len(self.latencies) - 1, int(part * len(self.latencies)))]


def load(port: int, request: bytes, clients: int, seconds: float) -> Load:
    """So many clients on one thread, which takes a tenth of what a server takes for a request."""
    selector = selectors.DefaultSelector()
    sockets = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(clients)]
    asked: dict[socket.socket, float] = {}
    missing: dict[socket.socket, int] = {}
    latencies: list[float] = []
    refused = 0
    begin = time.perf_counter()
    for each in sockets:
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(each, selectors.EVENT_READ)
        asked[each], missing[each] = time.perf_counter(), 0
        each.sendall(request)
    until = begin + seconds
    while time.perf_counter() < until:
        for key, _ in selector.select(1.0):
            each = key.fileobj  # type: ignore[assignment]
            data = each.recv(1 << 17)
            if not data:
                raise ConnectionError("the server has closed a connection")
            if missing[each]:
                missing[each] -= len(data)
            else:
                # Heads are short and come whole, because the server writes each at once.
                head, _, body = data.partition(b"\r\n\r\n")
                refused += not head.startswith(b"HTTP/1.1 200")
                start = head.lower().index(b"\r\ncontent-length:") + 17
                missing[each] = int(head[start : head.find(b"\r\n", start) % (len(head) + 1)]) - len(body)
            if not missing[each]:
                now = time.perf_counter()
                latencies.append(now - asked[each])
                asked[each] = now
                each.sendall(request)
    for each in sockets:
        each.close()
    took = time.perf_counter() - begin
    return Load(len(latencies), took, sorted(latencies), refused)
