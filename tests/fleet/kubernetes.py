"""Strict checks of Kubernetes' objects: of their form, and of what they say of each other.

The form of a RayCluster is KubeRay's own definition, made strict (`kuberay_schema.json`, by `scripts/kuberay-schema`).
It contains whole pods, services and network rules, and so gives the form of the other kinds as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

Object = dict[str, Any]

_RAY_CLUSTER: Object = json.loads((Path(__file__).parent / "kuberay_schema.json").read_text(encoding="utf-8"))


def _part(*names: str) -> Object:
    """The schema of one field inside a RayCluster's. Its references are to `$defs`."""
    place = _RAY_CLUSTER
    for name in names:
        while "$ref" in place:
            place = _RAY_CLUSTER["$defs"][place["$ref"].rpartition("/")[2]]
        place = place["properties"][name]
    return place


_METADATA = _part("metadata")
_POD = _part("spec", "headGroupSpec", "template")
_SERVICE = _part("spec", "headGroupSpec", "headService", "spec")
_RULES = _part("spec", "networkPolicy", "head", "ingressRules")
_LABELS = {"type": "object", "additionalProperties": {"type": "string"}}


def _strict(required: Iterable[str] = (), **properties: Object) -> Object:
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


_SELECTOR = _strict(
    matchLabels=_LABELS,
    matchExpressions={
        "type": "array",
        "items": _strict(
            ("key", "operator"),
            key={"type": "string"},
            operator={"enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
            values={"type": "array", "items": {"type": "string"}},
        ),
    },
)
#: For each kind besides RayCluster: its version, and what it has beyond apiVersion, kind and metadata.
_KINDS: dict[str, tuple[str, Object]] = {
    "Namespace": ("v1", {}),
    "Secret": ("v1", {"type": {"type": "string"}, "stringData": _LABELS}),
    "Service": ("v1", {"spec": _SERVICE}),
    "Deployment": (
        "apps/v1",
        {"spec": _strict(("selector", "template"), replicas={"type": "integer"}, selector=_SELECTOR, template=_POD)},
    ),
    "NetworkPolicy": (
        "networking.k8s.io/v1",
        {
            "spec": _strict(
                ("podSelector",),
                podSelector=_SELECTOR,
                policyTypes={"type": "array", "items": {"enum": ["Ingress", "Egress"]}},
                ingress=_RULES,
            )
        },
    ),
    "PodDisruptionBudget": (
        "policy/v1",
        {"spec": _strict(("selector",), maxUnavailable={"type": ["integer", "string"]}, selector=_SELECTOR)},
    ),
    "Kustomization": (
        "kustomize.config.k8s.io/v1beta1",
        {
            "namespace": {"type": "string"},
            "resources": {"type": "array", "items": {"type": "string"}},
            "patches": {
                "type": "array",
                "items": _strict(
                    ("path", "target"), path={"type": "string"}, target=_strict(("kind",), kind={"const": "RayCluster"})
                ),
            },
            "secretGenerator": {
                "type": "array",
                "items": _strict(
                    ("name", "files"), name={"type": "string"}, files={"type": "array", "items": {"type": "string"}}
                ),
            },
            "generatorOptions": _strict(disableNameSuffixHash={"type": "boolean"}),
        },
    ),
}


def form_errors(document: Object) -> list[str]:
    """What is wrong with one object by itself; each line has the place and the reason."""
    kind = document.get("kind")
    if kind == "RayCluster":
        schema = _RAY_CLUSTER
    elif kind in _KINDS:
        version, beyond = _KINDS[kind]
        parts = {"apiVersion": {"const": version}, "kind": {"const": kind}, "metadata": _METADATA}
        required = ["apiVersion", "kind", *beyond] + ([] if kind == "Kustomization" else ["metadata"])
        schema = _strict(required, **parts, **beyond) | {"$defs": _RAY_CLUSTER["$defs"]}
    else:
        return [f"kind: {kind!r} is not known"]
    found = Draft202012Validator(schema).iter_errors(document)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in found]


def pods(document: Object) -> Iterator[tuple[str, Object]]:
    """Every pod template in an object, with its name."""
    name = document["metadata"]["name"] if "metadata" in document else ""
    if document["kind"] == "Deployment":
        yield name, document["spec"]["template"]
    if document["kind"] == "RayCluster":
        yield f"{name} head", document["spec"]["headGroupSpec"]["template"]
        for group in document["spec"]["workerGroupSpecs"]:
            yield f"{name} {group['groupName']}", group["template"]


def reference_errors(documents: list[Object]) -> Iterator[str]:
    """What the objects say of each other and is not so: selectors without pods, missing secrets and volumes."""
    templates = [pod for document in documents for pod in pods(document)]
    labels = [template["metadata"]["labels"] for _, template in templates]
    secrets = {
        (each["metadata"]["name"], key) for each in documents if each["kind"] == "Secret" for key in each["stringData"]
    }
    for document in documents:
        kind, spec = document["kind"], document.get("spec", {})
        selector = {
            "Service": {"matchLabels": spec.get("selector", {})},
            "NetworkPolicy": spec.get("podSelector"),
            "PodDisruptionBudget": spec.get("selector"),
            "Deployment": spec.get("selector"),
        }.get(kind)
        if selector is not None and not any(_selects(selector, each) for each in labels):
            yield f"{kind} {document['metadata']['name']}: its selector matches no pod"
        named = spec.get("authOptions", {}).get("secretName") if kind == "RayCluster" else None
        if kind == "RayCluster" and (named, "auth_token") not in secrets:
            yield f"RayCluster: there is no secret {named!r} with the key auth_token"
    for name, template in templates:
        yield from _pod_errors(name, template["spec"], secrets)


def _pod_errors(name: str, spec: Object, secrets: set[tuple[str, str]]) -> Iterator[str]:
    volumes = {volume["name"] for volume in spec.get("volumes", [])}
    for volume in spec.get("volumes", []):
        if "secret" in volume and volume["secret"]["secretName"] not in {name for name, _ in secrets}:
            yield f"{name}: there is no secret {volume['secret']['secretName']!r}"
    for container in spec["containers"]:
        for mount in container.get("volumeMounts", []):
            if mount["name"] not in volumes:
                yield f"{name}: there is no volume {mount['name']!r}"
        ports = {port["name"] for port in container.get("ports", [])}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            port = container.get(probe, {}).get("httpGet", {}).get("port")
            if isinstance(port, str) and port not in ports:
                yield f"{name}: {probe} asks a port {port!r} that is not there"
        for variable in container.get("env", []):
            source = variable.get("valueFrom", {}).get("secretKeyRef")
            if source and (source["name"], source["key"]) not in secrets:
                yield f"{name}: there is no secret {source['name']!r} with the key {source['key']}"
        requests, limits = container["resources"]["requests"], container["resources"]["limits"]
        for resource in {each for each in {*requests, *limits} if "/" in each}:
            if requests.get(resource) != limits.get(resource):
                yield f"{name}: {resource} must be requested as it is limited"


def _selects(selector: Object, labels: dict[str, str]) -> bool:
    exact = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    return exact and all(
        labels.get(each["key"]) in each["values"]
        for each in selector.get("matchExpressions", [])
        if each["operator"] == "In"
    )
