"""Diagnoses a cluster: versions, tokens, TLS, ports, file modes, clocks, shared memory; with commands that help.

`examine` gathers `FleetFacts`: of each node by a Ray task in a child process, of the access by asking from here. The
rules below it are pure functions of these facts, each of which yields findings.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import msgspec

from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.base.version import __version__
from anygpu.errors import install_command
from anygpu.fleet.access import file_mode, reachable_from_outside, token_path
from anygpu.fleet.security import ClusterAccess, FileMode, access_findings, driver_variables, private_file
from anygpu.hardware.inventory import Finding, Severity, together

# -- what the doctor wants to know of each node, gathered by a Ray task on it
#
# `python -m anygpu.fleet.doctor HOST:PORT` connects and prints the answer. It runs in a child process, because Ray
# ends the process of its driver when a cluster cannot be reached or goes away.


#: Seconds that one node may take for its answer, which includes starting a process there.
_NODE_SECONDS = 30.0

#: The words that Ray writes before it aborts.
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
    #: The modes of Ray's temporary folder and of the token's file.
    folder: FileMode | None = None
    token_file: FileMode | None = None
    #: Named ports of Ray that other machines can reach.
    ports: dict[str, int] = {}
    container: bool = False


class NodesSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that answered, and why others did not."""

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
            [sys.executable, "-m", "anygpu.fleet.doctor", address],
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
    """Returns the versions of this process, and of Ray without importing it."""
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
    """Returns the folder above which other users are kept out, or `folder` itself if none is closed."""
    for parent in (folder, *folder.parents):
        mode = file_mode(parent)
        if mode is not None and not mode.mode & 0o011:
            return parent
    return folder


def _look(address: str) -> NodesSeen:
    """The facts of every node, by a task on each. Runs in a process of its own, where Ray may fail."""
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
    from anygpu.fleet import doctor

    # As the importable module, so that Ray sends the function's name and not its code.
    try:
        answer = doctor._look(sys.argv[1])
    except Exception as error:  # noqa: BLE001 -- the message is the answer
        answer = NodesSeen(problem=" ".join(str(error).split())[:600] or type(error).__name__)
    # Ray writes to standard output too.
    sys.stdout.buffer.write(b"\0" + msgspec.json.encode(answer))
    sys.stdout.flush()
    os._exit(0)


SCHEMA = "anygpu.fleet-doctor/1"

#: Beyond this, receipts and logs of two nodes cannot be put in order; beyond the second, certificates and the
#: signatures of cloud services fail.
_SKEW_SECONDS, _BROKEN_SKEW_SECONDS = 1.0, 300.0
#: Below this, a handful of arrays in flight fills the object store, and Ray writes them to disk.
_SMALL_STORE = 256 << 20
#: Ray's words where a node cannot import what this process can.
_NO_MODULE = "No module named 'anygpu"


class FleetFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster, as far as it can be seen from here."""

    access: ClusterAccess
    driver: Software
    nodes: NodesSeen = NodesSeen()


class FleetDiagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The report of `anygpu fleet doctor`; `to_json` gives the documented schema."""

    schema: str = SCHEMA
    #: The answer in one sentence.
    verdict: str
    findings: tuple[Finding, ...]
    facts: FleetFacts

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that keep the cluster from being used, or others from being kept out."""
        return tuple(finding for finding in self.findings if finding.severity == "problem")

    def to_json(self) -> bytes:
        """Returns the documented schema as indented JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


def examine(
    address: str,
    *,
    dashboard: str | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float = 60.0,
) -> FleetDiagnosis:
    """Look at the cluster at `host:port` and at each of its nodes. A cluster that is refused is looked at as well."""
    from anygpu.fleet.access import observe_access

    environment = os.environ if environment is None else environment
    access = observe_access(address, dashboard=dashboard, environment=environment, timeout=min(5.0, timeout))
    driver = software()
    nodes = NodesSeen()
    if driver.ray is not None and _can_connect(access):
        nodes = observe_nodes(access.address, {**environment, **driver_variables(access)}, timeout=timeout)
    return diagnose_fleet(FleetFacts(access=access, driver=driver, nodes=nodes))


def diagnose_fleet(facts: FleetFacts) -> FleetDiagnosis:
    """Applies all rules to the facts, and sorts the findings by severity. Pure."""
    findings = [*access_findings(facts.access), *(finding for rule in RULES for finding in rule(facts))]
    findings.sort(key=lambda finding: ("problem", "advice", "note").index(finding.severity))
    return FleetDiagnosis(verdict=_verdict(facts, findings), findings=tuple(findings), facts=facts)


def _can_connect(access: ClusterAccess) -> bool:
    """Ray needs 20 s to find out that a token is wrong, and 80 for TLS, so it is not even tried."""
    without_token = access.demands_token and (access.token.source == "none" or access.token.accepted is False)
    tls_differs = access.tls is not None and access.tls is not access.tls_here
    return access.answered and not without_token and not tls_differs


def _verdict(facts: FleetFacts, findings: Iterable[Finding]) -> str:
    """Returns the report in one sentence: the cluster, its door, and the number of problems."""
    access = facts.access
    if not access.answered:
        return f"There is no cluster at {access.address}."
    problems = sum(finding.severity == "problem" for finding in findings)
    everyone = "everyone" if access.beyond_loopback else "all users of this machine"
    door = {True: "demands a token", False: f"is open to {everyone}", None: f"may be open to {everyone}"}
    nodes = facts.nodes.nodes
    size = f" of {len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}" if nodes else ""
    count = {0: "no problem was found", 1: "one problem was found"}.get(problems, f"{problems} problems were found")
    return f"The cluster{size} at {access.address} {door[access.demands_token]}; {count}."


def ray_missing(facts: FleetFacts) -> Iterator[Finding]:
    """Ray is not installed in this environment."""
    if facts.driver.ray is None:
        yield Finding(
            code="ray_missing",
            severity="problem",
            title="Ray is not installed here.",
            cause="Without it nothing can connect to a cluster, and its nodes were not looked at.",
            fix=(install_command("ray", "ray"),),
            about="ray",
        )


def nodes_not_seen(facts: FleetFacts) -> Iterator[Finding]:
    """This machine is no node of the cluster, or nodes did not answer."""
    if facts.nodes.not_a_node:
        yield Finding(
            code="not_a_node",
            severity="problem",
            title="This machine is not a node of the cluster.",
            cause="A program that uses a cluster talks to a Ray process on its own machine, and there is none. So the "
            "nodes were not looked at.",
            fix=(f"RAY_AUTH_MODE=token ray start --address={facts.access.address} --num-cpus=0 --num-gpus=0",),
            about=facts.access.address,
        )
    elif facts.nodes.problem:
        mismatch = "ersion mismatch" in facts.nodes.problem or "was started with" in facts.nodes.problem
        yield Finding(
            code="versions_refused" if mismatch else "cannot_connect",
            severity="problem",
            title="Ray refuses to connect because versions differ." if mismatch else "Ray could not connect.",
            cause=facts.nodes.problem,
            fix=("Use the cluster's image here too, or install exactly the Python and Ray that the message names.",)
            if mismatch
            else ("ray status --address " + facts.access.address + "   (Ray's own view, with its own message)",),
            about=facts.access.address,
        )
    for name, why in facts.nodes.failures.items():
        if _NO_MODULE in why:
            version = facts.driver.anygpu
            yield Finding(
                code="node_without_anygpu",
                severity="problem",
                title=f"{name} has no anygpu, or one that is too old.",
                cause=f"A task there failed: {why}",
                fix=(f"Install anygpu {version} and Ray on {name} or in its image, from the same source as here.",),
                about=name,
            )
        else:
            yield Finding(
                code="node_silent",
                severity="problem",
                title=f"{name} did not tell about itself.",
                cause=f"A task there failed: {why}",
                fix=(
                    "ray status   (does the node have room for a task?)",
                    f"tail /tmp/ray/session_latest/logs/raylet.err   (on {name})",
                ),
                about=name,
            )


def versions_differ(facts: FleetFacts) -> Iterator[Finding]:
    """One finding for each version that nodes have and the driver does not."""
    subjects: tuple[tuple[str, Callable[[Software], str | None], str, str], ...] = (
        (
            "Python",
            lambda each: each.python,
            "Ray demands the same version to the last digit, because it sends Python objects between processes.",
            "Use Python {} on them, or run all from one image (deploy/docker has a Dockerfile)",
        ),
        ("Ray", lambda each: each.ray, "Ray demands the same version everywhere.", "pip install 'ray=={}'"),
        (
            "anygpu",
            lambda each: each.anygpu,
            "Messages of another version may be refused.",
            "Install anygpu {} on them, from the same source as here",
        ),
    )
    for name, read, why, fix in subjects:
        here = read(facts.driver)
        others = dict.fromkeys(read(node.software) for node in facts.nodes.nodes)
        for version in others:
            if version == here or here is None:
                continue
            nodes = together(node.name for node in facts.nodes.nodes if read(node.software) == version)
            yield Finding(
                code=f"{name.lower()}_versions_differ",
                severity="problem",
                title=f"{name} is {here} here and {version} on {nodes}.",
                cause=why,
                fix=(f"{fix.format(here)}   (on {nodes})",),
                about=nodes,
            )


def clocks_differ(facts: FleetFacts) -> Iterator[Finding]:
    """Nodes whose clock is surely ahead of or behind ours."""
    for node in facts.nodes.nodes:
        surely = abs(node.clock_ahead) - node.clock_doubt
        if surely <= _SKEW_SECONDS:
            continue
        severity: Severity = "problem" if surely > _BROKEN_SKEW_SECONDS else "advice"
        way = "ahead of" if node.clock_ahead > 0 else "behind"
        yield Finding(
            code="clock_skew",
            severity=severity,
            title=f"The clock of {node.name} is {readable_seconds(abs(node.clock_ahead))} {way} this machine's.",
            cause="Times in logs and receipts of both cannot be compared"
            + (", and certificates may count as expired or not yet valid." if severity == "problem" else "."),
            fix=("sudo timedatectl set-ntp true && timedatectl status   (on both)",),
            about=node.name,
        )


def object_store_too_small(facts: FleetFacts) -> Iterator[Finding]:
    """Nodes whose object store is small, or does not fit into shared memory, so that Ray keeps it on disk."""
    on_disk = [node for node in facts.nodes.nodes if (node.shared_memory or node.object_store) < node.object_store]
    for (store, shared, container), names in _alike(on_disk, lambda n: (n.object_store, n.shared_memory, n.container)):
        wanted = f"{-(-store * 11 // 10 >> 30)}g"
        in_container = (
            f"docker run --shm-size={wanted} …   (compose: shm_size: {wanted})",
            "Kubernetes: an emptyDir with medium: Memory at /dev/shm, as in deploy/kuberay",
        )
        yield Finding(
            code="object_store_on_disk",
            severity="problem",
            title=f"The object store of {names} does not fit into /dev/shm.",
            cause=f"It has {readable_bytes(store)} and /dev/shm {readable_bytes(shared or 0)}, so Ray keeps arrays in "
            "files on a disk, which is many times slower.",
            fix=in_container if container else (f"sudo mount -o remount,size={wanted} /dev/shm   (on {names})",),
            about=names,
        )
    # No arrays travel through the store of a head that does no work.
    small = [node for node in facts.nodes.nodes if not node.head and 0 < node.object_store < _SMALL_STORE]
    for store, names in _alike(small, lambda node: node.object_store):
        yield Finding(
            code="object_store_small",
            severity="advice",
            title=f"The object store of {names} has only {readable_bytes(store)}.",
            cause="Arrays over 8 MB travel through it; what does not fit is written to disk.",
            fix=("ray start --object-store-memory=2000000000 …   (or more memory and /dev/shm for the container)",),
            about=names,
        )


def files_of_nodes(facts: FleetFacts) -> Iterator[Finding]:
    """Tokens and folders of nodes that other users can read."""
    tokens = [node for node in facts.nodes.nodes if node.token_file is not None]
    for file, names in _alike(tokens, lambda node: node.token_file):
        if file is not None:
            yield from private_file(file, code="token_readable", what="token", on=names)
    # A container has one user.
    folders = [each for each in facts.nodes.nodes if each.folder is not None and not each.container]
    for folder, names in _alike(folders, lambda node: node.folder):
        if folder is not None and folder.writable_by_others:
            yield Finding(
                code="folder_writable",
                severity="advice",
                title=f"Other users of {names} can write to Ray's folder.",
                cause=f"{folder.path} has mode {folder.mode:04o}, as Ray makes it. They can replace its sockets and "
                "change its logs.",
                fix=(f"chmod 700 {folder.path}   (on {names}; or --temp-dir below a folder of mode 0700)",),
                about=names,
            )


def open_ports(facts: FleetFacts) -> Iterator[Finding]:
    """Ports that other machines can reach. Where a token is demanded, only the metrics answer to everyone."""
    demanded = facts.access.demands_token
    for node in facts.nodes.nodes:
        ports = {name: port for name, port in node.ports.items() if not demanded or name == "metrics"}
        if not ports:
            continue
        listed = ", ".join(f"{name} {port}" for name, port in ports.items())
        yield Finding(
            code="metrics_open" if demanded else "open_ports",
            severity="note" if demanded else "problem",
            title=f"{node.name} answers everyone who can reach it: {listed}.",
            cause="Ray asks for no token at the metrics port: names of functions and actors can be read there."
            if demanded
            else "Ray listens on every address of the node, and asks for no token.",
            fix=(_firewall(sorted(ports.values())),),
            about=node.name,
        )


_Fact = TypeVar("_Fact")


def _alike(nodes: Iterable[NodeFacts], fact: Callable[[NodeFacts], _Fact]) -> Iterator[tuple[_Fact, str]]:
    """Each fact once, with the names of the nodes that share it: a hundred equal nodes are one finding."""
    names: dict[bytes, tuple[_Fact, list[str]]] = {}
    for node in nodes:
        names.setdefault(msgspec.json.encode(fact(node)), (fact(node), []))[1].append(node.name)
    for value, of in names.values():
        yield value, together(of)


def _firewall(ports: Iterable[int]) -> str:
    """Returns the command of nftables that closes the ports to other networks."""
    wanted = ", ".join(map(str, ports))
    return (
        f"sudo nft add rule inet filter input tcp dport '{{ {wanted} }}' ip saddr != NODES/24 drop   (with your "
        "nodes' network; in a cloud its security group, in Kubernetes the network policy of the template)"
    )


RULES: tuple[Callable[[FleetFacts], Iterator[Finding]], ...] = (
    ray_missing,
    nodes_not_seen,
    versions_differ,
    clocks_differ,
    object_store_too_small,
    files_of_nodes,
    open_ports,
)
