"""What can be chosen of a deployment. Everything that ends up in a file is checked here, so no text needs quoting."""

from __future__ import annotations

import ipaddress
import re
from typing import Literal, get_args

import msgspec

from anygpu._version import __version__
from anygpu.errors import InvalidOption

Vendor = Literal["nvidia", "amd", "intel", "cpu"]
VENDORS: tuple[Vendor, ...] = get_args(Vendor)

#: The Ray that anygpu is tested with. All nodes need the same one.
RAY_VERSION = "2.60.0"

#: What a device plug-in calls a vendor's cards in Kubernetes.
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
    #: What the endpoint serves.
    function: str = "service:score"
    #: Without Kubernetes: the head's host name, and the first of the 221 ports that Ray may use between nodes.
    head: str = "head.internal"
    port: int = 6379
    #: Without Kubernetes: the network of the nodes and drivers, which the firewall lets in.
    network: str = "10.0.0.0/24"
    #: The Python of the images.
    python: str = "3.12"

    def __post_init__(self) -> None:
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
