"""A device that is wrong on purpose: one kernel of it, in the process of its worker, as a bug of a driver would be."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from anygpu.engines.catalogue import EngineEntry
from anygpu.engines.codegen.kernel import Kernel
from anygpu.engines.webgpu.engine import WebGPUEngine
from anygpu.hardware.device import Device
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import Unary
from anygpu.workers.device_arrays.registry import DeviceRegistry

#: tanh: every tanh is an arctan. last group: the last workgroup of every launch is left out. dies: the process dies
#: when a program with a sort is built.
Fault = Literal["tanh", "last group", "dies"]

_ROOT = str(Path(__file__).parents[2])


class WrongRegistry(DeviceRegistry):
    """The devices of this machine; those of WebGPU have the fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self._fault = fault
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if _ROOT not in paths:
            os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, paths), _ROOT])

    def _wrong(self, entry: EngineEntry) -> EngineEntry:
        target, options = "tests.support.wrong_kernels:wrong_engine", {"fault": self._fault}
        return msgspec.structs.replace(entry, target=target, options=options) if entry.name == "webgpu" else entry

    def _probe_new(self, entries: Sequence[EngineEntry], *, low_priority: bool) -> None:
        super()._probe_new([self._wrong(entry) for entry in entries], low_priority=low_priority)

    def _entry_to_open(self, device: Device) -> EngineEntry:
        return self._wrong(super()._entry_to_open(device))


class WrongEngine(WebGPUEngine):
    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self._fault = fault

    def open(self, device: Device, **more: Any) -> Any:
        driver: Any = super().open(device, **more)
        build = driver.build

        def build_wrongly(kernel: Kernel) -> Any:
            if self._fault == "last group" and kernel.groups > 1:
                kernel = msgspec.structs.replace(kernel, groups=kernel.groups - 1)
            return build(kernel)

        driver.build = build_wrongly
        return driver

    def compile(self, program: Program, device: Device) -> Any:
        if self._fault == "dies" and any(node.op.name == "sort" for node in program.nodes):
            os.abort()
        return super().compile(_with_wrong_tanh(program) if self._fault == "tanh" else program, device)


def wrong_engine(fault: Fault) -> WrongEngine:
    return WrongEngine(fault)


def _with_wrong_tanh(program: Program) -> Program:
    wrong = [
        Node(Unary("atan"), inputs) if isinstance(op, Unary) and op.fn == "tanh" else Node(op, inputs)
        for op, inputs in program.nodes
    ]
    return Program(wrong, program.outputs, lines=program.lines)
