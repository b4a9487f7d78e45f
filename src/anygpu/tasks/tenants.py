"""Tenants: the users of one runtime, each with a share and limits."""

from __future__ import annotations

import math

import msgspec

from anygpu.errors import InvalidOption


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """One user of a runtime. Limits that are left out do not apply."""

    name: str
    #: Its share of device time while tenants compete, relative to the other shares.
    share: float = 1.0
    #: Limit for the argument bytes of its waiting and running tasks.
    bytes: int | None = None
    #: Limit for its waiting tasks.
    queued: int | None = None

    def __post_init__(self) -> None:
        if type(self.name) is not str or not self.name:
            raise InvalidOption(f"a tenant's name is a non-empty string; got {self.name!r}.")
        if type(self.share) not in (int, float) or not (self.share > 0 and math.isfinite(self.share)):
            raise InvalidOption(f"the share of the tenant {self.name!r} is a number above 0; got {self.share!r}.")
        for what, limit in (("bytes", self.bytes), ("queued", self.queued)):
            if limit is not None and (type(limit) is not int or limit < 0):
                raise InvalidOption(
                    f"the limit {what}= of the tenant {self.name!r} is a whole number, at least 0, or None; "
                    f"got {limit!r}."
                )
