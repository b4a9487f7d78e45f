"""Reflect a compiled OpenCL C kernel: its arguments with their names, types, address spaces and const.

The driver is asked (`clGetKernelArgInfo`), so whatever its compiler understands is understood, macros and all. The
program has to be built with `ARGUMENT_INFO`.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pyopencl as cl

from anygpu.engines.codegen.custom.reflected import Length, Reflected, ScalarParameter, Unreadable, entry_among
from anygpu.engines.codegen.kernel import Own
from anygpu.errors import InvalidKernel
from anygpu.program.dtypes import ITEMSIZE, DType
from anygpu.program.ops.custom import Parameter

ARGUMENT_INFO = "-cl-kernel-arg-info"

_ELEMENTS: dict[str, DType] = {
    "char": "int8",
    "uchar": "uint8",
    "short": "int16",
    "ushort": "uint16",
    "int": "int32",
    "uint": "uint32",
    "long": "int64",
    "ulong": "uint64",
    "float": "float32",
    "double": "float64",
    "half": "float16",
}
_SCALARS = ("int", "uint", "long", "ulong", "float", "double", "half")
_TYPE = re.compile(r"([\w ]+?)(2|3|4|8|16)?(\*?)")
#: The guaranteed alignment of an array's first element, in bytes.
_ALIGNED = 16


class Argument(NamedTuple):
    """One argument of a kernel."""

    name: str
    dtype: DType
    #: Numbers in one element of an array; 0 for a number.
    parts: int
    reads: bool


def arguments_of(compiled: Any, title: str) -> list[Argument]:
    """Return the arguments in their order. Raises `InvalidKernel` for one that a call cannot pass."""
    try:
        return [_argument(compiled, number, title) for number in range(compiled.num_args)]
    except cl.Error as error:
        if error.code != cl.status_code.KERNEL_ARG_INFO_NOT_AVAILABLE:
            raise
        raise InvalidKernel(title, "this device's driver does not tell what its arguments are.") from error


def _argument(compiled: Any, number: int, title: str) -> Argument:
    """Return one argument, as the driver describes it."""
    asked, spaces = cl.kernel_arg_info, cl.kernel_arg_address_qualifier
    name, type, space, qualifier = (
        compiled.get_arg_info(number, each)
        for each in (asked.NAME, asked.TYPE_NAME, asked.ADDRESS_QUALIFIER, asked.TYPE_QUALIFIER)
    )
    # PoCL renames its built-in functions by macros, and with them parameters of the same names, such as `length`.
    name = name.removeprefix("_cl_")
    found = _TYPE.fullmatch(type)
    element, parts, star = (found[1], int(found[2] or 1), found[3]) if found is not None else ("", 1, "")
    if element in _SCALARS and parts == 1 and not star:
        return Argument(name, _ELEMENTS[element], 0, True)
    if not star:
        raise InvalidKernel(
            title, f"{name} is {type}. Numbers are {', '.join(_SCALARS)}; arrays are __global pointers to them."
        )
    if space == spaces.LOCAL:
        why = f"is memory of the group. Declare it inside of the kernel, with a length: __local float {name}[64];"
    elif element not in _ELEMENTS:
        why = f"is {type}. Kernels take arrays of numbers, or vectors of 2, 4 or 8 of them: {', '.join(_ELEMENTS)}."
    elif parts == 3 or parts * ITEMSIZE[_ELEMENTS[element]] > _ALIGNED:
        # Vectors of three have the stride of vectors of four.
        why = f"is {type}, which is laid out or aligned in another way. Use {element}* and vload{parts}(i, {name})."
    else:
        reads = space == spaces.CONSTANT or bool(qualifier & cl.kernel_arg_type_qualifier.CONST)
        return Argument(name, _ELEMENTS[element], parts, reads)
    raise InvalidKernel(title, f"{name} {why}")


def reflected_opencl(program: Any, device: Any, source: str, entry: str | None, title: str) -> Reflected:
    """Return the facts about the kernel of this name, or about the only one, in a built program."""
    kernels = {each.function_name: each for each in program.all_kernels()}
    try:
        chosen = entry_among(kernels, entry, "__kernel")
    except Unreadable as problem:
        raise problem.for_kernel(title, source) from None
    found = arguments_of(kernels[chosen], title or chosen)
    group = kernels[chosen].get_work_group_info(cl.kernel_work_group_info.COMPILE_WORK_GROUP_SIZE, device)
    return Reflected(
        language="opencl",
        entry=chosen,
        source=source,
        parameters=tuple(
            Parameter(each.name, each.dtype, "input" if each.reads else "output") for each in found if each.parts
        ),
        scalars=tuple(ScalarParameter(each.name, each.dtype) for each in found if not each.parts),  # type: ignore[arg-type]
        group=tuple(group) if all(group) else None,
        lengths={each.name: Length(multiple=each.parts) for each in found if each.parts > 1},
        group_memory=kernels[chosen].get_work_group_info(cl.kernel_work_group_info.LOCAL_MEM_SIZE, device),
    )


def places_of(compiled: Any, own: Own) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the positions of buffers among the arguments, and those of numbers with their sizes in bytes.

    Raises `InvalidKernel` where the record of the kernel disagrees.
    """
    found = arguments_of(compiled, own.title)
    buffers = [position for position, each in enumerate(found) if each.parts]
    numbers = [position for position, each in enumerate(found) if not each.parts]
    recorded = [(each.name, each.dtype, each.role == "input") for each in own.parameters]
    if [(found[each].name, found[each].dtype, found[each].reads) for each in buffers] != recorded:
        raise InvalidKernel(own.title, "its buffers differ from those its source declares. It was not run.")
    if tuple((found[each].name, found[each].dtype) for each in numbers) != own.scalars:
        raise InvalidKernel(own.title, "its numbers differ from those its source declares. It was not run.")
    return buffers, [(each, ITEMSIZE[found[each].dtype]) for each in numbers]
