"""Kernels from text, or from what a compiler made of it earlier.

The first part declares the built-in functions that a text uses, in place of a header of thousands of lines. `Builder`
compiles and keeps functions, and `OpenCLKernel` learns how long its groups take, so that long launches are cut.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyopencl as cl

from anygpu.base.lru import LRUCache
from anygpu.engines.codegen.custom.reflected import Reflected
from anygpu.engines.codegen.kernel import Kernel
from anygpu.engines.driver import AssumedPace, Counters, GridCut, cuts
from anygpu.engines.opencl import device
from anygpu.engines.opencl.reflection import ARGUMENT_INFO, places_of, reflected_opencl
from anygpu.errors import InvalidKernel, InvalidProgram
from anygpu.program.functions import BINARY, FUNCTIONS, TESTS, UNARY

# -- declarations of just the built-in functions that a kernel uses, for a compiler that reads them all each time
# PoCL spends nine tenths of the first stage of compilation on Clang's header, 18,000 lines of built-in functions. A
# kernel that comes with its own declarations is compiled without it, eight times faster. A name that is not known here
# is an error of the compiler, never a wrong result, and the caller then builds the same text with the whole header.


#: The header's include guard: defined beforehand, nothing of it is read.
WITHOUT_HEADER = "-D_OPENCL_H_"

_SIGNED = ("char", "short", "int", "long")
_INTEGERS = tuple(name for signed in _SIGNED for name in (signed, f"u{signed}"))
_BITS = {"char": 8, "short": 16, "int": 32, "long": 64, "half": 16, "float": 32, "double": 64}
_SPACES = ("__global", "__local", "__private")

_PURE = "__attribute__((overloadable, const))"
_EFFECT = "__attribute__((overloadable))"
# Control flow around a barrier must stay as it is written.
_CONVERGENT = "__attribute__((overloadable, convergent))"


def _of_table(functions: Iterable[str]) -> str:
    """The built-in functions of OpenCL C that elementwise functions are."""
    return " ".join(FUNCTIONS[fn].opencl for fn in functions if FUNCTIONS[fn].opencl)


#: Built-in functions by their parameters, for their declarations; "float, 2" is two numbers of a float type.
_FAMILIES = {
    "work item": (
        "get_global_id get_global_offset get_global_size get_group_id get_local_id get_local_size get_num_groups"
    ),
    "barrier": "barrier",
    "fence": "mem_fence read_mem_fence write_mem_fence",
    "float, 1": (
        "acospi asinpi atanpi cospi erfc exp10 logb round rsqrt sinpi tanpi tgamma lgamma "
        + _of_table(fn for fn in UNARY if fn not in TESTS)
    ),
    "float, 2": f"atan2pi fdim powr remainder {_of_table(BINARY)}",
    "float, 2 or scalar": "fmax fmin",
    "float, 3": "fma mad",
    "float test": f"isnormal {_of_table(TESTS)}",
    "integer, 1": "clz popcount",
    "integer, 2": "add_sat hadd mul_hi rhadd rotate sub_sat",
    "integer, 3": "mad_hi mad_sat",
    "any, 2 or scalar": "max min",
    "any, 3 or scalar": "clamp",
    "absolute": "abs",
    "scaled": "ldexp",
    "integer power": "pown",
    "exponent": "ilogb",
    "taken apart": "frexp",
    "of lanes": "all any",
    "select": "select",
}


_FAMILY_OF = {name: family for family, names in _FAMILIES.items() for name in names.split()}
_ATOMIC = re.compile(r"(atomic|atom)_(add|sub|xchg|min|max|and|or|xor|inc|dec|cmpxchg)")
_CONVERSION = re.compile(r"convert_(u?(?:char|short|int|long)|float|double|half)(2|3|4|8|16)?(?:_sat)?(?:_rt[ezpn])?")
_VECTOR_ACCESS = re.compile(r"v(load|store)(2|3|4|8|16)")
_HALF_ACCESS = re.compile(r"v(load|store)_half(2|3|4|8|16)?(?:_rt[ezpn])?")

_IDENTIFIER = re.compile(r"\b[a-z][a-z0-9_]*\b")
#: What mentions vectors of some width: a type, a conversion to one, or an access to memory.
_VECTOR = re.compile(r"(?:char|short|int|long|half|float|double|vload|vstore)(2|3|4|8|16)(?![0-9])")


def with_declarations(source: str, *, floats: Iterable[str] = ("float", "double")) -> str:
    """The kernel behind declarations of what it uses; `floats` are the floating types of the device.

    The compiler's messages still count the lines of `source`.
    """
    floats = tuple(floats)
    widths = ("", *sorted(set(_VECTOR.findall(source)), key=int))
    names = sorted(set(_IDENTIFIER.findall(source)))
    declared = [line for name in names for line in _declarations(name, floats, widths)]
    return "\n".join([*declared, "#line 1", source])


def _declarations(name: str, floats: tuple[str, ...], widths: tuple[str, ...]) -> Iterator[str]:
    """The overloads of a built-in function of OpenCL C, for the types and widths that a text uses."""
    every = _INTEGERS + floats
    types = {"float": floats, "integer": _INTEGERS, "any": every}
    match (_FAMILY_OF.get(name) or "").split(", "):
        case ["work item"]:
            yield f"size_t {_PURE} {name}(uint);"
        case ["barrier"]:
            yield f"void {_CONVERGENT} {name}(cl_mem_fence_flags);"
        case ["fence"]:
            yield f"void {_EFFECT} {name}(cl_mem_fence_flags);"
        case [kind, arguments]:
            count = int(arguments[0])
            yield from _same(name, types[kind], count, widths)
            if arguments.endswith("scalar"):
                yield from _with_scalars(name, types[kind], count, widths)
        case ["float test"]:
            yield from _float_tests(name, floats, widths)
        case ["absolute"]:
            yield from (f"{_unsigned(t)}{w} {_PURE} {name}({t}{w});" for t in _INTEGERS for w in widths)
        case ["scaled"]:
            yield from (f"{t}{w} {_PURE} {name}({t}{w}, int{w});" for t in floats for w in widths)
            yield from (f"{t}{w} {_PURE} {name}({t}{w}, int);" for t in floats for w in widths[1:])
        case ["integer power"]:
            yield from (f"{t}{w} {_PURE} {name}({t}{w}, int{w});" for t in floats for w in widths)
        case ["exponent"]:
            yield from (f"int{w} {_PURE} {name}({t}{w});" for t in floats for w in widths)
        case ["taken apart"]:
            yield from (
                f"{t}{w} {_EFFECT} {name}({t}{w}, {s} int{w} *);" for t in floats for w in widths for s in _SPACES
            )
        case ["of lanes"]:
            yield from (f"int {_PURE} {name}({t}{w});" for t in _SIGNED for w in widths)
        case ["select"]:
            yield from _selections(every, widths)
        case _:
            yield from _by_pattern(name, floats, every)


def _by_pattern(name: str, floats: tuple[str, ...], every: tuple[str, ...]) -> Iterator[str]:
    """The overloads of functions whose names have types in them: atomics, conversions, vector loads and stores."""
    if match := _ATOMIC.fullmatch(name):
        yield from _atomics(name, match[1], match[2])
    elif match := _CONVERSION.fullmatch(name):
        width = match[2] or ""
        yield from (f"{match[1]}{width} {_PURE} {name}({t}{width});" for t in every if match[1] in every)
    elif match := _VECTOR_ACCESS.fullmatch(name):
        yield from _vector_accesses(name, match[1], match[2], every)
    elif match := _HALF_ACCESS.fullmatch(name):
        yield from _half_accesses(name, match[1], match[2] or "", floats)


def _same(name: str, types: Iterable[str], arguments: int, widths: tuple[str, ...]) -> Iterator[str]:
    """The overloads of a function whose arguments and result are of one type."""
    for type_ in types:
        for width in widths:
            yield f"{type_}{width} {_PURE} {name}({', '.join([type_ + width] * arguments)});"


def _with_scalars(name: str, types: Iterable[str], arguments: int, widths: tuple[str, ...]) -> Iterator[str]:
    """A vector first, then single numbers that go for all of it."""
    for type_ in types:
        for width in widths[1:]:
            scalars = ", ".join([type_] * (arguments - 1))
            yield f"{type_}{width} {_PURE} {name}({type_}{width}, {scalars});"


def _float_tests(name: str, floats: Iterable[str], widths: tuple[str, ...]) -> Iterator[str]:
    """The overloads of tests such as `isnan`: an int for numbers, a mask for vectors."""
    for type_ in floats:
        yield f"int {_PURE} {name}({type_});"
        yield from (f"{_signed_of(type_)}{w} {_PURE} {name}({type_}{w});" for w in widths[1:])


def _selections(types: Iterable[str], widths: tuple[str, ...]) -> Iterator[str]:
    """The overloads of `select`, by signed and unsigned masks."""
    for type_ in types:
        chooser = _signed_of(type_)
        for width in widths:
            yield f"{type_}{width} {_PURE} select({type_}{width}, {type_}{width}, {chooser}{width});"
            yield f"{type_}{width} {_PURE} select({type_}{width}, {type_}{width}, u{chooser}{width});"


def _atomics(name: str, family: str, operation: str) -> Iterator[str]:
    """The overloads of an atomic function, for both memories and all types that it takes."""
    types: tuple[str, ...] = ("int", "uint") if family == "atomic" else ("int", "uint", "long", "ulong")
    if name == "atomic_xchg":
        types += ("float",)
    values = {"inc": 0, "dec": 0, "cmpxchg": 2}.get(operation, 1)
    for type_ in types:
        for space in ("__global", "__local"):
            arguments = ", ".join([f"volatile {space} {type_} *", *[type_] * values])
            yield f"{type_} {_EFFECT} {name}({arguments});"


def _vector_accesses(name: str, direction: str, width: str, types: Iterable[str]) -> Iterator[str]:
    """The overloads of `vloadN` or `vstoreN`."""
    for type_ in types:
        if direction == "load":
            for space in (*_SPACES, "__constant"):
                yield f"{type_}{width} __attribute__((overloadable, pure)) {name}(size_t, const {space} {type_} *);"
        else:
            for space in _SPACES:
                yield f"void {_EFFECT} {name}({type_}{width}, size_t, {space} {type_} *);"


def _half_accesses(name: str, direction: str, width: str, floats: Iterable[str]) -> Iterator[str]:
    """The overloads of `vload_half` and its kind."""
    if direction == "load":
        for space in (*_SPACES, "__constant"):
            yield f"float{width} __attribute__((overloadable, pure)) {name}(size_t, const {space} half *);"
    else:
        for type_ in floats:
            if type_ != "half":
                yield from (f"void {_EFFECT} {name}({type_}{width}, size_t, {space} half *);" for space in _SPACES)


def _signed_of(type_: str) -> str:
    """The signed integer of the same size."""
    bits = _BITS[type_.removeprefix("u")]
    return next(signed for signed in _SIGNED if _BITS[signed] == bits)


def _unsigned(type_: str) -> str:
    return type_ if type_.startswith("u") else f"u{type_}"


# -- building kernels


#: Compiled texts that are cached, in use or not.
KEPT_TEXTS = 1024

#: How many runs of a kernel are timed to know how long it takes: the first may have been unlucky.
_TIMED_RUNS = 3

#: How often a kernel is built without the header before that is given up.
_TRIES = 3


class KernelFunction:
    """A compiled function, with the arguments that it was last given: only what changes is set again."""

    __slots__ = ("__weakref__", "bound", "buffer_places", "kernel", "number_places", "numbers", "program")

    def __init__(
        self, program: Any, kernel: Any, buffer_places: Sequence[int], number_places: Sequence[tuple[int, int]]
    ) -> None:
        """Hold a compiled function, and the arguments that it is bound to at the moment.

        `buffer_places` are the positions of buffers among its arguments, `number_places` those of numbers, with their
        sizes in bytes.
        """
        self.program = program
        self.kernel = kernel
        #: The number of the part (see `Part`) at each buffer, 0 for none, and the values of the numbers.
        self.bound = [0] * len(buffer_places)
        self.numbers: list[int | None] = [None] * len(number_places)
        self.buffer_places = buffer_places
        self.number_places = number_places


class OpenCLKernel:
    """One kernel, ready to be launched."""

    __slots__ = ("_event", "_seconds_per_group", "_timed", "function", "kernel", "whole")

    def __init__(self, kernel: Kernel, function: KernelFunction) -> None:
        """A built kernel, and what is learnt of how long its groups take."""
        self.kernel = kernel
        self.function = function
        self.whole = (GridCut(0, kernel.groups),) if kernel.groups > 0 else ()
        self._seconds_per_group: float | None = None
        self._timed = 0
        self._event: tuple[Any, int] | None = None

    @property
    def is_settled(self) -> bool:
        """Whether nothing more is learned from its runs, so that `cuts` stays as it is."""
        return self._timed >= _TIMED_RUNS or "first_group" not in self.kernel.numbers

    def cuts(self, pace: AssumedPace) -> tuple[GridCut, ...]:
        """The parts in which it runs: by its own earlier runs where there are any, by its estimates otherwise."""
        kernel = self.kernel
        if "first_group" not in kernel.numbers:
            return self.whole
        if self._timed < _TIMED_RUNS:
            self._learn()
        if self._seconds_per_group is None:
            seconds = pace.seconds(kernel.flops, kernel.bytes_moved)
        else:
            seconds = self._seconds_per_group * kernel.groups
        return tuple(cuts(kernel.groups, seconds)) if self.whole else ()

    def ran(self, event: Any, groups: int) -> None:
        """Remember the event of a run, to learn from it when it is done."""
        if self._timed < _TIMED_RUNS and self._event is None and "first_group" in self.kernel.numbers:
            self._event = (event, groups)

    def _learn(self) -> None:
        """Take the time of the last launch that was watched, if it has ended; the shortest one counts."""
        if self._event is None:
            return
        event, groups = self._event
        if event.get_info(cl.event_info.COMMAND_EXECUTION_STATUS) > 0:
            return
        self._event = None
        self._timed += 1
        seconds = seconds_of(event)
        if seconds is not None:
            known = self._seconds_per_group
            self._seconds_per_group = seconds / groups if known is None else min(known, seconds / groups)


def seconds_of(event: Any) -> float | None:
    """From start to end by the device's clock; `None` when the driver cannot tell."""
    try:
        start = event.get_profiling_info(cl.profiling_info.START)
        end = event.get_profiling_info(cl.profiling_info.END)
    except cl.Error:
        return None
    return float(end - start) * 1e-9


class Builder:
    """Compiles for one device, and keeps what it has compiled."""

    def __init__(self, device: Any, context: Any, name: str, counters: Counters, *, options: tuple[str, ...]) -> None:
        """Builds kernels for one device. Functions are kept by their texts, the last `KEPT_TEXTS` of them."""
        self._device = device
        self._context = context
        self._name = name
        self._counters = counters
        self._options = list(options)
        self._group_limit = int(device.max_work_group_size)
        self._floats = floating_types(device)
        self._functions: LRUCache[KernelFunction] = LRUCache(KEPT_TEXTS)
        self._own_declarations = _reads_a_long_header(device)
        #: How often that worked, and how often the text was right and only the header missing.
        self._spared, self._missed = 0, 0

    def __len__(self) -> int:
        return len(self._functions)

    def build(self, kernel: Kernel) -> OpenCLKernel:
        """Raises `InvalidProgram` with the compiler's words."""
        if kernel.group_size > self._group_limit:
            raise self._too_large(kernel, self._group_limit)
        declared = (kernel.own.parameters, kernel.own.scalars) if kernel.own is not None else None
        key = (kernel.source, kernel.name, kernel.group_size, len(kernel.bindings), len(kernel.numbers), declared)
        return OpenCLKernel(kernel, self._functions.get(key, lambda: self._function(kernel)))

    def _function(self, kernel: Kernel) -> KernelFunction:
        """Compile a kernel.

        Raises `InvalidKernel` for users' kernels that are refused, and `InvalidProgram` for ours.
        """
        options = [ARGUMENT_INFO] if kernel.own is not None else []
        try:
            program = self._from_source(kernel.source, options)
            compiled = cl.Kernel(program, kernel.name)
        except cl.Error as error:
            if device.is_refusal_of_a_kernel(error):
                raise self._refusal(kernel, error) from error
            raise
        limit = compiled.get_work_group_info(cl.kernel_work_group_info.WORK_GROUP_SIZE, self._device)
        if kernel.group_size > limit:
            raise self._too_large(kernel, int(limit))
        if kernel.own is not None:
            self._look_at_memory(kernel.own.title, compiled)
            return KernelFunction(program, compiled, *places_of(compiled, kernel.own))
        buffers, numbers = len(kernel.bindings), len(kernel.numbers)
        arguments = buffers + numbers
        if compiled.num_args != arguments:
            raise InvalidProgram(
                f"The source of kernel {kernel.name} takes {compiled.num_args} arguments, and its record {arguments}. "
                "It was not run. Please report this."
            )
        return KernelFunction(program, compiled, range(buffers), [(buffers + each, 4) for each in range(numbers)])

    def reflected(self, source: str, entry: str | None, title: str) -> Reflected:
        """Return what a user's kernel takes. Raises `InvalidKernel` where it does not compile."""
        try:
            program = self._from_source(source, [ARGUMENT_INFO])
        except cl.Error as error:
            if device.is_refusal_of_a_kernel(error):
                raise complaint_of_clang(title, str(error)) from error
            raise
        return reflected_opencl(program, self._device, source, entry, title)

    def _look_at_memory(self, title: str, compiled: Any) -> None:
        """Raise `InvalidKernel` where the compiler counts more memory of a group than there is."""
        taken = int(compiled.get_work_group_info(cl.kernel_work_group_info.LOCAL_MEM_SIZE, self._device))
        limit = int(self._device.local_mem_size)
        if taken > limit:
            raise InvalidKernel(
                title,
                f"its groups share {taken:,} bytes, and {limit:,} is what a group has on {self._name}.",
            )

    def _from_source(self, source: str, options: Sequence[str] = ()) -> Any:
        """The compiled program.

        Some compilers read a header of thousands of lines for every kernel; our declarations of what is used take a
        tenth of the time. Where they fail too often they are not tried any more.
        """
        self._counters.compilations += 1
        if self._own_declarations:
            try:
                text = with_declarations(source, floats=self._floats)
                program = self._compiled(text, [*self._options, *options, WITHOUT_HEADER])
            except cl.Error as error:
                if not device.is_refusal_of_a_kernel(error):
                    raise
            else:
                self._spared += 1
                return program
        program = self._compiled(source, [*self._options, *options])
        if self._own_declarations:
            self._missed += 1
            # Some other version of PoCL may not have that header: then there is nothing to spare.
            self._own_declarations = self._spared > 0 or self._missed < _TRIES
        return program

    def _compiled(self, text: str, options: list[str]) -> Any:
        """Build a text with these options; warnings of the compiler are dropped."""
        with warnings.catch_warnings():
            # A compiler may print warnings about a text that it takes, which the user cannot act on.
            warnings.simplefilter("ignore", cl.CompilerWarning)
            # Made from pyopencl's inner program, because the outer one keeps binaries where we do not see them.
            return cl.Program(cl._cl._Program(self._context, text)).build(options)

    def _refusal(self, kernel: Kernel, error: cl.Error) -> InvalidProgram | InvalidKernel:
        """The error for a kernel that the compiler refuses, with its words."""
        if kernel.own is not None:
            return complaint_of_clang(kernel.own.title, str(error))
        return InvalidProgram(
            f"The OpenCL compiler of {self._name} refuses kernel {kernel.name}. It was not run; if the kernel is not "
            f"your own, please report this.\n{error}\n{kernel.source}"
        )

    def _too_large(self, kernel: Kernel, limit: int) -> InvalidProgram | InvalidKernel:
        """The error for groups that are larger than the device allows for this kernel."""
        if kernel.own is not None:
            return InvalidKernel(
                kernel.own.title,
                f"its groups have {kernel.group_size} invocations, and {limit} is the limit of {self._name} for it.",
            )
        return InvalidProgram(
            f"Kernel {kernel.name} has groups of {kernel.group_size}, and {self._name} runs it in groups of at most "
            f"{limit}. Use smaller groups."
        )


#: Clang: "file.cl:2:11: error: expected expression"; through PoCL: "error: file.cl:2:11: expected expression".
_CLANG = re.compile(
    r"^(?:(?P<path>[^\n:]*):(?P<line>\d+):(?P<column>\d+): (?:fatal )?error: |"
    r"(?:fatal )?error: (?P<path2>[^\n:]*):(?P<line2>\d+):(?P<column2>\d+): )(?P<words>[^\n]*)$",
    re.MULTILINE,
)
#: The longest message that is passed on, in characters.
_MOST_WORDS = 4000


def complaint_of_clang(title: str, words: str) -> InvalidKernel:
    """Return the error with what Clang says of a user's text: the first place, and all messages, each with its own."""
    found = list(_CLANG.finditer(words))
    if not found:
        return InvalidKernel(title, words.strip()[:_MOST_WORDS])
    said: list[tuple[int, int, str]] = []
    for each in found:
        path = each["path"] or each["path2"]
        line, column = int(each["line"] or each["line2"]), int(each["column"] or each["column2"])
        said.append((line, column, each["words"].replace(path, "the kernel") if path else each["words"]))
    line, column, text = said[0]
    if len(said) > 1:
        text = "\n".join(f"{line}:{column}: {each}" for line, column, each in said)
    return InvalidKernel(title, text[:_MOST_WORDS], line=line, column=column)


def floating_types(device: Any) -> tuple[str, ...]:
    """The floating-point types that a device computes with."""
    extensions = device.extensions.split()
    double = "cl_khr_fp64" in extensions or device.double_fp_config
    return ("float", *(["double"] if double else []), *(["half"] if "cl_khr_fp16" in extensions else []))


def _reads_a_long_header(device: Any) -> bool:
    return str(device.platform.name).strip() == "Portable Computing Language"
