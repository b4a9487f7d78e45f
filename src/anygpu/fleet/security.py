"""Who may use a cluster: what is refused, and what is worth a warning.

Whoever may talk to a Ray cluster can run any code on every node, as the user that Ray runs as. So the one question
that matters is whether the cluster demands a token. The decisions here are pure functions of `Access`, which
`anygpu.fleet.access` observes.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from anygpu.base.own_files import is_own, read_file
from anygpu.errors import ClusterError, ClusterUnavailable, InsecureCluster
from anygpu.hardware import host
from anygpu.hardware.inventory import Finding

# -- which cluster "auto" means. The token is sent to it, so only sources that no other user can have written count
#
# Ray itself believes any process whose command line looks like its own, and a file in a folder that it makes writable
# for everyone.


#: As `connect` takes it.
AUTO = "auto"
#: The name of Ray's process on a node, and the argument that names its head.
_PROCESS, _ARGUMENT = "raylet", "--gcs-address="
#: An address has fewer bytes than this.
_MOST_BYTES = 1024
_NAME_ONE = (
    'Pass the address of its head, as in connect("10.0.0.1:6379") or --address 10.0.0.1:6379, or set RAY_ADDRESS'
)


class AddressFile(NamedTuple):
    """The file in which Ray keeps the address of the cluster that was started last on this machine."""

    path: Path
    exists: bool
    #: The address that it names; `None` if there is none, or if others can have written it.
    address: str | None


def find_address(environment: Mapping[str, str] | None = None, running: Collection[str] | None = None) -> str:
    """The cluster that this machine is a node of: RAY_ADDRESS, or a cluster of this user.

    `running` are the heads of this user's Ray processes; without it they are looked for. Raises `ClusterUnavailable` if
    there is none or if several could be meant, and `InsecureCluster` if another user may have written the address.
    """
    environment = os.environ if environment is None else environment
    named = environment.get("RAY_ADDRESS", "")
    if named and named != AUTO:
        return named
    return chosen(running_clusters() if running is None else running, read_note(environment))


def chosen(running: Collection[str], note: AddressFile) -> str:
    """The only cluster of which a process runs here, or the one that was started last. Raises as `find_address`."""
    if len(running) == 1:
        return next(iter(running))
    if note.address is not None:
        return note.address
    if running:
        several = ", ".join(sorted(running))
        raise ClusterUnavailable(AUTO, detail=f"processes of several clusters run here ({several}). {_NAME_ONE}")
    if note.exists:
        why = f"the address in {note.path} is not used, because other users can write there or have written it."
        raise InsecureCluster(AUTO, why, f"{_NAME_ONE}.")
    raise ClusterUnavailable(AUTO, detail=f"no Ray process of this user runs on this machine. {_NAME_ONE}")


def read_note(environment: Mapping[str, str]) -> AddressFile:
    """Ray's note of the running cluster, if only this user or root can have written it and its folder."""
    path = Path(environment.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    content = None
    with contextlib.suppress(OSError):
        # Who can replace the folder above can put a folder there that was made for something else.
        if is_own(path.parent.parent.stat()):
            content = read_file(path, _MOST_BYTES)
    address = (content or b"").decode("utf-8", "replace").strip()
    return AddressFile(path, os.path.lexists(path), address or None)


def running_clusters() -> frozenset[str]:
    """The heads of the Ray processes that this user has started on this machine."""
    return frozenset(_addresses_of_processes())


def _addresses_of_processes() -> Iterator[str]:
    """Yields the heads that Ray's processes of this user name, in the same namespaces as this process."""
    namespaces = _namespaces(os.getpid())
    for process, arguments in host.own_processes(_PROCESS):
        # Users of a container have the same numbers as those of this system, and its addresses are its own.
        with contextlib.suppress(OSError):
            if _namespaces(process) == namespaces:
                yield from (each.removeprefix(_ARGUMENT) for each in arguments if each.startswith(_ARGUMENT))


def _namespaces(process: int) -> tuple[int, ...]:
    """The namespaces of processes and of networks that it is in; none where the system has none."""
    try:
        return tuple(Path(f"/proc/{process}/ns/{kind}").stat().st_ino for kind in ("pid", "net"))
    except FileNotFoundError:
        return ()


#: Permission bits that let another user of the machine read a file, or write to a folder.
_READABLE_BY_OTHERS = 0o044
_WRITABLE_BY_OTHERS = 0o022


class FileMode(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder, and its permission bits."""

    path: str
    mode: int

    @property
    def readable_by_others(self) -> bool:
        return bool(self.mode & _READABLE_BY_OTHERS)

    @property
    def writable_by_others(self) -> bool:
        return bool(self.mode & _WRITABLE_BY_OTHERS)


class TokenSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where Ray in this process would take its token from. The token itself is never kept."""

    source: Literal["variable", "file", "none"]
    #: The file, which may be the one where Ray would look though there is none.
    path: str
    file: FileMode | None = None
    #: Whether the variable RAY_AUTH_MODE tells Ray to use a token. Ray decides alone only for clusters it starts.
    mode_set: bool = False
    #: Whether the cluster accepted it; None if it was not asked.
    accepted: bool | None = None


class ClusterAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about who may use a cluster."""

    #: `host:port` of the cluster's head (its GCS).
    address: str
    #: Whether anything answered there, or at its dashboard.
    answered: bool
    #: Whether other machines can reach it, as far as this one can see.
    beyond_loopback: bool
    #: None if it could not be asked; `unknown` says why.
    demands_token: bool | None
    unknown: str = ""
    #: The dashboard's URL, if it answered.
    dashboard: str | None = None
    #: Whether the dashboard answers to other machines; None if it did not answer at all.
    dashboard_beyond_loopback: bool | None = None
    #: Whether the head's connections are encrypted; None if that could not be seen.
    tls: bool | None = None
    #: Whether RAY_USE_TLS tells Ray in this process to encrypt.
    tls_here: bool = False
    #: The private key of this process, if it encrypts.
    key: FileMode | None = None
    token: TokenSource


def refusal(access: ClusterAccess, *, insecure: bool = False) -> ClusterError | None:
    """Why the cluster is not used, or None. What could not be asked counts as open: a guess is no protection."""
    if not access.answered:
        return ClusterUnavailable(access.address, detail=access.unknown)
    if insecure or access.demands_token or not access.beyond_loopback:
        return None
    why = f"it may demand no token ({access.unknown})" if access.demands_token is None else "it demands no token"
    return InsecureCluster(
        access.address,
        f"{why}, and then any client that can reach it can run any code on every node.",
        "Restart each of its nodes with RAY_AUTH_MODE=token and the same RAY_AUTH_TOKEN_PATH in its environment "
        "(the files in deploy/ do so), or pass insecure=True if the network is all yours.",
    )


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that may be used."""

    address: str
    #: Findings that are worth a warning.
    findings: tuple[Finding, ...]
    #: Variables for the environment of a Ray driver.
    variables: dict[str, str]


def check_access(
    address: str,
    insecure: bool = False,
    *,
    dashboard: str | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float = 5.0,
) -> Admission:
    """Raise `InsecureCluster` for a cluster that lets everyone in, and `ClusterUnavailable` where there is none.

    The cluster is asked itself, at `address` (`host:port`, or "auto" for the one that this machine is a node of),
    without a token; where that fails, its dashboard. Nothing is run there. A cluster that only this machine can reach
    may do without a token. What is admitted is the address that was asked, and never "auto".
    """
    from anygpu.fleet.access import observe_access
    from anygpu.fleet.security import AUTO, find_address

    found = find_address(environment) if address == AUTO else address
    access = observe_access(found, dashboard=dashboard, environment=environment, timeout=timeout)
    refused = refusal(access, insecure=insecure)
    if refused is not None:
        raise refused
    return Admission(
        address=access.address, findings=tuple(access_findings(access)), variables=driver_variables(access)
    )


def driver_variables(access: ClusterAccess) -> dict[str, str]:
    """Variables for the environment of a Ray driver: Ray sends no token to an address it was given unless told to."""
    return {"RAY_AUTH_MODE": "token"} if access.demands_token else {}


def access_findings(access: ClusterAccess) -> Iterator[Finding]:
    """Everything that is wrong with the access to a cluster, or could be better."""
    for rule in (_unreachable, _open, _not_asked, _token, _token_file, _no_tls, _tls_differs, _key_file, _dashboard):
        yield from rule(access)


def _unreachable(access: ClusterAccess) -> Iterator[Finding]:
    """No cluster answers at the address."""
    if access.answered:
        return
    yield Finding(
        code="cluster_unreachable",
        severity="problem",
        title=f"No Ray cluster answered at {access.address}.",
        cause=access.unknown or "Neither the cluster nor its dashboard answered.",
        fix=(
            "On the head node: systemctl status anygpu-head   (or kubectl get pods, docker compose ps)",
            f"From here: nc -vz {access.address.replace(':', ' ')}   (a firewall between both shows as a timeout)",
        ),
        about=access.address,
    )


def _open(access: ClusterAccess) -> Iterator[Finding]:
    """The cluster demands no token."""
    if access.demands_token is not False:
        return
    yield Finding(
        code="no_token_demanded",
        severity="problem" if access.beyond_loopback else "advice",
        title=f"The cluster at {access.address} demands no token.",
        cause="Any client that can reach it can run any code on every node, for example with one POST to /api/jobs/."
        if access.beyond_loopback
        else "Only this machine can reach it, but each of its users can run code as the one who started it.",
        fix=(
            "(umask 077; mkdir -p ~/.ray; openssl rand -hex 32 > ~/.ray/auth_token)   (on the head; "
            "copy the file to every node and to this machine)",
            "export RAY_AUTH_MODE=token   (on every node, before `ray start`; then restart them all)",
        ),
        about=access.address,
    )


def _not_asked(access: ClusterAccess) -> Iterator[Finding]:
    """It could not be found out whether the cluster demands a token."""
    if access.demands_token is not None or not access.answered:
        return
    yield Finding(
        code="token_unknown",
        severity="problem" if access.beyond_loopback else "advice",
        title=f"It is not known whether the cluster at {access.address} demands a token.",
        cause=access.unknown or "Neither the cluster nor its dashboard said so.",
        fix=(
            "pip install grpcio   (it asks the cluster itself)",
            "or pass --dashboard http://HOST:8265",
        ),
        about=access.address,
    )


def _token(access: ClusterAccess) -> Iterator[Finding]:
    """This process has no token, one that the cluster does not accept, or Ray's own commands would not send it."""
    if not access.demands_token:
        return
    token = access.token
    if token.source == "none":
        yield Finding(
            code="token_missing",
            severity="problem",
            title="This machine has no token for the cluster.",
            cause=f"The cluster demands one; RAY_AUTH_TOKEN is not set, and {token.path} does not exist.",
            fix=(f"(umask 077; ssh HEAD cat .ray/auth_token > {shlex.quote(token.path)})",),
            about=token.path,
        )
    elif token.accepted is False:
        where = "the variable RAY_AUTH_TOKEN" if token.source == "variable" else token.path
        copy = (
            "unset RAY_AUTH_TOKEN   (the file is used then)"
            if token.source == "variable"
            else f"(umask 077; ssh HEAD cat .ray/auth_token > {shlex.quote(token.path)})"
        )
        yield Finding(
            code="token_wrong",
            severity="problem",
            title="The cluster does not accept this machine's token.",
            cause=f"The token is taken from {where}, and is not the one that the cluster was started with.",
            fix=(copy,),
            about=where,
        )
    elif not token.mode_set:
        yield Finding(
            code="token_mode_not_set",
            severity="note",
            title="Ray's own commands do not send the token from here.",
            cause="RAY_AUTH_MODE is not set, and Ray sends no token to an address it was given unless told to. "
            "anygpu sets it for its own processes.",
            fix=("export RAY_AUTH_MODE=token",),
            about="RAY_AUTH_MODE",
        )


def _token_file(access: ClusterAccess) -> Iterator[Finding]:
    """The token is in a file that other users can read."""
    file = access.token.file
    if file is not None and access.token.source == "file":
        yield from private_file(file, code="token_readable", what="token")


def _key_file(access: ClusterAccess) -> Iterator[Finding]:
    """The private key of TLS is in a file that other users can read."""
    if access.key is not None:
        yield from private_file(access.key, code="key_readable", what="private TLS key")


def private_file(file: FileMode, *, code: str, what: str, on: str = "") -> Iterator[Finding]:
    """Yields a finding if other users can read the file; `on` is the node that it is on."""
    if not file.readable_by_others:
        return
    where = f" on {on}" if on else ""
    yield Finding(
        code=code,
        severity="problem",
        title=f"Other users{where} can read the {what}.",
        cause=f"{file.path} has mode {file.mode:04o}. Who has the {what} can use the cluster, and run any code there."
        + (" Ray itself writes it with mode 0644." if code == "token_readable" else ""),
        fix=(f"chmod 600 {shlex.quote(file.path)}" + (f"   (on {on})" if on else ""),),
        about=f"{on}:{file.path}" if on else file.path,
    )


def _no_tls(access: ClusterAccess) -> Iterator[Finding]:
    """Nodes talk without encryption beyond one machine."""
    if access.tls is not False or access.tls_here or not access.beyond_loopback:
        return
    yield Finding(
        code="no_tls",
        severity="advice",
        title="Connections between the nodes are not encrypted.",
        cause="Arrays and the token itself travel in the clear; who can listen on the network can read both.",
        fix=(
            "export RAY_USE_TLS=1 RAY_TLS_SERVER_CERT=… RAY_TLS_SERVER_KEY=… RAY_TLS_CA_CERT=…   (on every node and "
            "here; or keep the cluster on a private or encrypted network, such as WireGuard)",
        ),
        about=access.address,
    )


def _tls_differs(access: ClusterAccess) -> Iterator[Finding]:
    """The cluster uses TLS and this process does not, or the other way round."""
    if access.tls and not access.tls_here:
        yield Finding(
            code="tls_not_set_here",
            severity="problem",
            title="The cluster encrypts its connections, and this process would not.",
            cause="RAY_USE_TLS is not set here, so Ray cannot connect, and ends after more than a minute.",
            fix=("export RAY_USE_TLS=1 RAY_TLS_SERVER_CERT=… RAY_TLS_SERVER_KEY=… RAY_TLS_CA_CERT=…",),
            about="RAY_USE_TLS",
        )
    if access.tls is False and access.tls_here:
        yield Finding(
            code="tls_not_set_there",
            severity="problem",
            title="This process would encrypt its connections, and the cluster does not.",
            cause="RAY_USE_TLS is set here, and the head speaks in the clear, so Ray cannot connect.",
            fix=(
                "export RAY_USE_TLS=1 …   (on every node, with certificates; then restart them all)",
                "unset RAY_USE_TLS",
            ),
            about="RAY_USE_TLS",
        )


def _dashboard(access: ClusterAccess) -> Iterator[Finding]:
    """The dashboard answers to other machines."""
    if not access.dashboard_beyond_loopback:
        return
    yield Finding(
        code="dashboard_exposed",
        severity="problem" if access.demands_token is False else "advice",
        title=f"The dashboard answers to other machines, at {access.dashboard}.",
        cause="It speaks plain HTTP, also in a cluster with TLS, so a token that is typed there can be "
        "intercepted; and jobs are submitted through it.",
        fix=(
            "ray start --head --dashboard-host=127.0.0.1 …   (on the head)",
            "ssh -L 8265:127.0.0.1:8265 HEAD   (to look at it from here)",
        ),
        about=access.dashboard or "",
    )
