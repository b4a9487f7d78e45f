"""A process that answers: to whom, to what, and for how long."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from anygpu.observe.looking import NoAnswer, ObservedProcess, observed_processes
from anygpu.observe.servers import Answering
from anygpu.observe.snapshot import Snapshot
from anygpu.observe.sockets import (
    MOST_QUESTION,
    VARIABLE,
    Question,
    SocketFolderRefused,
    framed,
    listening_folder,
    new_name,
    socket_folders,
)
from benchmarks.observe_fuzz import fuzz
from tests.observe.places import place  # noqa: F401 - a fixture
from tests.observe.snapshots import calls, snapshot

NOBODY = 65534

#: No answer takes so long, on whatever machine.
PATIENCE = 120.0


def _take(since: int | None) -> Snapshot:
    return snapshot(calls("score", count=3))


@pytest.fixture(params=["unix", "loopback"])
def answering(request: pytest.FixtureRequest, place: Path) -> Iterator[Answering]:  # noqa: F811
    service = Answering(_take, unix=request.param == "unix", deadline=PATIENCE)
    yield service
    service.close()


def _connect(service: Answering) -> socket.socket:
    if service.path.suffix == ".sock":
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(str(service.path))
    else:
        connection = socket.create_connection(service.server.listener.getsockname())
    connection.settimeout(PATIENCE)
    return connection


def _reply(service: Answering, message: bytes) -> bytes:
    """What comes back until the connection is closed."""
    with _connect(service) as connection:
        try:
            connection.sendall(message)
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))
        except (ConnectionResetError, BrokenPipeError):
            return b""


def _good(service: Answering) -> bytes:
    return framed(Question(None, service._secrets.question_token))


def test_it_is_found_and_answers(answering: Answering) -> None:
    (found,) = observed_processes(own=True)
    assert found.pid == os.getpid()
    assert [each.function for each in found.ask(deadline=PATIENCE).statistics.calls] == ["score"]
    assert observed_processes() == [], "one does not look at oneself unless one wants to"


def test_its_file_and_folder_are_the_users_alone(answering: Answering) -> None:
    assert stat.S_IMODE(answering.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(answering.path.stat().st_mode) == 0o600
    assert [each.name for each in answering.path.parent.iterdir()] == [answering.path.name]


def test_after_closing_nothing_is_left(answering: Answering) -> None:
    (found,) = observed_processes(own=True)
    thread = answering._running.thread
    answering.close()
    answering.close()
    assert not thread.is_alive()
    assert list(answering.path.parent.iterdir()) == []
    with pytest.raises(NoAnswer, match="has ended") as caught:
        found.ask(deadline=PATIENCE)
    assert caught.value.ended


@pytest.mark.parametrize(
    "message",
    [
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        struct.pack(">I", 0),
        struct.pack(">I", MOST_QUESTION + 1) + b"x" * 2000,
        struct.pack(">I", 2**32 - 1),
        struct.pack(">I", 5) + b"\xc1\xc1\xc1\xc1\xc1",
        struct.pack(">I", 1000) + b"\x91" * 1000,
        framed(Question(-1)),
        framed(Question(0, "x" * 100)),
    ],
)
def test_what_is_no_question_is_not_answered(answering: Answering, message: bytes) -> None:
    assert _reply(answering, message) == b""
    assert _reply(answering, _good(answering)), "it goes on"


def test_a_question_with_more_fields_is_not_answered(answering: Answering) -> None:
    import msgspec

    content = msgspec.msgpack.encode({"ask": "snapshot", "since": 0, "token": "", "and": "more"})
    assert _reply(answering, struct.pack(">I", len(content)) + content) == b""


def test_without_the_token_a_loopback_listener_does_not_answer(place: Path) -> None:  # noqa: F811
    service = Answering(_take, unix=False)
    try:
        for token in ("", "wrong", service._secrets.answer_token, service._secrets.question_token[:-1]):
            assert _reply(service, framed(Question(0, token))) == b""
        assert _reply(service, _good(service))
        (found,) = observed_processes(own=True)
        assert found.ask(deadline=PATIENCE).process.pid == 7
    finally:
        service.close()


def test_a_stranger_on_the_port_is_not_believed(place: Path) -> None:  # noqa: F811
    """The process has ended, and somebody else has its port by now."""
    service = Answering(_take, unix=False)
    (found,) = observed_processes(own=True)
    content = service.path.read_bytes()
    stranger = Answering(_take, unix=False)
    try:
        service.close()
        port = stranger._secrets.port
        service.path.write_bytes(content.replace(str(service._secrets.port).encode(), str(port).encode()))
        service.path.chmod(0o600)
        stranger._secrets = stranger._secrets.__class__(port, service._secrets.question_token, "made up")
        with pytest.raises(NoAnswer, match="another one listens"):
            found.ask(deadline=PATIENCE)
    finally:
        stranger.close()


def test_who_is_slow_is_cut_off(place: Path) -> None:  # noqa: F811
    service = Answering(_take, deadline=0.2)
    try:
        with _connect(service) as connection:
            connection.sendall(_good(service)[:7])
            assert connection.recv(1) == b"", "the deadline is for the whole question"
        service._deadline = PATIENCE
        assert _reply(service, _good(service))
        while service.server.connections:  # it closes after its last byte was read
            time.sleep(0.001)
    finally:
        service.close()


def test_those_who_only_connect_keep_nobody_out(place: Path) -> None:  # noqa: F811
    service = Answering(_take, deadline=600.0, most_clients=4)
    idle: list[socket.socket] = []
    try:
        for _ in range(20):
            idle.append(_connect(service))
            idle[-1].sendall(b"\0")
            assert _reply(service, _good(service))
        assert len(service.server.connections) <= 4
    finally:
        for each in idle:
            each.close()
        service.close()


def test_who_does_not_read_the_answer_is_cut_off(place: Path) -> None:  # noqa: F811
    many = snapshot(*(calls(f"function {number}") for number in range(3000)))
    service = Answering(lambda since: many, deadline=5.0)
    try:
        with _connect(service) as connection:
            connection.sendall(_good(service))
            (found,) = observed_processes(own=True)
            assert len(found.ask(deadline=PATIENCE).statistics.calls) == 3000, "others are answered meanwhile"
            while service.server.connections:
                time.sleep(0.01)
    finally:
        service.close()


def test_an_answer_that_fails_is_no_end(place: Path, caplog: pytest.LogCaptureFixture) -> None:  # noqa: F811
    outcomes: list[object] = [RuntimeError("not now"), snapshot()]

    def take(since: int | None) -> Snapshot:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        assert isinstance(outcome, Snapshot)
        return outcome

    service = Answering(take)
    try:
        (found,) = observed_processes(own=True)
        with pytest.raises(NoAnswer):
            found.ask(deadline=PATIENCE)
        assert found.ask(deadline=PATIENCE).process.pid == 7
        assert "could not say what it is doing" in caplog.text
    finally:
        service.close()


def timers(service: Answering) -> list[object]:
    """Those of the event loop that have not been cancelled."""
    scheduled: list[asyncio.TimerHandle] = service._running._loop._scheduled  # type: ignore[attr-defined]
    return [each for each in scheduled if not each.cancelled()]


def test_nobody_asks_and_nothing_runs(place: Path) -> None:  # noqa: F811
    """The thread sleeps in the kernel without a timeout."""
    service = Answering(_take)
    try:
        assert timers(service) == []
        observed_processes(own=True)[0].ask(deadline=PATIENCE)
        while service.server.connections:
            time.sleep(0.001)
        assert timers(service) == []
    finally:
        service.close()


# -- other users

#: As root at first, so that it can load what it needs.
_BECOME_NOBODY = f"import os, socket, sys; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})"
_ASK = """
s = socket.socket(socket.AF_UNIX); s.settimeout(20)
try:
    s.connect(sys.argv[1]); s.sendall(bytes.fromhex(sys.argv[2])); print(len(s.recv(100)))
except ConnectionError:
    print(0)
except PermissionError:
    print("not allowed")
"""
_LISTEN = """
s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o600); s.listen()
print(flush=True)
s.accept(); sys.stdin.read()
"""
only_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can act as another user"
)


def _as_nobody(service: Answering) -> str:
    command = [sys.executable, "-I", "-c", _BECOME_NOBODY + _ASK, str(service.path), _good(service).hex()]
    done = subprocess.run(command, capture_output=True, check=True)
    return done.stdout.decode().strip()


@only_root
def test_another_user_cannot_ask(place: Path) -> None:  # noqa: F811
    service = Answering(_take)
    try:
        assert _as_nobody(service) == "not allowed"
        # And where somebody has opened the folder and the socket to all, the kernel says who it is.
        place.chmod(0o755)
        service.path.chmod(0o666)
        assert _as_nobody(service) == "0"
        place.chmod(0o700)
        assert observed_processes(own=True)[0].ask(deadline=PATIENCE).process.pid == 7
    finally:
        service.close()


@only_root
def test_the_folder_of_another_user_is_refused(place: Path) -> None:  # noqa: F811
    os.chown(place, NOBODY, NOBODY)
    with pytest.raises(SocketFolderRefused, match=f"belongs to user {NOBODY}"):
        Answering(_take)
    with pytest.raises(SocketFolderRefused, match=f"belongs to user {NOBODY}"):
        observed_processes()


@only_root
def test_the_socket_of_another_user_is_not_believed(place: Path) -> None:  # noqa: F811
    """Whoever has put it there: the kernel says who listens."""
    place.chmod(0o777)
    path = place / new_name(".sock")
    command = [sys.executable, "-I", "-c", _BECOME_NOBODY + _LISTEN, str(path)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline()
        place.chmod(0o700)
        (found,) = observed_processes(own=True)
        with pytest.raises(NoAnswer, match="another user"):
            found.ask(deadline=PATIENCE)
    finally:
        child.communicate()


def test_whose_process_it_is_decides(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    service = Answering(_take)
    try:
        (found,) = observed_processes(own=True)
        user = os.geteuid()
        monkeypatch.setattr("anygpu.observe.sockets.os.geteuid", lambda: user + 1)
        assert _reply(service, _good(service)) == b""
        with pytest.raises(NoAnswer, match="another user"):
            found.ask(deadline=PATIENCE)
    finally:
        monkeypatch.undo()
        service.close()


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o707])
def test_a_folder_that_others_may_use_is_refused(place: Path, mode: int) -> None:  # noqa: F811
    place.chmod(mode)
    with pytest.raises(SocketFolderRefused, match=rf"{mode:04o}.*Remove it, or name another folder in {VARIABLE}"):
        listening_folder()


def test_a_link_to_a_folder_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    (place / "real").mkdir(mode=0o700)
    (place / "link").symlink_to(place / "real")
    monkeypatch.setenv(VARIABLE, str(place / "link"))
    with pytest.raises(SocketFolderRefused, match="not a folder"):
        listening_folder()


def test_a_folder_that_others_could_replace_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    (place / "open").mkdir()
    (place / "open").chmod(0o777)
    monkeypatch.setenv(VARIABLE, str(place / "open" / "ours"))
    with pytest.raises(SocketFolderRefused, match="another folder in its place"):
        listening_folder()


def test_where_processes_meet(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:  # noqa: F811
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    assert socket_folders()[0] == place / "anygpu"
    assert Path(f"/tmp/anygpu-{os.geteuid()}") in socket_folders(), (
        "one that was started without the variable is found, too"
    )
    deep = place / ("d" * 90)
    deep.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    assert deep / "anygpu" not in socket_folders(), "a socket there would have too long a path"
    assert socket_folders()
    monkeypatch.setenv("XDG_RUNTIME_DIR", "relative")
    assert all(each.is_absolute() for each in socket_folders())


def test_a_path_that_is_too_long_says_so(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:  # noqa: F811
    deep = place / ("d" * 120)
    monkeypatch.setenv(VARIABLE, str(deep))
    with pytest.raises(SocketFolderRefused, match="too long"):
        listening_folder()


# -- processes that end

_OBSERVED = """
import sys
from anygpu import observe
observe.start()
print(flush=True)
sys.stdin.read()
"""


def _observed() -> subprocess.Popen[bytes]:
    child = subprocess.Popen([sys.executable, "-c", _OBSERVED], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline()
    return child


def test_what_killed_processes_leave_is_removed(place: Path) -> None:  # noqa: F811
    children = [_observed() for _ in range(2)]
    found = observed_processes()
    assert [each.pid for each in found] == sorted(child.pid for child in children)
    assert all(each.ask(deadline=PATIENCE).process.pid == each.pid for each in found)
    for child in children:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert len(observed_processes()) == 2, "their sockets are still there"
    with pytest.raises(NoAnswer, match="has ended") as caught:
        found[0].ask(deadline=PATIENCE)
    assert caught.value.ended
    assert observed_processes() == found[1:], "who has looked at it has removed it"
    service = Answering(_take)
    service.close()
    assert observed_processes() == [], "and so does a process that begins"
    for child in children:
        child.communicate()


def test_a_process_that_ends_takes_its_socket_along(place: Path) -> None:  # noqa: F811
    child = _observed()
    assert len(observed_processes()) == 1
    child.communicate()
    assert child.returncode == 0
    assert list(place.iterdir()) == []


def test_a_process_that_is_stopped_costs_the_deadline_and_no_more(place: Path) -> None:  # noqa: F811
    child = _observed()
    try:
        (found,) = observed_processes()
        found.ask(deadline=PATIENCE)
        child.send_signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)  # until all its threads have stopped
        with pytest.raises(NoAnswer, match="busy or stopped") as caught:
            found.ask(deadline=0.05)
        assert not caught.value.ended
        child.send_signal(signal.SIGCONT)
        assert found.ask(deadline=PATIENCE).process.pid == child.pid
    finally:
        child.send_signal(signal.SIGCONT)
        child.communicate()


_FORKS = """
import os, sys
import numpy as np
import anygpu as ag
from anygpu import observe
from anygpu.observe.looking import observed_processes
double = ag.offload(lambda x: x * 2)
observe.start()
for _ in range(5):
    double(np.ones(3))
child = os.fork()
if child == 0:
    assert ag.statistics().observed is False
    before = [each.pid for each in observed_processes(own=True)]
    double(np.ones(3)); double(np.ones(3))
    after = observed_processes(own=True)
    own = [each for each in after if each.pid == os.getpid()]
    assert before == [os.getppid()], before
    assert len(own) == 1, after
    assert own[0].ask(deadline=120).statistics.calls[0].calls == 2
    assert after[0].ask(deadline=120).statistics.calls[0].calls == 5, "the parent answers for itself"
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
(found,) = observed_processes(own=True)
assert found.pid == os.getpid()
assert found.ask(deadline=120).statistics.calls[0].calls == 5
observe.stop()
assert observed_processes(own=True) == []
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_answers_for_itself_once_it_calls(place: Path) -> None:  # noqa: F811
    subprocess.run([sys.executable, "-c", _FORKS], check=True, timeout=120)


def test_asking_from_many_threads(answering: Answering) -> None:
    (found,) = observed_processes(own=True)
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            for _ in range(20):
                found.ask(deadline=PATIENCE)
        except BaseException as error:  # noqa: BLE001 - it is raised below
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_an_answer_that_is_none_is_no_answer(place: Path) -> None:  # noqa: F811
    """A socket in the folder that is not ours answers nonsense, or promises 4 GB."""
    for reply in (struct.pack(">I", 2**32 - 1), struct.pack(">I", 4) + b"abcd", b"xy"):
        path = place / new_name(".sock")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen()

            def serve(listener: socket.socket = listener, reply: bytes = reply) -> None:
                connection, _ = listener.accept()
                connection.recv(100)
                connection.sendall(reply)
                connection.close()

            thread = threading.Thread(target=serve)
            thread.start()
            with pytest.raises(NoAnswer):
                ObservedProcess(path).ask(deadline=PATIENCE)
            thread.join()
        path.unlink()


def test_mutated_questions_change_nothing(place: Path) -> None:  # noqa: F811
    """A short version of `python -m benchmarks.observe_fuzz`."""
    child = _observed()
    try:
        (found,) = observed_processes()
        found.ask(deadline=PATIENCE)
        outcomes, figures = fuzz(found, 2000, seed=18)
        assert outcomes["hung"] == 0
        assert outcomes["refused"] > 1000
        assert all(figure.share <= 1 for figure in figures if figure.unit != "MiB"), figures
    finally:
        child.communicate()
    assert child.returncode == 0


def test_a_path_that_is_not_utf8_hides_nothing(place: Path) -> None:  # noqa: F811
    """Python reads such a path with half surrogates, which no UTF-8 has."""
    command = os.fsdecode(b"python /data/caf\xe9/work.py")
    told = snapshot(calls("caf\udce9", count=3))
    told = msgspec.structs.replace(told, process=msgspec.structs.replace(told.process, command=command))
    service = Answering(lambda since: told, deadline=30.0)
    try:
        (found,) = observed_processes(own=True)
        answer = found.ask()
    finally:
        service.close()
    assert answer.process.command == r"python /data/caf\udce9/work.py"
    assert [each.function for each in answer.statistics.calls] == [r"caf\udce9"]
