"""Whether a cluster may be used."""

from __future__ import annotations


def check_access(address: str, insecure: bool) -> None:
    """Refuse a cluster that lets everybody in, unless the caller says that this is meant."""
