"""Checks that every engine must pass, written once. A failure is an AssertionError that says what is wrong."""

from __future__ import annotations

import msgspec

from anygpu.engines.protocol import Engine
from anygpu.errors import AnyGPUError
from anygpu.hardware.device import FEATURES, Device, Unavailable


def check_engine_probe(engine: Engine, *, deep: bool = False) -> list[Device]:
    """Discover, verify, ask and close one engine in this process; returns the devices that are verified."""
    _expect(isinstance(engine, Engine), f"{type(engine).__name__} does not have all methods of Engine")
    found = engine.discover()
    _expect(len(found) > 0, "discover() must say what there is, or why there is nothing")
    identities = [item.id for item in found]
    _expect(len(set(identities)) == len(identities), f"ids must differ: {identities}")
    outcomes = [_check_item(engine, item, deep=deep) for item in found]
    devices = [item for item in outcomes if isinstance(item, Device)]
    for device in devices:
        _check_memory(engine, device)
        _check_classify(engine, device)
    engine.close()
    engine.close()
    return devices


def _check_item(engine: Engine, item: Device | Unavailable, *, deep: bool) -> Device | Unavailable:
    _expect(item.engine == engine.name, f"{item.id} says it belongs to {item.engine}, not to {engine.name}")
    own = item.id == engine.name or item.id.startswith(f"{engine.name}:")
    _expect(own, f'the id {item.id} must be "{engine.name}" or start with "{engine.name}:"')
    _check_round_trip(item)
    if isinstance(item, Unavailable):
        _check_unavailable(item)
        return item
    _expect(item.state == "usable", f"discover() returned {item.id} as {item.state}; only verify() may say more")
    _check_device(item)
    outcome = engine.verify(item, deep=deep)
    _expect(outcome.id == item.id, f"verify({item.id}) answered for {outcome.id}")
    _check_round_trip(outcome)
    if isinstance(outcome, Unavailable):
        _check_unavailable(outcome)
    else:
        _expect(outcome.verified, f"verify({item.id}) returned a device that is only {outcome.state}")
    return outcome


def _check_device(device: Device) -> None:
    strangers = set(device.features) - set(FEATURES)
    _expect(not strangers, f"{device.id} has features under names of its own: {sorted(strangers)}")
    if device.software:
        _expect(device.kind == "cpu", f"{device.id} is software, so its kind is cpu, not {device.kind}")
    if device.memory_total is not None and device.memory_free is not None:
        _expect(device.memory_free <= device.memory_total, f"{device.id} has more memory free than in all")
    if device.load is not None:
        _expect(0 <= device.load <= 1, f"{device.id} has a load of {device.load}, which is no share")
    _expect(bool(device.name.strip()) and bool(device.api.strip()), f"{device.id} must have a name and an api")


def _check_unavailable(item: Unavailable) -> None:
    _expect(item.state in ("absent", "present", "hung"), f"{item.id} cannot be unavailable and {item.state}")
    _expect(item.reason.strip().endswith("."), f"the reason of {item.id} must be a sentence: {item.reason!r}")


def _check_memory(engine: Engine, device: Device) -> None:
    memory = engine.memory(device)
    for name in ("total", "free"):
        value = getattr(memory, name)
        known = value is not None
        _expect(known or bool(memory.unknown.get(name)), f"memory({device.id}).{name} is None without a reason")
        _expect(not known or value > 0 or name == "free", f"memory({device.id}).{name} is {value}")


def _check_classify(engine: Engine, device: Device) -> None:
    _expect(
        engine.classify(ValueError("the user's own mistake"), device) is None,
        "classify() must return None for an error that is the user's own",
    )
    translated = engine.classify(MemoryError(), device)
    _expect(translated is None or isinstance(translated, AnyGPUError), "classify() returns errors of anygpu or None")


def _check_round_trip(item: Device | Unavailable) -> None:
    again = msgspec.json.decode(msgspec.json.encode(item), type=type(item))
    _expect(again == item, f"{item.id} does not survive JSON: it must hold plain values only")


def _expect(condition: bool, sentence: str) -> None:
    if not condition:
        raise AssertionError(sentence)
