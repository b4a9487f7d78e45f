"""Mutated requests at a real server: `python -m benchmarks.serving_fuzz [--count 100000] [--json] [--check]`.

Every request is a good one with some of it changed: bytes, numbers, fields, headers, lengths. The server answers each
with a status that says what is wrong, or closes the connection where no HTTP is left. It never fails (500), never
hangs, and its memory stays flat. The seed is printed with what went wrong, and `--seed` does the same again.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil

from benchmarks.report import Figure, options_parser, publish, say
from benchmarks.serving_client import Connection, http_request, infer_request
from benchmarks.serving_process import serving

MODEL = "score"
#: What a caller may be told.
TYPED = frozenset((200, 400, 401, 403, 404, 405, 408, 411, 413, 415, 429, 431, 501, 504, 505))
#: Part of the requests after which memory has been taken that stays in use.
_WARM = 0.3
_X = np.arange(64, dtype=np.float32)

Mutation = Callable[[random.Random], tuple[bytes, bool]]

_ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, 10**30, 1e308, -0.0, "", "x", "FP32", "FP64", "BYTES", "BF16", [], [[]],
    [1], [-1], [2**40], [0, 2**62], [1] * 40, [[1.0], [2.0, 3.0]], {}, {"binary_data_size": -1},
    {"binary_data_size": 2**50}, {"binary_data": True}, {"shared_memory_region": "a"}, "é" * 300, "\u0000",
)  # fmt: skip
_HEADERS = (
    "content-length", "inference-header-content-length", "transfer-encoding", "content-encoding", "authorization",
    "x-request-timeout", "content-type", "connection", "expect", "upgrade", "host",
)  # fmt: skip
_VALUES = (
    "", "0", "-1", "1", "99999999999", "9" * 40, "1e9", "nan", "chunked", "gzip", "close", "100-continue", "websocket",
    "Bearer x", "0.0001", "application/json", "\x7f", "a" * 2000,
)  # fmt: skip


_PARTS = (
    "v2", "models", MODEL, "versions", "1", "infer", "ready", "health", "live", "metrics", "..", "%2e%2e", "%00", "é",
    "a" * 300, "",
)  # fmt: skip


def _bytes_changed(random_: random.Random) -> tuple[bytes, bool]:
    """Anywhere, also in the request line and the headers."""
    request = bytearray(infer_request(MODEL, {"x": _X}))
    for _ in range(random_.randint(1, 8)):
        position = random_.randrange(len(request))
        match random_.randrange(3):
            case 0:
                request[position] = random_.randrange(256)
            case 1:
                del request[position : position + random_.randint(1, 16)]
            case _:
                request[position:position] = random_.randbytes(random_.randint(1, 16))
    return bytes(request), True


def _document(random_: random.Random, binary: bool) -> dict[str, Any]:
    tensor: dict[str, Any] = {"name": "x", "shape": [64], "datatype": "FP32"}
    tensor |= {"parameters": {"binary_data_size": 256}} if binary else {"data": _X.tolist()}
    document: dict[str, Any] = {"id": "1", "inputs": [tensor], "parameters": {"binary_data_output": binary}}
    if random_.random() < 0.3:
        document["outputs"] = [{"name": "output", "parameters": {"binary_data": binary}}]
    return document


def _fields_changed(random_: random.Random) -> tuple[bytes, bool]:
    """Good HTTP and good JSON, with other values in it."""
    binary = random_.random() < 0.5
    document = _document(random_, binary)
    parts = [document, document["parameters"], *document["inputs"], *document.get("outputs", [])]
    for _ in range(random_.randint(1, 3)):
        part = random_.choice(parts)
        key = random_.choice([*part, "more", "inputs", "parameters", "outputs"])
        if random_.random() < 0.2:
            part.pop(key, None)
        else:
            part[key] = random_.choice(_ODD)
    head = json.dumps(document).encode()
    if not binary:
        return http_request(f"/v2/models/{MODEL}/infer", head), False
    length = len(head) + random_.choice([0, 0, 0, 0, -1, 1, 256, -len(head), 10**6])
    body = head + _X.tobytes()[: random_.choice([256, 256, 256, 255, 0])]
    return http_request(
        f"/v2/models/{MODEL}/infer", body, headers={"inference-header-content-length": str(length)}
    ), False


def _json_changed(random_: random.Random) -> tuple[bytes, bool]:
    """Good HTTP, and JSON that is hardly any."""
    text = bytearray(json.dumps(_document(random_, False)).encode())
    for _ in range(random_.randint(1, 6)):
        text[random_.randrange(len(text))] = random_.choice(b'0123456789"[]{},:-+eE.\\ntu\x00\xff ')
    if random_.random() < 0.05:
        text[:0] = random_.choice([b"[", b'{"a":']) * random_.randint(1, 20_000)
    return http_request(f"/v2/models/{MODEL}/infer", bytes(text)), False


def _headers_changed(random_: random.Random) -> tuple[bytes, bool]:
    headers = {random_.choice(_HEADERS): random_.choice(_VALUES) for _ in range(random_.randint(1, 3))}
    return infer_request(MODEL, {"x": _X}, headers), True


def _paths_changed(random_: random.Random) -> tuple[bytes, bool]:
    parts = random_.choices(_PARTS, k=random_.randint(0, 6))
    method = random_.choice(["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"])
    return http_request("/" + "/".join(parts), method=method), True


MUTATIONS: tuple[Mutation, ...] = (_bytes_changed, _fields_changed, _json_changed, _headers_changed, _paths_changed)


class Outcome:
    """What the server did with all of them."""

    def __init__(self) -> None:
        self.statuses: Counter[int | str] = Counter()
        self.wrong: list[str] = []


def fuzz(port: int, pid: int, count: int, seed: int) -> tuple[Outcome, int]:
    """The outcome, and the bytes by which the server's memory grew after the first requests."""
    outcome = Outcome()
    process = psutil.Process(pid)
    base = 0
    connection: Connection | None = None
    for number in range(count):
        if number == int(count * _WARM):
            base = process.memory_info().rss
        if number and number % 20_000 == 0:
            say(f"{number:,} requests, {process.memory_info().rss >> 20} MiB")
        random_ = random.Random(f"{seed}/{number}")
        request, alters_http = random_.choice(MUTATIONS)(random_)
        if connection is None:
            connection = Connection(port, timeout=20.0)
        if not _one(connection, request, alters_http, outcome, f"{seed}/{number}"):
            connection.close()
            connection = None
    if connection is not None:
        connection.close()
    return outcome, process.memory_info().rss - base


def _one(connection: Connection, request: bytes, alters_http: bool, outcome: Outcome, seed: str) -> bool:
    """Whether the connection can be used again."""
    try:
        connection.socket.sendall(request)
        if alters_http:
            connection.end()  # or the server would wait for bytes that a changed length has promised
        reply = connection.reply()
    except TimeoutError:
        outcome.statuses["no answer"] += 1
        outcome.wrong.append(f"{seed}: no answer")
        return False
    except (ConnectionError, BrokenPipeError, OSError):
        outcome.statuses["closed"] += 1
        if not alters_http:
            outcome.wrong.append(f"{seed}: closed without an answer")
        return False
    except ValueError:  # the answer to a HEAD has a length and no body, and others follow it
        outcome.statuses["head"] += 1
        return False
    outcome.statuses[reply.status] += 1
    if reply.status not in TYPED and not (reply.status == 503 and b"ready" in reply.body):
        outcome.wrong.append(f"{seed}: {reply.status} {reply.body[:120]!r}")
    if reply.status >= 400 and reply.body and reply.headers.get("content-type") == "application/json":
        message = json.loads(reply.body)["error"]
        if len(message) > 600 or re.search(r"Traceback|File \"", message):
            outcome.wrong.append(f"{seed}: a message that is too long: {message[:120]}")
    return not alters_http and not reply.closes


def main(given: list[str] | None = None) -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(given)
    with serving("ours") as server:
        outcome, grown = fuzz(server.port, server.process.pid, options.count, options.seed)
        with Connection(server.port) as connection:
            alive = connection.ask(infer_request(MODEL, {"x": _X})).status == 200
    for line in outcome.wrong[:20]:
        say(line)
    statuses = ", ".join(f"{status}: {number:,}" for status, number in outcome.statuses.most_common())
    say(f"seed {options.seed}, statuses {statuses}")
    publish(
        [
            Figure(name="mutated requests", value=options.count, unit="requests"),
            Figure(name="without a typed answer", value=len(outcome.wrong), unit="requests", bound=0.5),
            Figure(name="growth of the server's memory", value=grown / (1 << 20), unit="MiB", bound=16.0),
            Figure(name="server does not answer afterwards", value=float(not alive), unit="", bound=0.5),
        ],
        options,
    )


if __name__ == "__main__":
    main()
