"""Compiled programs as functions of Python: the layout of arrays, the function that calls nests, a shared runtime.

Host steps come first: the work that stays NumPy's, split over rows where each is computed by itself. Then the layout of
NumPy's array objects, checked before it is relied on, and `python_function`, which calls a program without ctypes.
`NativeRuntime` is what all programs of a process share.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import itertools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from anygpu.base.forks import lock
from anygpu.base.typing import HostArray
from anygpu.engines.cpu.loader import Code, HostProcessor, c_library, host_processor, load
from anygpu.engines.cpu.pool import HAS_NATIVE_THREADS, LARGE_BYTES, NestPool, RecycledMemory, file_text, module_head
from anygpu.engines.cpu.run_plan import RunPlan, layout_of
from anygpu.engines.cpu.selection import first_positions, select
from anygpu.engines.host_arrays import numpy_dtype
from anygpu.engines.numpy.lowering import run_node
from anygpu.program.graph import Node
from anygpu.program.primitives import Argsort, Primitive, Sort, Spec

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


# -- steps that stay NumPy's: transforms, sorting, scans, products, solvers
#
# Where a step treats each row by itself, rows are done on several threads: NumPy lets other threads run while it
# computes, and a row is the same whatever rows are beside it. BLAS has threads of its own.


#: Fewer elements are not worth another thread.
_MANY = 1 << 16


def split_axis(op: Primitive, shape: Sequence[int], threads: int) -> int | None:
    """The axis along which the work can be cut without a change of any result, if there is one.

    The first that is long enough for so many threads, so that each has neighbouring memory.
    """
    if op.row_axis is None:
        return None
    axes = [axis for axis, length in enumerate(shape) if axis != op.row_axis % len(shape) and length > 1]
    return max(axes, key=lambda axis: (min(shape[axis], threads), -axis), default=None)


def threads_for(op: Primitive, shape: Sequence[int], threads: int) -> int:
    """How many of so many threads share a step whose first operand has this shape."""
    axis = split_axis(op, shape, threads) if prod(shape) >= _MANY else None
    return 1 if axis is None else min(threads, shape[axis])


class HostSteps:
    """Runs them, on so many threads."""

    def __init__(self) -> None:
        self._lock = lock()
        self._threads: ThreadPoolExecutor | None = None

    def run(
        self,
        node: Node,
        given: Sequence[HostArray],
        spec: Spec,
        threads: int,
        parts: dict[Any, Any] | None = None,
        places: Sequence[int] = (),
    ) -> HostArray:
        """What NumPy computes for one node. Nodes of one run with the same `parts` share decompositions.

        With `places`, only these are made along the axis of a sort: nobody reads the others.
        """
        op = node.op
        several = bool(given) and threads_for(op, given[0].shape, threads) > 1
        axis = split_axis(op, given[0].shape, threads) if several else None
        if axis is None and not places:
            return np.asarray(run_node(op, given, node.inputs, parts), numpy_dtype(spec.dtype))
        (x,) = given
        result = np.empty(spec.shape, numpy_dtype(spec.dtype))
        cuts: list[tuple[slice, ...]] = [()]
        if axis is not None:
            bounds = np.linspace(0, x.shape[axis], min(threads, x.shape[axis]) + 1, dtype=int).tolist()
            cuts = [(slice(None),) * axis + (slice(*pair),) for pair in itertools.pairwise(bounds)]

        def compute(cut: tuple[slice, ...]) -> None:
            if places and isinstance(op, Argsort):
                along, count = op.axis % x.ndim, len(places)
                found = first_positions(x[cut], along, count, stable=op.stable)
                result[cut][(slice(None),) * along + (slice(count),)] = found
            elif places and isinstance(op, Sort):
                select(x[cut], op.axis, places, result[cut])
            else:
                result[cut] = run_node(op, [x[cut]])

        others = [self._executor().submit(compute, cut) for cut in cuts[1:]]
        try:
            compute(cuts[0])
        finally:
            _wait(others)
        return result

    def _executor(self) -> ThreadPoolExecutor:
        """The threads for rows of host steps, started when they are first needed."""
        from concurrent.futures import ThreadPoolExecutor  # late: few programs have steps for it

        with self._lock:
            if self._threads is None:
                # More than there are processors would not help.
                self._threads = ThreadPoolExecutor(64, thread_name_prefix="anygpu-cpu")
            return self._threads

    def forget_threads(self) -> None:
        """In a process that was forked: there are none."""
        self._threads = None


def _wait(others: Sequence[Future[None]]) -> None:
    """Until no other thread writes to the result, whatever happens; then raise what one of them has raised."""
    interrupted: BaseException | None = None
    for other in others:
        while not other.done():
            try:
                other.exception()
            except KeyboardInterrupt as error:
                interrupted = error
    if interrupted is not None:
        raise interrupted
    for other in others:
        other.result()


# -- functions and objects of CPython and NumPy that compiled code refers to
# NumPy promises the layout of an array's fields and the places in its table of functions to every extension that was
# compiled for it. Here that promise is tried out on some arrays before any code relies on it; where it does not hold
# (on another Python than CPython, for one), programs are called through ctypes.


#: Bytes of an object before the fields of its type. The last eight are the type.
HEADER = object.__basicsize__
#: Where the fields of an array are after that, and their types in LLVM IR.
FIELDS = {"data": ("ptr", 0), "nd": ("i32", 8), "dims": ("ptr", 16), "descr": ("ptr", 40), "flags": ("i32", 48)}
#: C_CONTIGUOUS and ALIGNED.
USABLE_FLAGS = 0x1 | 0x100

#: Places in NumPy's table of functions.
_TABLE = {"np_new": 93, "np_set_handler": 304, "np_get_handler": 305}
_DEFAULT_HANDLER = 306
_PYTHON = (
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyList_New",
    "PyLong_FromLong",
    "PyList_SetItem",
    "Py_IncRef",
    "Py_DecRef",
    "PyErr_Clear",
)


@cache
def array_symbols() -> dict[str, int] | None:
    """The addresses that compiled calls refer to; `None` where arrays are not what they should be."""
    if sys.implementation.name != "cpython" or sys.byteorder != "little" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    with contextlib.suppress(AttributeError, ValueError):
        if not all(map(_is_as_expected, _samples())):
            return None
        table = _function_table()
        found = {name: _word(table + 8 * place) for name, place in _TABLE.items()}
        found["np_default_handler"] = _word(_word(table + 8 * _DEFAULT_HANDLER))
        for name in _PYTHON:
            found[name] = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0
        found["np_ndarray"] = id(np.ndarray)
        found["py_not_implemented"] = id(NotImplemented)
        if all(found.values()) and _makes_arrays(found["np_new"]):
            return found
    return None


def _samples() -> list[Any]:
    """Arrays by which the layout of NumPy's array objects is checked before native code relies on it."""
    read_only = np.zeros(5, np.int8)
    read_only.flags.writeable = False
    return [
        np.zeros((3, 4)),
        np.zeros((2, 3, 4), np.float32)[:, ::2],
        np.asfortranarray(np.zeros((3, 4), np.int64)),
        np.array(1, np.complex64),
        np.frombuffer(bytes(17), np.uint8)[1:].view(np.uint16),
        read_only,
    ]


def _is_as_expected(array: Any) -> bool:
    """Whether the fields of an array are where they should be."""
    at = id(array) + HEADER
    ndim = ctypes.c_int32.from_address(at + FIELDS["nd"][1]).value
    flags = ctypes.c_int32.from_address(at + FIELDS["flags"][1]).value
    expected = array.flags.num
    return (
        _word(at - 8) == id(np.ndarray)
        and _word(at + FIELDS["data"][1]) == array.ctypes.data
        and ndim == array.ndim
        and tuple(_word(_word(at + FIELDS["dims"][1]) + 8 * axis) for axis in range(ndim)) == array.shape
        and _word(at + FIELDS["descr"][1]) == id(array.dtype)
        and flags & 0x507 == expected & 0x507
        and bool(flags & 1) == array.flags.c_contiguous
        and bool(flags & 0x100) == array.flags.aligned
    )


def _makes_arrays(address: int) -> bool:
    """Whether the function makes what it is asked for."""
    new = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.py_object, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, *[ctypes.c_void_p] * 2,
        ctypes.c_int, ctypes.c_int, ctypes.c_void_p,
    )(address)  # fmt: skip
    dims = (ctypes.c_int64 * 2)(3, 5)
    made = new(np.ndarray, 2, ctypes.addressof(dims), np.dtype("float32").num, None, None, 0, 0, None)
    usual = np.empty((3, 5), np.float32)
    same = type(made) is np.ndarray and made.shape == (3, 5) and made.dtype is usual.dtype
    return same and made.flags.num == usual.flags.num and sys.getrefcount(made) == sys.getrefcount(usual)


def _function_table() -> int:
    """The address of NumPy's table of C functions."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table: int = pointer(np._core._multiarray_umath._ARRAY_API, None)  # type: ignore[attr-defined]
    return table


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


# -- the function for Python that calls the nests of a program
# `@segment<k>` does the nests between two host steps (see `anygpu.engines.cpu.planning`). A program without host steps
# is called by `@call` (`call.ll`), which is compiled once and finds all that it has to know of the program in an array
# of words.


#: A call that is longer than so many seconds lets other threads of Python run.
_SHORT_SECONDS = 20e-6
#: Temporaries of so many bytes are on the stack.
_STACK_BYTES = 4096
#: A function for Python with its arguments in an array.
_METH_FASTCALL = 0x80


def load_call(processor: HostProcessor, symbols: Mapping[str, int]) -> Code:
    """`@call`, with the layout of objects as it is in this process."""
    places = {field.upper(): HEADER + offset for field, (_, offset) in FIELDS.items()}
    places |= {"NDIM": places.pop("ND"), "OBTYPE": HEADER - 8, "ITEMS": tuple.__basicsize__}
    places |= {"USABLE": USABLE_FLAGS, "STACK": _STACK_BYTES}
    text = re.sub(r"\b[A-Z]+\b", lambda found: str(places.get(found[0], found[0])), file_text("call.ll"))
    return load(module_head(processor) + text, processor, symbols, ["call"])


class _MethodDefinition(ctypes.Structure):
    """CPython's `PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    )


def python_function(call: Code, plan: RunPlan, code: Code, constants: Mapping[int, Any]) -> Any:
    """A program as a function for Python, by `@call`."""
    definition = _MethodDefinition(b"call", call["call"], _METH_FASTCALL, None)
    words, shapes = _words(plan, code, constants)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    # Its `self`: all of it is there for as long as anybody calls the function.
    return make(ctypes.addressof(definition), (words, shapes, definition, call, code, constants), None)


def _words(plan: RunPlan, code: Code, constants: Mapping[int, Any]) -> tuple[Any, list[Any]]:
    """The program as `@call` reads it, and the shapes that it points to."""
    layout = layout_of(plan)
    shapes: list[Any] = []

    def address(shape: tuple[int, ...]) -> int:
        shapes.append(np.array(shape or (0,), np.int64))
        return int(shapes[-1].ctypes.data)

    order = sorted(range(len(plan.outputs)), key=lambda number: plan.outputs[number].spec.nbytes >= LARGE_BYTES)
    small = sum(output.spec.nbytes < LARGE_BYTES for output in plan.outputs)
    status, words = plan.status, 0
    if status is not None:
        words = plan.slots[status].nbytes
    found = [
        *(len(plan.inputs), len(plan.outputs), len(plan.slots), small, layout.nbytes),
        *(layout.offsets[status] if status is not None else 0, words, int(plan.seconds > _SHORT_SECONDS)),
        code["segment0"],
    ]
    for spec in plan.inputs:
        found += [id(numpy_dtype(spec.dtype)), len(spec.shape), address(spec.shape)]
    for number in order:
        slot, spec = plan.outputs[number].slot, plan.outputs[number].spec
        found += [len(spec.shape), address(spec.shape), numpy_dtype(spec.dtype).num, slot, number]
    for number, each in enumerate(plan.slots):
        if each.role in ("input", "output"):
            found += [2, 0]
        elif number in layout.offsets:
            found += [1, layout.offsets[number]]
        else:
            found += [0, int(constants[number].ctypes.data) if number in constants else 0]
    return np.array(found, np.int64), shapes


# -- the runtime of a process


Result = TypeVar("Result")


class NativeRuntime:
    """Made once for a process, with the first program."""

    def __init__(self, processor: HostProcessor) -> None:
        """Load everything that all native code needs: the pool, memory, and the function that calls from Python.

        Without native threads memory is `malloc`'s. `symbols` are the addresses that images import. In a forked child
        the threads are forgotten.
        """
        self.pool = NestPool(processor)
        self.memory = RecycledMemory(processor) if HAS_NATIVE_THREADS else None
        #: The addresses that programs may refer to.
        self.symbols = {**self.pool.symbols, **(array_symbols() or {})}
        if self.memory is not None:
            self.symbols |= {**self.memory.symbols, "np_handler": id(self.memory.handler)}
        else:
            for name, function in (("memory_take", "malloc"), ("memory_give", "free")):
                self.symbols[name] = ctypes.cast(getattr(c_library(), function), ctypes.c_void_p).value or 0
            self.symbols["np_handler"] = self.symbols.get("np_default_handler", 0)
        self._take = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(self.symbols["memory_take"])
        self._give = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.symbols["memory_give"])
        self._set_handler: Callable[[Any], Any] | None = None
        if "np_set_handler" in self.symbols:
            signature = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)
            self._set_handler = signature(self.symbols["np_set_handler"])
        #: The function by which programs are called; `None` where arrays are not what it takes them for.
        self.call = load_call(processor, self.symbols) if array_symbols() is not None else None
        self.host_steps = HostSteps()
        self._lock = lock()
        self.start()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget_threads)

    def start(self) -> None:
        """Start its threads, if that was not done in this process."""
        with self._lock:
            if not self.pool.is_ready:
                if self.memory is not None:
                    self.memory.start()
                self.pool.start()

    def take(self, nbytes: int) -> int:
        """The address of so many bytes for temporaries; 0 for none."""
        if not nbytes:
            return 0
        taken = self._take(nbytes)
        if not taken:
            raise MemoryError(f"no memory for {nbytes:,} bytes of temporaries")
        return int(taken)

    def give(self, address: int) -> None:
        """Give back what was taken."""
        if address:
            self._give(address)

    def run(self, function: Callable[..., Result], *given: Any) -> Result:
        """Call it with large arrays that NumPy makes in memory that was used before."""
        # A context ends with what was set in it, also when Ctrl-C comes in between.
        return contextvars.copy_context().run(self._run, function, *given)

    def _run(self, function: Callable[..., Result], *given: Any) -> Result:
        """Call a function with our memory for NumPy's arrays, unless the user has set another handler."""
        if self._set_handler is not None and self.memory is not None:
            before = self._set_handler(self.memory.handler)
            # A handler that the user has set stays in use.
            if id(before) != self.symbols["np_default_handler"]:
                self._set_handler(before)
        return function(*given)

    def _forget_threads(self) -> None:
        """In a forked child: the parent's threads are not here."""
        self.pool.forget_threads()
        self.host_steps.forget_threads()
        if self.memory is not None:
            self.memory.forget_threads()


_lock = lock()
_made: NativeRuntime | None = None


def native_runtime() -> NativeRuntime:
    """The one of this process."""
    global _made
    if _made is None:
        with _lock:
            if _made is None:
                _made = NativeRuntime(host_processor())
    return _made
