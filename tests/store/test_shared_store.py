"""Tensors that processes share: found without a copy, private to their user, and gone when nobody is left.

What is killed at which moment is in `dying.py`; the gigabyte is in `python -m benchmarks.attach`.
"""

from __future__ import annotations

import errno
import gc
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anygpu.errors import (
    InvalidOption,
    NameTaken,
    OutOfMemory,
    StoreClosed,
    StoreError,
    UnknownTensor,
    Unsupported,
)
from anygpu.program.dtypes import DTYPES
from anygpu.store import segments, shared_store
from anygpu.store.shared_store import SharedTensors, open_shared
from tests.store.shared_stores import KEY, another, files
from tests.support.isolation import descriptors_in

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no shared stores on Windows")


class Program:
    """Python code in a process of its own, which has opened the store. It answers when it is ready, and then waits."""

    def __init__(self, shared_in: Path, code: str) -> None:
        script = (
            "import os, sys, numpy as np\nfrom pathlib import Path\nfrom anygpu.store.shared_store import open_shared\n"
            f"shared = open_shared('models', within=Path({str(shared_in)!r}))\nKEY = {KEY!r}\n{code}\n"
            "print('ready', flush=True)\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", script + "sys.stdin.read()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.said = [self.process.stdout.readline().strip()]
        while self.said[-1] not in ("ready", ""):
            self.said.append(self.process.stdout.readline().strip())

    def end(self) -> int:
        """By itself, without closing the store."""
        self.process.communicate()
        return self.process.returncode

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


# -- in one process --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "bfloat16"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (7,), (2, 3, 4)])
def test_every_type_and_shape_comes_out_as_it_went_in(
    shared: SharedTensors, dtype: str, shape: tuple[int, ...]
) -> None:
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    returned = shared.publish(KEY, values, owner="text")
    with another(shared) as other:
        found = other.find(KEY)
    assert found is not None
    for seen in (returned, found.values):
        assert (seen.dtype, seen.shape) == (values.dtype, values.shape)
        np.testing.assert_array_equal(seen, values)
    assert (found.owner, found.hash, found.version) == ("text", "", 1)


@pytest.mark.parametrize(
    "values",
    [
        np.arange(60).reshape(3, 4, 5).T,
        np.arange(60)[::-7],
        np.broadcast_to(np.float32(3), (2, 9)),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    ],
)
def test_what_is_not_contiguous_is_laid_out_anew(
    shared: SharedTensors, values: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "_PIECE", 64)
    published = shared.publish(KEY, values, owner="text")
    assert published.flags.c_contiguous
    np.testing.assert_array_equal(published, values)


def test_nobody_can_write_into_what_was_published(shared: SharedTensors) -> None:
    mine = shared.publish(KEY, np.arange(4), owner="text")
    found = shared.find(KEY)
    assert found is not None
    for values in (mine, found.values):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            values.flags.writeable = True


def test_reserved_memory_is_the_memory_that_others_see(shared: SharedTensors) -> None:
    segment = shared.reserve((1000, 3), "float32")
    segment.values[:] = 7
    assert shared.names() == ()
    published = shared.publish(KEY, segment, owner="text")
    assert not segment.values.flags.writeable
    assert (published == 7).all()
    assert len(files(shared, "segment-")) == 1
    with pytest.raises(InvalidOption, match="Reserve another"):
        shared.publish(KEY, segment, owner="text")


def test_reserved_memory_can_be_given_back(shared: SharedTensors) -> None:
    segment = shared.reserve((10,), "int8")
    assert len(files(shared, "segment-")) == 1
    shared.discard(segment)
    assert files(shared, "segment-") == []
    with pytest.raises(InvalidOption):
        shared.publish(KEY, segment, owner="text")


def test_an_owner_replaces_its_tensor_and_who_has_the_old_one_keeps_it(shared: SharedTensors) -> None:
    shared.publish(KEY, np.zeros(5), owner="text")
    old = shared.find(KEY)
    shared.publish(KEY, np.ones(6), owner="text")
    new = shared.find(KEY)
    assert old is not None
    assert new is not None
    assert new.version > old.version
    np.testing.assert_array_equal(old.values, np.zeros(5))
    np.testing.assert_array_equal(new.values, np.ones(6))
    assert len(files(shared, "segment-")) == 1


def test_a_name_of_another_owner_is_refused_and_nothing_is_left_of_the_attempt(shared: SharedTensors) -> None:
    shared.publish(KEY, np.zeros(5), owner="text")
    with pytest.raises(NameTaken, match="'text'"):
        shared.publish(KEY, np.ones(5), owner="image")
    assert len(files(shared, "segment-")) == 1
    assert shared.names() == (KEY,)


def test_an_interruption_after_the_publication_takes_nothing_back(
    shared: SharedTensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = segments.PrivateFolder.replace

    def interrupted(*arguments: Any) -> None:
        replace(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(segments.PrivateFolder, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shared.publish(KEY, np.ones(3), owner="text")
    monkeypatch.undo()
    found = shared.find(KEY)
    assert found is not None
    assert found.values.sum() == 3


def test_removed_is_not_found_and_stays_readable(shared: SharedTensors) -> None:
    values = shared.publish(KEY, np.arange(5000), owner="text")
    shared.remove(KEY)
    assert shared.find(KEY) is None
    assert files(shared, "segment-") == []
    np.testing.assert_array_equal(values, np.arange(5000))
    with pytest.raises(UnknownTensor):
        shared.remove(KEY)


def test_keys_are_any_strings(shared: SharedTensors) -> None:
    keys = [("",), ("", ""), ("a/b", "c"), ("a", "b", "c"), ("a", "b/c"), ("..", "\0"), ("名", "名" * 300)]
    for number, key in enumerate(keys):
        shared.publish(key, np.array(number), owner="text")
    with another(shared) as other:
        assert other.names() == tuple(keys)
        assert [int(found.values) for key in keys if (found := other.find(key))] == list(range(len(keys)))


@pytest.mark.parametrize("key", ["text", (), ("text", 1), ["text", "weights"]])
def test_other_keys_are_refused(shared: SharedTensors, key: Any) -> None:
    with pytest.raises((InvalidOption, TypeError)):
        shared.publish(key, np.ones(3), owner="text")


@pytest.mark.parametrize("texts", [{"owner": 1}, {"owner": "text", "hash": b"h"}, {"owner": None}])
def test_an_owner_that_is_no_text_is_refused(shared: SharedTensors, texts: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="strings"):
        shared.publish(KEY, np.ones(3), **texts)


@pytest.mark.parametrize(("shape", "dtype"), [((-1,), "int8"), ((0, 1 << 40, 1 << 40), "int8"), ((3,), "object")])
def test_what_no_tensor_is_cannot_be_reserved(shared: SharedTensors, shape: tuple[int, ...], dtype: str) -> None:
    with pytest.raises(InvalidOption):
        shared.reserve(shape, dtype)
    assert files(shared, "segment-") == []


def test_a_name_that_is_no_text_is_refused_and_nothing_is_left_of_it(shared: SharedTensors) -> None:
    with pytest.raises(InvalidOption, match="Unicode"):
        shared.publish(("text", "\ud800"), np.ones(3), owner="text")
    assert shared.names() == ()
    assert files(shared, "segment-") == []


@pytest.mark.parametrize("values", [np.array(["a"]), np.array([object()]), np.arange(3).astype(">i4")])
def test_types_that_no_tensor_has_are_refused(shared: SharedTensors, values: np.ndarray[Any, Any]) -> None:
    with pytest.raises(InvalidOption, match="Convert it to one of"):
        shared.publish(KEY, values, owner="text")


def test_equal_content_is_stored_once(shared: SharedTensors) -> None:
    values = np.append(np.arange(1000.0), np.nan)
    one = shared.publish(KEY, values, owner="text", hash="h")
    with another(shared) as other:
        two = other.publish(("image", "weights"), values, owner="image", hash="h")
    assert len(files(shared, "segment-")) == 1
    assert shared.statistics().bytes == values.nbytes
    shared.remove(KEY)
    found = shared.find(("image", "weights"))
    assert found is not None
    for seen in (one, two, found.values):
        np.testing.assert_array_equal(seen, values)


def test_an_equal_hash_alone_does_not_make_content_equal(shared: SharedTensors) -> None:
    shared.publish(KEY, np.zeros(1000), owner="text", hash="h")
    other = shared.publish(("image", "weights"), np.ones(1000), owner="image", hash="h")
    assert other.sum() == 1000
    assert len(files(shared, "segment-")) == 2


def test_many_are_published_at_once_in_one_segment(shared: SharedTensors) -> None:
    tensors = {("text", str(number)): np.full(number, number, np.int16) for number in range(300)}
    open_files = len(descriptors_in(shared.path)) if sys.platform == "linux" else 0
    published = shared.publish_all(tensors, owner="text")
    assert len(files(shared, "segment-")) == 1
    for key, values in tensors.items():
        found = shared.find(key)
        assert found is not None
        np.testing.assert_array_equal(found.values, values)
        np.testing.assert_array_equal(published[key], values)
    if open_files:
        assert len(descriptors_in(shared.path)) <= open_files + 1
    assert shared.publish_all({}, owner="text") == {}


def test_what_has_changed_is_told_once_and_only_of_others(shared: SharedTensors) -> None:
    with another(shared) as other:
        assert not shared.changed()
        shared.publish(KEY, np.ones(3), owner="text")
        assert not shared.changed()
        assert other.changed()
        assert not other.changed()
        other.remove(KEY)
        assert shared.changed()
        assert not shared.changed()


def test_in_use_is_what_somebody_has_an_array_of(shared: SharedTensors) -> None:
    values = shared.publish(KEY, np.ones(3), owner="text")
    assert shared.in_use(KEY)
    view = values[1:]
    del values
    assert shared.in_use(KEY)
    del view
    assert not shared.in_use(KEY)
    assert not shared.in_use(("text", "other"))


def test_an_array_of_a_device_goes_through_host_memory_and_says_so(shared: SharedTensors) -> None:
    import anygpu as ag

    shared.publish(("host", "numpy"), np.ones(3), owner="text")
    shared.publish(("host", "list"), [1.0, 2.0], owner="text")
    assert shared.statistics().crossings == ()
    values = shared.publish(KEY, ag.asarray(np.arange(6, dtype=np.float32)) + 1, owner="text")
    np.testing.assert_array_equal(values, np.arange(1, 7))
    assert shared.statistics().crossings == (shared_store.Crossing(24, "host memory"),)


def test_a_closed_store_says_so_and_its_arrays_stay(place: Path) -> None:
    shared = open_shared("models", within=place)
    values = shared.publish(KEY, np.arange(9), owner="text")
    shared.close()
    shared.close()
    assert not shared.path.exists()
    assert values.sum() == 36
    for use in (shared.names, shared.changed, shared.statistics, lambda: shared.find(KEY), lambda: shared.remove(KEY)):
        with pytest.raises(StoreClosed):
            use()


def test_a_forgotten_store_is_closed(place: Path) -> None:
    shared = open_shared("models", within=place)
    path = shared.path
    del shared
    gc.collect()
    assert not path.exists()


def test_a_store_that_is_forgotten_while_its_thread_has_the_lock_is_closed_afterwards(shared: SharedTensors) -> None:
    forgotten = [another(shared)]
    with shared._folder.locked():
        forgotten.clear()
        gc.collect()
        assert len(files(shared, "holder-")) == 2
    assert len(files(shared, "holder-")) == 1


def test_threads_use_one_store_together(shared: SharedTensors) -> None:
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(30):
                key = ("thread", str(turn % 4))
                shared.publish(key, np.full(100, number), owner="all")
                found = shared.find(key)
                assert found is not None
                assert len(set(found.values.tolist())) == 1
        except BaseException as error:  # noqa: BLE001 (raised below)
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(shared.names()) == 4
    assert len(files(shared, "segment-")) == 4


@pytest.mark.skipif(sys.platform != "linux", reason="there is no list of open files")
def test_nothing_stays_open(place: Path) -> None:
    for _ in range(20):
        with open_shared("models", within=place) as shared:
            shared.publish(KEY, np.ones(30), owner="text")
            shared.discard(shared.reserve((30,), "int8"))
            shared.find(KEY)
            assert descriptors_in(place), "a shared store has files open"
    gc.collect()
    assert descriptors_in(place) == []


# -- between processes -----------------------------------------------------------------------------------------------


def test_a_consumer_outlives_its_killed_producer(shared: SharedTensors) -> None:
    place = shared.path.parent
    producer = Program(place, "kept = shared.publish(KEY, np.arange(100_000), owner='text', hash='h')")
    assert shared.statistics().processes == 2
    found = shared.find(KEY)
    producer.kill()
    assert found is not None
    np.testing.assert_array_equal(found.values, np.arange(100_000))
    # Also who comes later finds it, as long as anybody is attached.
    late = Program(place, "print(int(shared.find(KEY).values.sum()))")
    assert late.said == [str(sum(range(100_000))), "ready"]
    assert late.end() == 0
    assert shared.statistics().processes == 1


def test_what_a_killed_process_had_is_in_use_no_more(shared: SharedTensors) -> None:
    shared.publish(KEY, np.ones(1000), owner="text")
    consumer = Program(shared.path.parent, "found = shared.find(KEY)")
    assert shared.in_use(KEY)
    consumer.kill()
    assert not shared.in_use(KEY)


def test_a_process_that_ends_without_closing_leaves_nothing(place: Path) -> None:
    program = Program(
        place, "kept = shared.publish(KEY, np.ones(1000), owner='text'); more = shared.reserve((9,), 'int8')"
    )
    assert any(place.iterdir())
    assert program.end() == 0
    assert not any(place.iterdir())


def test_the_next_start_removes_what_only_dead_processes_had(place: Path) -> None:
    programs = [
        Program(place, f"kept = shared.publish(('n', '{number}'), np.ones(9), owner='text')") for number in (1, 2)
    ]
    for program in programs:
        program.kill()
    with open_shared("models", within=place) as shared:
        assert shared.names() == ()
        assert len(list(shared.path.iterdir())) == 2  # the lock, and who holds it


def test_a_forked_process_has_to_open_its_own(place: Path) -> None:
    code = """
shared.publish(KEY, np.ones(1000), owner='text')
child = os.fork()
if not child:
    try:
        shared.names()
    except Exception as error:
        print(type(error).__name__, 'forked' in str(error), flush=True)
    own = open_shared('models', within=shared.path.parent)
    print(own.find(KEY).values.sum(), flush=True)
    own.close()
    shared.close()
    os._exit(0)
os.waitpid(child, 0)
print(shared.find(KEY).values.sum())
"""
    program = Program(place, code)
    assert program.said == ["StoreError True", "1000.0", "1000.0", "ready"]
    assert program.end() == 0


def test_no_room_is_told_and_leaves_nothing(place: Path) -> None:
    code = """
import resource
from anygpu.errors import OutOfMemory
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))  # as if memory ended there
published = lambda: shared.publish(KEY, np.ones(1 << 20), owner='text')
for attempt in (published, lambda: shared.reserve((1 << 21,), 'int8')):
    try:
        attempt()
    except OutOfMemory as error:
        print(error.requested, sorted(path.name[:7] for path in shared.path.iterdir()))
"""
    program = Program(place, code)
    left = ["holder-", "lock"]
    assert program.said == [f"{8 << 20} {left}", f"{2 << 20} {left}", "ready"]
    assert program.end() == 0
    assert issubclass(OutOfMemory, MemoryError)


def test_no_room_for_the_directory_is_told_and_leaves_nothing(
    shared: SharedTensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OutOfMemory):
        shared.publish(KEY, np.ones(3), owner="text")
    monkeypatch.undo()
    assert shared.names() == ()
    assert [path.name[:5] for path in sorted(shared.path.iterdir())] == ["holde", "lock"]


def test_a_stopped_process_is_not_waited_for_without_end(
    shared: SharedTensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = Program(shared.path.parent, "section = shared._folder.locked(); section.__enter__()")
    stopped.process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(segments, "LOCK_SECONDS", 0.02)
    with pytest.raises(StoreError, match="stopped"):
        shared.publish(KEY, np.ones(3), owner="text")
    stopped.kill()
    monkeypatch.undo()
    shared.publish(KEY, np.ones(3), owner="text")


def test_a_folder_that_somebody_removes_is_told_of(shared: SharedTensors) -> None:
    values = shared.publish(KEY, np.ones(3), owner="text")
    for path in shared.path.iterdir():
        path.unlink()
    shared.path.rmdir()
    with pytest.raises(StoreError, match="removed while it was in use"):
        shared.publish(KEY, np.ones(3), owner="text")
    assert values.sum() == 3


def dying(*arguments: object) -> str:
    command = [sys.executable, "-m", "tests.store.dying", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_whatever_line_it_is_killed_at_nothing_is_lost_or_left(place: Path) -> None:
    """Every 19th line, another each time; all of them with `python -m tests.store.dying lines <folder> 1 0`."""
    assert int(dying("lines", place, 19, secrets.randbelow(19))) > 100


@pytest.mark.full
def test_processes_that_are_killed_at_any_moment_spoil_nothing_for_the_others(place: Path) -> None:
    assert int(dying("moments", place, 100, secrets.randbelow(1 << 30))) > 1000


# -- elsewhere -------------------------------------------------------------------------------------------------------


def test_windows_is_refused_with_what_to_do_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")  # nobody here has it
    with pytest.raises(Unsupported, match="safetensors"):
        open_shared("models")


def test_without_memory_files_it_is_a_folder_for_temporary_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_store, "_MEMORY_FILES", tmp_path / "none")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    with open_shared("models") as shared:
        assert shared.path.parent == tmp_path
        shared.publish(KEY, np.arange(3), owner="text")
        found = shared.find(KEY)
    assert found is not None
    assert found.values.tolist() == [0, 1, 2]
    assert list(tmp_path.iterdir()) == []


def test_a_system_that_cannot_reserve_memory_is_written_to(
    shared: SharedTensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")  # as on macOS
    segment = shared.reserve((3_000_000,), "uint8")
    assert not segment.values.any()
    shared.discard(segment)


def test_a_store_needs_a_name_and_any_text_is_one(place: Path) -> None:
    with pytest.raises(InvalidOption):
        open_shared("", within=place)
    for name in ("../..", "a/b", "\0", "\ud800", "x" * 5000):
        with open_shared(name, within=place) as shared:
            assert shared.path.parent == place
