"""What a request may cost before anything of it is allocated."""

from __future__ import annotations

import msgspec

from anygpu.errors import InvalidOption
from anygpu.units import bytes_from

#: Names of models and tensors, in characters.
MAX_NAME = 256
MAX_HEADERS = 128
MAX_INPUTS = 64
MAX_RANK = 32
#: Bytes of a request's JSON. Parsing makes up to twenty times that of it, one request at a time.
MAX_JSON = 8 << 20
#: Bodies that may be held at once, in largest bodies.
_BODIES_AT_ONCE = 8
#: Seconds that a body may take to arrive.
BODY_SECONDS = 60.0


class Limits(msgspec.Struct, frozen=True):
    """Of one server."""

    #: Bytes of one body.
    body: int = 64 << 20

    @property
    def json(self) -> int:
        return min(self.body, MAX_JSON)

    @property
    def elements(self) -> int:
        """Elements of one tensor: the smallest take a byte."""
        return self.body

    @property
    def held(self) -> int:
        """Bytes of all bodies that are read or computed with."""
        return _BODIES_AT_ONCE * self.body


def limits_of(max_body: int | str) -> Limits:
    body = bytes_from(max_body) if isinstance(max_body, str) else max_body
    if type(body) is not int or body < 1:
        raise InvalidOption(f'max_body is a number of bytes such as 1000000 or "64MB"; got {max_body!r}.')
    return Limits(body)


class HeldBytes:
    """Counts the bytes of the bodies that are held. Used by one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.total = 0

    def grow(self, count: int) -> bool:
        """Whether so many more may be held; they are counted then."""
        if self.total + count > self._most:
            return False
        self.total += count
        return True

    def release(self, held: int) -> None:
        self.total -= held
