"""The files of each kind of deployment, as texts; and writing them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from anygpu._version import __version__
from anygpu.errors import InvalidOption
from anygpu.fleet.templates.options import (
    KUBERNETES_RESOURCES,
    LAST_PORT,
    METRICS_PORTS,
    RAY_VERSION,
    TemplateOptions,
    Vendor,
    port_flags,
)
from anygpu.fleet.templates.rendering import render

Kind = Literal["kuberay", "compose", "systemd"]

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
    workers = "\n".join(_compose_worker(options, vendor) for vendor in options.vendors)
    return {
        "compose.yaml": render("compose/compose.yaml", _values(options), workers=workers),
        "auth_token": options.token + "\n",
        "tenants": _tenants(options),
        **dockerfiles(options),
    }


def systemd_files(options: TemplateOptions) -> dict[str, str]:
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


FILES: dict[Kind, Callable[[TemplateOptions], dict[str, str]]] = {
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
    return {
        "name": options.name,
        "namespace": options.namespace,
        "image": options.image,
        "token": options.token,
        "tenant_token": options.tenant_token,
        "head": options.head,
        "port": options.port,
        "first": options.port,
        "last": options.port + LAST_PORT,
        "network": options.network,
        "gpus": options.gpus,
        "cpus": options.cpus,
        "memory": options.memory,
        "store": options.store,
        "store_bytes": options.store << 30,
        # A little more than the store: Ray has other files there.
        "shm": options.store + 1,
        "ray": RAY_VERSION,
        "anygpu": __version__,
        "python": options.python,
    }


def _image(options: TemplateOptions, vendor: Vendor) -> str:
    return f"{options.image}-cuda" if vendor == "nvidia" else options.image


def _worker_group(options: TemplateOptions, vendor: Vendor, *, spot: bool) -> str:
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
    if not keys:
        return ""
    lines = "".join(f"  - {{key: {key}, operator: Exists, effect: NoSchedule}}\n" for key in keys)
    return f"# Such machines are usually tainted, to keep other pods off.\ntolerations:\n{lines}"


def _compose_worker(options: TemplateOptions, vendor: Vendor) -> str:
    values = _values(options) | {
        "service": f"worker-{vendor}",
        "image": _image(options, vendor),
        "gpus": 0 if vendor == "cpu" else options.gpus,
    }
    return render("compose/worker.yaml", values, cards=_compose_cards(vendor, options.gpus))


def _compose_cards(vendor: Vendor, gpus: int) -> str:
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
