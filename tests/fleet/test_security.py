"""Which clusters are refused, what is worth a warning, and how both are observed without Ray."""

from __future__ import annotations

import http.server
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from anygpu.errors import ClusterUnavailable, InsecureCluster, InvalidOption
from anygpu.fleet.access import observe_access, reachable_from_outside, split_address
from anygpu.fleet.security import (
    ClusterAccess,
    FileMode,
    TokenSource,
    access_findings,
    check_access,
    driver_variables,
    refusal,
)

TOKEN = TokenSource(
    source="file", path="/home/me/.ray/auth_token", file=FileMode(path="/home/me/.ray/auth_token", mode=0o600)
)
#: A cluster with which nothing is wrong.
GOOD = ClusterAccess(
    address="node-1:6379",
    answered=True,
    beyond_loopback=True,
    demands_token=True,
    dashboard=None,
    tls=True,
    tls_here=True,
    key=FileMode(path="/etc/ray/key.pem", mode=0o600),
    token=msgspec.structs.replace(TOKEN, mode_set=True, accepted=True),
)


def but(**changes: object) -> ClusterAccess:
    return msgspec.structs.replace(GOOD, **changes)


def with_token(**changes: object) -> ClusterAccess:
    return but(token=msgspec.structs.replace(GOOD.token, **changes))


class TestRefusal:
    @pytest.mark.parametrize(
        ("beyond_loopback", "demands_token", "refused"),
        [
            (True, True, False),
            (True, False, True),
            (True, None, True),  # what could not be asked counts as open
            (False, True, False),
            (False, False, False),
            (False, None, False),
        ],
    )
    def test_only_what_others_can_reach_needs_a_token(
        self, beyond_loopback: bool, demands_token: bool | None, refused: bool
    ) -> None:
        access = but(beyond_loopback=beyond_loopback, demands_token=demands_token)
        assert isinstance(refusal(access), InsecureCluster) is refused
        assert refusal(access, insecure=True) is None

    def test_the_message_has_the_fix(self) -> None:
        error = refusal(but(demands_token=False))
        assert isinstance(error, InsecureCluster)
        assert error.address == "node-1:6379"
        for part in ("demands no token", "RAY_AUTH_MODE=token", "files in deploy/", "insecure=True"):
            assert part in str(error)

    def test_the_message_does_not_claim_what_is_not_known(self) -> None:
        error = refusal(but(demands_token=None, unknown="grpc is not installed"))
        assert "may demand no token (grpc is not installed)" in str(error)

    def test_insecure_does_not_help_where_nothing_answers(self) -> None:
        error = refusal(but(answered=False, demands_token=None, unknown="connection refused"), insecure=True)
        assert isinstance(error, ClusterUnavailable)
        assert "connection refused" in str(error)

    def test_a_driver_is_told_to_send_the_token(self) -> None:
        assert driver_variables(GOOD) == {"RAY_AUTH_MODE": "token"}
        assert driver_variables(but(demands_token=False)) == {}


#: Each fact that is not as it should be, with the finding, its severity and a part of its fix.
FAULTS: list[tuple[ClusterAccess, str, str, str]] = [
    (but(answered=False, demands_token=None), "cluster_unreachable", "problem", "nc -vz node-1 6379"),
    (but(demands_token=False), "no_token_demanded", "problem", "export RAY_AUTH_MODE=token"),
    (but(demands_token=False, beyond_loopback=False), "no_token_demanded", "advice", "umask 077"),
    (but(demands_token=None), "token_unknown", "problem", "pip install grpcio"),
    (but(demands_token=None, beyond_loopback=False), "token_unknown", "advice", "--dashboard"),
    (with_token(source="none", file=None), "token_missing", "problem", "ssh HEAD cat .ray/auth_token"),
    (with_token(accepted=False), "token_wrong", "problem", "ssh HEAD cat .ray/auth_token"),
    (with_token(accepted=False, source="variable"), "token_wrong", "problem", "unset RAY_AUTH_TOKEN"),
    (with_token(mode_set=False), "token_mode_not_set", "note", "export RAY_AUTH_MODE=token"),
    (
        with_token(file=FileMode(path="/home/me/.ray/auth_token", mode=0o644)),
        "token_readable",
        "problem",
        "chmod 600 /home/me/.ray/auth_token",
    ),
    (but(tls=False, tls_here=False, key=None), "no_tls", "advice", "RAY_USE_TLS=1"),
    (but(tls_here=False, key=None), "tls_not_set_here", "problem", "export RAY_USE_TLS=1"),
    (but(tls=False), "tls_not_set_there", "problem", "unset RAY_USE_TLS"),
    (but(key=FileMode(path="/etc/ray/key.pem", mode=0o640)), "key_readable", "problem", "chmod 600 /etc/ray/key.pem"),
    (
        but(dashboard="http://node-1:8265", dashboard_beyond_loopback=True),
        "dashboard_exposed",
        "advice",
        "--dashboard-host=127.0.0.1",
    ),
]


class TestFindings:
    def test_nothing_is_wrong(self) -> None:
        assert list(access_findings(GOOD)) == []

    @pytest.mark.parametrize(("access", "code", "severity", "fix"), FAULTS, ids=[f"{f[1]}-{f[2]}" for f in FAULTS])
    def test_each_fault_is_one_finding(self, access: ClusterAccess, code: str, severity: str, fix: str) -> None:
        (finding,) = access_findings(access)
        assert (finding.code, finding.severity) == (code, severity)
        assert fix in "\n".join(finding.fix)
        assert finding.title.endswith(".")
        assert finding.cause
        assert finding.about

    def test_an_open_dashboard_of_an_open_cluster_is_a_problem(self) -> None:
        access = but(demands_token=False, dashboard="http://node-1:8265", dashboard_beyond_loopback=True)
        severities = {finding.code: finding.severity for finding in access_findings(access)}
        assert severities == {"no_token_demanded": "problem", "dashboard_exposed": "problem"}

    def test_paths_are_quoted(self) -> None:
        access = with_token(file=FileMode(path="/home/my name/token", mode=0o604))
        (finding,) = access_findings(access)
        assert finding.fix == ("chmod 600 '/home/my name/token'",)


class TestAddresses:
    @pytest.mark.parametrize(
        ("text", "host", "port"),
        [
            ("node-1:7000", "node-1", 7000),
            ("10.0.0.1", "10.0.0.1", 6379),
            ("[::1]:7000", "::1", 7000),
            ("localhost", "localhost", 6379),
        ],
    )
    def test_split(self, text: str, host: str, port: int) -> None:
        assert split_address(text) == (host, port)

    @pytest.mark.parametrize("text", ["", ":6379", "node:port", "node:99999", "ray://node:6379", "http://node"])
    def test_no_address(self, text: str) -> None:
        with pytest.raises(InvalidOption, match="is not the address of a cluster"):
            split_address(text)


HEADER = "  sl  local_address rem_address   st …\n"
#: As Linux prints sockets: the port 0x18EB is 6379, and the state 0A means that something listens.
SOCKETS = {
    "on every address": (f"{HEADER}   0: 00000000:18EB 00000000:0000 0A 0\n", True),
    "on 127.0.0.1": (f"{HEADER}   0: 0100007F:18EB 00000000:0000 0A 0\n", False),
    "on 10.0.0.2": (f"{HEADER}   0: 0200000A:18EB 00000000:0000 0A 0\n", True),
    "on another port": (f"{HEADER}   0: 00000000:18EC 00000000:0000 0A 0\n", False),
    "connected, not listening": (f"{HEADER}   0: 0200000A:18EB 0300000A:D431 01 0\n", False),
    "on every address, IPv6": (f"{HEADER}   0: {'0' * 32}:18EB {'0' * 32}:0000 0A 0\n", True),
    "on ::1": (f"{HEADER}   0: {'0' * 24}01000000:18EB {'0' * 32}:0000 0A 0\n", False),
    "on 127.0.0.1, mapped": (f"{HEADER}   0: 0000000000000000FFFF00000100007F:18EB {'0' * 32}:0000 0A 0\n", False),
}


class TestReach:
    @pytest.mark.parametrize("name", SOCKETS)
    def test_the_kernel_s_table(self, name: str) -> None:
        table, reachable = SOCKETS[name]
        assert reachable_from_outside("127.0.0.1", 6379, [table]) is reachable

    def test_a_host_elsewhere_is_beyond_loopback(self) -> None:
        assert reachable_from_outside("10.0.0.1", 6379, [])
        assert reachable_from_outside("node-1", 6379, [])
        assert not reachable_from_outside("localhost", 6379, [])

    @pytest.mark.parametrize(("address", "reachable"), [("127.0.0.1", False), ("0.0.0.0", True)])
    def test_real_sockets(self, address: str, reachable: bool) -> None:
        with socket.create_server((address, 0)) as server:
            assert reachable_from_outside("127.0.0.1", server.getsockname()[1]) is reachable


def test_whether_a_port_speaks_tls(tmp_path: Path) -> None:
    """A head that demands certificates, and one that hangs up at what it does not understand."""
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=head"]
    subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    for wrap in (context, None):
        with socket.create_server(("127.0.0.1", 0)) as server:
            thread = threading.Thread(target=_answer_all, args=(server, wrap), daemon=True)
            thread.start()
            access = observe_access(
                f"127.0.0.1:{server.getsockname()[1]}", dashboard="http://127.0.0.1:1", environment={}, timeout=60.0
            )
            assert (access.answered, access.tls) == (True, wrap is not None)
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def _answer_all(server: socket.socket, context: ssl.SSLContext | None) -> None:
    """Until the server is shut down."""
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with suppress(OSError), connection:
            if context is not None:
                context.wrap_socket(connection, server_side=True).close()


@contextmanager
def dashboard_that_answers(status: int, body: bytes) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/api/authentication_mode"
            assert "Authorization" not in self.headers, "it is asked without a token"
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port at which nobody listens: it is ours, so that nobody else begins to."""
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))
        yield int(ours.getsockname()[1])


class TestObserving:
    """The head does not answer here, so the dashboard decides; a real head is in `test_doctor`."""

    @pytest.mark.parametrize(
        ("status", "body", "demands"),
        [
            (200, b'{"authentication_mode": "token"}', True),
            (200, b'{"authentication_mode": "disabled"}', False),
            (404, b"", None),
            (200, b"<html>", None),
            (200, b'{"authentication_mode": 3}', None),
        ],
    )
    def test_the_dashboard_s_answer(
        self, status: int, body: bytes, demands: bool | None, closed_port: int, tmp_path: Path
    ) -> None:
        with dashboard_that_answers(status, body) as url:
            access = observe_access(
                f"127.0.0.1:{closed_port}", dashboard=url, environment={"HOME": str(tmp_path)}, timeout=60.0
            )
        assert access.demands_token is demands
        assert access.answered is (demands is not None)
        assert bool(access.unknown) is (demands is None)
        assert access.dashboard_beyond_loopback is (None if demands is None else False)

    def test_another_cluster_s_dashboard_says_nothing(self, closed_port: int, tmp_path: Path) -> None:
        with pytest.raises(ClusterUnavailable, match="no Ray cluster can be reached"):
            check_access(f"127.0.0.1:{closed_port}", environment={"HOME": str(tmp_path)}, timeout=60.0)

    def test_no_url(self) -> None:
        with pytest.raises(InvalidOption, match="is not the address of a dashboard"):
            observe_access("127.0.0.1:1", dashboard="file:///etc/passwd", timeout=60.0)

    def test_where_the_token_comes_from(self, closed_port: int, tmp_path: Path) -> None:
        def token(**environment: str) -> TokenSource:
            actor = {"HOME": str(tmp_path)}
            return observe_access(f"127.0.0.1:{closed_port}", environment=actor | environment, timeout=60.0).token

        assert token() == TokenSource(source="none", path=str(tmp_path / ".ray" / "auth_token"))
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("secret")
        (tmp_path / ".ray" / "auth_token").chmod(0o644)
        found = token(RAY_AUTH_MODE="token")
        assert (found.source, found.file and found.file.mode, found.mode_set) == ("file", 0o644, True)
        assert token(RAY_AUTH_TOKEN="secret").source == "variable"
        assert token(RAY_AUTH_TOKEN_PATH="/nowhere").source == "none"
        assert "secret" not in repr(found)
