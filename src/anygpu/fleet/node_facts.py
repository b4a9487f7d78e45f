"""What the doctor wants to know of each node, gathered by a Ray task on it.

`python -m anygpu.fleet.node_facts HOST:PORT` connects and prints the answer. It runs in a child process, because Ray
ends the process of its driver when a cluster cannot be reached or goes away.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import msgspec

from anygpu._version import __version__
from anygpu.fleet.access import file_mode, reachable_from_outside, token_path
from anygpu.fleet.security import FileMode

#: Seconds that one node may take for its answer, which includes starting a process there.
_NODE_SECONDS = 30.0

#: What Ray writes before it aborts.
_NO_RAYLET = b"Failed to connect to socket"


class Software(msgspec.Struct, frozen=True, kw_only=True):
    """Versions; None if Ray is not installed."""

    python: str
    ray: str | None
    anygpu: str


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One node, as a task on it sees it."""

    name: str
    head: bool = False
    software: Software
    #: Seconds by which its clock is ahead of the driver's, and how far off that may be.
    clock_ahead: float
    clock_doubt: float
    #: Bytes of /dev/shm; None where there is none.
    shared_memory: int | None
    #: Bytes that Ray uses for its object store.
    object_store: int
    #: What Ray's temporary folder, and the token's file, let other users do.
    folder: FileMode | None = None
    token_file: FileMode | None = None
    #: Named ports of Ray that other machines can reach.
    ports: dict[str, int] = {}
    container: bool = False


class NodesSeen(msgspec.Struct, frozen=True, kw_only=True):
    nodes: tuple[NodeFacts, ...] = ()
    #: For each node that did not tell: why.
    failures: dict[str, str] = {}
    #: Why no node could be looked at.
    problem: str = ""
    #: Whether that is because this machine is none of them: Ray's drivers need a Ray process beside them.
    not_a_node: bool = False


def observe_nodes(address: str, variables: Mapping[str, str], *, timeout: float) -> NodesSeen:
    """Look at every node from a child process. Never raises for what Ray does."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "anygpu.fleet.node_facts", address],
            env={**os.environ, **variables},
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return NodesSeen(problem=f"Ray did not connect within {timeout:g} s")
    try:
        return msgspec.json.decode(done.stdout.rpartition(b"\0")[2], type=NodesSeen)
    except msgspec.MsgspecError:
        if _NO_RAYLET in done.stderr:
            return NodesSeen(problem="no process of this cluster runs on this machine", not_a_node=True)
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return NodesSeen(problem=f"Ray ended with code {done.returncode}" + "".join(f": {line[:300]}" for line in last))


def software() -> Software:
    try:
        ray = metadata.version("ray")
    except metadata.PackageNotFoundError:
        ray = None
    return Software(python=platform.python_version(), ray=ray, anygpu=__version__)


def local_facts(name: str, head: bool, object_store: int, ports: Mapping[str, int], folder: str) -> bytes:
    """Runs on the node. The clock is the last thing to be read, so that the answer is as fresh as possible."""
    shm = Path("/dev/shm")
    facts = NodeFacts(
        name=name,
        head=head,
        software=software(),
        clock_ahead=0.0,
        clock_doubt=0.0,
        shared_memory=shutil.disk_usage(shm).total if shm.is_dir() else None,
        object_store=object_store,
        folder=file_mode(_outermost_private(Path(folder))) if folder else None,
        token_file=None if os.environ.get("RAY_AUTH_TOKEN") else file_mode(token_path(os.environ)),
        ports={each: port for each, port in ports.items() if reachable_from_outside("127.0.0.1", port)},
        container=Path("/.dockerenv").exists() or "KUBERNETES_SERVICE_HOST" in os.environ,
    )
    return msgspec.json.encode(msgspec.structs.replace(facts, clock_ahead=time.time()))


def _outermost_private(folder: Path) -> Path:
    """The folder above which others are kept out, or `folder` itself: nobody reaches what lies in a closed folder."""
    for parent in (folder, *folder.parents):
        mode = file_mode(parent)
        if mode is not None and not mode.mode & 0o011:
            return parent
    return folder


def _look(address: str) -> NodesSeen:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    seen: list[NodeFacts] = []
    failures: dict[str, str] = {}
    task = ray.remote(num_cpus=0, max_retries=0)(local_facts)
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        resources = node["Resources"]
        name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        here = task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
        head = "node:__internal_head__" in resources
        ports = {
            "node manager": node["NodeManagerPort"],
            "object manager": node["ObjectManagerPort"],
            "metrics": node["MetricsExportPort"],
        }
        folder = str(Path(node["RayletSocketName"]).parents[2])
        arguments = (name, head, int(resources.get("object_store_memory", 0)), ports, folder)
        try:
            ray.get(here.remote(*arguments), timeout=_NODE_SECONDS)  # starts the process that the next call finds
            begin = time.time()
            answer = ray.get(here.remote(*arguments), timeout=_NODE_SECONDS)
            end = time.time()
        except Exception as error:  # noqa: BLE001 -- whatever Ray raises is a fact about this node
            failures[name] = str(error).strip().splitlines()[-1][:300] if str(error).strip() else type(error).__name__
            continue
        facts = msgspec.json.decode(answer, type=NodeFacts)
        seen.append(
            msgspec.structs.replace(
                facts, clock_ahead=facts.clock_ahead - (begin + end) / 2, clock_doubt=(end - begin) / 2
            )
        )
    return NodesSeen(nodes=tuple(seen), failures=failures)


if __name__ == "__main__":
    from anygpu.fleet import node_facts

    # As the importable module, so that Ray sends the function's name and not its code.
    try:
        answer = node_facts._look(sys.argv[1])
    except Exception as error:  # noqa: BLE001 -- the message is the answer
        answer = NodesSeen(problem=" ".join(str(error).split())[:600] or type(error).__name__)
    # Ray writes to standard output too.
    sys.stdout.buffer.write(b"\0" + msgspec.json.encode(answer))
    sys.stdout.flush()
    os._exit(0)
