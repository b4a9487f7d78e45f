"""Which cluster "auto" means: what other users of the machine have written is not believed, and gets no token."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from anygpu.cli.fleet import doctor
from anygpu.errors import ClusterUnavailable, InsecureCluster
from anygpu.fleet import fleet, security
from anygpu.fleet.security import AddressFile, Admission, check_access, chosen, find_address, running_clusters

NOTE = AddressFile(Path("/tmp/ray/ray_current_cluster"), True, "10.0.0.7:6379")
NO_NOTE = AddressFile(NOTE.path, False, None)
#: It is there, and others can have written it.
DOUBTED = AddressFile(NOTE.path, True, None)
OTHER_USER = 65534


@pytest.mark.parametrize(
    ("running", "note", "expected"),
    [
        ((), NOTE, "10.0.0.7:6379"),
        (("10.0.0.8:1",), NOTE, "10.0.0.8:1"),  # as Ray itself chooses
        (("10.0.0.8:1",), NO_NOTE, "10.0.0.8:1"),
        (("10.0.0.8:1",), DOUBTED, "10.0.0.8:1"),
        (("10.0.0.8:1", "10.0.0.9:1"), NOTE, "10.0.0.7:6379"),
    ],
)
def test_processes_first_then_what_was_started_last(running: tuple[str, ...], note: AddressFile, expected: str) -> None:
    assert chosen(running, note) == expected


@pytest.mark.parametrize(
    ("running", "note", "error", "said"),
    [
        ((), NO_NOTE, ClusterUnavailable, "no Ray process of this user runs on this machine"),
        ((), DOUBTED, InsecureCluster, r"/tmp/ray/ray_current_cluster is not used, .*Pass the address of its head"),
        (("b:1", "a:1"), NO_NOTE, ClusterUnavailable, r"several clusters run here \(a:1, b:1\)\. Pass the address"),
        (("b:1", "a:1"), DOUBTED, ClusterUnavailable, r"several clusters run here \(a:1, b:1\)\. Pass the address"),
    ],
)
def test_what_is_not_known_for_sure_is_refused(
    running: tuple[str, ...], note: AddressFile, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        chosen(running, note)


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests have clusters on this machine."""
    monkeypatch.setattr(security, "running_clusters", frozenset)


@pytest.fixture
def note(tmp_path: Path) -> Path:
    """Ray's file in a folder of this user alone."""
    folder = tmp_path / "ray"
    folder.mkdir(mode=0o755)
    file = folder / "ray_current_cluster"
    file.write_text("10.0.0.7:6379\n")
    file.chmod(0o644)
    return file


def found(note: Path, **variables: str) -> str:
    return find_address({"RAY_TMPDIR": str(note.parents[1]), **variables}, running=())


def test_the_file_of_this_user(note: Path) -> None:
    assert found(note) == "10.0.0.7:6379"
    assert found(note, RAY_ADDRESS="auto") == "10.0.0.7:6379"
    assert found(note, RAY_ADDRESS="node-1:1") == "node-1:1"
    note.unlink()
    with pytest.raises(ClusterUnavailable, match="no Ray process of this user"):
        found(note)


def link_to_another_file(note: Path) -> None:
    other = note.with_name("other")
    note.rename(other)
    note.symlink_to(other)


WRITABLE: dict[str, Callable[[Path], object]] = {
    "its folder by everyone, as Ray makes it": lambda note: note.parent.chmod(0o777),
    "its folder by a group": lambda note: note.parent.chmod(0o775),
    "the folder above": lambda note: note.parents[1].chmod(0o777),
    "the file": lambda note: note.chmod(0o666),
    "a link": link_to_another_file,
}


@pytest.mark.parametrize("way", WRITABLE)
def test_what_others_can_write_is_not_believed(note: Path, way: str) -> None:
    WRITABLE[way](note)
    with pytest.raises(InsecureCluster, match="other users can write there or have written it"):
        found(note)
    assert found(note, RAY_ADDRESS="node-1:1") == "node-1:1"


def given_to_another_user(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(path, OTHER_USER, OTHER_USER)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)


@pytest.mark.parametrize("levels", [0, 1, 2], ids=["the file", "its folder", "the folder above"])
def test_what_belongs_to_another_user_is_not_believed(note: Path, levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given_to_another_user((note, *note.parents)[levels], monkeypatch)
    with pytest.raises(InsecureCluster, match="other users can write there or have written it"):
        found(note)


@contextmanager
def head_that_takes_tokens() -> Iterator[tuple[int, list[str | None]]]:
    """A server that demands a token as Ray's head does; its port, and what it was sent."""
    import grpc

    sent: list[str | None] = []

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            token = dict(details.invocation_metadata).get("authorization")

            def answer(request: bytes, context: Any) -> bytes:
                sent.append(token)
                if token is None:
                    context.abort(grpc.StatusCode.UNAUTHENTICATED, "a token is demanded")
                return b""

            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port, sent
    finally:
        server.stop(None).wait()


@pytest.mark.usefixtures("nothing_runs")
def test_a_planted_address_gets_no_token(note: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with head_that_takes_tokens() as (port, sent):
        note.write_text(f"127.0.0.1:{port}")
        environment = {"RAY_TMPDIR": str(note.parents[1]), "RAY_AUTH_TOKEN": "secret"}
        assert check_access("auto", environment=environment, timeout=60.0).address == f"127.0.0.1:{port}"
        assert sent == [None, "Bearer secret"]
        sent.clear()
        note.parent.chmod(0o777)
        given_to_another_user(note, monkeypatch)
        with pytest.raises(InsecureCluster):
            check_access("auto", environment=environment, timeout=60.0)
        assert sent == []


def test_the_address_that_was_checked_is_the_one_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Connected(Exception):
        """What the stand-in for a connection raises, with its address."""

    def connection(address: str, variables: dict[str, str]) -> None:
        raise Connected(address, variables)

    admitted = Admission(address="10.0.0.7:6379", findings=(), variables={"RAY_AUTH_MODE": "token"})
    monkeypatch.setattr(fleet, "check_access", lambda address, insecure: admitted)
    monkeypatch.setattr(fleet, "Cluster", connection)
    with pytest.raises(Connected) as raised:
        fleet.connect("auto")
    assert raised.value.args == ("10.0.0.7:6379", {"RAY_AUTH_MODE": "token"})


@pytest.mark.usefixtures("nothing_runs")
def test_no_cluster_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    said = "no Ray process of this user runs on this machine. Pass the address of its head"
    with pytest.raises(ClusterUnavailable, match=said):
        check_access("auto")
    with pytest.raises(ClusterUnavailable, match=said):
        doctor()


@contextmanager
def process(name: str, *arguments: str, **given: Any) -> Iterator[None]:
    """A program of that name, which runs as long as the block. It is a shell."""
    folder = Path(tempfile.mkdtemp(prefix="ag-"))
    folder.chmod(0o755)
    try:
        program = shutil.copy("/bin/sh", folder / name)
        command = [program, "-c", "echo; read line", *arguments]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", **given) as running:
            assert running.stdout is not None
            assert running.stdout.read(1) == b"\n"
            yield
            running.communicate()
    finally:
        shutil.rmtree(folder)


def test_processes_of_ray_are_found() -> None:
    with process("raylet", "--gcs-address=127.0.0.1:1"), process("other", "--gcs-address=127.0.0.1:2"):
        assert {"127.0.0.1:1", "127.0.0.1:2"} & running_clusters() == {"127.0.0.1:1"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_processes_of_another_user_are_not() -> None:
    with process("raylet", "--gcs-address=127.0.0.1:1", user=OTHER_USER):
        assert "127.0.0.1:1" not in running_clusters()
