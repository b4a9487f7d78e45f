"""What engines have in common whose buffers are NumPy's own arrays: types, errors, and as few copies as can be.

`HostArrays` is the base of NumPy's engine and of native code. `ProgramCache` keeps executables, and refusals, by
program and device. `raise_broken` makes the errors of rules that values have broken, in NumPy's words.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from anygpu.base.lru import LRUCache
from anygpu.base.typing import HostArray
from anygpu.engines.codegen.kernel import MINUS_ONE, Check
from anygpu.engines.protocol import Lack, Memory
from anygpu.errors import AnyGPUError, CannotCompile, OutOfMemory, Unsupported
from anygpu.hardware import host
from anygpu.hardware.device import Device
from anygpu.program.dtypes import DTYPES, DType
from anygpu.program.graph import Program

# -- the types and the errors of programs as NumPy has them


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """NumPy has no bfloat16 of its own, only with the package ml_dtypes."""
    try:
        return np.dtype(dtype)
    except TypeError:
        instead = "Cast to float32 on the device first, or import ml_dtypes."
        raise Unsupported(dtype, "NumPy without ml_dtypes", instead=instead) from None


#: Types in the host's byte order. NumPy makes up the name of a type each time it is asked.
HOST_DTYPES: dict[np.dtype[Any], DType] = {np.dtype(name): name for name in DTYPES if name != "bfloat16"}


def dtype_name(dtype: np.dtype[Any]) -> DType:
    known = HOST_DTYPES.get(dtype)
    return known if known is not None else dtype.name  # type: ignore[return-value]


# -- rules that only values can break, as kernels and nests report them: see `codegen.kernel.Check`


def raise_broken(checks: Sequence[Check], status: np.ndarray[Any, np.dtype[Any]]) -> None:
    """Raise for the first rule that is broken by the words of the status, if one is."""
    for check in checks:
        word = int(status.view(np.uint32)[check.number])
        if word:
            raise broken_rule(check, word)


def broken_rule(check: Check, word: int) -> Exception:
    """What NumPy raises for the same mistake; `Unsupported` where NumPy goes on."""
    if check.error == "order":
        said = "cpu searches only values that are sorted."
        return Unsupported("search in unsorted values", "cpu", message=said, instead="Sort them first.")
    if check.error == "negative_power":
        return ValueError("integers to negative integer powers are not allowed; convert the base to float first.")
    value = -1 if word == MINUS_ONE else word - 1 if word <= 1 << 31 else word - 1 - (1 << 32)
    return IndexError(f"index {value} is out of bounds for an axis with size {check.length}.")


# -- what engines have in common whose buffers are NumPy's own arrays
#
# Nothing is copied that need not be.


class HostArrays:
    """The part of an engine that handles arrays in the memory of this process."""

    name: ClassVar[str]

    def _processor(self, api: str) -> Device:
        """The processor as the one device of this engine."""
        return Device(
            id=self.name,
            engine=self.name,
            kind="cpu",
            form="host",
            name=host.processor_name(),
            state="usable",
            api=api,
            memory_total=host.memory_total(),
            memory_free=host.memory_free(),
            features=("f16", "f64", "i64", "unified_memory"),
            unknown={**host.processor_unknowns(), "driver": host.NO_DRIVER},
        )

    def supports(self, program: Program, device: Device) -> list[Lack]:
        """The nodes of types that NumPy lacks."""
        return [
            Lack(position, f"NumPy has no {spec.dtype}")
            for position, spec in enumerate(program.specs)
            if spec.dtype == "bfloat16"
        ]

    def upload(self, values: HostArray, device: Device) -> HostArray:
        return np.array(values, order="C")

    def borrow(self, values: HostArray, device: Device) -> HostArray:
        return np.asarray(values)

    def download(self, buffer: HostArray) -> HostArray:
        return buffer

    def native(self, buffer: HostArray) -> HostArray:
        """The array itself, or a copy where other libraries could not take it."""
        # A broadcast is read-only, which older consumers of DLPack cannot be told; an array that runs backwards makes
        # torch abort the process.
        exportable = buffer.flags.writeable and all(stride >= 0 for stride in buffer.strides)
        return buffer if exportable else buffer.copy()

    def adopt(self, array: Any, device: Device) -> HostArray:
        return np.from_dlpack(array)

    def synchronize(self, device: Device) -> None:
        pass

    def memory(self, device: Device) -> Memory:
        return Memory(total=host.memory_total(), free=host.memory_free())

    def classify(self, error: BaseException, device: Device) -> AnyGPUError | None:
        """Our error for memory that ran out."""
        if isinstance(error, MemoryError):
            return OutOfMemory(device.id, free=host.memory_free())
        return None


# -- compiled programs of an engine, and what its compiler refused


Compiled = TypeVar("Compiled")


class ProgramCache(Generic[Compiled]):
    """By key. A refusal is cached like a program, so that a compiler is not asked twice."""

    def __init__(self) -> None:
        self._known: LRUCache[Compiled | CannotCompile] = LRUCache()

    def get(self, key: Hashable, compile_program: Callable[[], Compiled | CannotCompile]) -> Compiled:
        """The compiled program; raises `CannotCompile` where the compiler refused it, now or earlier."""
        found = self._known.get(key, compile_program)
        if isinstance(found, CannotCompile):
            raise found.with_traceback(None)
        return found

    def clear(self) -> None:
        self._known.clear()


def refused(device: Device, error: Exception) -> CannotCompile:
    """The error by which a library says that it cannot compile or run a program."""
    return CannotCompile(device.id, f"{type(error).__name__}: {error}")
