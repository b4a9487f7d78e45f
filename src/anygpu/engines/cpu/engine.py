"""The processor through LLVM: fused loop nests as native code, in this process, on NumPy's arrays.

A child compiles; this process loads what it made, and never llvmlite itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.codegen.kernel import RESULT
from anygpu.engines.cpu.executable import UNKNOWN, CpuExecutable, executable
from anygpu.engines.cpu.loader import host_processor
from anygpu.engines.distributions import version_of
from anygpu.engines.host_arrays import HostArrays
from anygpu.engines.numpy import lowering
from anygpu.engines.program_cache import ProgramCache
from anygpu.engines.protocol import DirectRun, Lack, failed, verified, why_not_here
from anygpu.errors import CannotCompile, MissingExtra
from anygpu.hardware.device import Device, Unavailable, VerifiedType
from anygpu.program.graph import Node, Program
from anygpu.program.ops.custom import Custom, with_references
from anygpu.program.primitives import Binary, Broadcast, Constant, Input
from anygpu.program.transforms import simplified

Executable = Callable[[Sequence[HostArray]], list[HostArray]]


class CpuEngine(HostArrays):
    name: ClassVar[str] = "cpu"

    def __init__(self) -> None:
        self._executables: ProgramCache[CpuExecutable] = ProgramCache()

    def discover(self) -> list[Device | Unavailable]:
        try:
            llvm = host_processor().llvm
        except (CannotCompile, MissingExtra) as error:
            return [_without_llvm(error)]
        return [self._processor(f"LLVM {llvm} (llvmlite {version_of('llvmlite')})")]

    @classmethod
    def processor(cls) -> Device:
        """The device as it would be, also where nothing compiles for it."""
        return cls()._processor("LLVM")

    def verify(self, device: Device, *, deep: bool = False) -> Device | Unavailable:
        def compute(dtype: VerifiedType, values: HostArray) -> HostArray:
            (result,) = self.execute(self.compile(_verification(dtype, len(values)), device), [values])
            return result

        try:
            return verified(device, compute, deep=deep)
        except Exception as error:  # noqa: BLE001 - whatever LLVM or its loader raises, the device is not used
            return failed(device, error)

    def supports(self, program: Program, device: Device) -> list[Lack]:
        lacks = super().supports(program, device)
        for position, node in enumerate(program.nodes):
            if isinstance(node.op, Custom):
                missing = why_not_here(node.op, self.name, lambda reference: self.supports(reference, device))
                lacks += [Lack(position, missing)] if missing is not None else []
        return lacks

    def compile(self, program: Program, device: Device) -> Executable:
        if all(node.op.is_view or isinstance(node.op, Input) for node in program.nodes):
            # NumPy shows the same memory in another way, where native code would copy it.
            return partial(lowering.run, program)
        return self._native(program)

    def direct(self, program: Program, device: Device) -> DirectRun:
        native = self._native(program)

        def run(arrays: Sequence[HostArray]) -> tuple[list[HostArray], bool | None]:
            results, noted = native.checked(arrays)
            return results, None if noted & UNKNOWN else not noted & RESULT

        return run

    def _native(self, program: Program) -> CpuExecutable:
        return self._executables.get(program.key, lambda: _compiled(program))

    def listing(self, program: Program) -> str:
        from anygpu.codegen.nests.inspection import to_text
        from anygpu.codegen.nests.schedule import nests

        program = simplified(with_references(program, None), lowering.evaluate_constant)
        return to_text(nests(program, vector_bytes=host_processor().vector_bytes))

    def execute(self, executable: Executable, buffers: Sequence[HostArray]) -> list[HostArray]:
        return executable(buffers)

    def close(self) -> None:
        self._executables.clear()


def _compiled(program: Program) -> CpuExecutable | CannotCompile:
    try:
        return executable(program)
    except CannotCompile as error:
        return error


def _without_llvm(error: Exception) -> Unavailable:
    return Unavailable(
        id="cpu",
        engine="cpu",
        state="absent",
        cause="import_failed",
        reason="LLVM cannot be loaded through llvmlite, so nothing is compiled for the processor.",
        fix="Install it again: pip install --force-reinstall llvmlite",
        detail=str(error),
    )


def _verification(dtype: VerifiedType, length: int) -> Program:
    """`x·x + 3·x`, as `anygpu.hardware.device` has it."""
    nodes = [
        Node(Input((length,), dtype)),
        Node(Constant((), dtype, np.asarray(3, dtype).tobytes())),
        Node(Broadcast((length,)), (1,)),
        Node(Binary("multiply"), (0, 0)),
        Node(Binary("multiply"), (2, 0)),
        Node(Binary("add"), (3, 4)),
    ]
    return Program(nodes, [5])
