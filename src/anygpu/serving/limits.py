"""The limits of a server, and the count of what its requests hold."""

from __future__ import annotations

import msgspec

from anygpu.base.units import bytes_from
from anygpu.errors import InvalidOption

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
    """What one server allows. Deadlines are in seconds, and no byte that arrives extends them."""

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
    body = bytes_from(max_body) if isinstance(max_body, str) else max_body
    if type(body) is not int or body < 1:
        raise InvalidOption(f'max_body is a number of bytes such as 1000000 or "64MB"; got {max_body!r}.')
    return Limits(body)


class Held:
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
        if count:
            self.total -= count
            self._bytes[tenant] -= count
