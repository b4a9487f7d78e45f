"""BLAKE2, the hash of all keys and checksums, without OpenSSL, which `hashlib` loads and which takes 5 ms."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import blake2b
else:
    # As the standard library's `random` does with SHA-512.
    try:
        from _blake2 import blake2b
    except ImportError:
        from hashlib import blake2b

__all__ = ["blake2b"]
