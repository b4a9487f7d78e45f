"""Arrays that end, or begin, at a page that nobody may touch: whoever reads or writes beside them is killed."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.engines.cpu.engine import CpuExecutable, new_table
from anygpu.engines.cpu.loader import c_library
from anygpu.engines.host_arrays import numpy_dtype
from anygpu.program.primitives import Spec

Edge = Literal["begin", "end"]


class GuardedMemory:
    """Pieces of memory with a protected page on each side."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._mapped: list[tuple[int, int]] = []

    def address(self, nbytes: int, alignment: int = 1) -> int:
        """So many bytes that touch the protected page at that edge, as far as their alignment lets them."""
        page = mmap.PAGESIZE
        inside = -(-max(nbytes, 1) // page) * page
        size = inside + 2 * page
        begin: int = c_library().mmap(
            None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANON, -1, 0
        )
        assert begin not in (None, ctypes.c_void_p(-1).value)
        self._mapped.append((begin, size))
        ctypes.memset(begin + page, 0xA5, inside)
        for guard in (begin, begin + page + inside):
            assert c_library().mprotect(guard, page, 0) == 0
        at_end = (begin + page + inside - nbytes) // alignment * alignment
        return begin + page if self._edge == "begin" else at_end

    def array(self, spec: Spec, data: HostArray | None = None) -> HostArray:
        dtype = numpy_dtype(spec.dtype)
        # Contiguous complex numbers are aligned as their parts are.
        address = self.address(spec.nbytes, dtype.alignment)
        memory: Any = (ctypes.c_char * max(spec.nbytes, 1)).from_address(address)
        made: HostArray = np.ndarray(spec.shape, dtype, memory)
        if data is not None:
            made[...] = data
        return made

    def close(self) -> None:
        for begin, size in self._mapped:
            c_library().munmap(begin, size)


def run_guarded(executable: CpuExecutable, arrays: Sequence[HostArray], edge: Edge) -> list[HostArray]:
    """The results of a call in which every buffer of the program is guarded at that edge."""
    plan, program = executable.plan, executable.program
    memory = GuardedMemory(edge)
    try:
        executable._runtime.start()
        by_numpy = plan.host_slots
        specs = {output.slot: output.spec for output in plan.outputs if output.offset == 0}
        values: dict[int, HostArray] = {}
        table = new_table(plan)
        for number, slot in enumerate(plan.slots):
            if slot.role == "input":
                values[number] = memory.array(program.inputs[number], arrays[number])
            elif slot.role == "constant":
                raw = np.frombuffer(slot.data or b"", np.uint8)
                values[number] = memory.array(Spec(raw.shape, "uint8"), raw)
                if values[number].ctypes.data % 8:  # constants are aligned as any array is
                    values[number] = executable._constants[number]
            elif number in by_numpy:
                continue
            elif slot.role == "output":
                values[number] = memory.array(specs.get(number, Spec((slot.nbytes,), "uint8")))
            else:
                table[number] = memory.address(slot.nbytes, 8)
        for number, value in values.items():
            table[number] = value.ctypes.data
        executable._run_steps(values, table)
        return [result.copy() for result in executable._collected(values)]
    finally:
        memory.close()
