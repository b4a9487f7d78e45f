"""Which engines there are, without importing any of their libraries.

An `EngineEntry` names an engine, its library and its module, and has its traits. Built-in engines are a table here;
others come from entry points, and are known before their libraries are loaded. `load` imports one. ANYGPU_ENGINES
leaves engines out.
"""

from __future__ import annotations

import importlib
import os
import warnings
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from anygpu.engines.disk_cache import version_of
from anygpu.engines.protocol import Engine
from anygpu.engines.traits import DISCRETE, INTEGRATED, AssumedRates, EngineTraits
from anygpu.errors import DeviceUnavailable, InvalidOption, MissingExtra, install_command
from anygpu.hardware.device import CPU, Device, DeviceForm, parse_device
from anygpu.hardware.selection import is_stand_in

if TYPE_CHECKING:
    from importlib import metadata

ENTRY_POINT_GROUP = "anygpu.engines"
TRAITS_GROUP = "anygpu.engine_traits"


class EngineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Where an engine is found, and what it needs."""

    name: str
    #: `module:attribute` of a class or function that makes the engine.
    target: str
    #: The distribution whose absence means "not installed"; `None` when nothing is needed.
    requires: str | None = None
    #: The optional extra of anygpu that brings it; `None` for what the core install has.
    extra: str | None = None
    #: Distributions whose versions change what a probe finds.
    versions: tuple[str, ...] = ()
    #: Passed on to whatever `target` names, as keyword arguments.
    options: dict[str, str] = {}
    #: A probe that cannot hang or crash needs no process of its own.
    probe_in: Literal["child", "here"] = "child"
    traits: EngineTraits = EngineTraits()

    @property
    def install_command(self) -> str:
        return install_command(self.requires or self.name, self.extra)


#: One CPU through NumPy, with two cores for matrix products.
_NUMPY_RATES = AssumedRates(
    launch=5e-6, kernel=1e-6, latency=1e-6, bytes_per_second=2e10, memory=1e10, functions=5e8, products=1e11,
    transforms=2e9, sorting=5e8, indexing=2e9, solving=2e10, wide=2.0, compile=0.0, open=0.0,
)  # fmt: skip
_TORCH_CPU_RATES = msgspec.structs.replace(
    _NUMPY_RATES, launch=3e-5, kernel=4e-6, latency=5e-6, bytes_per_second=8e9, functions=1e9, open=2.0
)
_JAX_CPU_RATES = msgspec.structs.replace(
    _NUMPY_RATES, launch=6e-5, kernel=5e-6, latency=3e-5, bytes_per_second=8e9, functions=1e9, sorting=2e8,
    compile=0.1, open=2.0,
)  # fmt: skip
#: Native code for the processor: no transfers, and what NumPy does for what is no loop nest.
_CPU_RATES = msgspec.structs.replace(
    _NUMPY_RATES, launch=7e-6, latency=0.0, bytes_per_second=1e15, compile=0.05, open=0.05
)
#: Libraries of the vendors of GPUs: their own products, and no child process in between.
_NATIVE_INTEGRATED = msgspec.structs.replace(INTEGRATED, launch=6e-5, latency=2e-5)
_NATIVE_DISCRETE = msgspec.structs.replace(DISCRETE, launch=6e-5, latency=2e-5, bytes_per_second=1e10, products=1e13)
_NATIVE_GPU_RATES: dict[DeviceForm, AssumedRates] = {
    "integrated": _NATIVE_INTEGRATED,
    "discrete": _NATIVE_DISCRETE,
    "virtual": _NATIVE_DISCRETE,
}

BUILT_IN: tuple[EngineEntry, ...] = (
    EngineEntry(
        name="numpy",
        target="anygpu.engines.numpy.lowering:NumpyEngine",
        versions=("numpy",),
        probe_in="here",
        traits=EngineTraits(isolation="thread", views="strided", fuses=False, rates={"host": _NUMPY_RATES}),
    ),
    EngineEntry(
        name=CPU,
        target="anygpu.engines.cpu.engine:CpuEngine",
        requires="llvmlite",
        versions=("llvmlite", "numpy"),
        traits=EngineTraits(isolation="thread", views="strided", automatic=False, rates={"host": _CPU_RATES}),
    ),
    EngineEntry(
        name="webgpu",
        target="anygpu.engines.webgpu.engine:WebGPUEngine",
        requires="wgpu",
        versions=("wgpu",),
        traits=EngineTraits(languages=("wgsl",), views="contiguous", tunes=True),
    ),
    EngineEntry(
        name="opencl",
        target="anygpu.engines.opencl.engine:OpenCLEngine",
        requires="pyopencl",
        extra="opencl",
        versions=("pyopencl", "pocl-binary-distribution"),
        traits=EngineTraits(languages=("opencl",), views="contiguous", tunes=True),
    ),
    EngineEntry(
        name="torch",
        target="anygpu.engines.torch.engine:TorchEngine",
        requires="torch",
        extra="torch",
        versions=("torch",),
        traits=EngineTraits(
            isolation="thread", views="forward", fuses=False, rates={"host": _TORCH_CPU_RATES, **_NATIVE_GPU_RATES}
        ),
    ),
    EngineEntry(
        name="jax",
        target="anygpu.engines.jax.engine:JaxEngine",
        requires="jax",
        extra="jax",
        versions=("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm60-plugin", "libtpu"),
        traits=EngineTraits(isolation="thread", rates={"host": _JAX_CPU_RATES, **_NATIVE_GPU_RATES}),
    ),
)


def catalogue() -> tuple[EngineEntry, ...]:
    """The built-in engines, then those that other packages bring through the entry point group.

    With names in the variable `ANYGPU_ENGINES`, separated by commas, only these engines are looked at; numpy always is.
    """
    global _last
    wanted, others = os.environ.get("ANYGPU_ENGINES", ""), _of_other_packages()
    last = _last
    if last is None or last.wanted != wanted or last.others is not others:
        last = _last = _Chosen(wanted, others, _chosen(wanted))
    return last.entries


class _Chosen(NamedTuple):
    """What `catalogue` returned last: every call on a device asks for it, most of them twice."""

    wanted: str
    others: tuple[EngineEntry, ...]
    entries: tuple[EngineEntry, ...]


_last: _Chosen | None = None


def _chosen(wanted: str) -> tuple[EngineEntry, ...]:
    """The engines that `ANYGPU_ENGINES` names, NumPy always among them; all where it names none.

    Raises `InvalidOption` for a name that no engine has.
    """
    every = every_engine()
    chosen = {name.strip() for name in wanted.split(",")} - {""}
    known = [entry.name for entry in every]
    if unknown := sorted(chosen.difference(known)):
        raise InvalidOption(
            f"ANYGPU_ENGINES asks for {', '.join(unknown)}, and there is no such engine. Known are: {', '.join(known)}."
        )
    return tuple(entry for entry in every if not chosen or entry.name in chosen | {"numpy"})


def every_engine() -> tuple[EngineEntry, ...]:
    """Those that `catalogue` chooses from."""
    return BUILT_IN + _of_other_packages()


def entry_of(device_id: str) -> EngineEntry:
    """The entry of the engine that the device belongs to. Raises `DeviceUnavailable` where the catalogue has none."""
    name = parse_device(device_id).engine
    for entry in catalogue():
        if entry.name == name:
            return entry
    raise DeviceUnavailable(f'on="{device_id}"', [f"there is no engine {name}."], device=device_id)


def traits_of(engine: str) -> EngineTraits:
    """The traits of the engine with that name; the defaults where there is none."""
    for entry in BUILT_IN:
        if entry.name == engine:
            return entry.traits
    return next((entry.traits for entry in _of_other_packages() if entry.name == engine), EngineTraits())


def why_only_when_named(device: Device) -> str | None:
    """The sentence for calls that name no device; `None` where they may go to this one."""
    if not traits_of(device.engine).automatic:
        return f'{device.id} is used where it is named: on="{device.id}".'
    if is_stand_in(device):
        return f'{device.id} computes on the processor: name it (on="{device.id}") to use it.'
    return None


def is_automatic(name: str, device: Device | None) -> bool:
    """Whether calls may go there that name no device. Of one that is not known, its engine tells."""
    if device is not None:
        return why_only_when_named(device) is None
    return traits_of(parse_device(name).engine).automatic


@cache
def _of_other_packages() -> tuple[EngineEntry, ...]:
    """Read once: it takes some ten milliseconds where many packages are installed."""
    from importlib import metadata

    taken = {entry.name for entry in BUILT_IN}
    traits = {point.name: point for point in metadata.entry_points(group=TRAITS_GROUP)}
    others = [
        EngineEntry(
            name=point.name,
            target=point.value,
            versions=(point.dist.name,) if point.dist else (),
            traits=_loaded_traits(traits[point.name]) if point.name in traits else EngineTraits(),
        )
        for point in metadata.entry_points(group=ENTRY_POINT_GROUP)
        if point.name not in taken
    ]
    return tuple(sorted(others, key=lambda entry: entry.name))


def _loaded_traits(point: metadata.EntryPoint) -> EngineTraits:
    """A package that is broken must not take the other engines with it."""
    try:
        found = point.load()
    except Exception as error:  # noqa: BLE001 - whatever the module of another package raises
        found = error
    if isinstance(found, EngineTraits):
        return found
    warnings.warn(
        f"The engine {point.name} is used without its traits: {point.value} is not an EngineTraits but {found!r}.",
        RuntimeWarning,
        stacklevel=2,
    )
    return EngineTraits()


def is_installed(entry: EngineEntry) -> bool:
    return entry.requires is None or version_of(entry.requires) is not None


def is_left_out(engine: str) -> bool:
    """Return whether `ANYGPU_ENGINES` leaves this engine out."""
    return all(entry.name != engine for entry in catalogue())


def why_cpu_is_numpy() -> str | None:
    """Why `on="cpu"` means NumPy here; `None` where there is an engine that compiles for the processor."""
    entry = next((each for each in catalogue() if each.name == CPU), None)
    if entry is None:
        return "ANYGPU_ENGINES leaves out the engine cpu."
    return None if is_installed(entry) else f"{entry.requires} is not installed. {entry.install_command} installs it."


def library_version(engine: str) -> str | None:
    """The version of the distribution that the engine stands on; `None` where that is not known."""
    entry = next((each for each in every_engine() if each.name == engine), None)
    return version_of(entry.versions[0]) if entry is not None and entry.versions else None


def load(entry: EngineEntry) -> Engine:
    """Import the engine's module, and with it the library that it owns."""
    module_name, _, attribute = entry.target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if entry.requires is not None and error.name is not None and not error.name.startswith("anygpu"):
            raise MissingExtra(entry.requires, entry.extra or entry.name) from error
        raise
    engine: Engine = getattr(module, attribute)(**entry.options)
    return engine
