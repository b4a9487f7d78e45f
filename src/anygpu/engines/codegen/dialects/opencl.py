"""OpenCL C: pointers, every width of integers, and vectors where one invocation works for many elements.

`OpenCLPrinter` prints kernels, and `OpenCLVectors` the vectors that one invocation works in. Fused roundings are
off except in polynomials, and float16 is loaded and stored by conversion, which needs no extension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from anygpu.engines.codegen.dialects.vector_text import VectorSyntax, is_multiple
from anygpu.engines.codegen.dialects.vectors import VectorPrinter, types_along
from anygpu.engines.codegen.functions import library
from anygpu.engines.codegen.index import Index
from anygpu.engines.codegen.kernel import MINUS_ONE
from anygpu.engines.codegen.kernel_ir import Apply, Buffer, Literal, Loop
from anygpu.engines.codegen.target import COMPARISONS, WIDE_TYPES, ComputeType, indented
from anygpu.program.dtypes import DType

_ELEMENTS: dict[DType, str] = {
    "bool": "uchar",
    "int8": "char",
    "int16": "short",
    "int32": "int",
    "int64": "long",
    "uint8": "uchar",
    "uint16": "ushort",
    "uint32": "uint",
    "uint64": "ulong",
    "float16": "half",
    "bfloat16": "ushort",
    "float32": "float",
    "float64": "double",
}
#: From here on every number is a whole one.
_LARGE = {"f32": 2.0**23, "f64": 2.0**52}


class OpenCLPrinter(VectorPrinter):
    """Kernels as OpenCL C, for processors and cards."""

    def hides_constants(self, expr: Apply) -> bool:
        """PoCL 3.1 makes nonsense of some functions of constants: rint(1e300) crashed, expm1(NaN) was a number."""
        return expr.args[0].type in ("f32", "f64")

    def must_hide(self, value: float, type: ComputeType) -> bool:
        """PoCL miscompiles its functions of such constants: of `floor(x * NaN)` nothing was stored."""
        return not abs(value) < _LARGE[type]

    def from_bits(self, bits: int, type: ComputeType) -> str:
        """A number by its bits, combined with a zero that is known only when the kernel runs."""
        # Groups are never counted along the third dimension: this is 0, and no compiler can know.
        name, wide = self.syntax.types[type], type in WIDE_TYPES
        text = f"{bits:#x}ul ^ get_group_id(2)" if wide else f"{bits:#x}u ^ (uint)get_group_id(2)"
        return f"as_{name}({'(ulong)' if wide else ''}({text}))"

    def vector_syntax(self, loop: Loop) -> VectorSyntax:
        types = types_along(loop.body, loop.variable)
        return OpenCLVectors(self, 2 if types and types <= set(WIDE_TYPES) else 4)

    def windows(self, buffer: Buffer) -> int:
        """A kernel sees the whole of a buffer; what is too large for that cannot be allocated, either."""
        return 1

    # -- buffers

    def load(self, buffer: Buffer, index: str) -> str:
        """The element at a position, in its compute type."""
        index = f"offset_{buffer.name} + {index}" if buffer.has_offset else index
        match buffer.dtype:
            case "bool":
                return f"({buffer.name}[{index}] != 0)"
            case "float16":
                return f"vload_half({index}, {buffer.name})"
            case "bfloat16":
                return f"{self.library_name('bf16_from_bits', 'u32')}({buffer.name}[{index}])"
        return f"{buffer.name}[{index}]"

    def store(self, buffer: Buffer, index: str, value: str) -> list[str]:
        """The statements that store a value at a position, rounded to the buffer's type."""
        index = f"offset_{buffer.name} + {index}" if buffer.has_offset else index
        match buffer.dtype:
            case "float16":
                return [f"vstore_half_rte({value}, {index}, {buffer.name});"]
            case "bfloat16":
                value = f"{self.library_name('bf16_to_bits', 'f32')}({value})"
        return [f"{buffer.name}[{index}] = {value};"]

    def add_to_word(self, buffer: Buffer, value: str) -> str:
        raise NotImplementedError("every element has an address of its own in OpenCL C")

    def report(self, number: int, value: str) -> str:
        return f"status[{number}] = ({value}) == -1 ? {MINUS_ONE}u : (uint)({value}) + 1u;"

    # -- texts

    def declarations(self, numbers: Sequence[str]) -> str:
        """Return the pragma against fused rounding: every operation is rounded separately, as in NumPy."""
        return "#pragma OPENCL FP_CONTRACT OFF"

    def _buffer_parameters(self) -> list[str]:
        """The declarations of the buffers as parameters. None of them overlap, which `restrict` tells the compiler."""
        result = []
        for buffer in self.buffers.values():
            constness = "const " if buffer.access == "read" and not buffer.atomic else ""
            volatile = "volatile " if buffer.atomic else ""
            element = _ELEMENTS[buffer.dtype]
            result.append(f"__global {volatile}{constness}{element} *restrict {buffer.name}")
        return result

    def parameters(self, numbers: Sequence[str]) -> str:
        return ", ".join([*self._buffer_parameters(), *(f"const uint {name}" for name in numbers)])

    @property
    def handed_on(self) -> str:
        offsets = [f"offset_{buffer.name}" for buffer in self.buffers.values() if buffer.has_offset]
        return "".join(f"{name}, " for name in (*self.buffers, *offsets))

    def shared_texts(self) -> str:
        return ""

    @property
    def taken(self) -> list[str]:
        """The buffers and their offsets, as parameters of a function."""
        offsets = [f"const uint offset_{each.name}" for each in self.buffers.values() if each.has_offset]
        return [*self._buffer_parameters(), *offsets]

    def group_line(self, groups: int, numbers: Sequence[str]) -> str:
        first = "(int)first_group + " if "first_group" in numbers else ""
        return self.syntax.position("group", f"{first}(int)get_group_id(0)")

    def entry(self, name: str, group_size: int, numbers: Sequence[str], body: Sequence[str]) -> str:
        """The text of the entry point: its attributes and parameters, memory of the group, and the body."""
        used = "\n".join(body)
        lane = [self.syntax.position("lane", self.syntax.lane)] if "lane" in used else []
        types = self.syntax.types
        shared = [
            self.syntax.shared_array(each.name, types["u32" if each.type == "bool" else each.type], each.size)
            for each in self.shared.values()
        ]
        head = [
            f"__kernel __attribute__((reqd_work_group_size({group_size}, 1, 1)))",
            f"void {name}({self.parameters(numbers)}) {{",
        ]
        return "\n".join([*head, *indented([*shared, body[0], *lane, *body[1:]]), "}"])


# -- vectors in OpenCL C
#
# Of any power of two, loaded and stored from any element on.


class OpenCLVectors(VectorSyntax):
    """Vectors of a power of two. A truth value is an int: 0, or -1 for true."""

    _ELEMENTS: ClassVar[dict[DType, str]] = {"int8": "char", "uint8": "uchar", "int16": "short", "uint16": "ushort"}

    def __init__(self, printer: OpenCLPrinter, width: int) -> None:
        self.syntax = printer.syntax
        self._printer = printer
        self.width = width
        self.has_arrays = True

    def halved(self) -> VectorSyntax | None:
        return OpenCLVectors(self._printer, self.width // 2) if self.width > 2 else None

    def type_name(self, type: ComputeType) -> str:
        return super().type_name("i32" if type == "bool" else type)

    def joined(self, type: ComputeType, parts: Sequence[str]) -> str:
        return super().joined(type, [f"{part} ? -1 : 0" for part in parts] if type == "bool" else parts)

    def _address(self, buffer: Buffer, index: Index) -> str:
        """The arguments of vload and vstore: counted in vectors where the index is a multiple of the width."""
        first = f"offset_{buffer.name} + " if buffer.has_offset else ""
        if not first and is_multiple(index, self.width):
            return f"{self._printer.position(index // self.width)}, {buffer.name}"
        return f"0, {buffer.name} + {first}{self._printer.position(index)}"

    def load(self, buffer: Buffer, index: Index) -> str | None:
        """Neighbours from a position on, as a vector of the compute type; `None` for bfloat16, which has no vectors."""
        at, width = self._address(buffer, index), self.width
        match buffer.dtype:
            case "bfloat16":
                return None
            case "float16":
                return f"vload_half{width}({at})"
            case "bool":
                return f"(convert_int{width}(vload{width}({at})) != 0)"
            case "int8" | "int16":
                return f"convert_int{width}(vload{width}({at}))"
            case "uint8" | "uint16":
                return f"convert_uint{width}(vload{width}({at}))"
        return f"vload{width}({at})"

    def spread(self, buffer: Buffer, index: Index, offsets: Sequence[int]) -> str | None:
        """One load of all neighbours that are needed, and a swizzle that repeats them."""
        count = max(offsets) + 1
        if count not in (2, 4, 8, 16) or count > self.width:
            return None
        text = OpenCLVectors(self._printer, count).load(buffer, index)
        places = "".join(f"{offset:x}" for offset in offsets)
        return None if text is None else f"{text}.s{places}"

    def store(self, buffer: Buffer, index: Index, value: str) -> list[str] | None:
        """The statements that store a vector from a position on; `None` for bfloat16."""
        at, width = self._address(buffer, index), self.width
        match buffer.dtype:
            case "bfloat16":
                return None
            case "float16":
                return [f"vstore_half{width}_rte({value}, {at});"]
            case "bool":
                value = f"convert_uchar{width}({value} & 1)"
            case "int8" | "int16" | "uint8" | "uint16":
                value = f"convert_{self._ELEMENTS[buffer.dtype]}{width}({value})"
        return [f"vstore{width}({value}, {at});"]

    def word(self, buffer: Buffer, value: str) -> str | None:
        return None

    def _as_mask(self, of: ComputeType, text: str) -> str:
        return f"convert_int{self.width}({text})" if of in WIDE_TYPES else text

    def select(self, type: ComputeType, no: str, yes: str, mask: str) -> str:
        mask = f"convert_long{self.width}({mask})" if type in WIDE_TYPES else mask
        return f"select({no}, {yes}, {mask})"

    def compare(self, fn: str, of: ComputeType, one: str, other: str) -> str:
        return self._as_mask(of, f"({one} {COMPARISONS[fn]} {other})")

    def logic(self, pattern: str, texts: Sequence[str]) -> str:
        return f"({pattern.format(*texts)})"

    def cast(self, of: ComputeType, to: ComputeType, text: str) -> str | None:
        """A vector in another type, or `None` where the library's function takes no vectors."""
        if to == "bool":
            return self.compare("not_equal", of, text, self._printer.literal(Literal(0, of)))
        one, zero = (self.broadcast(to, self._printer.literal(Literal(number, to))) for number in (1, 0))
        if of == "bool":
            return self.select(to, zero, one, text)
        name = self._printer.library_name(f"cast_{to}", of)
        return f"{name}{self.width}({text})" if name.startswith("convert_") else None

    def call(self, fn: str, of: ComputeType, result: ComputeType, texts: Sequence[str]) -> str | None:
        """A function of vectors, or `None` where the library has it for single values only.

        Shifts by 32 and more give 0, as NumPy has them, which OpenCL C leaves undefined.
        """
        if fn in ("maximum", "minimum") and of in ("f32", "f64"):
            return self._extreme(fn, of, texts[0], texts[1])
        if fn in ("wrap_i8", "wrap_i16", "wrap_u8", "wrap_u16"):
            narrow = {"wrap_i8": "char", "wrap_i16": "short", "wrap_u8": "uchar", "wrap_u16": "ushort"}[fn]
            return f"convert_{self.type_name(result)}(convert_{narrow}{self.width}({texts[0]}))"
        if fn == "right_shift" and of == "u32":
            return f"select((uint{self.width})(0u), {texts[0]} >> {texts[1]}, {texts[1]} < 32u)"
        name = library.vector_call("opencl", fn, of, self._printer.target, self.width)
        if name is None:
            return None
        self._printer.needed[name] = None
        text = f"{name}({', '.join(texts)})"
        return self._as_mask(of, text) if result == "bool" else text

    def _extreme(self, fn: str, of: ComputeType, one: str, other: str) -> str:
        """NaN wins, as in NumPy: a comparison with it fails, so it is asked for by itself."""
        mask = f"({one} {'>' if fn == 'maximum' else '<'} {other}) | ({one} != {one})"
        return f"select({other}, {one}, {mask})"
