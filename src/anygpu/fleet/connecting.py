"""`connect`: from the address of a cluster to a fleet."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

from anygpu.errors import InvalidOption, MissingExtra
from anygpu.fleet.cluster import Cluster
from anygpu.fleet.fleet import Fleet
from anygpu.fleet.scaling import Scaling
from anygpu.fleet.security import check_access
from anygpu.fleet.versions import installed_versions, warnings_of
from anygpu.runtime.task_queue import Tenant

_SCHEME = "ray://"


def connect(
    address: str = "auto",
    *,
    devices: str | Sequence[str] = "all",
    tenants: Iterable[Tenant] = (),
    scaling: Scaling | None = None,
    insecure: bool = False,
    local: bool = True,
    other_versions: bool = False,
    queue: int = 1000,
    deadline: float | None = 300.0,
    batching: bool = True,
    max_latency: float = 0.25,
) -> Fleet:
    """Connect to a Ray cluster: a `Runtime` whose calls may also run on devices of its machines.

    `address` is the head's host and port, or "auto" for RAY_ADDRESS or the cluster that this user has started or joined
    on this machine; an address that other users may have written is refused. `devices` are the names of what is wanted
    of other machines, as in `on=`; with `local=False` nothing but NumPy runs on this one. A cluster without a
    token is refused unless `insecure=True`. Machines with other minor versions of anygpu or NumPy, and devices whose
    engine's library has another one, may compute other values: they are left out, with a warning, unless
    `other_versions=True`. With `scaling` the cluster's autoscaler is asked for machines while much waits. The other
    options are those of `Runtime`.

    Raises `MissingExtra` without Ray, `ClusterUnavailable` when there is no such cluster, and `InsecureCluster`.
    """
    wanted = (devices,) if isinstance(devices, str) else tuple(devices)
    if not wanted or not all(name.strip() for name in wanted):
        raise InvalidOption(f'devices= takes names such as "all" or "gpu"; got {devices!r}.')
    if find_spec("ray") is None:
        raise MissingExtra("ray", "ray")
    address = plain_address(address)
    admission = check_access(address, insecure)
    if not insecure:
        for finding in admission.findings:
            warnings.warn(" ".join((finding.title, *finding.fix)), stacklevel=2)
    # "auto" could mean another cluster to Ray than the one that was asked whether it is safe.
    cluster = Cluster(admission.address, admission.variables)
    try:
        fleet = Fleet(
            cluster,
            devices=wanted,
            local=local,
            other_versions=other_versions,
            queue=queue,
            deadline=deadline,
            tenants=tenants,
            scaling=scaling,
            batching=batching,
            max_latency=max_latency,
        )
        for sentence in warnings_of(fleet.unavailable(), installed_versions()):
            warnings.warn(sentence, stacklevel=2)
    except BaseException:
        cluster.close()
        raise
    return fleet


def plain_address(address: str) -> str:
    """ "auto", or host and port."""
    plain = address.removeprefix(_SCHEME)
    if plain == "auto":
        return plain
    host, colon, port = plain.rpartition(":")
    if not (host and colon and port.isdigit()) or (plain != address and port == "10001"):
        raise InvalidOption(
            'address is "auto", or the host and the port of the cluster\'s head, as "10.0.0.1:6379"; '
            f"got {address!r}. Ray Client's own addresses (port 10001) are not used."
        )
    return plain
