"""Which engines there are, without importing any of their libraries."""

from __future__ import annotations

import importlib
import os
from functools import cache
from importlib import metadata
from typing import Literal

import msgspec

from anygpu.engines.protocol import Engine
from anygpu.errors import InvalidOption, MissingExtra

ENTRY_POINT_GROUP = "anygpu.engines"


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

    @property
    def install_command(self) -> str:
        return f"pip install 'anygpu[{self.extra}]'" if self.extra else f"pip install {self.requires}"


BUILT_IN: tuple[EngineEntry, ...] = (
    EngineEntry(name="numpy", target="anygpu.engines.numpy.engine:NumpyEngine", versions=("numpy",), probe_in="here"),
    EngineEntry(name="webgpu", target="anygpu.engines.webgpu.engine:WebGPUEngine", requires="wgpu", versions=("wgpu",)),
    EngineEntry(
        name="opencl",
        target="anygpu.engines.opencl.engine:OpenCLEngine",
        requires="pyopencl",
        extra="opencl",
        versions=("pyopencl", "pocl-binary-distribution"),
    ),
    EngineEntry(
        name="torch",
        target="anygpu.engines.torch.engine:TorchEngine",
        requires="torch",
        extra="torch",
        versions=("torch",),
    ),
    EngineEntry(
        name="jax",
        target="anygpu.engines.jax.engine:JaxEngine",
        requires="jax",
        extra="jax",
        versions=("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm60-plugin", "libtpu"),
    ),
)


def catalogue() -> tuple[EngineEntry, ...]:
    """The built-in engines, then those that other packages bring through the entry point group.

    With names in the variable `ANYGPU_ENGINES`, separated by commas, only these engines are looked at; numpy always is.
    """
    every = BUILT_IN + _of_other_packages()
    chosen = {name.strip() for name in os.environ.get("ANYGPU_ENGINES", "").split(",")} - {""}
    known = [entry.name for entry in every]
    if unknown := sorted(chosen.difference(known)):
        raise InvalidOption(
            f"ANYGPU_ENGINES asks for {', '.join(unknown)}, and there is no such engine. Known are: {', '.join(known)}."
        )
    return tuple(entry for entry in every if not chosen or entry.name in chosen | {"numpy"})


@cache
def _of_other_packages() -> tuple[EngineEntry, ...]:
    """Read once: it takes some ten milliseconds where many packages are installed."""
    taken = {entry.name for entry in BUILT_IN}
    others = [
        EngineEntry(name=point.name, target=point.value, versions=(point.dist.name,) if point.dist else ())
        for point in metadata.entry_points(group=ENTRY_POINT_GROUP)
        if point.name not in taken
    ]
    return tuple(sorted(others, key=lambda entry: entry.name))


def is_installed(entry: EngineEntry) -> bool:
    return entry.requires is None or version_of(entry.requires) is not None


def version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


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
