"""Which cluster "auto" means. The token is sent to it, so only sources that no other user can have written count.

Ray itself believes any process whose command line looks like its own, and a file in a folder that it makes writable
for everyone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from anygpu.base.own_files import is_own, read_file
from anygpu.errors import ClusterUnavailable, InsecureCluster
from anygpu.hardware import host

#: As `connect` takes it.
AUTO = "auto"
#: What Ray's process on a node is called, and the argument that names its head.
_PROCESS, _ARGUMENT = "raylet", "--gcs-address="
#: An address has fewer bytes than this.
_MOST_BYTES = 1024
_NAME_ONE = (
    'Pass the address of its head, as in connect("10.0.0.1:6379") or --address 10.0.0.1:6379, or set RAY_ADDRESS'
)


class Note(NamedTuple):
    """The file in which Ray keeps the address of the cluster that was started last on this machine."""

    path: Path
    exists: bool
    #: What it says; `None` if it is not there, or if others can have written it.
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


def chosen(running: Collection[str], note: Note) -> str:
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


def read_note(environment: Mapping[str, str]) -> Note:
    """What Ray has noted, if only this user or root can have written it, and its folder."""
    path = Path(environment.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    content = None
    with contextlib.suppress(OSError):
        # Who can replace the folder above can put a folder there that was made for something else.
        if is_own(path.parent.parent.stat()):
            content = read_file(path, _MOST_BYTES)
    address = (content or b"").decode("utf-8", "replace").strip()
    return Note(path, os.path.lexists(path), address or None)


def running_clusters() -> frozenset[str]:
    """The heads of the Ray processes that this user has started on this machine."""
    return frozenset(_addresses_of_processes())


def _addresses_of_processes() -> Iterator[str]:
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
