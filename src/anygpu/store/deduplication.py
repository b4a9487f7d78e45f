"""Deduplication: merges equal contents when they are put, and in `optimise()` after they were written to.

A fingerprint of a content on a device (two sums, a few bytes to the host) finds candidates, and a comparison there (1
byte to the host) most of those that differ; the others are merged only if their bytes are equal. On the host, hashes of
the bytes are compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anygpu.array.core.array import Array
from anygpu.array.core.expression import Value
from anygpu.base.typing import HostArray
from anygpu.program.primitives import Spec
from anygpu.store.contents import Content, array_of
from anygpu.store.entry import DeferredLock
from anygpu.store.report import Dropped
from anygpu.store.tensor_files.header import content_hash
from anygpu.store.tiers import Tiers

# -- comparing contents where they are


#: Bytes that are compared on the host at once.
_PIECE = 16 << 20


def fingerprint_of(x: Array) -> bytes:
    """Equal for equal contents on one device, which computes it; almost always another for others."""
    return bytes(np.asarray(fingerprints(x)).tobytes())


def fingerprints(x: Array) -> Array:
    """Computes two sums over the elements, one weighted by their positions, in the dtype of the device.

    The weights make it unlikely that an array and a permutation of it agree.
    """
    flat = x.reshape(-1)
    if flat.dtype.kind == "c":
        return np.concatenate([fingerprints(flat.real), fingerprints(flat.imag)])  # type: ignore[return-value]
    if flat.dtype.kind in "biu":
        numbers = flat.astype(np.uint32)
        weights = _positions(flat, np.uint32) * np.uint32(2654435761) + np.uint32(1)
    else:
        numbers = flat.astype(np.float32) if flat.dtype.itemsize < 4 else flat
        weights = (_positions(flat, np.uint32) * np.uint32(40503) & np.uint32(0xFFFF)).astype(numbers.dtype) + 1
    dtype: Any = numbers.dtype
    return np.stack([np.sum(numbers, dtype=dtype), np.sum(numbers * weights, dtype=dtype)])  # type: ignore[return-value]


def _positions(flat: Array, dtype: Any) -> Array:
    from anygpu.array.functions.ranges import arange

    return arange(flat.size, dtype=dtype, device=flat._device)


def are_equal(one: Array, other: Array) -> bool:
    """Bit by bit: 0.0 is not -0.0, and what holds a NaN is never found equal.

    Values of fractions do not tell everything, because a device may take subnormal numbers for 0. So those that seem
    equal there are compared on the host, in pieces.
    """
    if not np.all(_same(one, other)):
        return False
    if one.dtype.kind not in "fc":
        return True
    first, second = one.reshape(-1), other.reshape(-1)
    step = max(1, _PIECE // one.dtype.itemsize)
    pieces = (slice(start, start + step) for start in range(0, one.size, step))
    return all(np.asarray(first[each]).tobytes() == np.asarray(second[each]).tobytes() for each in pieces)


def _same(one: Array, other: Array) -> Array:
    """Compares two arrays element by element, on the device; the sign of a zero counts."""
    if one.dtype.kind == "c":
        return _same(one.real, other.real) & _same(one.imag, other.imag)
    same = one == other
    if one.dtype.kind == "f":
        same = same & (np.signbit(one) == np.signbit(other))
    return same


# -- merging


class Deduplication:
    """Finds equal contents. The lock is not held while the device computes."""

    def __init__(self, tiers: Tiers, guard: DeferredLock) -> None:
        self._tiers = tiers
        self._guard = guard

    def with_buffer_of(self, value: Value) -> Content | None:
        """The content with the same buffer: an array may be put twice."""
        with self._guard:
            return next((each for each in self._tiers if each.value.buffer is value.buffer is not None), None)

    def on_device(self, value: Value, *, but: Content | None = None) -> tuple[Content | None, bytes | None]:
        """A content on the device that is equal to this value, and the value's fingerprint if it was computed."""
        with self._guard:
            others = [each for each in self._tiers if each.spec == value.spec and each is not but]
            others = [each for each in others if self._value_there(each) is not None]
        if not others or not value.spec.size:
            return None, None
        array = array_of(value)
        mine = fingerprint_of(array)
        for content in others:
            if content.fingerprint is not None and content.fingerprint != mine:
                continue
            with self._guard:
                # One at a time: a content that is compared cannot leave the device.
                there = self._value_there(content)
                other = array_of(there) if there is not None else None
            if other is None:
                continue
            if content.fingerprint is None:
                content.fingerprint = fingerprint_of(other)
            if content.fingerprint == mine and are_equal(array, other):
                return content, mine
        return None, mine

    @staticmethod
    def _value_there(content: Content) -> Value | None:
        return content.value if content.on_device and not content.moving else None

    def with_claimed_hash(self, values: HostArray, spec: Spec, claimed_hash: str) -> Content | None:
        """A content with the same claimed or computed hash, if its bytes are equal."""
        with self._guard:
            known = self._tiers.by_digest.get(claimed_hash) or self._tiers.by_claimed_hash.get(claimed_hash)
            if known is None or known.spec != spec:
                return None
            theirs = known.read()[0] if known.copied else None
        if known.digest is None:
            if theirs is None:
                return None
            known.digest = content_hash(theirs)
        return known if content_hash(values) == known.digest else None

    def merge(self) -> tuple[list[str], list[Dropped]]:
        """Merge contents that were written to since they were put, and so were never compared."""
        names: list[str] = []
        dropped: list[Dropped] = []
        with self._guard:
            unknown = [each for each in self._tiers if each.digest is None]
        for content in unknown:
            known = self._equal_to(content)
            with self._guard:
                if known is None or known is content or not known.tensors or not content.tensors:
                    continue
                # The content on the device may be in use there, so the other one is dropped.
                stays, goes = (content, known) if content.on_device and not known.on_device else (known, content)
                labels = tuple(entry.name for entry in goes.tensors)
                tiers = self._tiers.tiers_of(goes)
                for entry in list(goes.tensors):
                    entry.content = stays
                    self._tiers.link(stays, entry)
                    self._tiers.unlink(goes, entry)
                names += labels
                dropped += [Dropped(labels, goes.nbytes, tier) for tier in tiers]
        return names, dropped

    def _equal_to(self, content: Content) -> Content | None:
        """Returns a content that is equal to this one, which may be itself; `None` if there is none.

        With a copy on the host it is found by its hash, else by computing on the device.
        """
        with self._guard:
            values = content.read()[0] if content.copied else None
        if values is None:
            with self._guard:
                value = self._value_there(content)
            return self.on_device(value, but=content)[0] if value is not None else None
        digest = content_hash(values)
        with self._guard:
            if not content.tensors:
                return None
            content.digest = digest
            return self._tiers.by_digest.setdefault(digest, content)
