"""Tensors that processes of one user on one host share: in memory that all of them map, each found by its name.

::

    shared = open_shared("models")                                     # in any number of processes
    shared.publish(("text", "weights"), values, owner="text-encoder")  # one copy, into shared memory
    found = shared.find(("text", "weights"))                           # elsewhere: no copy, nothing read yet

A store is a folder in /dev/shm that is the user's alone. Where there is no such file system (macOS), it is a folder of
ordinary files in the folder for temporary ones, which the system keeps in memory as far as it can; on Windows there is
none yet. In it are a lock, a directory of the tensors, one segment for each (or for many that were published together),
and one file for each attached process.

A process may be killed at any moment without losing or leaking anything. A segment is written before the directory
names it, and the directory is replaced atomically; a segment that the directory does not name and no process holds is
a leftover, which the next process removes. The last process to close removes everything, and so does the next to open
if all others have died. Arrays stay valid all the while: the kernel keeps memory as long as it is mapped.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import hashlib
import mmap
import operator
import os
import secrets
import sys
import tempfile
import threading
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, TypeVar

import msgspec
import numpy as np

from anygpu.base.interrupts import soon, uninterrupted, whole
from anygpu.base.typing import HostArray
from anygpu.errors import InvalidOption, NameTaken, StoreClosed, StoreError, UnknownTensor, Unsupported
from anygpu.program.dtypes import DTYPES, DType
from anygpu.program.primitives import Spec
from anygpu.store import segments
from anygpu.store.private_folder import PrivateFolder, hold, outside_of_locks
from anygpu.store.segments import (
    EMPTY,
    MOST_BYTES,
    Directory,
    ReservedSegment,
    SegmentEntry,
    SegmentKey,
    decode,
    encode,
    fits_anywhere,
)

#: A dict of pairs is no Mapping of tuples of any length, so callers keep their own kind of key.
AnyKey = TypeVar("AnyKey", bound=SegmentKey)

_DIRECTORY = "directory"
_HOLDER = "holder-"
_MEMORY_FILES = Path("/dev/shm")

#: How often a folder may vanish while it is opened, or a tensor be replaced while it is looked up.
_TRIES = 100


class Found(NamedTuple):
    """A tensor of the store as it was when it was looked up. The values are read-only, and stay as they are."""

    values: HostArray
    owner: str
    hash: str
    #: Another for each tensor that was ever published, and higher for later ones.
    version: int


class Crossing(msgspec.Struct, frozen=True):
    """Bytes that had to be copied from a device, because processes share no memory there."""

    bytes: int
    how: str = "host memory"


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a shared store now, and the bytes that this process published from devices."""

    tensors: int
    #: Of all tensors; those that are stored once under several names count once.
    bytes: int
    #: That are attached, this one among them.
    processes: int
    crossings: tuple[Crossing, ...]


def open_shared(name: str, *, within: Path | None = None) -> SharedTensors:
    """Attach to the store of that name, which is made if there is none.

    `within` is a folder to have it in, instead of /dev/shm; every process has to say the same.
    """
    if sys.platform == "win32":
        instead = "Save to a safetensors file and open that in the other process: it is mapped, so memory is shared."
        message = "shared stores are not supported on Windows yet."
        raise Unsupported("shared stores", "Windows", instead=instead, message=message)
    path = _path(name, within)
    return uninterrupted(lambda: _opened(name, path))


def _opened(name: str, path: Path) -> SharedTensors:
    """Open the shared store in this folder, and create it if it is not there or was removed meanwhile."""
    for _ in range(_TRIES):
        # The last process may remove the folder between any two steps. Then it is created again.
        with contextlib.suppress(FileNotFoundError):
            folder = PrivateFolder(path)
            try:
                with folder.locked():
                    if not _tidy(folder):
                        folder.clear()
                    holder = f"{_HOLDER}{os.getpid()}-{secrets.token_hex(4)}"
                    descriptor = folder.open(holder, writing=True, new=True)
                    hold(descriptor)
                return SharedTensors(name, folder, holder, descriptor)
            except BaseException:
                folder.close()
                raise
    raise StoreError(f"{path} is removed as soon as it is created. Find out which program removes it.")


class SharedTensors:
    """One process's way to a shared store. Any thread may use it; a forked process has to open its own."""

    def __init__(self, name: str, folder: PrivateFolder, holder: str, descriptor: int) -> None:
        """Takes over the folder and the held file that shows this process as attached; both go with this object.

        The directory is cached, and read again when its time of change differs.
        """
        self.name = name
        self._folder = folder
        self._process = os.getpid()
        self._mutex = threading.RLock()
        self._known = EMPTY
        self._entries: dict[SegmentKey, SegmentEntry] = {}
        self._known_at = -1
        self._told = folder.changed_at(_DIRECTORY)
        self._maps: weakref.WeakValueDictionary[str, mmap.mmap] = weakref.WeakValueDictionary()
        self._crossings: list[Crossing] = []
        # Also runs when it is forgotten, and when Python ends.
        self._leave = weakref.finalize(self, _leave, folder, holder, descriptor, os.getpid())

    @property
    def path(self) -> Path:
        return self._folder.path

    def names(self) -> tuple[SegmentKey, ...]:
        """Returns the keys of all tensors that any process has published."""
        with self._mutex:
            self._check_usable()
            if self._folder.changed_at(_DIRECTORY) == self._known_at:
                return tuple(self._entries)
        return uninterrupted(self._names)

    def _names(self) -> tuple[SegmentKey, ...]:
        with self._mutex, self._using():
            self._directory()
            return tuple(self._entries)

    def find(self, key: SegmentKey) -> Found | None:
        """The tensor as it is now, without a copy. Later publications do not change it, they make others."""
        # What was looked up before needs no file to be opened, which an interrupt could leave open.
        known, found = self._found_before(key)
        return found if known else uninterrupted(lambda: self._find(key))

    def _found_before(self, key: SegmentKey) -> tuple[bool, Found | None]:
        """Whether it is known without opening a file, and what is known then."""
        with self._mutex:
            self._check_usable()
            if self._folder.changed_at(_DIRECTORY) != self._known_at:
                return False, None
            entry = self._entries.get(key)
            if entry is None:
                return True, None
            memory = self._maps.get(entry.segment)
            if memory is None:
                return False, None
            return True, Found(segments.tensor(memory, entry), entry.owner, entry.hash, entry.version)

    def _find(self, key: SegmentKey) -> Found | None:
        """A shared tensor by its name, mapped into this process; `None` if there is none."""
        for _ in range(_TRIES):
            with self._mutex, self._using():
                self._directory()
                entry = self._entries.get(key)
                if entry is None:
                    return None
                try:
                    values = segments.tensor(self._map(entry.segment), entry)
                except FileNotFoundError:
                    if self._folder.changed_at(_DIRECTORY) == self._known_at:
                        raise self._broken(f"it names {entry.segment}, which does not exist") from None
                    continue  # removed or replaced between the two looks
                return Found(values, entry.owner, entry.hash, entry.version)
        raise StoreError(f"{key} of the shared store {self.name} is replaced faster than it can be read.")

    def publish(self, key: SegmentKey, values: Any, *, owner: str, hash: str = "") -> HostArray:
        """Let every attached process find the values, and return them as those will see them.

        They are copied into shared memory once, unless they are a `Segment`, or there under another name already: then
        `hash`, type, shape and all bytes are the same. A name that the owner has already is replaced; who has found
        the old values keeps them. An array that is not NumPy's is read from its device, and counts as a crossing.
        """
        if isinstance(values, ReservedSegment):
            return self._publish_segment(key, values, owner, hash)
        return self.publish_all({key: values}, owner=owner, hashes={key: hash})[key]

    def publish_all(
        self, tensors: Mapping[AnyKey, Any], *, owner: str, hashes: Mapping[AnyKey, str] | None = None
    ) -> dict[AnyKey, HostArray]:
        """All at once, in one segment: others see all of them or none, and need one mapping for all.

        The memory of those that are removed later is free when all of them are.
        """
        given = hashes or {}
        for key in tensors:
            _check_texts(key, owner, given.get(key, ""))
        if not tensors:
            return {}
        # By the caller's own thread: this may be code of a user.
        return self._publish_all({key: self._on_host(values) for key, values in tensors.items()}, owner, given)

    @whole
    def _publish_all(
        self, arrays: dict[AnyKey, HostArray], owner: str, given: Mapping[AnyKey, str]
    ) -> dict[AnyKey, HostArray]:
        """Publish arrays at once, or none of them.

        Arrays with an equal one in the store refer to that; returns the mapped ones.
        """
        specs = {key: Spec(values.shape, _checked_dtype(key, values)) for key, values in arrays.items()}
        while True:
            twins = {key: twin for key in arrays if (twin := self._twin(arrays[key], specs[key], given.get(key, "")))}
            own = [key for key in arrays if key not in twins]
            written = self._written([arrays[key] for key in own], [specs[key] for key in own], arrays, owner)
            places = {key: (written.name, offset) for key, offset in zip(own, written.offsets, strict=True)}
            places |= {key: (twin.segment, twin.offset) for key, (twin, _) in twins.items()}
            try:
                entries = self._commit(
                    [
                        SegmentEntry(
                            key, owner, given.get(key, ""), specs[key].dtype, specs[key].shape, *places[key], 1
                        )
                        for key in arrays
                    ],
                    borrowed=frozenset(twin.segment for twin, _ in twins.values()),
                )
            except BaseException:
                self._discard(written.name)
                raise
            if entries is not None:
                return {
                    key: twins[key][1] if key in twins else written.tensor(entry)
                    for key, entry in zip(arrays, entries, strict=True)
                }
            self._discard(written.name)  # another process removed the equal tensor: try again, with a copy

    @whole
    def reserve(self, shape: Sequence[int], dtype: DType | str) -> ReservedSegment:
        """Memory to write the values into directly; then `publish` it, or `discard` it."""
        if not _is_dtype(dtype):
            raise InvalidOption(f"{dtype} is not a dtype of tensors. Use one of {', '.join(DTYPES)}.")
        spec = Spec(tuple(map(operator.index, shape)), dtype)
        if min(spec.shape, default=0) < 0 or not fits_anywhere(spec.shape, dtype):
            raise InvalidOption(f"no tensor has the shape {spec.shape}.")
        with self._mutex, self._using(), self._folder.locked():
            name, descriptor = segments.create(self._folder)
        try:
            segment = segments.writable(name, descriptor, spec)
        except BaseException:
            self._discard(name)
            raise
        # Also when its caller was interrupted before having it.
        weakref.finalize(segment, _discard_forgotten, weakref.ref(self), name).atexit = False
        return segment

    @whole
    def discard(self, segment: ReservedSegment) -> None:
        """Give reserved memory back. Nothing happens to what was published."""
        segment.seal()
        with self._mutex, self._using():
            self._discard(segment.name)

    @whole
    def remove(self, key: SegmentKey) -> None:
        """Remove a tensor. Processes that have mapped it keep it; its memory is freed with the last of them."""
        with self._mutex, self._using(), self._folder.locked():
            directory = self._directory()
            if key not in self._entries:
                alike = difflib.get_close_matches(
                    key[-1], [other[-1] for other in self._entries if other[:-1] == key[:-1]]
                )
                raise UnknownTensor(key[-1], self.name, alike)
            self._replace(directory, directory.without(frozenset([key])))

    @whole
    def in_use(self, key: SegmentKey) -> bool:
        """Whether a living process has an array of it, or of a tensor that was published together with it."""
        with self._mutex, self._using(), self._folder.locked():
            self._directory()
            entry = self._entries.get(key)
            return entry is not None and self._folder.held(entry.segment)

    def changed(self) -> bool:
        """Whether other processes have published or removed a tensor since the last call. Costs some microseconds."""
        with self._mutex, self._using():
            now = self._folder.changed_at(_DIRECTORY)
            told, self._told = self._told, now
            return now != told

    @whole
    def statistics(self) -> Sharing:
        """Counts tensors, bytes and attached processes; bytes that tensors share count once."""
        with self._mutex, self._using():
            with self._folder.locked():
                processes = sum(name.startswith(_HOLDER) and self._folder.held(name) for name in self._folder.names())
            entries = self._directory().entries
            places = {(entry.segment, entry.offset): entry.nbytes for entry in entries}
            return Sharing(
                tensors=len(entries),
                bytes=sum(places.values()),
                processes=processes,
                crossings=tuple(self._crossings),
            )

    @whole
    def close(self) -> None:
        """Detach. The last process removes the store; mapped arrays stay valid."""
        with self._mutex:
            self._leave()

    def __enter__(self) -> SharedTensors:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _using(self) -> Iterator[None]:
        """The caller must hold the lock."""
        self._check_usable()
        try:
            yield
        except FileNotFoundError as error:
            raise StoreError(
                f"{self._folder.path} was removed while it was in use. Tensors that were found stay valid; "
                "open the store again for others."
            ) from error

    def _check_usable(self) -> None:
        """Raises `StoreClosed` after `close`, and `StoreError` in a forked process."""
        if not self._leave.alive:
            raise StoreClosed(self.name)
        if os.getpid() != self._process:
            raise StoreError(
                f"the shared store {self.name} was opened before this process was forked. Call open_shared() here."
            )

    def _directory(self) -> Directory:
        """The current directory, read again only if it has changed."""
        if self._folder.changed_at(_DIRECTORY) != self._known_at:
            self._known_at, self._known = _read(self._folder)
            self._entries = self._known.by_key()
        return self._known

    def _replace(self, old: Directory, new: Directory) -> None:
        """Replace the directory, and only then remove segments. The caller must hold the folder lock."""
        try:
            content = encode(new)
        except UnicodeEncodeError as error:
            raise InvalidOption("names, owners and hashes of shared tensors have to be valid Unicode.") from error
        before = self._folder.changed_at(_DIRECTORY)
        self._folder.replace(_DIRECTORY, content, new.generation)
        if self._told == before:  # no other process has changed anything meanwhile
            self._told = new.generation
        for name in old.segments() - new.segments():
            self._folder.remove(name)

    def _commit(
        self, entries: list[SegmentEntry], borrowed: frozenset[str] = frozenset()
    ) -> tuple[SegmentEntry, ...] | None:
        """The entries as they are in the directory now, or None where a borrowed segment is gone."""
        with self._mutex, self._using(), self._folder.locked():
            directory = self._directory()
            self._require_free([entry.key for entry in entries], entries[0].owner if entries else "")
            if not borrowed <= directory.segments():
                return None
            version = directory.generation + 1
            added = tuple(msgspec.structs.replace(entry, version=version) for entry in entries)
            self._replace(directory, directory.without(frozenset(entry.key for entry in entries), added))
            return added

    def _require_free(self, keys: Collection[SegmentKey], owner: str) -> None:
        """Raises `NameTaken` if a key belongs to another owner."""
        for key in keys:
            there = self._entries.get(key)
            if there is not None and there.owner != owner:
                raise NameTaken(key[-1], there.owner)

    @whole
    def _publish_segment(self, key: SegmentKey, segment: ReservedSegment, owner: str, hash: str) -> HostArray:
        """The values of a segment that this process has reserved and filled."""
        _check_texts(key, owner, hash)
        if segment.published:
            raise InvalidOption(f"the segment for {key} was published or discarded before. Reserve another.")
        with self._mutex, self._using():
            try:
                memory = self._map(segment.name)
            except FileNotFoundError:
                raise InvalidOption(f"the segment for {key} was reserved from another store, or discarded.") from None
        entries = self._commit(
            [SegmentEntry(key, owner, hash, segment.spec.dtype, segment.spec.shape, segment.name, 0, 1)]
        )
        segment.seal()
        return segments.tensor(memory, (entries or ())[0])

    def _written(
        self, arrays: list[HostArray], specs: list[Spec], keys: Collection[SegmentKey], owner: str
    ) -> _Written:
        """Write arrays into one new segment, which no other process sees before it is published."""
        offsets, nbytes = segments.layout(specs)
        if not arrays:
            return _Written()
        with self._mutex, self._using(), self._folder.locked():
            self._directory()
            self._require_free(keys, owner)  # before the time is spent
            name, descriptor = segments.create(self._folder)
        try:
            segments.write(descriptor, nbytes, offsets, arrays)
            memory = segments.mapped(descriptor)
        except BaseException:
            self._discard(name)
            raise
        finally:
            os.close(descriptor)
        self._maps[name] = memory
        return _Written(name, offsets, memory)

    def _twin(self, values: HostArray, spec: Spec, hash: str) -> tuple[SegmentEntry, HostArray] | None:
        """A tensor with the same bytes, which is there already. The hash only says where to look."""
        if not hash:
            return None
        with self._mutex, self._using():
            alike = [
                entry
                for entry in self._directory().entries
                if entry.hash == hash and entry.dtype == spec.dtype and entry.shape == spec.shape
            ]
            for entry in alike:
                with contextlib.suppress(FileNotFoundError):
                    found = segments.tensor(self._map(entry.segment), entry)
                    if segments.same_bytes(values, found):
                        return entry, found
        return None

    def _map(self, name: str) -> mmap.mmap:
        """Returns the mapping of a segment, which all arrays of this process share."""
        memory = self._maps.get(name)
        if memory is None:
            memory = self._maps[name] = segments.readable(self._folder, name)
        return memory

    def _discard(self, name: str) -> None:
        """Unless the directory has it: an interruption may come when a publication is as good as done."""
        with contextlib.suppress(StoreError), self._mutex, self._using(), self._folder.locked():
            if name and name not in self._directory().segments():
                self._folder.remove(name)

    def _on_host(self, values: Any) -> HostArray:
        """Returns the values as an array of NumPy's; what came from a device for that is counted."""
        read = np.asarray(values)
        if not isinstance(values, np.ndarray) and hasattr(values, "__array__"):
            self._crossings.append(Crossing(read.nbytes))
        return read

    def _broken(self, why: str) -> StoreError:
        return _broken(self._folder, why)


class _Written(NamedTuple):
    """A segment that the directory does not have yet. Without tensors there is none."""

    name: str = ""
    offsets: Sequence[int] = ()
    memory: mmap.mmap | None = None

    def tensor(self, entry: SegmentEntry) -> HostArray:
        if self.memory is None:
            raise StoreError(f"{entry.key} has no memory: a bug in anygpu; please report it.")
        return segments.tensor(self.memory, entry)


def _path(name: str, within: Path | None) -> Path:
    """Returns the folder of a store: one for each user and name, which may be any text."""
    if not name:
        raise InvalidOption("a shared store needs a name, by which other processes find it.")
    # Any text can be a name; what the file system allows does not matter.
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:32]
    return (within or _place()) / f"anygpu-{os.geteuid()}-{digest}"


def _place() -> Path:
    if _MEMORY_FILES.is_dir() and os.access(_MEMORY_FILES, os.W_OK | os.X_OK):
        return _MEMORY_FILES
    return Path(tempfile.gettempdir())


def _check_texts(key: Any, owner: Any, hash: Any) -> None:
    """Raises `InvalidOption` for a key, owner or hash that is none."""
    if not (isinstance(key, tuple) and key and all(isinstance(part, str) for part in key)):
        raise InvalidOption(
            f"{key!r} is not a key of a tensor: it is a tuple of strings, the namespaces and the name last."
        )
    if not isinstance(owner, str) or not isinstance(hash, str):
        raise InvalidOption(f"owner and hash of {key} have to be strings; got {owner!r} and {hash!r}.")


def _is_dtype(name: str) -> TypeGuard[DType]:
    return name in DTYPES


def _checked_dtype(key: SegmentKey, values: HostArray) -> DType:
    """Returns the dtype's name; raises `InvalidOption` for one that tensors do not have."""
    name = values.dtype.name
    if not _is_dtype(name) or not values.dtype.isnative:
        raise InvalidOption(
            f"{key} has the dtype {values.dtype}, which tensors do not support. Convert it to one of "
            f"{', '.join(DTYPES)}."
        )
    return name


def _read(folder: PrivateFolder) -> tuple[int, Directory]:
    """When it was written, which is its generation as it can be seen without reading, and what it says."""
    try:
        descriptor = folder.open(_DIRECTORY)
    except FileNotFoundError:
        return 0, EMPTY
    with os.fdopen(descriptor, "rb") as file:
        at = int(os.fstat(descriptor).st_mtime)
        content = file.read(MOST_BYTES + 1)
    try:
        return at, decode(content)
    except ValueError as error:
        raise _broken(folder, str(error)) from error


def _broken(folder: PrivateFolder, why: str) -> StoreError:
    """Returns the error for a directory that cannot be read."""
    return StoreError(
        f"the directory of the shared store in {folder.path} is broken: {why.rstrip('.')}. End the programs that use "
        "it; the next one to start then makes a new one."
    )


def _tidy(folder: PrivateFolder) -> bool:
    """Remove leftovers of dead processes; returns whether any is alive. The caller must hold the folder lock."""
    names = folder.names()
    alive = False
    for name in names:
        if name.startswith(_HOLDER):
            if folder.held(name):
                alive = True
            else:
                folder.remove(name)
    if not alive:
        return False
    for name in folder.new_leftovers(names):
        folder.remove(name)
    with contextlib.suppress(StoreError):  # a broken directory is reported when a tensor is looked up
        wanted = _read(folder)[1].segments()
        for name in names:
            if name.startswith(segments.PREFIX) and name not in wanted and not folder.held(name):
                folder.remove(name)
    return True


def _discard_forgotten(shared: weakref.ref[SharedTensors], name: str) -> None:
    """Gives back reserved memory whose object is gone. It is called by a finalizer, and so done on another thread."""
    found = shared()
    if found is not None and found._process == os.getpid():
        # Later, because a finalizer may run where the lock is taken.
        soon(functools.partial(found._discard, name))


def _leave(folder: PrivateFolder, holder: str, descriptor: int, process: int) -> None:
    """Detaches from the store, as soon as this thread has no folder locked.

    A forked process only closes its descriptors.
    """
    if os.getpid() != process:  # a forked process: the other one is still attached
        os.close(descriptor)
        folder.close()
        return
    outside_of_locks(functools.partial(_leave_now, folder, holder, descriptor))


def _leave_now(folder: PrivateFolder, holder: str, descriptor: int) -> None:
    """Detaches under the folder's lock; the last process removes the folder."""
    try:
        with contextlib.suppress(OSError, StoreError), folder.locked():  # another process may have removed it all
            os.close(descriptor)
            descriptor = -1
            folder.remove(holder)
            if not _tidy(folder):
                folder.remove_all()
    finally:
        if descriptor >= 0:
            os.close(descriptor)
        folder.close()
