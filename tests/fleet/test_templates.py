"""The files that deploy a cluster: they parse, have the right form, agree with each other, and keep tokens closed."""

from __future__ import annotations

import configparser
import copy
import itertools
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from anygpu.errors import InvalidOption
from anygpu.fleet.templates import (
    FILES,
    LAST_PORT,
    PORTS,
    PRIVATE,
    VENDORS,
    TemplateOptions,
    Vendor,
    compose_files,
    kuberay_files,
    port_flags,
    render,
    systemd_files,
    write_files,
)
from tests.fleet.kubernetes import form_errors, pods, reference_errors

TOKEN, TENANT_TOKEN = "0123456789abcdef" * 4, "fedcba9876543210" * 4
#: Every vendor alone, all together, with and without spot machines.
CHOICES = [
    TemplateOptions(
        token=TOKEN,
        tenant_token=TENANT_TOKEN,
        vendors=vendors,
        spot=spot,
        gpus=2,
        min_workers=1,
        name="farm",
        namespace="team-a",
    )
    for vendors, spot in itertools.product([*((each,) for each in VENDORS), VENDORS], [False, True])
]
ALL = CHOICES[-1]


def documents(options: TemplateOptions) -> list[dict[str, Any]]:
    files = kuberay_files(options)
    texts = [text for name, text in files.items() if name.endswith(".yaml")]
    return [document for text in texts for document in yaml.safe_load_all(text)]


def of_kind(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(document for document in found if document["kind"] == kind)


def errors(found: list[dict[str, Any]]) -> list[str]:
    """What is wrong with the form of each, or else with what they say of each other."""
    return [error for document in found for error in form_errors(document)] or list(reference_errors(found))


@pytest.mark.parametrize("options", CHOICES, ids=lambda each: "-".join(each.vendors) + ("-spot" if each.spot else ""))
class TestKubeRay:
    def test_the_files_are_right(self, options: TemplateOptions) -> None:
        assert errors(documents(options)) == []

    def test_a_token_is_demanded(self, options: TemplateOptions) -> None:
        cluster = of_kind(documents(options), "RayCluster")
        assert cluster["spec"]["authOptions"] == {"mode": "token", "secretName": "farm-token"}
        assert cluster["spec"]["headGroupSpec"]["rayStartParams"]["dashboard-host"] == "127.0.0.1"
        # KubeRay refuses authOptions without a version.
        assert cluster["spec"]["rayVersion"]

    def test_pods_have_no_rights(self, options: TemplateOptions) -> None:
        for _, template in (pod for document in documents(options) for pod in pods(document)):
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

    def test_each_vendor_has_its_resource(self, options: TemplateOptions) -> None:
        groups = {
            each["groupName"]: each for each in of_kind(documents(options), "RayCluster")["spec"]["workerGroupSpecs"]
        }
        wanted = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "gpu.intel.com/i915"}
        assert set(groups) == {f"{v}{s}" for v in options.vendors for s in (["", "-spot"] if options.spot else [""])}
        for name, group in groups.items():
            vendor = name.removesuffix("-spot")
            (container,) = group["template"]["spec"]["containers"]
            cards = {key: value for key, value in container["resources"]["limits"].items() if "/" in key}
            assert cards == ({wanted[vendor]: "2"} if vendor in wanted else {})
            assert container["image"].endswith("-cuda") is (vendor == "nvidia")
            # KubeRay counts what ends in "gpu" by itself.
            assert ("num-gpus" in group["rayStartParams"]) is (vendor == "intel")

    def test_spot_machines_are_asked_for(self, options: TemplateOptions) -> None:
        for group in of_kind(documents(options), "RayCluster")["spec"]["workerGroupSpecs"]:
            spec = group["template"]["spec"]
            spot = group["groupName"].endswith("-spot")
            assert ("affinity" in spec) is spot
            assert group["labels"] == {"ray.io/market-type": "spot" if spot else "on-demand"}
            assert (group["minReplicas"], group["maxReplicas"]) == (0 if spot else 1, 4)
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
        _set("RayCluster.spec.authOptions.secretName", "farm-tokn"),
        "no secret 'farm-tokn'",
    ),
    "a key that is not there": (_set("Secret.stringData", {"token": TOKEN}), "with the key auth_token"),
    "a policy for no pod": (_set("NetworkPolicy.spec.podSelector", {"matchLabels": {"app": "rays"}}), "matches no pod"),
    "a volume that is not there": (_set(f"{_WORKER}.template.spec.volumes", []), "no volume 'tmp'"),
    "cards that are not requested": (_set(f"{_CONTAINER}.resources.requests.nvidia~com/gpu", "1"), "must be requested"),
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
        found = copy.deepcopy(documents(ALL))
        change(found)
        assert any(message in error for error in errors(found)), errors(found)


#: What a service may have, and may say, as the Compose Specification names it; only what we use.
SERVICE_KEYS = """
image user environment secrets networks init read_only tmpfs cap_drop security_opt ulimits restart stop_grace_period
command mem_limit shm_size healthcheck deploy devices group_add depends_on ports
"""


class TestCompose:
    @pytest.fixture(params=CHOICES[::2], ids=lambda each: "-".join(each.vendors))
    def compose(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        loaded = yaml.safe_load(compose_files(request.param)["compose.yaml"])
        assert isinstance(loaded, dict)
        return loaded

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

    def test_the_object_store_fits_into_shared_memory(self, compose: dict[str, Any]) -> None:
        for service in compose["services"].values():
            for argument in " ".join(service["command"]).split():
                if argument.startswith("--object-store-memory="):
                    assert int(argument.partition("=")[2]) < int(service["shm_size"].removesuffix("g")) << 30

    def test_cards(self) -> None:
        services = yaml.safe_load(compose_files(ALL)["compose.yaml"])["services"]
        reserved = services["worker-nvidia"]["deploy"]["resources"]["reservations"]["devices"]
        assert reserved == [{"driver": "nvidia", "count": 2, "capabilities": ["gpu"]}]
        assert services["worker-amd"]["devices"] == ["/dev/kfd", "/dev/dri"]
        assert services["worker-intel"]["devices"] == ["/dev/dri"]
        assert "--num-gpus=0" in services["worker-cpu"]["command"]


@pytest.mark.parametrize("memory", [4, 7, 16, 512])
def test_the_object_store_fits_into_the_memory(memory: int) -> None:
    options = msgspec.structs.replace(ALL, memory=memory)
    (cluster,) = yaml.safe_load_all(kuberay_files(options)["cluster.yaml"])
    head = cluster["spec"]["headGroupSpec"]
    for group, limit in [(head, 4), *((each, memory) for each in cluster["spec"]["workerGroupSpecs"])]:
        (shm,) = [each for each in group["template"]["spec"]["volumes"] if each["name"] == "shm"]
        size = int(shm["emptyDir"]["sizeLimit"].removesuffix("Gi"))
        # It is a part of the memory, and Ray goes to a disk if it is larger than /dev/shm.
        assert int(group["rayStartParams"]["object-store-memory"]) < size << 30
        assert size <= limit / 2
    for service in yaml.safe_load(compose_files(options)["compose.yaml"])["services"].values():
        assert int(service["shm_size"].removesuffix("g")) <= int(service["mem_limit"].removesuffix("g")) / 2
    worker = systemd_files(options)[f"{options.name}-worker.service"]
    assert f"--object-store-memory={options.store << 30} " in worker


def test_every_node_follows_its_head_within_seconds() -> None:
    name = "RAY_gcs_rpc_server_reconnect_timeout_s"
    documents = [*yaml.safe_load_all(kuberay_files(ALL)["cluster.yaml"])]
    documents += [each for each in yaml.safe_load_all(kuberay_files(ALL)["serve.yaml"]) if each["kind"] == "Deployment"]
    containers = [found for each in documents for found in _containers(each)]
    assert len(containers) > 2
    for container in containers:
        assert {"name": name, "value": "5"} in container["env"]
    for service in yaml.safe_load(compose_files(ALL)["compose.yaml"])["services"].values():
        assert service["environment"][name] == "5"
    for unit, text in systemd_files(ALL).items():
        assert unit.endswith(".service") == (f"\nEnvironment={name}=5\n" in text)


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
        text = systemd_files(ALL)[f"farm-{name}.service"]
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

    def test_every_unit_demands_the_token(self) -> None:
        for name, text in systemd_files(ALL).items():
            if name.endswith(".service"):
                assert "\nEnvironment=RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=%d/ray_token\n" in text

    def test_ports_are_in_one_range(self) -> None:
        files = systemd_files(TemplateOptions(token=TOKEN, tenant_token=TENANT_TOKEN, port=7000))
        (line,) = (line for line in files["anygpu-head.service"].splitlines() if line.startswith("ExecStart="))
        flags = [word for word in shlex.split(line) if "port=" in word]
        assert flags == port_flags(7000, head=True)
        assert all(7000 <= int(flag.partition("=")[2]) <= 7000 + LAST_PORT for flag in flags)
        assert f"tcp dport 7000-{7000 + LAST_PORT} ip saddr 10.0.0.0/24 accept" in files["anygpu.nft"]
        assert len(set(PORTS.values())) == len(PORTS)
        assert not {flag for flag in port_flags(7000, head=False) if flag.startswith(("--port", "--dashboard-port"))}


class TestDockerfiles:
    @pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
    def test_instructions(self, name: str) -> None:
        text = kuberay_files(ALL)[name].replace("\\\n", " ")
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
        files = kuberay_files(ALL)
        first = [line for line in files["Dockerfile"].splitlines() if line.startswith(("ARG PYTHON", "FROM"))]
        second = [line for line in files["Dockerfile.cuda"].splitlines() if line.startswith(("ARG PYTHON", "FROM"))]
        assert first == second == ["ARG PYTHON=3.12", "FROM python:${PYTHON}-slim-bookworm"]


class TestEndpoint:
    @pytest.mark.parametrize("kind", FILES)
    def test_it_is_python_and_serves_the_function(self, kind: Any) -> None:
        options = TemplateOptions(token=TOKEN, tenant_token=TENANT_TOKEN, function="shop.models:rank")
        text = FILES[kind](options)["endpoint.py"]
        compile(text, "endpoint.py", "exec")
        assert "from shop.models import rank\n" in text
        assert '{"rank": rank}' in text


class TestToken:
    @pytest.mark.parametrize("kind", FILES)
    def test_it_is_in_one_file_that_is_closed(self, kind: Any, tmp_path: Path) -> None:
        paths = write_files(tmp_path / "out", FILES[kind](ALL))
        holding = [path for path in paths if TOKEN in path.read_text() or TENANT_TOKEN in path.read_text()]
        assert holding == [path for path in paths if path.name in PRIVATE]
        assert holding
        for path in paths:
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode & 0o077 == 0 if path in holding else mode & 0o600 == 0o600

    def test_nothing_is_overwritten(self, tmp_path: Path) -> None:
        (tmp_path / "auth_token").write_text("in use")
        with pytest.raises(InvalidOption, match="auth_token exists already"):
            write_files(tmp_path, compose_files(ALL))
        assert [path.name for path in tmp_path.iterdir()] == ["auth_token"]

    def test_it_is_not_shown(self) -> None:
        assert TOKEN not in repr(ALL)
        with pytest.raises(InvalidOption) as refused:
            TemplateOptions(token="tooshort", tenant_token=TENANT_TOKEN)
        assert "tooshort" not in str(refused.value)

    def test_a_tenant_may_not_run_code(self) -> None:
        with pytest.raises(InvalidOption, match="must differ"):
            TemplateOptions(token=TOKEN, tenant_token=TOKEN)


class TestOptions:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"name": "My Cluster"},
            {"name": "a" * 41},
            {"namespace": "x: y"},
            {"image": "image: x\nkind: Pod"},
            {"function": "os.system('x')"},
            {"head": "head; reboot"},
            {"network": "10.0.0.1/24"},
            {"python": "latest"},
            {"vendors": ()},
            {"vendors": ("nvidia", "nvidia")},
            {"vendors": ("matrox",)},
            {"gpus": 0},
            {"memory": 1},
            {"min_workers": 5, "max_workers": 4},
            {"port": 80},
            {"port": 65500},
        ],
        ids=str,
    )
    def test_what_would_break_a_file_is_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(InvalidOption, match=next(iter(wrong))):
            TemplateOptions(token=TOKEN, tenant_token=TENANT_TOKEN, **wrong)

    def test_a_hole_without_a_value(self) -> None:
        with pytest.raises(KeyError):
            render("kuberay/namespace.yaml", {})


class TestCommand:
    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "anygpu", "fleet", "template", *arguments],
            capture_output=True,
            check=False,
            encoding="utf-8",
            timeout=60,
        )

    def test_it_writes_and_names_the_files(self, tmp_path: Path) -> None:
        result = self.run("kuberay", "--out", str(tmp_path / "k"), "--vendor", "amd", "--vendor", "cpu", "--spot")
        assert (result.returncode, result.stderr) == (0, "")
        written = sorted(path.name for path in (tmp_path / "k").iterdir())
        assert sorted(Path(line.split("   ")[0]).name for line in result.stdout.splitlines()) == written
        secret = next(yaml.safe_load_all((tmp_path / "k" / "token.yaml").read_text()))["stringData"]["auth_token"]
        assert len(secret) == 64
        assert secret not in result.stdout
        groups = yaml.safe_load((tmp_path / "k" / "cluster.yaml").read_text())["spec"]["workerGroupSpecs"]
        vendors: list[Vendor | str] = [group["groupName"] for group in groups]
        assert vendors == ["amd", "amd-spot", "cpu", "cpu-spot"]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [(("helm",), "'helm' is no kind of template"), (("systemd", "--vendor", "x"), "vendors are among")],
    )
    def test_mistakes(self, arguments: tuple[str, ...], message: str) -> None:
        result = self.run(*arguments)
        assert (result.returncode, result.stdout) == (1, "")
        assert message in result.stderr
