"""Requirements for a device, as `on=`, `min_memory=` and the like give them.

It is apart from the selection, which first calls need not load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from anygpu.base.units import readable_bytes
from anygpu.errors import InvalidOption

#: The engine that compiles for the processor. In `on=` its name is not that of the kind: where there is no such device,
#: it means NumPy.
CPU = "cpu"

Power = Literal["high", "low"]


class Preference(NamedTuple):
    """Requirements for a device, made by `prefer`. The default accepts every verified device."""

    #: A device id, an engine, a kind, an interface ("cuda", "vulkan"), a part of an id ("cuda:1") or of a name. "cpu"
    #: is the engine, not the kind. In a fleet each may have a machine, as "gpu@node-7", which may also be alone
    #: ("@node-7"); "fleet" is any of these. Several are tried in order.
    on: tuple[str, ...] = ()
    min_memory: int = 0
    max_load: float = 1.0
    power: Power | None = None
    #: Accept devices that were listed but on which nothing has been computed yet.
    unverified: bool = False

    def __str__(self) -> str:
        parts = [f'on="{", ".join(self.on)}"'] if self.on else []
        parts += [f"min_memory={readable_bytes(self.min_memory)}"] if self.min_memory else []
        parts += [f"max_load={self.max_load:g}"] if self.max_load < 1 else []
        parts += [f'power="{self.power}"'] if self.power else []
        return ", ".join(parts) or "anything"


def prefer(
    on: str | Sequence[str] | None = None,
    *,
    min_memory: int = 0,
    max_load: float = 1.0,
    power: Power | None = None,
    unverified: bool = False,
) -> Preference:
    """A `Preference` from what a caller naturally writes."""
    if power not in (None, "high", "low"):
        raise InvalidOption(f'power is "high", "low" or None; got {power!r}.')
    if min_memory < 0:
        raise InvalidOption(f"min_memory is a number of bytes, 0 or more; got {min_memory}.")
    if not 0 <= max_load <= 1:
        raise InvalidOption(f"max_load is a share from 0 to 1; got {max_load:g}.")
    names = () if on is None else (on,) if isinstance(on, str) else tuple(on)
    if not all(name.strip() for name in names):
        raise InvalidOption(f'on= takes names such as "gpu", "webgpu" or "cuda:1"; got {on!r}.')
    return Preference(
        on=tuple(name.strip() for name in names),
        min_memory=min_memory,
        max_load=max_load,
        power=power,
        unverified=unverified,
    )
