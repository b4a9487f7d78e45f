"""A Ray cluster on this machine, in processes of its own: a head and nodes, which can be stopped and killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

import psutil

_ROOT = Path(__file__).parents[2]

#: So that a node's death is seen within a second, and not within a minute.
SHORT_CHECKS = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}


class RayProcesses:
    """A cluster whose processes are children of a process of ours, and go with it."""

    def __init__(self, *, settings: dict[str, Any] | None = None, environment: dict[str, str] | None = None) -> None:
        # Short: the paths of its sockets may have no more than a hundred characters.
        self.folder = Path(tempfile.mkdtemp(prefix="ag-ray-", dir="/tmp"))
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        #: Of every process of the cluster.
        self.environment: dict[str, str] = {
            **inherited,
            "PYTHONPATH": os.pathsep.join([str(_ROOT / "src"), str(_ROOT)]),
            "RAY_USAGE_STATS_ENABLED": "0",
            # As the templates have it: nodes follow a head that is gone within seconds.
            "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
            # Not the 15 of Ray's own, with which a worker gets nothing beside other busy processes.
            "RAY_worker_niceness": "0",
            # Neither by us nor by Ray: what the tests measure is not how many threads a product has.
            "OMP_NUM_THREADS": "1",
            "HOME": str(self.folder),
            "RAY_TMPDIR": str(self.folder),
            **(environment or {}),
        }
        self._words = (self.folder / "stderr").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.ray_processes", json.dumps(settings or {})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            env=self.environment,
            cwd=_ROOT,
            text=True,
        )
        self.address: str = self._ask("head")["address"]

    def _ask(self, what: str, **given: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"what": what, **given}) + "\n")
        self._process.stdin.flush()
        while True:
            line = self._process.stdout.readline()
            if not line:
                raise RuntimeError(f"the cluster's process has ended: {self._process.wait(10)}")
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer

    def add(self, name: str, **given: Any) -> int:
        """One more node; the process of its raylet."""
        pid: int = self._ask("add", name=name, given=given)["raylet"]
        return pid

    def remove(self, name: str) -> None:
        """Let a node leave, as when a cluster shrinks."""
        self._ask("remove", name=name)

    def raylet(self, name: str) -> int:
        """The process of a node's raylet; "head" is the head's."""
        pid: int = self._ask("raylet", name=name)["raylet"]
        return pid

    def gcs(self) -> int:
        """The process of the head's own server."""
        pid: int = self._ask("gcs")["gcs"]
        return pid

    def close(self) -> None:
        """End all of it."""
        children = psutil.Process(self._process.pid).children(recursive=True) if self._process.poll() is None else []
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(10)
        for child in children:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(children, timeout=5)
        for each in (self._process.stdin, self._process.stdout, self._words):
            if each is not None:
                each.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _pid(node: Any, kind: str) -> int:
    (info,) = node.all_processes[kind]
    found: int = info.process.pid
    return found


def _patiently(start: Callable[[], Any]) -> Any:
    """Ray gives a node thirty seconds to come up, which a busy machine may not have."""
    for _ in range(3):
        try:
            return start()
        except Exception as error:  # noqa: BLE001 - it raises nothing more special than this
            failure = error
    raise failure


def _main() -> None:
    """The process that has the cluster: one request a line, one answer a line."""
    settings = json.loads(sys.argv[1])
    from ray.cluster_utils import Cluster

    sent = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    common = {"object_store_memory": 200 << 20, "include_dashboard": False}
    head = {**common, "num_cpus": 1, "node_name": "head", "_system_config": settings}
    cluster: Any = _patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
    nodes: dict[str, Any] = {"head": cluster.head_node}
    for line in sys.stdin:
        request = json.loads(line)
        name = request.get("name", "")
        answer: dict[str, Any] = {}
        match request["what"]:
            case "head":
                answer["address"] = cluster.address
            case "add":
                given = {**common, "num_cpus": 1, **request["given"]}
                nodes[name] = _patiently(partial(cluster.add_node, node_name=name, **given))
                answer["raylet"] = _pid(nodes[name], "raylet")
            case "remove":
                cluster.remove_node(nodes.pop(name), allow_graceful=True)
            case "raylet":
                answer["raylet"] = _pid(nodes[name], "raylet")
            case "gcs":
                answer["gcs"] = _pid(nodes["head"], "gcs_server")
        sent.write(json.dumps(answer) + "\n")
        sent.flush()


if __name__ == "__main__":
    _main()
