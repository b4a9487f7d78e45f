"""The fleet's doctor: every rule on facts, and the whole of it on real Ray heads."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

import msgspec
import pytest

from anygpu.errors import InsecureCluster
from anygpu.fleet.access import observe_access
from anygpu.fleet.doctor import FleetDiagnosis, FleetFacts, NodeFacts, NodesSeen, Software, diagnose_fleet
from anygpu.fleet.security import FileMode, check_access
from tests.fleet.heads import Head, running_head
from tests.fleet.test_security import GOOD

SOFTWARE = Software(python="3.12.4", ray="2.60.0", anygpu="1.0")
HEAD = NodeFacts(
    name="head (10.0.0.1)",
    head=True,
    software=SOFTWARE,
    clock_ahead=0.002,
    clock_doubt=0.004,
    shared_memory=8 << 30,
    object_store=200 << 20,
    folder=FileMode(path="/var/cache/anygpu", mode=0o700),
    token_file=FileMode(path="/run/credentials/ray_token", mode=0o400),
)
WORKER = msgspec.structs.replace(HEAD, name="worker (10.0.0.2)", head=False, object_store=4 << 30)


def facts(*nodes: NodeFacts, **changes: object) -> FleetFacts:
    whole = FleetFacts(access=GOOD, driver=SOFTWARE, nodes=NodesSeen(nodes=nodes or (HEAD, WORKER)))
    return msgspec.structs.replace(whole, **changes)


def worker(**changes: object) -> FleetFacts:
    return facts(HEAD, msgspec.structs.replace(WORKER, **changes))


def software(**changes: object) -> Software:
    return msgspec.structs.replace(SOFTWARE, **changes)


OPEN = msgspec.structs.replace(GOOD, demands_token=False)
PORTS = {"node manager": 6380, "metrics": 6385}

#: Facts with one fault, the finding, its severity and a part of its fix.
FAULTS: list[tuple[FleetFacts, str, str, str]] = [
    (facts(driver=software(ray=None)), "ray_missing", "problem", "pip install ray grpcio"),
    (worker(software=software(python="3.12.5")), "python_versions_differ", "problem", "Python 3.12.4"),
    (worker(software=software(ray="2.59.0")), "ray_versions_differ", "problem", "pip install 'ray==2.60.0'"),
    (worker(software=software(anygpu="0.9")), "anygpu_versions_differ", "problem", "Install anygpu 1.0"),
    (worker(clock_ahead=2.5), "clock_skew", "advice", "timedatectl"),
    (worker(clock_ahead=-400.0), "clock_skew", "problem", "timedatectl"),
    (worker(shared_memory=64 << 20), "object_store_on_disk", "problem", "remount,size=5g /dev/shm"),
    (worker(shared_memory=64 << 20, container=True), "object_store_on_disk", "problem", "--shm-size=5g"),
    (worker(object_store=80 << 20), "object_store_small", "advice", "--object-store-memory"),
    (worker(token_file=FileMode(path="/t", mode=0o644)), "token_readable", "problem", "chmod 600 /t   (on worker"),
    (worker(folder=FileMode(path="/tmp/ray", mode=0o777)), "folder_writable", "advice", "chmod 700 /tmp/ray"),
    (worker(ports=PORTS), "metrics_open", "note", "{ 6385 }"),
    (
        facts(nodes=NodesSeen(problem="Failed to connect to Ray cluster at node-1:6379")),
        "cannot_connect",
        "problem",
        "ray status",
    ),
    (
        facts(nodes=NodesSeen(problem="no process here", not_a_node=True)),
        "not_a_node",
        "problem",
        "ray start --address=node-1:6379 --num-cpus=0",
    ),
    (
        facts(nodes=NodesSeen(problem="Version mismatch: The cluster was started with: Ray: 2.59.0 Python: 3.12.4")),
        "versions_refused",
        "problem",
        "exactly the Python and Ray",
    ),
    (
        facts(nodes=NodesSeen(nodes=(HEAD,), failures={"w": "ModuleNotFoundError: No module named 'anygpu.fleet'"})),
        "node_without_anygpu",
        "problem",
        "Install anygpu 1.0 and Ray on w",
    ),
    (facts(nodes=NodesSeen(nodes=(HEAD,), failures={"w": "timeout"})), "node_silent", "problem", "raylet.err"),
]


class TestRules:
    def test_nothing_is_wrong(self) -> None:
        diagnosis = diagnose_fleet(facts())
        assert diagnosis.findings == ()
        assert diagnosis.verdict == "The cluster of 2 nodes at node-1:6379 demands a token; no problem was found."

    @pytest.mark.parametrize(("seen", "code", "severity", "fix"), FAULTS, ids=[f"{f[1]}-{f[2]}" for f in FAULTS])
    def test_each_fault_is_one_finding(self, seen: FleetFacts, code: str, severity: str, fix: str) -> None:
        (finding,) = diagnose_fleet(seen).findings
        assert (finding.code, finding.severity) == (code, severity)
        assert fix in "\n".join(finding.fix)
        assert finding.cause
        assert finding.about

    def test_open_ports_of_an_open_cluster(self) -> None:
        seen = msgspec.structs.replace(worker(ports=PORTS), access=OPEN)
        found = {finding.code: finding for finding in diagnose_fleet(seen).findings}
        assert set(found) == {"no_token_demanded", "open_ports"}
        assert found["open_ports"].severity == "problem"
        assert "6380, 6385" in found["open_ports"].fix[0]

    def test_the_worst_comes_first(self) -> None:
        seen = worker(clock_ahead=2.0, ports=PORTS, software=software(ray="1.0"))
        assert [each.severity for each in diagnose_fleet(seen).findings] == ["problem", "advice", "note"]

    def test_a_doubtful_clock_is_no_finding(self) -> None:
        assert diagnose_fleet(worker(clock_ahead=3.0, clock_doubt=2.5)).findings == ()

    def test_equal_nodes_are_one_finding(self) -> None:
        many = [
            msgspec.structs.replace(WORKER, name=f"w{n}", shared_memory=1 << 20, folder=FileMode(path="/r", mode=0o777))
            for n in range(100)
        ]
        findings = diagnose_fleet(facts(*many)).findings
        assert [each.code for each in findings] == ["object_store_on_disk", "folder_writable"]
        assert "w0, w1" in findings[0].title
        assert "w99" in findings[0].title

    def test_a_container_has_one_user(self) -> None:
        assert diagnose_fleet(worker(folder=FileMode(path="/tmp/ray", mode=0o777), container=True)).findings == ()

    @pytest.mark.parametrize(
        ("access", "verdict"),
        [
            ({"demands_token": False}, "is open to everyone; one problem was found."),
            (
                {"demands_token": False, "beyond_loopback": False},
                "is open to all users of this machine; no problem was found.",
            ),
            ({"demands_token": None}, "may be open to everyone; one problem was found."),
        ],
    )
    def test_the_verdict(self, access: dict[str, object], verdict: str) -> None:
        seen = facts(access=msgspec.structs.replace(GOOD, **access))
        assert diagnose_fleet(seen).verdict.endswith(verdict)

    def test_no_cluster(self) -> None:
        seen = facts(access=msgspec.structs.replace(GOOD, answered=False, demands_token=None), nodes=NodesSeen())
        assert diagnose_fleet(seen).verdict == "There is no cluster at node-1:6379."

    def test_json(self) -> None:
        diagnosis = diagnose_fleet(worker(clock_ahead=2.0))
        assert msgspec.json.decode(diagnosis.to_json(), type=FleetDiagnosis) == diagnosis
        assert next(iter(json.loads(diagnosis.to_json()))) == "schema"


@pytest.fixture(scope="class")
def guarded() -> Iterator[Head]:
    """As our systemd unit starts it."""
    with running_head(with_token=True) as head:
        yield head


@pytest.fixture(scope="class")
def unguarded() -> Iterator[Head]:
    with running_head(with_token=False) as head:
        yield head


def doctor(head: Head, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "anygpu", "fleet", "doctor"),
            *("--address", head.address, "--dashboard", head.dashboard, *arguments),
        ],
        env=head.environment | {"COLUMNS": "200", "PYTHONUTF8": "1"} | variables,
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=120,
    )


def submit_job(head: Head, entrypoint: str, token: str | None = None) -> int:
    """The attack: one request to the dashboard runs a command on the head. Returns the status of the answer."""
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    body = json.dumps({"entrypoint": entrypoint}).encode()
    request = urllib.request.Request(f"{head.dashboard}/api/jobs/", data=body, headers=headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.full
class TestWithToken:
    def test_the_head_itself_says_so(self, guarded: Head) -> None:
        for dashboard in (guarded.dashboard, "http://127.0.0.1:1"):
            access = observe_access(guarded.address, dashboard=dashboard, environment=guarded.environment)
            assert (access.answered, access.demands_token, access.tls) == (True, True, False)
            assert access.token.accepted is None, "there is none"

    def test_it_is_not_refused(self, guarded: Head) -> None:
        environment = guarded.environment | {"RAY_AUTH_TOKEN_PATH": str(guarded.token_file), "RAY_AUTH_MODE": "token"}
        admission = check_access(guarded.address, dashboard=guarded.dashboard, environment=environment)
        assert [finding.code for finding in admission.findings if finding.severity == "problem"] == []
        assert (admission.address, admission.variables) == (guarded.address, {"RAY_AUTH_MODE": "token"})

    def test_a_wrong_token_is_told(self, guarded: Head) -> None:
        environment = guarded.environment | {"RAY_AUTH_TOKEN": "f" * 64}
        access = observe_access(guarded.address, dashboard=guarded.dashboard, environment=environment)
        assert access.token.accepted is False

    def test_jobs_of_strangers_are_refused(self, guarded: Head) -> None:
        trace = guarded.folder / "a-stranger-was-here"
        assert submit_job(guarded, f"touch {trace}") == 401
        assert submit_job(guarded, f"touch {trace}", token="f" * 64) == 403
        assert not trace.exists()

    def test_the_doctor_finds_no_problem(self, guarded: Head) -> None:
        result = doctor(guarded, "--json", RAY_AUTH_TOKEN_PATH=str(guarded.token_file))
        diagnosis = msgspec.json.decode(result.stdout, type=FleetDiagnosis)
        assert (diagnosis.problems, result.returncode) == ((), 0)
        (node,) = diagnosis.facts.nodes.nodes
        assert node.head
        assert node.software == diagnosis.facts.driver
        assert abs(node.clock_ahead) <= node.clock_doubt + 0.1, "it is the same clock"
        assert node.object_store == 500_000_000
        assert node.folder == FileMode(path=str(guarded.folder), mode=0o700), "Ray's own folder lies in a closed one"
        assert node.token_file == FileMode(path=str(guarded.token_file), mode=0o600)
        assert guarded.token not in result.stdout

    def test_the_doctor_without_a_token(self, guarded: Head) -> None:
        result = doctor(guarded)
        assert result.returncode == 1
        assert "Problem: This machine has no token for the cluster." in result.stdout
        assert "→ (umask 077; ssh HEAD cat .ray/auth_token" in result.stdout


@pytest.mark.full
class TestWithoutToken:
    def test_it_is_refused(self, unguarded: Head) -> None:
        # The head was started for 127.0.0.1 and listens on every address all the same.
        with pytest.raises(InsecureCluster, match="demands no token"):
            check_access(unguarded.address, dashboard=unguarded.dashboard, environment=unguarded.environment)

    def test_unless_the_caller_says_so(self, unguarded: Head) -> None:
        admission = check_access(
            unguarded.address, dashboard=unguarded.dashboard, environment=unguarded.environment, insecure=True
        )
        assert "no_token_demanded" in {finding.code for finding in admission.findings}
        assert admission.variables == {}

    def test_jobs_of_strangers_are_accepted(self, unguarded: Head) -> None:
        assert submit_job(unguarded, "true") == 200, "otherwise the refusal above would prove nothing"

    def test_the_doctor_says_how_to_close_it(self, unguarded: Head) -> None:
        result = doctor(unguarded)
        assert result.returncode == 1
        assert "is open to everyone" in result.stdout
        assert "→ export RAY_AUTH_MODE=token" in result.stdout
