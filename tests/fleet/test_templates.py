"""The files in deploy/: they parse, have the right form, agree with each other, and keep tokens closed."""

from __future__ import annotations

import configparser
import copy
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fleet.heads import FIRST_PORT, LAST_PORT, PORTS
from tests.fleet.kubernetes import form_errors, pods, reference_errors

DEPLOY = Path(__file__).parents[2] / "deploy"
VENDORS = ("nvidia", "amd", "intel", "cpu")
GROUPS = ("nvidia", "nvidia-spot", "amd", "intel", "cpu")
TOKEN = "0123456789abcdef" * 4


def text_of(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def kustomization() -> dict[str, Any]:
    found = yaml.safe_load(text_of("kuberay/kustomization.yaml"))
    assert isinstance(found, dict)
    return found


def documents(groups: Sequence[str]) -> list[dict[str, Any]]:
    """What `kubectl apply -k` would apply with these groups of workers."""
    root = kustomization()
    found = [root]
    for name in root["resources"]:
        found += yaml.safe_load_all(text_of(f"kuberay/{name}"))
    for group in groups:
        for patch in yaml.safe_load(text_of(f"kuberay/workers-{group}.yaml")):
            assert (patch["op"], patch["path"]) == ("add", "/spec/workerGroupSpecs/-")
            of_kind(found, "RayCluster")["spec"]["workerGroupSpecs"].append(patch["value"])
    for secret in root["secretGenerator"]:
        data = dict.fromkeys(secret["files"], TOKEN)
        name = {"name": secret["name"]}
        found.append({"apiVersion": "v1", "kind": "Secret", "metadata": name, "type": "Opaque", "stringData": data})
    return found


def of_kind(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(document for document in found if document["kind"] == kind)


def errors(found: list[dict[str, Any]]) -> list[str]:
    """What is wrong with the form of each, or else with what they say of each other."""
    return [error for document in found for error in form_errors(document)] or list(reference_errors(found))


class TestKubeRay:
    @pytest.mark.parametrize("groups", [*((group,) for group in GROUPS), GROUPS], ids="-".join)
    def test_the_files_are_right(self, groups: Sequence[str]) -> None:
        assert errors(documents(groups)) == []

    def test_every_group_is_named_and_one_is_in_use(self) -> None:
        lines = re.findall(r"^  (# )?- \{path: workers-([a-z-]+)\.yaml, target: \{kind: RayCluster\}\}$",
                           text_of("kuberay/kustomization.yaml"), re.M)  # fmt: skip
        assert [name for _, name in lines] == list(GROUPS)
        assert [name for comment, name in lines if not comment] == ["nvidia"]
        assert [patch["path"] for patch in kustomization()["patches"]] == ["workers-nvidia.yaml"]
        assert {path.name for path in (DEPLOY / "kuberay").glob("workers-*")} == {f"workers-{g}.yaml" for g in GROUPS}

    def test_kubectl_takes_them(self, tmp_path: Path) -> None:
        kubectl = shutil.which("kubectl")
        if kubectl is None:
            pytest.skip("kubectl is not there")
        folder = shutil.copytree(DEPLOY / "kuberay", tmp_path / "farm")
        root = folder / "kustomization.yaml"
        root.write_text(root.read_text().replace("  # - {path", "  - {path"))
        (folder / "auth_token").write_text(TOKEN)
        (folder / "tenants").write_text(f"default {TOKEN[::-1]}\n")
        done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
        applied = {document["kind"]: document for document in yaml.safe_load_all(done.stdout)}
        assert {document["kind"] for document in documents(GROUPS)} - applied.keys() == {"Kustomization"}
        assert applied["RayCluster"]["metadata"] == {"name": "anygpu", "namespace": "anygpu"}
        assert [group["groupName"] for group in applied["RayCluster"]["spec"]["workerGroupSpecs"]] == list(GROUPS)

    def test_a_token_is_demanded_and_none_is_in_the_files(self) -> None:
        cluster = of_kind(documents(GROUPS), "RayCluster")
        assert cluster["spec"]["authOptions"] == {"mode": "token", "secretName": "anygpu-token"}
        assert cluster["spec"]["headGroupSpec"]["rayStartParams"]["dashboard-host"] == "127.0.0.1"
        assert kustomization()["generatorOptions"] == {"disableNameSuffixHash": True}
        assert not {"auth_token", "tenants"} & {path.name for path in DEPLOY.rglob("*")}
        assert {"auth_token", "tenants"} <= set(text_of(".gitignore").split())

    def test_ray_has_the_version_that_is_tested(self) -> None:
        # KubeRay refuses authOptions without a version, and all nodes need the same one.
        assert of_kind(documents(GROUPS), "RayCluster")["spec"]["rayVersion"] == version("ray")
        for name in ("docker/Dockerfile", "docker/Dockerfile.cuda", "systemd/anygpu-head.service"):
            assert f"ray[default]=={version('ray')}" in text_of(name)

    def test_pods_have_no_rights(self) -> None:
        for _, template in (pod for document in documents(GROUPS) for pod in pods(document)):
            security = template["spec"]["securityContext"]
            assert security["runAsNonRoot"]
            assert security["seccompProfile"] == {"type": "RuntimeDefault"}
            for container in template["spec"]["containers"]:
                assert container["securityContext"] == {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                }
                # A read-only root needs another place for temporary files.
                assert {"/tmp"} <= {mount["mountPath"] for mount in container["volumeMounts"]}

    def test_each_vendor_has_its_resource(self) -> None:
        wanted = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "gpu.intel.com/i915"}
        for group in of_kind(documents(GROUPS), "RayCluster")["spec"]["workerGroupSpecs"]:
            vendor = group["groupName"].removesuffix("-spot")
            (container,) = group["template"]["spec"]["containers"]
            cards = {key: value for key, value in container["resources"]["limits"].items() if "/" in key}
            assert cards == ({wanted[vendor]: "1"} if vendor in wanted else {})
            assert container["image"] == "registry.example/anygpu:1" + ("-cuda" if vendor == "nvidia" else "")
            # KubeRay counts what ends in "gpu" by itself.
            assert ("num-gpus" in group["rayStartParams"]) is (vendor == "intel")

    def test_spot_machines_are_asked_for(self) -> None:
        for group in of_kind(documents(GROUPS), "RayCluster")["spec"]["workerGroupSpecs"]:
            spec = group["template"]["spec"]
            spot = group["groupName"].endswith("-spot")
            assert ("affinity" in spec) is spot
            assert group["labels"] == {"ray.io/market-type": "spot" if spot else "on-demand"}
            assert (group["minReplicas"], group["maxReplicas"]) == (0, 4)
            tolerated = {each["key"] for each in spec.get("tolerations", [])}
            assert ("kubernetes.azure.com/scalesetpriority" in tolerated) is spot


def _set(path: str, value: object) -> Callable[[list[dict[str, Any]]], None]:
    """Changes one place: `RayCluster.spec.rayVersion`; without a value it is removed."""

    def change(found: list[dict[str, Any]]) -> None:
        kind, *steps, last = path.split(".")
        place: Any = of_kind(found, kind)
        for step in steps:
            place = place[int(step)] if isinstance(place, list) else place[step.replace("~", ".")]
        if value is None:
            del place[last]
        else:
            place[last.replace("~", ".")] = value

    return change


_WORKER = "RayCluster.spec.workerGroupSpecs.0"
_CONTAINER = f"{_WORKER}.template.spec.containers.0"

#: Mistakes that people make, and what is said about each.
MISTAKES: dict[str, tuple[Callable[[list[dict[str, Any]]], None], str]] = {
    "a misspelt field": (
        _set("RayCluster.spec.enableInTreeAutoScaling", True),
        "'enableInTreeAutoScaling' was unexpected",
    ),
    "a misspelt field of a container": (_set(f"{_CONTAINER}.securitycontext", {}), "'securitycontext' was unexpected"),
    "text for a number": (_set(f"{_WORKER}.replicas", "1"), "'1' is not of type 'integer'"),
    "a number for text": (
        _set("RayCluster.spec.headGroupSpec.rayStartParams.num-cpus", 0),
        "0 is not of type 'string'",
    ),
    "a required field is missing": (_set(f"{_WORKER}.maxReplicas", None), "'maxReplicas' is a required property"),
    "an unknown mode": (_set("RayCluster.spec.authOptions.mode", "tokens"), "'tokens' is not one of"),
    "no quantity": (_set(f"{_CONTAINER}.resources.limits.memory", "16 GB"), "'16 GB' is not valid"),
    "a list for an object": (_set(f"{_CONTAINER}.resources", []), "[] is not of type 'object'"),
    "another version": (_set("RayCluster.apiVersion", "ray.io/v1alpha1"), "'ray.io/v1' was expected"),
    "a name that is no name": (_set("RayCluster.metadata.name", "My Cluster"), "does not match"),
    "a misspelt field of a policy": (_set("NetworkPolicy.spec.ingres", []), "'ingres' was unexpected"),
    "a misspelt probe": (
        _set("Deployment.spec.template.spec.containers.0.livenessProbe.httpget", {}),
        "'httpget' was unexpected",
    ),
    "a service without ports": (_set("Service.spec.ports.0.port", None), "'port' is a required property"),
    "a secret that is not there": (
        _set("RayCluster.spec.authOptions.secretName", "anygpu-tokn"),
        "no secret 'anygpu-tokn'",
    ),
    "a key that is not there": (_set("Secret.stringData", {"token": TOKEN}), "with the key auth_token"),
    "a policy for no pod": (_set("NetworkPolicy.spec.podSelector", {"matchLabels": {"app": "rays"}}), "matches no pod"),
    "a volume that is not there": (_set(f"{_WORKER}.template.spec.volumes", []), "no volume 'tmp'"),
    "cards that are not requested": (_set(f"{_CONTAINER}.resources.requests.nvidia~com/gpu", "2"), "must be requested"),
    "a secret to mount that is not there": (
        _set("Deployment.spec.template.spec.volumes.2.secret.secretName", "tenant"),
        "no secret 'tenant'",
    ),
    "a probe of no port": (_set("Deployment.spec.template.spec.containers.0.ports.0.name", "web"), "a port 'http'"),
}


class TestMistakesAreFound:
    @pytest.mark.sampled(gate=2)
    @pytest.mark.parametrize("name", MISTAKES)
    def test_each(self, name: str) -> None:
        change, message = MISTAKES[name]
        found = copy.deepcopy(documents(GROUPS))
        change(found)
        assert any(message in error for error in errors(found)), errors(found)


#: What a service may have, and may say, as the Compose Specification names it; only what we use.
SERVICE_KEYS = """
image user environment secrets networks init read_only tmpfs cap_drop security_opt ulimits restart stop_grace_period
command mem_limit shm_size healthcheck deploy devices group_add depends_on ports profiles
"""


@pytest.fixture
def compose() -> dict[str, Any]:
    loaded = yaml.safe_load(text_of("compose/compose.yaml"))
    assert isinstance(loaded, dict)
    return loaded


class TestCompose:
    def test_every_service_is_closed(self, compose: dict[str, Any]) -> None:
        for name, service in compose["services"].items():
            assert set(service) <= set(SERVICE_KEYS.split())
            assert service["environment"]["RAY_AUTH_MODE"] == "token"
            assert service["environment"]["RAY_AUTH_TOKEN_PATH"] == "/run/secrets/ray_token"
            assert service["secrets"] == (["ray_token", "tenants"] if name == "serve" else ["ray_token"])
            assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
            assert service["security_opt"] == ["no-new-privileges:true"]
            assert set(service["networks"]) <= set(compose["networks"])
            assert all(each in compose["services"] for each in service.get("depends_on", {}))
            assert service["healthcheck"]["test"][0] == "CMD"
            # Only the endpoint is seen from outside, and only from this machine.
            assert service.get("ports", []) == (["127.0.0.1:8000:8000"] if name == "serve" else [])
        assert compose["networks"]["inside"] == {"internal": True}
        assert compose["secrets"] == {"ray_token": {"file": "./auth_token"}, "tenants": {"file": "./tenants"}}

    def test_cards(self, compose: dict[str, Any]) -> None:
        services = compose["services"]
        reserved = services["worker-nvidia"]["deploy"]["resources"]["reservations"]["devices"]
        assert reserved == [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]
        assert services["worker-amd"]["devices"] == ["/dev/kfd", "/dev/dri"]
        assert services["worker-intel"]["devices"] == ["/dev/dri"]
        assert "--num-gpus=0" in services["worker-cpu"]["command"]
        for name, service in services.items():
            vendor = name.removeprefix("worker-")
            assert service["image"] == "anygpu:1" + ("-cuda" if vendor == "nvidia" else "")
            assert service.get("profiles") == ([vendor] if vendor in VENDORS else None)


def test_the_object_store_fits_into_the_memory(compose: dict[str, Any]) -> None:
    """It is a part of the memory, and Ray goes to a disk if it is larger than /dev/shm."""
    cluster = of_kind(documents(GROUPS), "RayCluster")["spec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        spec = group["template"]["spec"]
        (shm,) = [each for each in spec["volumes"] if each["name"] == "shm"]
        size = int(shm["emptyDir"]["sizeLimit"].removesuffix("Gi"))
        assert int(group["rayStartParams"]["object-store-memory"]) < size << 30
        assert size <= int(spec["containers"][0]["resources"]["limits"]["memory"].removesuffix("Gi")) / 2
    for service in compose["services"].values():
        size = int(service["shm_size"].removesuffix("g"))
        (store,) = re.findall(r"--object-store-memory=(\d+)", " ".join(service["command"]))
        assert int(store) < size << 30
        assert size <= int(service["mem_limit"].removesuffix("g")) / 2
    worker = text_of("systemd/anygpu-worker.service")
    assert "--object-store-memory=4294967296 " in worker
    assert "\nMemoryMax=16G\n" in worker


def test_every_node_follows_its_head_within_seconds(compose: dict[str, Any]) -> None:
    name = "RAY_gcs_rpc_server_reconnect_timeout_s"
    containers = [found for each in documents(GROUPS) for found in _containers(each)]
    assert len(containers) > 2
    for container in containers:
        assert {"name": name, "value": "5"} in container["env"]
    for service in compose["services"].values():
        assert service["environment"][name] == "5"
    for unit in (DEPLOY / "systemd").iterdir():
        assert (unit.suffix == ".service") == (f"\nEnvironment={name}=5\n" in unit.read_text())


def _containers(value: Any) -> list[dict[str, Any]]:
    """Every container of a document."""
    if isinstance(value, list):
        return [found for each in value for found in _containers(each)]
    if not isinstance(value, dict):
        return []
    return [*value.get("containers", []), *(found for each in value.values() for found in _containers(each))]


#: Directives of systemd that our units use: a misspelt one is ignored by systemd with a warning that nobody reads.
DIRECTIVES = {
    "Unit": "Description Documentation Wants After",
    "Service": """
        ExecStart Environment LoadCredential User Group CacheDirectory CacheDirectoryMode UMask Restart RestartSec
        KillMode TimeoutStopSec LimitNOFILE OOMPolicy NoNewPrivileges CapabilityBoundingSet AmbientCapabilities
        ProtectSystem ProtectHome PrivateTmp ProtectClock ProtectHostname ProtectKernelLogs ProtectKernelModules
        ProtectKernelTunables ProtectControlGroups ProtectProc RestrictAddressFamilies RestrictNamespaces
        RestrictRealtime RestrictSUIDSGID LockPersonality RemoveIPC SystemCallArchitectures SystemCallFilter
        PrivateDevices SupplementaryGroups MemoryMax
    """,
    "Install": "WantedBy",
}


class TestSystemd:
    @pytest.mark.parametrize("name", ["head", "worker", "serve"])
    def test_units(self, name: str) -> None:
        unit = configparser.RawConfigParser(
            strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",)
        )
        unit.optionxform = str  # type: ignore[assignment, method-assign]
        text = text_of(f"systemd/anygpu-{name}.service")
        unit.read_string(text)
        assert set(unit.sections()) == set(DIRECTIVES)
        for section, known in DIRECTIVES.items():
            assert set(unit[section]) <= set(known.split())
        service = unit["Service"]
        assert service["LoadCredential"] == "ray_token:/etc/anygpu/auth_token"
        assert ("LoadCredential=tenants:/etc/anygpu/tenants" in text) is (name == "serve")
        assert service["NoNewPrivileges"] == service["ProtectHome"] == service["PrivateTmp"] == "yes"
        assert (service["ProtectSystem"], service["CacheDirectoryMode"], service["User"]) == (
            "strict",
            "0700",
            "anygpu",
        )
        assert "\nEnvironment=RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=%d/ray_token\n" in text

    def test_ports_are_in_one_range(self) -> None:
        def flags(name: str) -> dict[str, int]:
            (line,) = re.findall(r"^ExecStart=(.*)$", text_of(f"systemd/anygpu-{name}.service"), re.M)
            words = [word.removeprefix("--").split("=") for word in shlex.split(line) if "port=" in word]
            return {flag: int(port) for flag, port in words}

        assert len(set(PORTS.values())) == len(PORTS)
        assert all(FIRST_PORT <= port <= LAST_PORT for port in PORTS.values())
        only_head = {"port", "ray-client-server-port", "dashboard-port"}
        assert flags("worker") == {name: port for name, port in flags("head").items() if name not in only_head}
        assert f"tcp dport {FIRST_PORT}-{LAST_PORT} ip saddr 10.0.0.0/24 accept" in text_of("systemd/anygpu.nft")
        for name in ("worker", "serve"):
            assert f"head.internal:{FIRST_PORT}" in text_of(f"systemd/anygpu-{name}.service")


class TestDockerfiles:
    @pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
    def test_instructions(self, name: str) -> None:
        text = text_of(f"docker/{name}").replace("\\\n", " ")
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        words = [line.split()[0] for line in lines]
        assert set(words) == {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "USER", "ENV"}
        # Kubernetes can tell only from a number that a user is not root.
        assert "USER 1000:1000" in lines
        assert words.index("USER") > max(index for index, word in enumerate(words) if word == "RUN")
        assert all("rm -rf /var/lib/apt/lists" in line for line in lines if "apt-get" in line)
        for line in (line for line in lines if line.startswith("RUN")):
            subprocess.run(["sh", "-n", "-c", line.removeprefix("RUN ")], check=True)

    def test_both_have_the_same_python(self) -> None:
        first, second = (
            [line for line in text_of(f"docker/{name}").splitlines() if line.startswith(("ARG PYTHON", "FROM"))]
            for name in ("Dockerfile", "Dockerfile.cuda")
        )
        assert first == second == ["ARG PYTHON=3.12", "FROM python:${PYTHON}-slim-bookworm"]


def test_the_endpoint_is_python_and_serves_the_function() -> None:
    text = text_of("docker/endpoint.py")
    compile(text, "endpoint.py", "exec")
    assert "from service import score" in text
    assert '{"score": score}' in text
