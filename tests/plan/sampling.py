"""Devices and calibrations that could be, for tests of predictions; nothing here is measured."""

from __future__ import annotations

from typing import get_args

import msgspec
from hypothesis import strategies as st

from anygpu.array.trace.tracing import record
from anygpu.hardware.device import Device, DeviceForm, DeviceKind, unknown_facts
from anygpu.placement.plan.calibration import Calibration, Curve, Transfer, assumed
from anygpu.program.graph import OperationClass, Program
from anygpu.program.primitives import Spec

UNKNOWN = ("memory_total", "memory_free", "driver", "compute_capability", "load", "uuid", "pci")
CLASSES: tuple[OperationClass, ...] = tuple(name for name in get_args(OperationClass) if name != "input")


def device(engine: str, kind: DeviceKind = "cpu", form: DeviceForm = "host") -> Device:
    return Device(
        id=engine,
        engine=engine,
        kind=kind,
        form=form,
        name=f"a made-up {form} {kind}",
        state="verified",
        api="none",
        unknown=unknown_facts("it is made up", *UNKNOWN),
    )


NUMPY = assumed(device("numpy"))
TORCH = assumed(device("torch"))
JAX = assumed(device("jax"))
OPENCL = assumed(device("opencl", form="software"))
GPU = assumed(device("webgpu", "gpu", "discrete"))
ALL = (NUMPY, TORCH, JAX, OPENCL, GPU)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Time never falls as the amount grows, as calibrations see to it."""
    amounts = sorted(draw(st.sets(st.floats(1.0, 1e10), min_size=1, max_size=5)))
    seconds = sorted(draw(st.lists(st.floats(1e-9, 10.0), min_size=len(amounts), max_size=len(amounts))))
    return Curve(tuple(zip(amounts, seconds, strict=True)))


def transfers() -> st.SearchStrategy[Transfer]:
    return st.builds(Transfer, st.floats(0.0, 1e-2), st.floats(1e6, 1e15))


def calibrations() -> st.SearchStrategy[Calibration]:
    short = st.floats(1e-9, 1e-2)
    return st.builds(
        Calibration,
        device=st.just("any"),
        source=st.just("measured"),
        launch=short,
        kernel=short,
        write=transfers(),
        read=transfers(),
        rates=st.fixed_dictionaries({kind: curves() for kind in CLASSES}),
        wide=st.floats(1.0, 64.0),
        compile=short,
        fuses=st.booleans(),
        open=short,
    )


def faster(calibration: Calibration, kind: OperationClass, times: float) -> Calibration:
    points = tuple((amount, seconds / times) for amount, seconds in calibration.rates[kind].points)
    return msgspec.structs.replace(calibration, rates={**calibration.rates, kind: Curve(points)})


def recorded(function: object, *specs: tuple[tuple[int, ...], str]) -> Program:
    return record(function, *[Spec(shape, dtype) for shape, dtype in specs])  # type: ignore[arg-type]
