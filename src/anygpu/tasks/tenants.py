"""Tenants: those who share one runtime, with what each of them may have of it."""

from __future__ import annotations

import math

import msgspec

from anygpu.errors import InvalidOption


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """One of those who share a runtime. What is left out is not limited."""

    name: str
    #: Of the devices' time while others want it too, relative to their shares.
    share: float = 1.0
    #: Of the arguments of its tasks that wait or run.
    bytes: int | None = None
    #: Tasks of it that wait.
    queued: int | None = None

    def __post_init__(self) -> None:
        if type(self.name) is not str or not self.name:
            raise InvalidOption(f"a tenant's name is a text, and not empty; got {self.name!r}.")
        if type(self.share) not in (int, float) or not (self.share > 0 and math.isfinite(self.share)):
            raise InvalidOption(f"the share of the tenant {self.name!r} is a number above 0; got {self.share!r}.")
        for what, limit in (("bytes", self.bytes), ("queued", self.queued)):
            if limit is not None and (type(limit) is not int or limit < 0):
                raise InvalidOption(
                    f"the limit {what}= of the tenant {self.name!r} is a whole number, at least 0, or None; "
                    f"got {limit!r}."
                )
