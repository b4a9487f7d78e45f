"""Requests a second over HTTP: `python -m benchmarks.serving [--json] [--check] [--beside NAMES]`.

A NumPy function of 8 kB float32 is served by anygpu, in the binary form of the Open Inference Protocol and in JSON, and
beside it by bare starlette under uvicorn. Loads take turns, so that all of them see the same machine, and middle values
count. wrk makes the load where it is installed, as it takes the least of the machine; else a client of ours does.
`--beside fleet,litserve,ray` adds ours with a fleet of two nodes on this machine, and those two, in the virtual
environment whose Python `--python` names (`pip install "ray[serve]" litserve psutil`).
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.report import Figure, options_parser, publish, say
from benchmarks.serving_client import http_request, infer_request, load
from benchmarks.serving_process import ServerProcess, processor_seconds, serving

CLIENTS = 8
#: Requests a second that must be reached, and milliseconds that half of them may take.
LEAST_RATE, MOST_P50 = {"ours": 3000.0, "fleet": 1000.0}, 7.0
X = np.ones(2048, np.float32)

_LIST = ", ".join(map(str, X.tolist())).encode()
REQUESTS: dict[str, bytes] = {
    "ours": infer_request("score", {"x": X}),
    "ours, JSON": infer_request("score", {"x": X}, binary=False),
    "fleet": infer_request("score", {"x": X}),
    "bare": http_request("/infer", X.tobytes()),
    "litserve": http_request("/infer", b'{"data": [' + _LIST + b"]}", headers={"content-type": "application/json"}),
    "ray": http_request("/", X.tobytes()),
}


class Measured(NamedTuple):
    rate: float
    p50: float
    p99: float
    #: Microseconds of the server's processor time for a request.
    cpu: float
    refused: int


Loader = Callable[[int, bytes, int, float], tuple[float, float, float, int, int]]


def by_client(port: int, request: bytes, clients: int, seconds: float) -> tuple[float, float, float, int, int]:
    found = load(port, request, clients, seconds)
    return found.rate, found.quantile(0.5) * 1e3, found.quantile(0.99) * 1e3, found.requests, found.refused


def by_wrk(port: int, request: bytes, clients: int, seconds: float) -> tuple[float, float, float, int, int]:
    """wrk makes the request once, from its parts; a function in Lua that returns one would be called for each."""
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    script = ['wrk.method = "POST"', 'wrk.body = "' + "".join(f"\\{byte:03d}" for byte in body) + '"']
    for name, value in (line.split(": ", 1) for line in lines):
        if name not in ("host", "content-length"):
            script.append(f'wrk.headers["{name}"] = "{value}"')
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "request.lua"
        file.write_text("\n".join(script))
        command = ["wrk", "-t1", f"-c{clients}", f"-d{max(1, round(seconds))}", "--latency", "-s", str(file)]
        url = f"http://127.0.0.1:{port}{first.split()[1]}"
        text = subprocess.run([*command, url], capture_output=True, text=True, check=True).stdout
    rate, count = _number(r"Requests/sec:\s+([\d.]+)", text), _number(r"(\d+) requests in", text)
    refused = _number(r"Non-2xx or 3xx responses: (\d+)", text, 0.0)
    return rate, _milliseconds("50%", text), _milliseconds("99%", text), int(count), int(refused)


def _number(pattern: str, text: str, otherwise: float | None = None) -> float:
    found = re.search(pattern, text)
    if found is None and otherwise is not None:
        return otherwise
    assert found is not None, text
    return float(found[1])


def _milliseconds(part: str, text: str) -> float:
    found = re.search(rf"{part}\s+([\d.]+)(us|ms|s)\b", text)
    assert found is not None, text
    return float(found[1]) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[found[2]]


def measure(server: ServerProcess, request: bytes, loader: Loader, clients: int, seconds: float) -> Measured:
    before = processor_seconds(server.process)
    rate, p50, p99, count, refused = loader(server.port, request, clients, seconds)
    return Measured(rate, p50, p99, (processor_seconds(server.process) - before) / count * 1e6, refused)


def main(given: list[str] | None = None) -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="of ours and bare starlette; 0 leaves them out")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each load")
    parser.add_argument("--warm-up", type=float, default=8.0, help="seconds: devices are looked for meanwhile")
    parser.add_argument("--beside", default="", help="fleet, litserve, ray, or several with commas")
    parser.add_argument("--python", default=sys.executable, help="the Python that has those")
    parser.add_argument("--client", choices=("wrk", "ours"), default="wrk" if shutil.which("wrk") else "ours")
    options = parser.parse_args(given)
    loader: Loader = by_wrk if options.client == "wrk" else by_client
    say(f"load by {options.client}, {CLIENTS} clients")
    rounds: dict[str, list[Measured]] = {}
    alone: list[Measured] = []
    if options.rounds:
        with serving("ours") as ours, serving("bare") as bare:
            found = {"ours": ours, "ours, JSON": ours, "bare": bare}
            for name, server in found.items():
                measure(server, REQUESTS[name], loader, CLIENTS, options.warm_up if name == "ours" else 1.0)
            for _ in range(options.rounds):
                for name, server in found.items():
                    measured = measure(server, REQUESTS[name], loader, CLIENTS, options.seconds)
                    rounds.setdefault(name, []).append(measured)
                    say(f"{name}: {measured.rate:.0f} a second, p50 {measured.p50:.2f} ms")
            alone = [measure(found["ours"], REQUESTS["ours"], loader, 1, options.seconds) for _ in range(3)]
    for name in [name for name in options.beside.split(",") if name]:
        # After the others: some of them use a processor all the time.
        with serving(name, sys.executable if name == "fleet" else options.python) as server:
            measure(server, REQUESTS[name], loader, CLIENTS, options.warm_up if name == "fleet" else 1.0)
            for _ in range(3):
                measured = measure(server, REQUESTS[name], loader, CLIENTS, options.seconds)
                rounds.setdefault(name, []).append(measured)
                say(f"{name}: {measured.rate:.0f} a second, p50 {measured.p50:.2f} ms")
    figures: list[Figure] = []
    for name, each in rounds.items():
        rate = statistics.median(one.rate for one in each)
        bound = {"bound": 1e6 / LEAST_RATE[name]} if name in LEAST_RATE else {}
        figures += [
            Figure(name=f"{name}: requests a second", value=rate, unit="/s"),
            Figure(name=f"{name}: time between responses", value=1e6 / rate, unit="µs", **bound),
            Figure(
                name=f"{name}: p50",
                value=statistics.median(one.p50 for one in each),
                unit="ms",
                bound=MOST_P50 if name in LEAST_RATE else None,
            ),
            Figure(name=f"{name}: p99", value=statistics.median(one.p99 for one in each), unit="ms"),
            Figure(name=f"{name}: processor time", value=statistics.median(one.cpu for one in each), unit="µs"),
        ]
    refused = sum(one.refused for each in rounds.values() for one in each)
    if alone:
        p50 = statistics.median(one.p50 for one in alone)
        figures.append(Figure(name="ours: p50 of one client", value=p50, unit="ms"))
    figures.append(Figure(name="requests without a result", value=refused, unit="requests", bound=0.5))
    publish(figures, options)


if __name__ == "__main__":
    main()
