"""Takes out of a text what tells whose machine it comes from: messages of drivers and compilers name files."""

from __future__ import annotations

import getpass
import re
import socket
import tempfile
from pathlib import Path
from typing import NamedTuple

#: Shorter names are parts of too many words.
_SHORTEST = 3
#: Absolute paths of at least two parts, of Unix and of Windows, and what stands for a folder already.
_PATHS = re.compile(r"(?<![\w/\\:.])…?(?:/[^\s/'\":;,()<>]+){2,}/?|(?:\b[A-Za-z]:|…)\\[^\s'\":;,()<>]+")
_IDENTITIES = re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b|\bGPU-[0-9a-fA-F-]{8,}\b")


class Owner(NamedTuple):
    """Who must not be recognised."""

    #: Folders that tell who it is, the longest first.
    folders: tuple[str, ...]
    #: Names of the user and of the machine.
    names: tuple[str, ...]


def this_owner() -> Owner:
    folders = {path for path in (tempfile.gettempdir(), _home()) if path.strip("/")}
    host = socket.gethostname()
    names = [_user(), host, host.partition(".")[0]]
    return Owner(
        tuple(sorted(folders, key=len, reverse=True)),
        tuple(dict.fromkeys(name for name in names if len(name) >= _SHORTEST)),
    )


def without_personal_data(text: str, owner: Owner) -> str:
    """The text without folders, identities of cards, and names of the user and the machine; files keep their names."""
    for folder in owner.folders:
        text = text.replace(folder, "…")
    text = _IDENTITIES.sub("<identity>", text)
    text = _PATHS.sub(lambda found: "…/" + re.split(r"[/\\]", found[0].rstrip("/\\"))[-1], text)
    for name in owner.names:
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "<name>", text, flags=re.IGNORECASE)
    return text


def _home() -> str:
    try:
        return str(Path.home())
    except RuntimeError:  # the system does not know one
        return ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container may run as a user without a name
        return ""
