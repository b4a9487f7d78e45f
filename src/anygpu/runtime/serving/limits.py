"""Admission of requests: limits of a server and what its requests hold, refusals, and bearer tokens.

A refusal is an exception with a status of HTTP and a sentence. `Limits` are the numbers, `HeldRequests` counts against
them, and `Tokens` knows who may ask, as which tenant, and for which models.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from anygpu.base.units import bytes_from
from anygpu.errors import (
    AllocationError,
    AnyGPUError,
    DeadlineExceeded,
    DeviceError,
    InvalidOption,
    NotANumber,
    Overloaded,
    RuntimeClosed,
    TooBig,
    name_of,
    text_of,
)

# -- the limits of a server, the count of what its requests hold, and refusals: a status of HTTP and a sentence


#: Characters of a message; longer ones are cut.
_LONGEST = 300
#: Errors with which a function says that its arguments do not fit.
_OF_THE_ARGUMENTS = (ValueError, TypeError, IndexError)


class RequestRefused(Exception):
    """A request that gets an error instead of a result: a status, a sentence for the caller, and headers."""

    def __init__(self, status: int, message: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = tuple(headers)


class InvalidRequest(RequestRefused):
    """The request breaks a rule of the protocol, or does not fit the model."""

    def __init__(self, message: str) -> None:
        super().__init__(400, message)


def too_large(message: str) -> RequestRefused:
    """The refusal of a body: status 413, and the connection is closed because the rest of the body is not read."""
    return RequestRefused(413, message, [(b"connection", b"close")])


def try_again(status: int, message: str, seconds: float) -> RequestRefused:
    """A refusal with the header `Retry-After`.

    Nothing of the request was run: the caller may come again after so many seconds, rounded up and at least one.
    """
    return RequestRefused(status, message, [(b"retry-after", str(max(1, math.ceil(seconds))).encode())])


def refusal_of(error: Exception, model: str, retry_seconds: float) -> RequestRefused:
    """The response for a model's task that has failed.

    Messages of errors that blame the arguments are passed on, because the caller has to know. Of all others only the
    name is: they are about this machine, and are logged here.
    """
    if isinstance(error, RequestRefused):
        return error
    if isinstance(error, DeadlineExceeded):
        return RequestRefused(504, f"{model} did not finish within {error.seconds:g} s. Allow more time, or send less.")
    if isinstance(error, Overloaded):
        return try_again(429, "too many requests wait already. Try again later.", retry_seconds)
    if isinstance(error, RuntimeClosed):
        return try_again(503, "the server is shutting down. Try another one.", retry_seconds)
    if isinstance(error, TooBig):
        return RequestRefused(
            413, f"{model} does not fit into any device's memory with these inputs. Send smaller ones."
        )
    if isinstance(error, AllocationError | DeviceError):
        return try_again(503, f"{model} has no device at the moment. Try again later.", retry_seconds)
    if isinstance(error, NotANumber) or (isinstance(error, _OF_THE_ARGUMENTS) and not isinstance(error, AnyGPUError)):
        return InvalidRequest(f"{model} does not take these inputs: {_shortened(text_of(error))}")
    return RequestRefused(500, f"{model} failed with {name_of(error)}. The server's log has the details.")


def _shortened(text: str) -> str:
    """A message on one line, cut to `_LONGEST` characters."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"


#: Names under which the loopback address is asked.
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


def name_of_host(host: str) -> str:
    """The name in a `Host` header, without the port."""
    name, colon, port = host.strip().lower().rpartition(":")
    return name if colon and port.isdecimal() else host.strip().lower()


def refusal_of_page(hosts: list[str], origins: list[str], names: tuple[str, ...] = LOOPBACK_NAMES) -> str | None:
    """Why a request with these headers is refused, or `None` if it comes from a program and not from a page."""
    if len(hosts) != 1 or name_of_host(hosts[0]) not in names:
        return f"only requests to {', '.join(names)} are answered: the header Host names another."
    if origins:
        return "pages of a browser are not answered: the request has the header Origin."
    return None


#: Names of models and tensors, in characters.
MAX_NAME = 256
MAX_HEADERS = 128
MAX_INPUTS = 64
MAX_RANK = 32
#: Bytes of a request line and its headers, or of anything else that is no body.
MAX_HEAD = 64 << 10
#: Bytes of a request's JSON. Parsing makes up to twenty times that of it, one request at a time.
MAX_JSON = 8 << 20
#: Bodies that may be held at once by all tenants, in largest bodies.
_BODIES_AT_ONCE = 8
#: The share of the server's bytes and connections that one of several tenants may have.
_TENANT_SHARE = 2
#: Connections where the system does not say how many files a process may open, and the most anywhere.
_CONNECTIONS, _MOST_CONNECTIONS = 768, 4096


def _connections() -> int:
    """Three quarters of the files that this process may open; devices and logs need the others."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return _CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(8, min(_MOST_CONNECTIONS, soft * 3 // 4))


class Limits(msgspec.Struct, frozen=True):
    """Limits of one server. Deadlines are in seconds, and no byte that arrives extends them.

    Sizes are in bytes. Those that have no field of their own follow from `body`.
    """

    #: Bytes of one body.
    body: int = 64 << 20
    #: For a request's head to arrive, from the connection or from its first byte.
    head_seconds: float = 20.0
    #: For a body to arrive, from the end of its head.
    body_seconds: float = 60.0
    #: For the rest of a body whose request has its answer already.
    rest_seconds: float = 5.0
    #: For a response to be read.
    answer_seconds: float = 60.0
    #: Without a request.
    idle_seconds: float = 75.0
    #: Open connections.
    connections: int = msgspec.field(default_factory=_connections)

    @property
    def json(self) -> int:
        """Bytes of a request's JSON: those of a body, `MAX_JSON` at most."""
        return min(self.body, MAX_JSON)

    @property
    def elements(self) -> int:
        """Elements of one tensor: the smallest take a byte."""
        return self.body

    @property
    def held(self) -> int:
        """Bytes of all bodies and large responses that are held at once."""
        return _BODIES_AT_ONCE * self.body


def limits_of(max_body: int | str) -> Limits:
    """The limits for a largest body, as a number of bytes or a text such as "64MB". Raises `InvalidOption`."""
    body = bytes_from(max_body) if isinstance(max_body, str) else max_body
    if type(body) is not int or body < 1:
        raise InvalidOption(f'max_body is a number of bytes such as 1000000 or "64MB"; got {max_body!r}.')
    return Limits(body)


class HeldRequests:
    """Counts open requests and the bytes that they hold, by tenant. Used by one event loop.

    One of several tenants may have half of each, so that the others are served beside it.
    """

    def __init__(self, limits: Limits, *, tenants: int) -> None:
        share = _TENANT_SHARE if tenants > 1 else 1
        self._most, self._tenant_most = limits.held, limits.held // share
        self._most_requests = max(1, limits.connections // share)
        self.total = 0
        self._bytes: dict[str, int] = {}
        self._requests: dict[str, int] = {}

    def enter(self, tenant: str) -> bool:
        """Whether the tenant may have one more request open; it is counted then."""
        count = self._requests.get(tenant, 0)
        if count >= self._most_requests:
            return False
        self._requests[tenant] = count + 1
        return True

    def leave(self, tenant: str) -> None:
        """One request of the tenant has its answer."""
        self._requests[tenant] -= 1

    def grow(self, tenant: str, count: int) -> bool:
        """Whether the tenant may hold so many more bytes; they are counted then."""
        if self.total + count > self._most or self._bytes.get(tenant, 0) + count > self._tenant_most:
            return False
        self.add(tenant, count)
        return True

    def add(self, tenant: str, count: int) -> None:
        """Count bytes that are there already: those of a response."""
        self.total += count
        self._bytes[tenant] = self._bytes.get(tenant, 0) + count

    def release(self, tenant: str, count: int) -> None:
        """Bytes of the tenant are no longer held."""
        if count:
            self.total -= count
            self._bytes[tenant] -= count


# -- bearer tokens: who may ask, as which tenant, and for which models


#: Shorter tokens can be guessed.
MIN_LENGTH = 16

#: By token, the tenant; or the tenant and the models that it may use.
TokenMapping = Mapping[str, str | tuple[str, Sequence[str]]]


class TokenAccess(msgspec.Struct, frozen=True):
    """The tenant and models of a token."""

    tenant: str = "default"
    #: `None` for all models.
    models: frozenset[str] | None = None

    def check(self, model: str) -> None:
        """Raises `RequestRefused` (403) unless the token allows the model."""
        if self.models is not None and model not in self.models:
            raise RequestRefused(403, f"this token does not allow {model}.")

    def check_metrics(self) -> None:
        """Metrics name all models and tenants: only tokens without a list of models may read them."""
        if self.models is not None:
            raise RequestRefused(403, "this token does not allow /metrics: it is limited to some models.")

    def allowed(self, models: Iterable[str]) -> list[str]:
        """The models that the token allows, in their order."""
        return [name for name in models if self.models is None or name in self.models]


#: For servers without tokens.
EVERYBODY = TokenAccess()


class Tokens:
    """The tokens of a server. How long a look takes does not depend on how much of a token is right.

    Only digests under a random key are kept. Raises `InvalidOption` for no tokens, and for one that is short or not
    plain ASCII.
    """

    def __init__(self, given: TokenMapping) -> None:
        if not given:
            raise InvalidOption("tokens= has no tokens: no client could use the server.")
        self._key = secrets.token_bytes(32)
        self._known: dict[bytes, TokenAccess] = {}
        for token, value in given.items():
            self._known[self._digest(_checked(token))] = _access(value)
        #: Different tenants.
        self.tenants = len({access.tenant for access in self._known.values()})

    def find(self, authorization: bytes | None) -> TokenAccess:
        """The tenant and models of an `Authorization` header.

        Raises `RequestRefused` (401) if it is missing or unknown.
        """
        if authorization is None:
            raise _unauthorised("a token is needed: send the header Authorization: Bearer TOKEN.", b"Bearer")
        scheme, _, token = authorization.partition(b" ")
        # Digests under a secret key: a dict may be used, because no client can choose digests that are nearly alike.
        digest = hmac.digest(self._key, token.strip(), hashlib.sha256)
        access = self._known.get(digest)
        if access is None or scheme.lower() != b"bearer":
            raise _unauthorised("this token is not known.", b'Bearer error="invalid_token"')
        return access

    def _digest(self, token: str) -> bytes:
        return hmac.digest(self._key, token.encode(), hashlib.sha256)


def tokens_of(given: TokenMapping | str | os.PathLike[str] | None) -> Tokens | None:
    """From a mapping, or from a file with lines "tenant token" or "tenant token model,model"; `None` for `None`."""
    if given is None:
        return None
    return Tokens(given if isinstance(given, Mapping) else read_tokens(Path(given)))


def read_tokens(path: Path) -> dict[str, tuple[str, Sequence[str]] | str]:
    """The tokens of a file with lines "tenant token [models]", as `Server(tokens=)` takes them.

    Comments begin with `#`. Raises `InvalidOption` for a file that cannot be read and for other lines, without showing
    them.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"the tokens in {str(path)!r} cannot be read: {error}.") from None
    found: dict[str, tuple[str, Sequence[str]] | str] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) not in (2, 3):
            # The line itself is not shown: it may have a token in it.
            raise InvalidOption(f'line {number} of {path} is not "tenant token" or "tenant token model,model".')
        tenant, token = words[:2]
        found[token] = tenant if len(words) == 2 else (tenant, words[2].split(","))
    return found


def _checked(token: object) -> str:
    """The token, if it is long enough and plain ASCII. Raises `InvalidOption`, which does not show it."""
    if not isinstance(token, str) or len(token) < MIN_LENGTH:
        raise InvalidOption(
            f"a token has at least {MIN_LENGTH} characters. "
            'Make one with: python -c "import secrets; print(secrets.token_urlsafe())"'
        )
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidOption("a token has only printable ASCII characters, and no spaces.")
    return token


def _access(value: Any) -> TokenAccess:
    """The tenant, and the models if there are some, from a value of the mapping. Raises `InvalidOption`."""
    if isinstance(value, str) and value:
        return TokenAccess(value)
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and not isinstance(value[1], str):
        return TokenAccess(value[0], frozenset(value[1]))
    raise InvalidOption(f"tokens= maps each token to a tenant, or to (tenant, models); got {value!r}.")


def _unauthorised(message: str, challenge: bytes) -> RequestRefused:
    """A refusal with status 401 and the challenge that HTTP wants with it."""
    return RequestRefused(401, message, [(b"www-authenticate", challenge)])
