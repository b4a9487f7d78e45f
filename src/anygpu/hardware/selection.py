"""Which devices fit a preference, best first, and one sentence for each that does not. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from anygpu.base.units import readable_bytes
from anygpu.errors import DeviceUnavailable
from anygpu.hardware.device import CPU, FLEET, Device, Unavailable, node_of, parse_device, plain_name
from anygpu.hardware.gpu_presence import software_devices_are_automatic
from anygpu.hardware.preference import Power, Preference


class DeviceRefusal(msgspec.Struct, frozen=True):
    """A device that was not chosen, and why."""

    device: str
    sentence: str


class DeviceSelection(msgspec.Struct, frozen=True, kw_only=True):
    """The devices that fit, best first, and the others with reasons."""

    chosen: tuple[Device, ...]
    refused: tuple[DeviceRefusal, ...]


def select(devices: Iterable[Device], preference: Preference) -> DeviceSelection:
    """The devices that fit, best first; every other one is refused with a sentence."""
    devices = list(devices)
    preference = preference._replace(on=meant(preference.on, devices))
    ranked: list[tuple[tuple[object, ...], Device]] = []
    refused: list[DeviceRefusal] = []
    for position, device in enumerate(devices):
        rank, sentence = _judge(device, preference)
        if sentence is not None:
            refused.append(DeviceRefusal(device.id, sentence))
        else:
            ranked.append(((rank, *_quality(device, preference.power), position), device))
    ranked.sort(key=lambda pair: pair[0])
    return DeviceSelection(chosen=tuple(device for _, device in ranked), refused=tuple(refused))


def require(
    devices: Iterable[Device], preference: Preference, missing: Iterable[Unavailable] = ()
) -> tuple[Device, ...]:
    """Like `select`, but raises `DeviceUnavailable` with every known reason when nothing fits."""
    selection = select(devices, preference)
    if selection.chosen:
        return selection.chosen
    sentences = [refusal.sentence for refusal in selection.refused]
    sentences += [f"{item.reason} {item.fix or ''}".strip() for item in missing if _could_be(item, preference)]
    raise DeviceUnavailable(str(preference), sentences)


def is_stand_in(device: Device, *, automatic: bool | None = None) -> bool:
    """Whether it computes on the processor beside NumPy and `cpu`, so that it is used only when it is named.

    `automatic` says whether such devices are used as GPUs are; without it, the variable `ANYGPU_SOFTWARE_DEVICES` does.
    """
    if device.engine in ("numpy", CPU) or not device.computes_on_processor:
        return False
    return not (software_devices_are_automatic() if automatic is None else automatic)


def meant(on: Sequence[str], devices: Iterable[Device]) -> tuple[str, ...]:
    """The names with NumPy for "cpu", where none of the devices is the one that compiles for the processor."""
    if not any(name.lower() == CPU for name in on) or any(device.id == CPU for device in devices):
        return tuple(on)
    return tuple("numpy" if name.lower() == CPU else name for name in on)


def _judge(device: Device, preference: Preference) -> tuple[int, str | None]:
    rank = 0
    if preference.on:
        matches = [index for index, wanted in enumerate(preference.on) if matches_name(device, wanted)]
        if not matches:
            if device.kind == "cpu" and any(name.lower() == CPU for name in preference.on):
                return 0, f'{device.id} is not meant by "cpu", which is the device that compiles for the processor.'
            what = " or ".join(f'"{name}"' for name in preference.on)
            return 0, f"{device.id} is not {what}: it is {_nature(device)}."
        rank = matches[0]
    if not device.verified and not preference.unverified:
        return 0, f"{device.id} was not verified: it is only {device.state}. Run `anygpu doctor` to see why."
    return rank, _too_little_memory(device, preference.min_memory) or _too_busy(device, preference.max_load)


def matches_name(device: Device, wanted: str) -> bool:
    """Whether `on=wanted` means this device."""
    wanted, at, node = wanted.lower().partition("@")
    name = parse_device(device.id.lower())
    if at and name.node != node:
        return False
    if not wanted or wanted == FLEET:
        return name.node is not None
    if wanted == CPU:
        # The engine, and not every device of this kind. An id names one device: without a machine, one of this machine.
        return name.engine == CPU and (name.node is None or bool(at))
    identity, local = name.there, name.local
    interfaces = {name.split()[0].lower() for name in (device.api, *device.also_through)}
    names = {device.engine, device.kind, device.card, device.vendor}
    exact = {local.partition(":")[0]} | interfaces | {each.lower() for each in names if each}
    own = {identity, local}
    # An id names one device: without a machine, one of this machine.
    exact = exact - own if name.node is not None and not at else exact | own
    # "0" is the local part of "webgpu:0" and would mean every first device of every engine.
    if (wanted in exact and not wanted.isdigit()) or identity.startswith(f"{wanted}:"):
        return True
    return len(wanted) > 3 and plain_name(wanted) in plain_name(device.name) and bool(plain_name(wanted))


def _nature(device: Device) -> str:
    if device.form == "software":
        return f"{device.name}, a software adapter that runs on the CPU"
    return f"{device.name}, a {device.kind.upper()} through {device.engine}"


def _too_little_memory(device: Device, wanted: int) -> str | None:
    """Returns why the device's memory does not suffice; `None` if it does. Free memory counts where it is known."""
    if not wanted:
        return None
    have, which = (device.memory_free, "free") if device.memory_free is not None else (device.memory_total, "in all")
    if have is None:
        return (
            f"{device.id}: {readable_bytes(wanted)} are asked for, and its memory is not known "
            f"({device.unknown['memory_total']}). Leave min_memory out to accept it."
        )
    if have < wanted:
        return f"{device.id} has {readable_bytes(have)} {which}, and {readable_bytes(wanted)} are asked for."
    return None


def _too_busy(device: Device, most: float) -> str | None:
    """Returns why the device's load is too high; `None` if it is not. An unknown load is refused."""
    if most >= 1:
        return None
    if device.load is None:
        return (
            f"{device.id}: a load of at most {most:.0%} is asked for, and its load is not known "
            f"({device.unknown['load']}). Leave max_load out to accept it."
        )
    if device.load > most:
        return f"{device.id} is {device.load:.0%} busy, and at most {most:.0%} is asked for."
    return None


_KIND_ORDER = {"gpu": 0, "npu": 1, "cpu": 2}
_FORM_ORDER: dict[Power | None, dict[str, int]] = {
    "low": {"integrated": 0, "discrete": 1},
    "high": {"discrete": 0, "integrated": 1},
    None: {"discrete": 0, "integrated": 1},
}


def _quality(device: Device, power: Power | None) -> tuple[int, ...]:
    """Without measurements: real GPUs before the CPU, the CPU itself before an emulation on it, then free memory."""
    kind = _KIND_ORDER[device.kind]
    form = _FORM_ORDER[power].get(device.form, 2)
    emulated = 1 if device.form == "software" else 0
    return kind, emulated, form, -(device.memory_free or 0) if device.kind != "cpu" else 0


def _could_be(item: Unavailable, preference: Preference) -> bool:
    """Whether something that is missing might have been what was asked for."""
    if not preference.on:
        return True
    names = {name.lower() for name in preference.on}
    node = node_of(item.id)
    if node is not None:
        # Of names with a machine, those of this one count, and their first part is what is wanted there.
        names = {first for first, at, there in (name.partition("@") for name in names) if not at or there == node}
        if names & {"", FLEET} or (names and item.engine == FLEET):
            return True
    there = parse_device(item.id).there
    parts = {there, item.engine, *there.split(":")}
    is_part = any(name.startswith(f"{item.id}:") for name in names)
    return is_part or bool(names & parts) or ("gpu" in names and item.state in ("present", "hung"))
