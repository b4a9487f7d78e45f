"""BLAKE2 for keys and checksums, without OpenSSL: `hashlib` loads that, which takes 5 ms."""

try:
    from _blake2 import blake2b as blake2b  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    from hashlib import blake2b as blake2b
