"""What stands between Python and the nests of a program.

`@segment<k>` does the nests between two host steps (see `anygpu.engines.cpu.planning`). A program without host steps is
called by `@call` (`call.ll`), which is compiled once and finds all that it has to know of the program in an array of
words.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from anygpu.engines.cpu.loader import Code, load
from anygpu.engines.cpu.memory import LARGE_BYTES
from anygpu.engines.cpu.native_threads import file_text, module_head
from anygpu.engines.cpu.numpy_abi import FIELDS, HEADER, USABLE_FLAGS
from anygpu.engines.cpu.run_plan import RunPlan, layout_of
from anygpu.engines.cpu.target import HostProcessor
from anygpu.engines.host_types import numpy_dtype

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
