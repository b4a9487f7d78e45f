"""Observes who may use a cluster: asks the cluster and its dashboard, looks at files and at listening sockets.

Ray is not needed for it. `grpc`, which comes with Ray, asks the cluster itself; without it only the dashboard is asked.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
import stat
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from anygpu.errors import InvalidOption
from anygpu.fleet.security import ClusterAccess, FileMode, TokenSource

#: Ray's default ports of the head and of its dashboard.
HEAD_PORT, DASHBOARD_PORT = 6379, 8265
#: A method of the head that changes nothing, and needs the token where one is demanded.
_METHOD = "/ray.rpc.NodeInfoGcsService/CheckAlive"
#: For questions that may remain without an answer.
_BRIEF_SECONDS = 1.0
_LISTENING = "0A"  # the state in /proc/net/tcp


def observe_access(
    address: str,
    *,
    dashboard: str | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float = 5.0,
) -> ClusterAccess:
    """Ask the cluster at `host:port` without a token whether it demands one, and its dashboard too."""
    environment = os.environ if environment is None else environment
    host, port = split_address(address)
    address = f"{_bracketed(host)}:{port}"
    url = (dashboard or f"http://{_bracketed(host)}:{DASHBOARD_PORT}").rstrip("/")
    head, why = _ask_head(address, environment, timeout)
    # If the head has answered, the dashboard only matters for a warning, and a firewall may swallow the question.
    mode, silence = _ask_dashboard(url, timeout if head is None else min(timeout, _BRIEF_SECONDS))
    # Another cluster's dashboard may be at the default port, so it says nothing of a head that is not there.
    answered = head is not None or (mode is not None and dashboard is not None) or _connects(host, port, timeout)
    demands = head if head is not None else mode == "token" if answered and mode is not None else None
    token = _observe_token(environment)
    if demands and token.source != "none":
        accepted, _ = _ask_head(address, environment, timeout, _read_token(environment))
        token = msgspec.structs.replace(token, accepted=None if accepted is None else not accepted)
    return ClusterAccess(
        address=address,
        answered=answered,
        beyond_loopback=reachable_from_outside(host, port),
        demands_token=demands,
        unknown="" if demands is not None else f"{why}; {silence}",
        dashboard=url if mode is not None else None,
        dashboard_beyond_loopback=None if mode is None else _dashboard_is_exposed(url),
        tls=_speaks_tls(host, port, timeout) if answered else None,
        tls_here=_uses_tls(environment),
        key=file_mode(environment.get("RAY_TLS_SERVER_KEY")) if _uses_tls(environment) else None,
        token=token,
    )


def split_address(address: str) -> tuple[str, int]:
    """`host:port`, `[v6]:port` or a host alone, whose port is Ray's default."""
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or "/" in address:
        raise InvalidOption(f"{address!r} is not the address of a cluster. Write host:port, for example node-1:6379.")
    return host, HEAD_PORT if port is None else port


def reachable_from_outside(host: str, port: int, tables: Iterable[str] | None = None) -> bool:
    """Whether other machines can reach the port, as far as this one can see.

    Ray's head listens on every address even if it was started for 127.0.0.1, so the address alone says little: on Linux
    the kernel's table of sockets is read.
    """
    if not is_loopback(host):
        return True
    tables = _socket_tables() if tables is None else tables
    return any(not address.is_loopback for table in tables for address in _listeners(table, port))


def is_loopback(host: str) -> bool:
    """Whether an address can only be reached from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def file_mode(path: str | os.PathLike[str] | None) -> FileMode | None:
    """Returns a file's permission bits; `None` if there is no such file."""
    if not path:
        return None
    try:
        return FileMode(path=str(path), mode=stat.S_IMODE(Path(path).stat().st_mode))
    except OSError:
        return None


def token_path(environment: Mapping[str, str]) -> Path:
    """Returns the file in which Ray looks for the token if RAY_AUTH_TOKEN is not set."""
    named = environment.get("RAY_AUTH_TOKEN_PATH")
    return Path(named) if named else Path(environment.get("HOME", "~")).expanduser() / ".ray" / "auth_token"


def _observe_token(environment: Mapping[str, str]) -> TokenSource:
    """Returns where Ray would take its token from, and never the token itself."""
    path = token_path(environment)
    file = file_mode(path)
    return TokenSource(
        source="variable" if environment.get("RAY_AUTH_TOKEN") else "file" if file is not None else "none",
        path=str(path),
        file=file,
        mode_set=environment.get("RAY_AUTH_MODE", "").lower() == "token",
    )


def _read_token(environment: Mapping[str, str]) -> str:
    """Returns the token as Ray would find it; empty if there is none."""
    named = environment.get("RAY_AUTH_TOKEN")
    if named:
        return named
    try:
        return token_path(environment).read_text().strip()
    except OSError:
        return ""


def _ask_head(address: str, environment: Mapping[str, str], timeout: float, token: str = "") -> tuple[bool | None, str]:
    """Whether the head refuses this call for its token; None and a reason if it did not say."""
    try:
        import grpc
    except ImportError:
        return None, "grpc is not installed"
    # A proxy for the web must not see a cluster's traffic.
    options = [("grpc.enable_http_proxy", 0)]
    try:
        credentials = _credentials(environment) if _uses_tls(environment) else None
    except OSError as error:
        return None, f"the TLS files cannot be read: {error}"
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    channel = (
        grpc.insecure_channel(address, options)
        if credentials is None
        else grpc.secure_channel(address, credentials, options)
    )
    with channel:
        try:
            channel.unary_unary(_METHOD)(b"", timeout=timeout, metadata=metadata)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                return True, ""
            return None, f"the head did not answer: {error.code().name.lower().replace('_', ' ')}"
    return False, ""


def _uses_tls(environment: Mapping[str, str]) -> bool:
    """Whether Ray's variables say that connections are encrypted."""
    return environment.get("RAY_USE_TLS", "").lower() in ("1", "true")


def _credentials(environment: Mapping[str, str]) -> object:
    """Reads the TLS files that Ray's variables name. Raises OSError if one is missing."""
    import grpc

    def content(variable: str) -> bytes:
        return Path(environment.get(variable, "")).read_bytes()

    return grpc.ssl_channel_credentials(
        content("RAY_TLS_CA_CERT"), content("RAY_TLS_SERVER_KEY"), content("RAY_TLS_SERVER_CERT")
    )


class _Mode(msgspec.Struct):
    """The dashboard's answer about how it authenticates."""

    authentication_mode: str


def _ask_dashboard(url: str, timeout: float) -> tuple[str | None, str]:
    """The dashboard's answer about itself; `None` and a reason if there is none."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise InvalidOption(f"{url!r} is not the address of a dashboard. Write http://host:8265.")
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{url}/api/authentication_mode", timeout=timeout) as answer:
            return msgspec.json.decode(answer.read(4096), type=_Mode).authentication_mode, ""
    except urllib.error.HTTPError as error:
        error.close()
        return None, f"the dashboard at {url} answered {error.code}"
    except (OSError, msgspec.MsgspecError) as error:
        return None, f"the dashboard at {url} did not answer: {getattr(error, 'reason', error)}"


def _dashboard_is_exposed(url: str) -> bool:
    """Whether other machines can reach the dashboard."""
    parts = urlsplit(url)
    return reachable_from_outside(parts.hostname or "", parts.port or 80)


def _connects(host: str, port: int, timeout: float) -> bool:
    """Whether the port takes a TCP connection in time."""
    try:
        socket.create_connection((host, port), timeout).close()
    except OSError:
        return False
    return True


def _speaks_tls(host: str, port: int, timeout: float) -> bool | None:
    """Whether the port answers to TLS; None if it cannot be reached. Whose certificate that is does not matter here."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        plain = socket.create_connection((host, port), timeout)
    except OSError:
        return None
    try:
        context.wrap_socket(plain).close()
    except ssl.SSLError as error:
        # An alert is an answer in TLS: the server wants a certificate of ours.
        return "ALERT" in (error.reason or "")
    except OSError:  # it hung up, or waits for what it understands
        return False
    finally:
        plain.close()
    return True


def _socket_tables() -> list[str]:
    """Returns the kernel's tables of TCP sockets; none where the system is not Linux."""
    tables = []
    for name in ("tcp", "tcp6"):
        try:
            tables.append(Path("/proc/net", name).read_text())
        except OSError:  # not Linux: nothing is known
            continue
    return tables


def _listeners(table: str, port: int) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The addresses on which something listens at the port. The kernel prints 32-bit words in its own byte order."""
    found: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = []
    for line in table.splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        address, _, number = local.partition(":")
        if state != _LISTENING or int(number, 16) != port:
            continue
        words = [bytes.fromhex(address[at : at + 8]) for at in range(0, len(address), 8)]
        raw = b"".join(word[::-1] if _LITTLE else word for word in words)
        parsed = ipaddress.ip_address(raw)
        mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
        found.append(mapped or parsed)
    return found


_LITTLE = sys.byteorder == "little"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
