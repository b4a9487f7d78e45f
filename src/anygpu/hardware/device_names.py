"""The names of devices: the engine, which of its devices, and the machine where that is another one.

`numpy` and `torch:cuda:0` are devices of this machine, `torch:cuda:0@node-7` is one of a fleet.
"""

from __future__ import annotations

from typing import NamedTuple

#: As the name of a device: any that is on another machine.
FLEET = "fleet"
#: The engine that compiles for the processor. In `on=` its name is not that of the kind: where there is no such device,
#: it means NumPy.
CPU = "cpu"


class DeviceName(NamedTuple):
    """The parts of a device's id."""

    engine: str
    #: What the engine calls the device: "0", "cuda:1"; empty for an engine with one device.
    local: str
    #: The machine that it is on; `None` for this one.
    node: str | None

    @property
    def there(self) -> str:
        """Its id on its own machine."""
        return f"{self.engine}:{self.local}" if self.local else self.engine


def parse_device(identity: str) -> DeviceName:
    """The parts of an id."""
    there, at, node = identity.partition("@")
    engine, _, local = there.partition(":")
    return DeviceName(engine, local, node if at else None)


def at_node(identity: str, node: str) -> str:
    """The id of a device of another machine, from its id there."""
    return f"{identity}@{node}"


def node_of(identity: str) -> str | None:
    """The machine that the device is on; `None` for this one."""
    _, at, node = identity.partition("@")
    return node if at else None


def names_a_fleet(wanted: str) -> bool:
    """Whether a name in `on=` can only mean devices of other machines."""
    return "@" in wanted or wanted.lower() == FLEET
