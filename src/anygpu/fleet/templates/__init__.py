"""The files of each kind of deployment, as texts; and writing them.

`TemplateOptions` is what can be chosen, and checks it: everything ends up in a file, and no text is quoted. One
function for each kind of deployment returns file names and texts, from the templates beside this module. Only
`write_files` touches a disk.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from textwrap import indent
from typing import Literal, get_args

import msgspec

from anygpu.base.version import __version__
from anygpu.errors import InvalidOption

# -- what can be chosen of a deployment. Everything that ends up in a file is checked here, so no text needs quoting


Vendor = Literal["nvidia", "amd", "intel", "cpu"]
VENDORS: tuple[Vendor, ...] = get_args(Vendor)

#: The Ray that anygpu is tested with. All nodes need the same one.
RAY_VERSION = "2.60.0"

#: The resource names of each vendor's cards in Kubernetes.
KUBERNETES_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "gpu.intel.com/i915"}

#: KubeRay shortens names over 50 characters; ours get suffixes.
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
_IMAGE = re.compile(r"[a-z0-9][-A-Za-z0-9._/:@]*")
_HOST = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_PYTHON = re.compile(r"3\.\d+(\.\d+)?")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,}")


class TemplateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment. Its tokens have no defaults, and `repr` hides them."""

    #: Lets whoever has it run any code on every node.
    token: str
    #: Lets whoever has it use the endpoint, as the tenant `default`.
    tenant_token: str
    name: str = "anygpu"
    namespace: str = "anygpu"
    image: str = f"anygpu:{__version__.replace('+', '-')}"
    vendors: tuple[Vendor, ...] = ("nvidia",)
    #: Cards, processors and GiB of memory of one worker.
    gpus: int = 1
    cpus: int = 4
    memory: int = 16
    min_workers: int = 0
    max_workers: int = 4
    #: Also offer workers on machines that the cloud may take away.
    spot: bool = False
    #: The function that the endpoint serves.
    function: str = "service:score"
    #: Without Kubernetes: the head's host name, and the first of the 221 ports that Ray may use between nodes.
    head: str = "head.internal"
    port: int = 6379
    #: Without Kubernetes: the network of the nodes and drivers, which the firewall lets in.
    network: str = "10.0.0.0/24"
    #: The Python of the images.
    python: str = "3.12"

    def __post_init__(self) -> None:
        """Checks every option, because all of them end up in files unquoted; raises `InvalidOption`."""
        _match("name", self.name, _NAME, "lower-case letters, digits and hyphens, 40 at most")
        _match("namespace", self.namespace, _NAME, "lower-case letters, digits and hyphens, 40 at most")
        _match("image", self.image, _IMAGE, "an image such as registry.example/anygpu:1.0")
        _match("head", self.head, _HOST, "a host name or an address")
        _match("python", self.python, _PYTHON, "a version such as 3.12 or 3.12.11")
        _match("function", self.function, _FUNCTION, "MODULE:FUNCTION")
        try:
            ipaddress.IPv4Network(self.network)
        except ValueError:
            raise InvalidOption(f"network must be one such as 10.0.0.0/24; got {self.network!r}.") from None
        if not (_TOKEN.fullmatch(self.token) and _TOKEN.fullmatch(self.tenant_token)):  # not shown in the message
            raise InvalidOption("a token needs at least 32 letters, digits, hyphens or underscores.")
        if self.token == self.tenant_token:
            raise InvalidOption("the tokens of the cluster and of a tenant must differ: a tenant may not run code.")
        if not self.vendors or len(set(self.vendors)) < len(self.vendors) or set(self.vendors) - set(VENDORS):
            raise InvalidOption(f"vendors are among {', '.join(VENDORS)}, each once; got {', '.join(self.vendors)}.")
        _between("gpus", self.gpus, 1, 64)
        _between("cpus", self.cpus, 1, 512)
        _between("memory", self.memory, 4, 8192)
        _between("max_workers", self.max_workers, 1, 2000)
        _between("min_workers", self.min_workers, 0, self.max_workers)
        _between("port", self.port, 1024, 65535 - LAST_PORT)

    def __repr__(self) -> str:
        return f"TemplateOptions(name={self.name!r}, token=…)"

    @property
    def store(self) -> int:
        """GiB of Ray's object store: a quarter of the memory, of which it is a part. Actors need the rest."""
        return max(1, self.memory // 4)


#: Ray's fixed ports as distances from the first, and the range for its workers. One range makes one firewall rule.
PORTS = {
    "port": 0,
    "node-manager-port": 1,
    "object-manager-port": 2,
    "runtime-env-agent-port": 3,
    "dashboard-agent-grpc-port": 4,
    "dashboard-agent-listen-port": 5,
    "metrics-export-port": 6,
    "ray-client-server-port": 7,
    "dashboard-port": 8,
    "min-worker-port": 21,
    "max-worker-port": 220,
}
#: The metrics of the head's own processes, which are set by variables.
METRICS_PORTS = {"AUTOSCALER_METRIC_PORT": 9, "DASHBOARD_METRIC_PORT": 10}
#: These belong to the head only.
HEAD_PORTS = ("port", "ray-client-server-port", "dashboard-port")
LAST_PORT = 220


def port_flags(first: int, *, head: bool) -> list[str]:
    """Ray chooses ports at random unless it is told, and then no firewall can be written."""
    return [f"--{name}={first + offset}" for name, offset in PORTS.items() if head or name not in HEAD_PORTS]


def _match(name: str, value: str, pattern: re.Pattern[str], wanted: str) -> None:
    if not pattern.fullmatch(value):
        raise InvalidOption(f"{name} must be {wanted}; got {value!r}.")


def _between(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidOption(f"{name} must be from {least} to {most}; got {value}.")


# -- fills the holes of a template: `$name` becomes a value, and a line `@name` a block, indented as the line is


def render(template: str, values: Mapping[str, object], **blocks: str) -> str:
    """The template's text, filled. A hole without a value raises `KeyError`; an empty block leaves no line."""
    rendered = []
    for line in _text(template).splitlines(keepends=True):
        bare = line.strip()
        if bare.startswith("@"):
            rendered.append(indent(blocks[bare[1:]], line[: line.index("@")]))
        else:
            rendered.append(Template(line).substitute(values))
    return "".join(rendered)


def _text(template: str) -> str:
    return files("anygpu.fleet.templates").joinpath(f"{template}.in").read_text(encoding="utf-8")


TemplateKind = Literal["kuberay", "compose", "systemd"]

#: Files that hold tokens. Nobody but their owner may read them.
PRIVATE = ("token.yaml", "auth_token", "tenants")

#: The clouds' own marks of machines that they may take away: labels, and taints that keep other pods off.
_SPOT_LABELS = {
    "cloud.google.com/gke-spot": "true",
    "eks.amazonaws.com/capacityType": "SPOT",
    "kubernetes.azure.com/scalesetpriority": "spot",
    "karpenter.sh/capacity-type": "spot",
}
_SPOT_TAINTS = ("cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority", "karpenter.sh/capacity-type")

#: Groups of the host's device nodes; their numbers differ between machines, and an image does not know them.
_RENDER = '"${RENDER_GROUP:?set it to the number that `getent group render` shows}"'
_VIDEO = '"${VIDEO_GROUP:?set it to the number that `getent group video` shows}"'


def kuberay_files(options: TemplateOptions) -> dict[str, str]:
    """Returns the files for Kubernetes with KubeRay: one group of workers for each vendor, and for spot machines."""
    values = _values(options)
    markets = (False, True) if options.spot else (False,)
    groups = "".join(_worker_group(options, vendor, spot=spot) for vendor in options.vendors for spot in markets)
    return {
        "kustomization.yaml": render("kuberay/kustomization.yaml", values),
        "namespace.yaml": render("kuberay/namespace.yaml", values),
        "token.yaml": render("kuberay/token.yaml", values),
        "cluster.yaml": render("kuberay/cluster.yaml", values, groups=groups),
        "network-policy.yaml": render("kuberay/network-policy.yaml", values),
        "serve.yaml": render("kuberay/serve.yaml", values),
        **dockerfiles(options),
    }


def compose_files(options: TemplateOptions) -> dict[str, str]:
    """Returns the files for Docker Compose on one machine."""
    workers = "\n".join(_compose_worker(options, vendor) for vendor in options.vendors)
    return {
        "compose.yaml": render("compose/compose.yaml", _values(options), workers=workers),
        "auth_token": options.token + "\n",
        "tenants": _tenants(options),
        **dockerfiles(options),
    }


def systemd_files(options: TemplateOptions) -> dict[str, str]:
    """Returns units for systemd: a head, workers and a server, with users, a firewall and tokens."""
    values = _values(options)
    common = render("systemd/common.service", values)
    on_the_head = values | {
        "ports": " ".join(port_flags(options.port, head=True)),
        "metrics": " ".join(f"{name}={options.port + offset}" for name, offset in METRICS_PORTS.items()),
    }
    on_a_worker = values | {
        "ports": " ".join(port_flags(options.port, head=False)),
        "gpus": 0 if options.vendors == ("cpu",) else options.gpus,
    }
    return {
        f"{options.name}-head.service": render("systemd/head.service", on_the_head, common=common),
        f"{options.name}-worker.service": render("systemd/worker.service", on_a_worker, common=common),
        f"{options.name}-serve.service": render("systemd/serve.service", values, common=common),
        "anygpu.sysusers": render("systemd/anygpu.sysusers", values),
        "anygpu.nft": render("systemd/anygpu.nft", values),
        "auth_token": options.token + "\n",
        "tenants": _tenants(options),
        "endpoint.py": _endpoint(options),
    }


def dockerfiles(options: TemplateOptions) -> dict[str, str]:
    """Returns the images' files, for the CPU and for CUDA, and the program that serves."""
    values = _values(options)
    return {
        "Dockerfile": render("docker/Dockerfile", values),
        "Dockerfile.cuda": render("docker/Dockerfile.cuda", values),
        "endpoint.py": _endpoint(options),
    }


def _endpoint(options: TemplateOptions) -> str:
    module, _, function = options.function.partition(":")
    return render("endpoint.py", {"module": module, "function": function})


def _tenants(options: TemplateOptions) -> str:
    return f"default {options.tenant_token}\n"


FILES: dict[TemplateKind, Callable[[TemplateOptions], dict[str, str]]] = {
    "kuberay": kuberay_files,
    "compose": compose_files,
    "systemd": systemd_files,
}


def write_files(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Write new files only: an existing token is in use somewhere. Those with the token are closed to other users."""
    taken = [name for name in files if (folder / name).exists()]
    if taken:
        raise InvalidOption(f"{folder / taken[0]} exists already. Choose another folder with --out, or delete it.")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        mode = 0o600 if name in PRIVATE else 0o644
        with os.fdopen(
            os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8"
        ) as file:
            file.write(text)
    return [folder / name for name in files]


def _values(options: TemplateOptions) -> dict[str, object]:
    """Returns what every template may use. `last` is the end of the range of ports, sizes are in GiB."""
    return msgspec.structs.asdict(options) | {
        "first": options.port,
        "last": options.port + LAST_PORT,
        "store": options.store,
        "store_bytes": options.store << 30,
        # A little more than the store: Ray has other files there.
        "shm": options.store + 1,
        "ray": RAY_VERSION,
        "anygpu": __version__,
    }


def _image(options: TemplateOptions, vendor: Vendor) -> str:
    return f"{options.image}-cuda" if vendor == "nvidia" else options.image


def _worker_group(options: TemplateOptions, vendor: Vendor, *, spot: bool) -> str:
    """Returns one group of workers of a vendor, as part of KubeRay's cluster.yaml."""
    resource = KUBERNETES_RESOURCES.get(vendor)
    resources = [f'cpu: "{options.cpus}"', f"memory: {options.memory}Gi"]
    resources += [f'{resource}: "{options.gpus}"'] if resource else []
    values = _values(options) | {
        "group": f"{vendor}-spot" if spot else vendor,
        "least": 0 if spot else options.min_workers,
        "most": options.max_workers,
        "market": "spot" if spot else "on-demand",
        "image": _image(options, vendor),
        "resources": ", ".join(resources),
    }
    return render(
        "kuberay/worker-group.yaml",
        values,
        count=f'# KubeRay counts only resources whose name ends in "gpu".\nnum-gpus: "{options.gpus}"\n'
        if vendor == "intel"
        else "",
        groups="# If `anygpu doctor` reports that /dev/dri cannot be opened: the id of the nodes' group render.\n"
        "# supplementalGroups: [104]\n"
        if vendor in ("amd", "intel")
        else "",
        variables='- {name: NVIDIA_DRIVER_CAPABILITIES, value: "compute,utility,graphics"}\n'
        if vendor == "nvidia"
        else "",
        affinity=_spot_affinity() if spot else "",
        tolerations=_tolerations(([resource] if resource else []) + (list(_SPOT_TAINTS) if spot else [])),
    )


def _spot_affinity() -> str:
    """Returns the rule that keeps a group on machines which the cloud may take away."""
    terms = "".join(
        f'        - matchExpressions: [{{key: {key}, operator: In, values: ["{value}"]}}]\n'
        for key, value in _SPOT_LABELS.items()
    )
    return (
        "# Only machines that the cloud may take away: of Google, Amazon, Azure, or Karpenter's. When one disappears,\n"
        "# anygpu runs its tasks again elsewhere.\n"
        "affinity:\n"
        "  nodeAffinity:\n"
        "    requiredDuringSchedulingIgnoredDuringExecution:\n"
        "      nodeSelectorTerms:\n" + terms
    )


def _tolerations(keys: list[str]) -> str:
    """Returns the tolerations of these taints, as YAML; empty without any."""
    if not keys:
        return ""
    lines = "".join(f"  - {{key: {key}, operator: Exists, effect: NoSchedule}}\n" for key in keys)
    return f"# Such machines are usually tainted, to keep other pods off.\ntolerations:\n{lines}"


def _compose_worker(options: TemplateOptions, vendor: Vendor) -> str:
    """Returns the service of one vendor's worker for Docker Compose."""
    values = _values(options) | {
        "service": f"worker-{vendor}",
        "image": _image(options, vendor),
        "gpus": 0 if vendor == "cpu" else options.gpus,
    }
    return render("compose/worker.yaml", values, cards=_compose_cards(vendor, options.gpus))


def _compose_cards(vendor: Vendor, gpus: int) -> str:
    """Returns the lines of Compose that give a container the cards of a vendor."""
    match vendor:
        case "nvidia":
            devices = f"devices: [{{driver: nvidia, count: {gpus}, capabilities: [gpu]}}]"
            wanted = "# The NVIDIA Container Toolkit must be installed.\n"
            return f"{wanted}deploy:\n  resources:\n    reservations:\n      {devices}\n"
        case "amd":
            return f"devices: [/dev/kfd, /dev/dri]\ngroup_add:\n  - {_RENDER}\n  - {_VIDEO}\n"
        case "intel":
            return f"devices: [/dev/dri]\ngroup_add:\n  - {_RENDER}\n"
        case "cpu":
            return ""
