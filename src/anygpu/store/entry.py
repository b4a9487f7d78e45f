"""The entries of a store: keys, holders and leases; and its lock, with deferred calls of finalizers."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from anygpu.array.core.array import Array
from anygpu.array.core.expression import Value
from anygpu.base.interrupts import may_be_interrupted, soon
from anygpu.base.typing import HostArray
from anygpu.errors import InvalidOption, NotHeld
from anygpu.store.contents import Content
from anygpu.store.report import CopyKind
from anygpu.workers.device_arrays.handle import is_shared

if TYPE_CHECKING:
    from types import TracebackType

    from anygpu.store.tensor import Tensor


# -- the lock of a store, with deferred calls of finalizers, which run on any thread and so must never wait


#: A call to make once the lock is held.
Notify = Callable[[], None]


class _Gone(weakref.ref[Any]):
    """Becomes a note when its object is gone. That is done by a function of C, which no interrupt can come into."""

    __slots__ = ("bell", "note")

    note: Notify
    #: Tells the lock of it, in Python: if that is interrupted, the note is found at the next use.
    bell: weakref.ref[Any]

    __hash__ = object.__hash__
    __eq__ = object.__eq__


class DeferredLock:
    """A lock that is not taken twice by one thread. Whoever lets go of it first does what notes say.

    Never `with guard:` in the main thread, where an interrupt could leave it taken: there `anygpu.base.interrupts` lets
    another thread do it. Only what looks at one thing may take the plain lock instead: `with guard.lock:`.
    """

    def __init__(self) -> None:
        self._notes: deque[Notify | _Gone] = deque()
        self._watched: set[_Gone] = set()
        self.anew()

    def anew(self) -> None:
        """Also called in a forked child, where no thread is left to release the lock."""
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)

    def __enter__(self) -> None:
        self.lock.acquire()
        try:
            self._settle()
        except BaseException:
            self.lock.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Makes the deferred calls, releases the lock, and looks for calls that came in between."""
        try:
            self._settle()
        finally:
            self.lock.release()
        self._look_again()

    def note(self, note: Notify) -> None:
        """Make the call now if the lock is free, else when it is released. Never waits."""
        self._notes.append(note)
        self._ring()

    def note_when_gone(self, thing: object, note: Notify) -> Callable[[], None]:
        """Make the call when the object is gone, wherever that is, unless the function returned is called before.

        The caller must hold the lock.
        """
        bell = weakref.ref(thing, self._ring)
        gone = _Gone(thing, self._notes.append)  # the last is called first
        gone.note, gone.bell = note, bell
        self._watched.add(gone)
        return partial(self._watched.discard, gone)

    def _ring(self, _: object = None) -> None:
        """A call was deferred: it is made at once if the lock is free, and by another thread otherwise."""
        if not may_be_interrupted():
            self._look_again()
        if self._notes:
            soon(self.settle)

    @property
    def has_notes(self) -> bool:
        return bool(self._notes)

    def settle(self) -> None:
        """Make the deferred calls. Waits for the lock."""
        with self:
            pass

    def wait(self) -> None:
        """Release the lock until `changed` is called. The caller must hold it."""
        self._changed.wait()

    def changed(self) -> None:
        self._changed.notify_all()

    def unlocked(self) -> _Unlocked:
        """A context that releases the lock for a slow step. The caller must hold it."""
        return _Unlocked(self.lock)

    def _settle(self) -> None:
        """Makes the deferred calls. The lock is held."""
        while self._notes:
            note = self._notes.popleft()
            if isinstance(note, _Gone):
                self._watched.discard(note)
                note = note.note
            note()

    def _look_again(self) -> None:
        """Makes deferred calls as long as there are some and the lock is free: its holder may have missed them."""
        # A call may have been deferred between the last look and the release.
        while self._notes and self.lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self.lock.release()


class _Unlocked:
    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.release()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.acquire()


# -- the entries of a store: keys, holders and leases, and the entry of one name


#: The namespace, and the name last.
StoreKey = tuple[str, ...]
#: One namespace, or several, each nested in the one before; "" is none.
Path = str | tuple[str, ...]


def key_of(namespace: Path, name: str) -> StoreKey:
    """The namespace, and the name last."""
    path = namespace if isinstance(namespace, tuple) else (namespace,) if namespace else ()
    for each in (*path, name):
        if not isinstance(each, str):
            raise InvalidOption(f"names and namespaces of tensors are strings; got {each!r}.")
    return (*path, name)


# -- holders and leases


#: A name, or an object whose reference is released when it is collected.
Holder = Any


def label_of(holder: Holder) -> str:
    """The name of a holder in messages and statistics, unique among living objects."""
    return holder if isinstance(holder, str) else f"{type(holder).__name__} at {id(holder):#x}"


class Lease:
    """Keeps a tensor on the device until it is released: by `with`, by `release()`, or when it is collected."""

    def __init__(self, tensor: Tensor, holder: str, end: Callable[[], None]) -> None:
        """`end` is for the store to call, once or twice: it ends the lease at the first time."""
        self._tensor = tensor
        self.holder = holder
        self.name = tensor.name
        #: Empty once it was released.
        self._right = [True]
        self._end = end
        #: For the store: called after it was released.
        self.unwatch: Callable[[], None] | None = None

    @property
    def tensor(self) -> Tensor:
        if not self._right:
            raise NotHeld(self.name, self.holder)
        return self._tensor

    @property
    def active(self) -> bool:
        return bool(self._right)

    def release(self) -> None:
        """Raises `NotHeld` when it was released before."""
        if not self._right:
            raise NotHeld(self.name, self.holder)
        # In this order: what was begun and interrupted can be done again.
        self._tensor._entry.store._later(self._end)
        try:
            self._right.pop()
        except IndexError:  # by another thread just now
            raise NotHeld(self.name, self.holder) from None
        if self.unwatch is not None:
            self.unwatch()
            self.unwatch = None

    def __enter__(self) -> Tensor:
        return self.tensor

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._right:
            self.release()

    def __repr__(self) -> str:
        return f"<lease of {self.name!r} by {self.holder!r}{'' if self.active else ', released'}>"


# -- entries


class EntryStore(Protocol):
    """The part of a store that tensors, views and leases use."""

    def _value_of(self, entry: NamedEntry) -> Value: ...

    def _on_host(self, entry: NamedEntry) -> HostArray: ...

    def _write(self, entry: NamedEntry, new: Value) -> None: ...

    def _holders(self, entry: NamedEntry) -> tuple[str, ...]: ...

    def _count(self, kind: CopyKind, nbytes: int) -> None: ...

    def _add_view(self, entry: NamedEntry, view: Value) -> None: ...

    def _later(self, note: Callable[[], None]) -> None: ...


class NamedEntry:
    """One name in a store, with its holders and its current content. The store's lock guards it."""

    __slots__ = (
        "__weakref__",
        "content",
        "holders",
        "key",
        "last_host_values",
        "last_value",
        "leases",
        "owner",
        "pins",
        "released",
        "spec",
        "store",
        "tensor",
        "version",
    )

    def __init__(
        self, store: EntryStore, key: StoreKey, owner: str, content: Content, tensor: Callable[[NamedEntry], Array]
    ) -> None:
        """Makes an entry that its owner holds; `tensor` makes the one array that stands for it."""
        self.store = store
        #: The namespace, and the name last.
        self.key = key
        self.owner = owner
        self.content = content
        self.spec = content.spec
        #: Holders of one reference each.
        self.holders: set[str] = {owner}
        #: Leases by holder.
        self.leases: dict[str, int] = {}
        self.pins = 0
        #: Counts writes.
        self.version = 0
        #: Whether the last reference was released.
        self.released = False
        #: After that, the value for views that are still in use.
        self.last_value: Value | None = None
        #: The same on the host, if it was not on the device.
        self.last_host_values: HostArray | None = None
        self.tensor = tensor(self)

    @property
    def name(self) -> str:
        return self.key[-1]

    @property
    def is_viewed(self) -> bool:
        """Whether views of the tensor are in use."""
        return self.tensor._shared is not None and is_shared(self.tensor, "_shared")

    @property
    def is_held(self) -> bool:
        return bool(self.holders or self.leases)

    def __repr__(self) -> str:
        return f"<entry {self.key}>"
