"""The processor through LLVM: fused loop nests as native code, in this process, on NumPy's arrays.

`CpuExecutable` runs a compiled program: by one native call where possible, and otherwise step by step through Python.
`CpuEngine` makes executables, keeps them, and says what it cannot do.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import msgspec
import numpy as np

from anygpu.base.typing import HostArray
from anygpu.engines.codegen.kernel import BEYOND, UNKNOWN
from anygpu.engines.cpu.compiler import compiled_program
from anygpu.engines.cpu.loader import LOADS_IMAGES, host_processor, kept_program, loaded
from anygpu.engines.cpu.numpy_loops import loop_symbols, rounding, with_steps
from anygpu.engines.cpu.run_plan import HostRun, NativeProgram, RunPlan, can_call, exports_of, layout_of, segments_of
from anygpu.engines.cpu.runtime import native_runtime, python_function
from anygpu.engines.cpu.selection import places_that_are_read
from anygpu.engines.disk_cache import version_of
from anygpu.engines.host_arrays import HostArrays, ProgramCache, numpy_dtype, raise_broken
from anygpu.engines.numpy import lowering
from anygpu.engines.numpy.lowering import evaluate_constant
from anygpu.engines.protocol import DirectRun, Lack, failed, verified, why_not_here
from anygpu.errors import CannotCompile, InvalidProgram, MissingExtra
from anygpu.hardware.device import Device, Unavailable, VerifiedType
from anygpu.program.exactness import with_loops
from anygpu.program.graph import Node, Program
from anygpu.program.ops.custom import Custom, with_references
from anygpu.program.primitives import Binary, Broadcast, Constant, Input, Spec
from anygpu.program.transforms import simplified

# -- a program as native code
#
# Called with NumPy arrays, it returns new NumPy arrays.
#
# Most calls are one call of a native function (see `anygpu.engines.cpu.runtime`). The long way through Python is for
# what that does not do: host steps, which NumPy computes, arguments that have to be copied first because they are
# strided, unaligned, byte-swapped or of a subclass, results that are parts of others, and errors.


def executable(program: Program) -> CpuExecutable:
    """The program as native code."""
    # What is constant is computed here: compilers take liberties with constants that NumPy does not.
    program = with_steps(with_loops(simplified(with_references(program, None), evaluate_constant), rounding()))
    processor = host_processor()

    def compile_program() -> NativeProgram:
        compiled = compiled_program(program, processor.as_request(), link=LOADS_IMAGES)
        return msgspec.msgpack.decode(compiled, type=NativeProgram)

    return CpuExecutable(program, kept_program(program, processor, NativeProgram, compile_program))


class CpuExecutable:
    """Native code of one program. Any number of threads may call it at once."""

    def __init__(self, program: Program, compiled: NativeProgram) -> None:
        """Load the code, and prepare the function that most calls take.

        Constants are arrays of its own.
        """
        self.program = program
        self.plan = compiled.plan
        self._runtime = native_runtime()
        self._constants = {
            number: np.frombuffer(slot.data or b"", np.uint8).copy()
            for number, slot in enumerate(self.plan.slots)
            if slot.role == "constant"
        }
        symbols = {**self._runtime.symbols, **loop_symbols(self.plan.loops)}
        self._code = loaded(compiled.image, host_processor(), symbols, exports_of(self.plan))
        self._layout = layout_of(self.plan)
        #: For each host step the places of its rows that are read, where these are few.
        self._places = {
            step.node: places_that_are_read(program, step.node) for step in self.plan.steps if isinstance(step, HostRun)
        }
        self._steps = self._prepared_steps()
        #: For arrays as the code reads them: the results, and behind them what was noted. `NotImplemented` for others,
        #: and where only the long way will do.
        self.call: Callable[..., Any] = _never
        if self._runtime.call is not None and can_call(self.plan):
            self.call = python_function(self._runtime.call, self.plan, self._code, self._constants)

    def __call__(self, arrays: Sequence[HostArray]) -> list[HostArray]:
        """Return the results for these arguments, as new arrays that share memory with nothing.

        NumPy computes them if a float that is cast to an integer is out of range: only NumPy's result counts then.
        """
        results, noted = self.checked(arrays)
        return self.on_numpy(arrays) if noted & BEYOND else results

    def on_numpy(self, arrays: Sequence[HostArray]) -> list[HostArray]:
        """Return the results as NumPy computes them."""
        return [np.array(each, order="C") for each in lowering.run(self.program, arrays)]

    def checked(self, arrays: Sequence[HostArray]) -> tuple[list[HostArray], int]:
        """The results, and what was noted of them and on the way to them, as bits.

        `RESULT` is not known of results that NumPy has computed: where there are any, `UNKNOWN` is set.
        """
        results = self.call(*arrays)
        if results is NotImplemented:
            return self._run(arrays)
        noted = results.pop()
        return results, noted

    def _prepared_steps(self) -> list[Any]:
        """Host steps, and between them functions that run all nests of a segment."""
        segment = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        steps: list[Any] = []
        count = 0
        for step in segments_of(self.plan):
            if isinstance(step, HostRun):
                steps.append(step)
            else:
                steps.append(segment(self._code[f"segment{count}"]))
                count += 1
        return steps

    # -- the long way

    def _run(self, arrays: Sequence[HostArray]) -> tuple[list[HostArray], int]:
        """The results through Python, and what was noted: arguments are first made usable for native code."""
        specs = self.program.inputs
        if len(arrays) != len(specs):
            raise InvalidProgram(f"{len(arrays)} arrays for a program of {len(specs)} inputs.")
        self._runtime.start()
        usable = [_usable(array, spec) for array, spec in zip(arrays, specs, strict=True)]
        results = self.call(*usable)
        if results is not NotImplemented:
            noted = results.pop()
            return results, noted
        return self._runtime.run(self._step_by_step, usable)

    def _step_by_step(self, usable: Sequence[HostArray]) -> tuple[list[HostArray], int]:
        """The results, computed segment by segment with host steps in between.

        Temporaries are one piece of recycled memory, which is given back whatever happens. `UNKNOWN` is set where a
        result is a host step's.
        """
        values: dict[int, HostArray] = dict(enumerate(usable))
        values |= self._constants
        values |= self._new_results()
        taken = self._runtime.take(self._layout.nbytes)
        try:
            table = new_table(self.plan)
            for number, value in values.items():
                table[number] = value.ctypes.data
            for number, offset in self._layout.offsets.items():
                table[number] = taken + offset
            self._run_steps(values, table)
        finally:
            self._runtime.give(taken)
        by_nests = self.plan.host_slots.isdisjoint(output.slot for output in self.plan.outputs)
        return self._collected(values), (table[self.plan.noted] or 0) | (0 if by_nests else UNKNOWN)

    def _new_results(self) -> dict[int, HostArray]:
        """Arrays for the results that nests compute, by slot."""
        by_numpy = self.plan.host_slots
        specs = {output.slot: output.spec for output in reversed(self.plan.outputs) if output.offset == 0}
        made = {}
        for number, slot in enumerate(self.plan.slots):
            if slot.role == "output" and number not in by_numpy:
                spec = specs.get(number)
                exact = spec is not None and spec.nbytes == slot.nbytes
                made[number] = _empty(spec if spec and exact else Spec((slot.nbytes,), "uint8"))
        return made

    def _run_steps(self, values: dict[int, HostArray], table: Any) -> None:
        """Run segments and host steps in order; `table` has the address of each slot.

        Raises `MemoryError` where a nest had no memory for its scratch, and `IndexError` or `ValueError` for broken
        rules.
        """
        plan = self.plan
        if plan.status is not None:
            ctypes.memset(table[plan.status], 0, plan.slots[plan.status].nbytes)
        parts: dict[Any, Any] = {}
        for step in self._steps:
            if isinstance(step, HostRun):
                value = self._host_value(step, values, table, parts)
                values[step.slot] = value
                table[step.slot] = value.ctypes.data
            else:
                step(table)
        if table[plan.lacking]:
            raise MemoryError("no memory for the scratch of a nest")
        if plan.status is not None:
            words = np.frombuffer(ctypes.string_at(table[plan.status], plan.slots[plan.status].nbytes), np.uint32)
            raise_broken(plan.checks, words)

    def _host_value(self, step: HostRun, values: dict[int, HostArray], table: Any, parts: dict[Any, Any]) -> HostArray:
        """What NumPy computes: contiguous, in memory of its own."""
        node = self.program.nodes[step.node]
        given = []
        for source, slot in zip(node.inputs, step.sources, strict=True):
            spec = self.program.specs[source]
            dtype = numpy_dtype(spec.dtype)
            if slot in values:
                given.append(values[slot].view(dtype).reshape(spec.shape))
            else:
                memory: Any = (ctypes.c_char * spec.nbytes).from_address(table[slot] or 0) if spec.nbytes else b""
                given.append(np.ndarray(spec.shape, dtype, memory))
        spec = self.program.specs[step.node]
        threads = self._runtime.pool.threads_now
        found = self._runtime.host_steps.run(node, given, spec, threads, parts, self._places[step.node])
        return found if found.flags.c_contiguous and _is_fresh(found, given) else np.array(found, order="C")

    def _collected(self, values: dict[int, HostArray]) -> list[HostArray]:
        """The results as arrays of their types and shapes.

        A slot is handed out once; results that are parts of a slot, of an argument, or returned twice are copies.
        """
        results: list[HostArray] = []
        given: set[int] = set()
        for output in self.plan.outputs:
            spec, value = output.spec, values[output.slot]
            whole = output.offset == 0 and value.nbytes == spec.nbytes
            if whole and output.slot not in given and self.plan.slots[output.slot].role == "output":
                given.add(output.slot)
                result = value.view(numpy_dtype(spec.dtype)) if value.dtype.name != spec.dtype else value
                results.append(result if result.shape == spec.shape else result.reshape(spec.shape))
            else:
                part = value.reshape(-1).view(np.uint8)[output.offset : output.offset + spec.nbytes]
                results.append(part.copy().view(numpy_dtype(spec.dtype)).reshape(spec.shape))
        return results


def new_table(plan: RunPlan) -> Any:
    """Room for the address of each slot, and for what nests have to say."""
    return (ctypes.c_void_p * plan.table_size)()


def _empty(spec: Spec) -> HostArray:
    return np.empty(spec.shape, numpy_dtype(spec.dtype))


def _never(*arrays: HostArray) -> Any:
    return NotImplemented


def _usable(array: HostArray, spec: Spec) -> HostArray:
    """The array as the code reads it: plain, contiguous, aligned, in the order of bytes of this machine."""
    dtype = numpy_dtype(spec.dtype)
    if array.shape != spec.shape or array.dtype.newbyteorder("=") != dtype:
        raise InvalidProgram(f"an array {array.dtype}{array.shape} for an input {spec}.")
    flags = array.flags
    if flags.c_contiguous and flags.aligned and array.dtype == dtype:
        return array.view(np.ndarray)
    return np.array(array, dtype, order="C", copy=True, subok=False)


def _is_fresh(found: HostArray, given: Sequence[HostArray]) -> bool:
    """Whether a result has memory that nothing else refers to."""
    root: Any = found
    while isinstance(root.base, np.ndarray):
        root = root.base
    return bool(root.base is None and root.flags.owndata) and not any(root is each for each in given)


# -- the processor through LLVM
#
# Fused loop nests as native code, in this process, on NumPy's arrays.
#
# A child compiles; this process loads what it made, and never llvmlite itself.


NativeExecutable = Callable[[Sequence[HostArray]], list[HostArray]]


class CpuEngine(HostArrays):
    """The engine of native code: its buffers are NumPy's arrays, in this process."""

    name: ClassVar[str] = "cpu"

    def __init__(self) -> None:
        self._executables: ProgramCache[CpuExecutable] = ProgramCache()
        #: The bits that the last program of each thread has noted.
        self._last = threading.local()

    def discover(self) -> list[Device | Unavailable]:
        """The processor, or why nothing can be compiled for it."""
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
        """The device after a computation in each type, or why it is not used: LLVM missing, or a loader that fails."""

        def compute(dtype: VerifiedType, values: HostArray) -> HostArray:
            (result,) = self.execute(self.compile(_verification(dtype, len(values)), device), [values])
            return result

        try:
            return verified(device, compute, deep=deep)
        except Exception as error:  # noqa: BLE001 - whatever LLVM or its loader raises, the device is not used
            return failed(device, error)

    def supports(self, program: Program, device: Device) -> list[Lack]:
        """What cannot be run natively: nothing but users' kernels without a reference."""
        lacks = super().supports(program, device)
        for position, node in enumerate(program.nodes):
            if isinstance(node.op, Custom):
                missing = why_not_here(node.op, self.name, lambda reference: self.supports(reference, device))
                lacks += [Lack(position, missing)] if missing is not None else []
        return lacks

    def compile(self, program: Program, device: Device) -> NativeExecutable:
        """Native code of a program; NumPy itself for programs that only move values. Raises `CannotCompile`."""
        if all(node.op.is_view or isinstance(node.op, Input) for node in program.nodes):
            # NumPy shows the same memory in another way, where native code would copy it.
            return partial(lowering.run, program)
        return self._native(program)

    def direct(self, program: Program, device: Device) -> DirectRun:
        """Return a function that runs the program on arrays, and tells what was noted on the way."""
        native = self._native(program)

        def run(arrays: Sequence[HostArray]) -> tuple[list[HostArray], int]:
            results, noted = native.checked(arrays)
            return native.on_numpy(arrays) if noted & BEYOND else results, noted

        return run

    def noted(self) -> int:
        return getattr(self._last, "noted", 0)

    def _native(self, program: Program) -> CpuExecutable:
        return self._executables.get(program.key, lambda: _compiled(program))

    def listing(self, program: Program) -> str:
        """The nests of a program as text."""
        from anygpu.engines.codegen.nests.inspection import to_text
        from anygpu.engines.codegen.nests.schedule import nests

        program = simplified(with_references(program, None), lowering.evaluate_constant)
        return to_text(nests(program, vector_bytes=host_processor().vector_bytes))

    def execute(self, executable: NativeExecutable, buffers: Sequence[HostArray]) -> list[HostArray]:
        if not isinstance(executable, CpuExecutable):
            self._last.noted = 0
            return executable(buffers)
        results, self._last.noted = executable.checked(buffers)
        return executable.on_numpy(buffers) if self._last.noted & BEYOND else results

    def close(self) -> None:
        self._executables.clear()


def _compiled(program: Program) -> CpuExecutable | CannotCompile:
    """The executable, or the error that it cannot be compiled, to be kept."""
    try:
        return executable(program)
    except CannotCompile as error:
        return error


def _without_llvm(error: Exception) -> Unavailable:
    """The report that LLVM cannot be loaded, with what to do about it."""
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
