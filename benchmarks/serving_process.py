"""Servers in processes of their own: ours, ours with a fleet, and the same under bare starlette, LitServe or Ray Serve.

`python -m benchmarks.serving_process NAME PORT` runs one in this process.
"""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
import psutil

#: The most seconds until a server answers: Ray takes longest.
_PATIENCE = 90.0
#: Where each of them says that it is there.
_PROBES = {
    "ours": "/v2/health/ready",
    "fleet": "/v2/health/ready",
    "bare": "/health",
    "litserve": "/health",
    "ray": "/health",
}


def score(x: Any) -> Any:
    return x * 2 + 1


class ServerProcess(NamedTuple):
    port: int
    process: subprocess.Popen[bytes]


@contextmanager
def serving(name: str, python: str = sys.executable) -> Iterator[ServerProcess]:
    """A server that answers; it is ended after the block. `python` may be that of another virtual environment."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [python, "-m", "benchmarks.serving_process", name, str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        _wait_for(port, _PROBES[name], process)
        yield ServerProcess(port, process)
    finally:
        # Others' servers leave processes behind when they are told to end.
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()


def _wait_for(port: int, path: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.05)
        finally:
            connection.close()
    raise TimeoutError(f"no server on port {port} within {_PATIENCE:g} s")


def processor_seconds(process: subprocess.Popen[bytes]) -> float:
    used = psutil.Process(process.pid).cpu_times()
    return used.user + used.system


# -- the servers


def _ours(port: int) -> None:
    import anygpu as ag

    ag.serve({"score": score}, port=port, notice=0.0, examples={"score": (np.ones(2048, np.float32),)})


def _fleet(port: int) -> None:
    """Every request goes to one of two other nodes of a cluster on this machine."""
    import anygpu as ag
    from tests.support.ray_processes import RayProcesses

    os.environ["ANYGPU_ENGINES"] = "numpy,opencl"
    with RayProcesses(environment={"ANYGPU_ENGINES": "numpy,opencl"}) as cluster:
        for name in ("node-1", "node-2"):
            cluster.add(name)
        with ag.fleet.connect(cluster.address, devices="opencl", insecure=True, max_latency=0.05) as fleet:
            fleet.serve(
                {"score": score}, port=port, on="fleet", notice=0.0, examples={"score": (np.ones(2048, np.float32),)}
            )


def _bare(port: int) -> None:
    """The least that such a server does: no protocol, no queue, no limits."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    async def infer(request: Request) -> Response:
        return Response(score(np.frombuffer(await request.body(), np.float32)).tobytes())

    async def health(request: Request) -> Response:
        return Response(b"ok")

    routes = [Route("/infer", infer, methods=["POST"]), Route("/health", health)]
    uvicorn.run(Starlette(routes=routes), port=port, log_level="warning", access_log=False)


def _litserve(port: int) -> None:
    from benchmarks.serving_litserve import run

    run(port)


def _ray(port: int) -> None:
    # Its token would be written to the user's own folder.
    os.environ["HOME"] = folder = tempfile.mkdtemp()
    import ray
    from ray import serve
    from starlette.requests import Request
    from starlette.responses import Response

    @serve.deployment
    class Score:
        async def __call__(self, request: Request) -> Response:
            body = await request.body()
            return Response(score(np.frombuffer(body, np.float32)).tobytes() if body else b"ok")

    # A cluster of its own, wherever another one runs.
    ray.init(address="local", include_dashboard=False, log_to_driver=False, _temp_dir=folder)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(Score.bind(), blocking=True)  # type: ignore[attr-defined]


def main() -> None:
    name, port = sys.argv[1], int(sys.argv[2])
    {"ours": _ours, "fleet": _fleet, "bare": _bare, "litserve": _litserve, "ray": _ray}[name](port)


if __name__ == "__main__":
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    main()
