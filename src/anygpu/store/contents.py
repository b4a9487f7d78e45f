"""The bytes behind tensors: one `Content` for all equal tensors, with its copies on the device and the host.

A content is immutable. A write creates a new content for its tensor, so copies never disagree: those of the old content
are dropped with it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from anygpu.array.core.array import Array, as_array
from anygpu.array.core.expression import Value, compute
from anygpu.array.core.recording import dtype_name
from anygpu.array.core.structure import require_plain
from anygpu.base.typing import HostArray
from anygpu.program.primitives import Permute, Reshape, Slice, Spec
from anygpu.store.report import Tier
from anygpu.workers.device_arrays.handle import DeviceHandle, is_shared
from anygpu.workers.device_arrays.lineage import HostCopy, TrackedBuffer
from anygpu.workers.device_arrays.recoverable import RecoverableDevice
from anygpu.workers.executor import exportable, native_order
from anygpu.workers.thread import LocalHandle

# -- values that a user puts


#: Operations that may return a view of their input, which would keep all of that alive.
_MAY_BE_VIEWS = (Reshape, Slice, Permute)


def values_of(array: Any) -> tuple[HostArray, int]:
    """The values on the host, and the bytes downloaded for that. They may be the user's own memory."""
    if isinstance(array, Array):
        values = np.asarray(array)
        return values, 0 if getattr(array._device, "device", "").partition(":")[0] == "numpy" else values.nbytes
    require_plain(array, "a store")
    if not isinstance(array, np.ndarray) and hasattr(array, "__dlpack__") and not hasattr(array, "__array__"):
        array = np.from_dlpack(array)
    values = np.asarray(array)
    dtype_name(values.dtype)  # raises for what no device has
    return values, 0


def array_of(value: Value) -> Array:
    """A new array of the same buffer."""
    return Array(Value.on(value.device, value.buffer, value.spec))  # type: ignore[arg-type]


def settle(value: Value, device: DeviceHandle) -> None:
    """Compute the value on the device."""
    compute([value], device)


def resident_value(array: Array, device: DeviceHandle) -> tuple[Value, int]:
    """A value of the store's own with the array's buffer, and the bytes copied on the device for it."""
    value = array._value
    is_view = array._view is not None or _is_made_of_views(value)
    compute([value], device)
    if is_view and not value.spec.size:
        # Without elements it still is a part of its base.
        return Value.on(device, device.upload(np.empty(array.shape, array.dtype)), value.spec), 0
    if is_view:
        # The memory of a view is that of its base, which the store would keep alive but not count.
        value = copied_on_device(Array(value) if value.holder is None else array)._value
        compute([value], device)
        return Value.on(device, value.buffer, value.spec), value.spec.nbytes
    return Value.on(device, value.buffer, value.spec), 0


def copied_on_device(array: Array) -> Array:
    """The same values in memory of their own. The condition is an input, so that the copy is not optimised away."""
    yes = as_array(np.ones(1, np.bool_), array._device)
    copied: Array = np.where(yes, array.reshape(-1), np.zeros((), array.dtype)).reshape(array.shape)  # type: ignore[assignment]
    return copied


def _is_made_of_views(value: Value) -> bool:
    """Whether it is only moved out of an existing buffer."""
    seen = False
    while value.op is not None and isinstance(value.op, _MAY_BE_VIEWS):
        value, seen = value.inputs[0], True
    return seen and value.op is None


# -- contents


_numbers = itertools.count(1)


class HostBytes:
    """Bytes that the host can read, and their owner: ordinary memory, a file, or shared memory."""

    __slots__ = ("_close", "kind", "values")

    def __init__(
        self,
        values: HostArray,
        kind: Literal["memory", "disk", "file", "shared"] = "memory",
        close: Callable[[], None] | None = None,
    ) -> None:
        """Keeps values that are read-only from now on; `close` gives their memory back."""
        self.values = values
        #: memory: the store's own. disk: a file of the store's own, deleted with this object. file, shared: owned
        #: elsewhere, free of cost for the store, and not written to while they are here.
        self.kind = kind
        self._close = close

    def close(self) -> None:
        close, self._close = self._close, None
        if close is not None:
            close()


class Content:
    """One content and its copies."""

    __slots__ = (
        "__weakref__",
        "backing",
        "claimed_hash",
        "closed",
        "copy",
        "device_handle",
        "digest",
        "fingerprint",
        "host",
        "key",
        "moving",
        "prefetched",
        "spec",
        "tensors",
        "used",
        "value",
    )

    def __init__(self, device: DeviceHandle, spec: Spec) -> None:
        """Makes a content without bytes, which is filled by `bring` or gets a buffer."""
        self.key = next(_numbers)
        self.device_handle = device
        self.spec = spec
        #: The same object for the life of the content; its buffer comes and goes.
        self.value = Value.on(device, None, spec)
        #: The store's own copy in memory.
        self.host: HostBytes | None = None
        #: A file or shared memory that has the same bytes.
        self.backing: HostBytes | None = None
        #: The copy that an array on a recoverable device is restored from: the bytes that the store has on the host.
        self.copy = HostCopy(np.empty(0, np.uint8), 0, deque())
        self.copy.values = None
        #: The hash as computed here, and as a file or another process claims it.
        self.digest: str | None = None
        self.claimed_hash: str | None = None
        self.fingerprint: bytes | None = None
        self.used = 0
        #: The entries that share it.
        self.tensors: set[Any] = set()
        self.closed = False
        #: Whether a thread is bringing it to the device.
        self.moving = False
        #: Whether it was prefetched, and not used since.
        self.prefetched = False

    @property
    def nbytes(self) -> int:
        return self.spec.nbytes

    @property
    def on_device(self) -> bool:
        return is_on_device(self.value)

    @property
    def tier(self) -> Tier:
        """Returns the nearest tier that has it."""
        if self.on_device:
            return "device"
        if self.host is not None or self._recovery is not None:
            return "host"
        return "disk" if self.backing is not None else "device"

    @property
    def copied(self) -> bool:
        """Whether there is a copy outside the device."""
        return self.host is not None or self.backing is not None

    @property
    def shares_host(self) -> bool:
        return shares_host(self.device_handle)

    @property
    def tracked(self) -> TrackedBuffer | None:
        buffer = self.value.buffer
        return buffer if isinstance(buffer, TrackedBuffer) else None

    @property
    def _recovery(self) -> HostArray | None:
        """The copy that the recoverable device keeps by itself."""
        tracked = self.tracked
        copy = tracked.lineage.copy if tracked is not None else None
        return copy.values if copy is not None and copy is not self.copy else None

    # -- to the device and from it; the caller counts the bytes

    def bring(self) -> int:
        """Bring it to the device; returns the bytes copied."""
        tracked = self.tracked
        if tracked is not None:
            tracked.ensure_resident()
            return self.nbytes
        source = self.host or self.backing
        if source is None:
            raise RuntimeError("a content of a store is nowhere")  # the store never lets the last copy go
        if self.shares_host:
            return self._adopt(source)
        self.value.buffer, copied = uploaded(self.device_handle, source.values, self.copy)
        return copied

    def _adopt(self, source: HostBytes) -> int:
        """Use host memory as the buffer, on a device that works in it; returns the bytes copied."""
        values = exportable(source.values)
        buffer = self.device_handle.adopt(values)
        seen = self.device_handle.download(buffer)
        self.value.buffer = buffer
        if self.host is not None:
            self.host = None
        return 0 if np.may_share_memory(seen, values) else self.nbytes

    def make_contiguous(self) -> int:
        """Make the buffer contiguous, as views of a tensor require; returns the bytes copied.

        NumPy and torch leave the result of a program in other orders too, or one number for many elements.
        """
        self.value.ordered = True
        if not self.shares_host:
            return 0
        values = self.device_handle.download(self.value.buffer)
        if values.flags.c_contiguous:
            return 0
        self.value.buffer = self.device_handle.adopt(np.ascontiguousarray(values))
        return self.nbytes

    def leave_device(self) -> None:
        """Remove it from the device. There must be another copy."""
        tracked = self.tracked
        if tracked is not None:
            tracked.lineage.remember(self.copy)
            tracked.handle = None
        else:
            self.value.buffer = None

    def is_idle(self) -> bool:
        """Whether no array or call refers to the value, or to its buffer on the device."""
        if self.moving or is_shared(self, "value") or is_shared(self.value, "buffer"):
            return False
        buffer = self.value.buffer
        if isinstance(buffer, TrackedBuffer):
            return buffer.handle is None or not is_shared(buffer, "handle")
        if isinstance(buffer, LocalHandle) and type(buffer.buffer) is np.ndarray:
            return not is_shared(buffer, "buffer")
        return True

    # -- copies on the host

    def copy_to_host(self) -> int:
        """Keep a copy in host memory; returns the bytes copied."""
        if self.host is not None:
            return 0
        values = self._recovery
        copied = 0
        if values is None:
            values, copied = self.read()
        if copied == 0 and self.tracked is None and self.on_device:
            # The memory is the device's own, and outlives the device's handle.
            values = values.view()
        self._host_is(values)
        return copied

    def _host_is(self, values: HostArray) -> None:
        self.host = HostBytes(values)
        self.remember()

    def remember(self) -> None:
        """Let the array on the device be restored from the copy that the store has."""
        source = self.host or self.backing
        self.copy.values = None if source is None else source.values
        self.copy.nbytes = 0 if source is None else source.values.nbytes
        tracked = self.tracked
        if tracked is not None and source is not None:
            tracked.lineage.remember(self.copy)
            tracked.lineage.cut()

    def forgo_copies(self, why: str) -> None:
        """Accept that the array on the device is the only copy, and lost with it."""
        self.copy.why = why
        self.copy.values = None
        tracked = self.tracked
        if tracked is not None and tracked.lineage.producer is None:
            tracked.lineage.forget(why)

    def drop_host(self) -> None:
        """Drops the host's copy, and lets the array on the device be restored from what is left."""
        host, self.host = self.host, None
        self.remember()
        if host is not None:
            host.close()

    def read(self) -> tuple[HostArray, int]:
        """The values on the host, and the bytes copied from the device."""
        source = self.host or self.backing
        if source is not None:
            return source.values, 0
        values = self.device_handle.download(self.value.buffer)
        return values, 0 if shares_host(self.device_handle) else self.nbytes

    def close(self) -> None:
        """Drop all copies: no entry has this content any more."""
        self.closed = True
        self.value = Value.on(self.device_handle, None, self.spec)  # users of the old value go on with it
        for source in (self.host, self.backing):
            if source is not None:
                source.close()
        self.host = self.backing = None


def shares_host(device: DeviceHandle) -> bool:
    """Whether the device uses host memory in this process, so that nothing has to be copied to the host."""
    return device.facts.form == "host" and not isinstance(device, RecoverableDevice)


def is_on_device(value: Value) -> bool:
    """Whether a value has a buffer, on a worker that is alive."""
    buffer = value.buffer
    if not isinstance(buffer, TrackedBuffer):
        return buffer is not None
    handle: Any = buffer.handle
    return handle is not None and handle.worker.alive


def uploaded(device: DeviceHandle, values: HostArray, copy: HostCopy | None = None) -> tuple[Any, int]:
    """A buffer of the values, and the bytes copied. With `copy` the buffer is restored from that one."""
    values = native_order(values)
    if isinstance(device, RecoverableDevice):
        return (device.upload(values) if copy is None else device.upload_with_copy(values, copy)), values.nbytes
    return device.upload(values), values.nbytes
