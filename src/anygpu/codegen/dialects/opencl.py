"""OpenCL C: pointers, every width of integers, and vectors where one invocation works for many elements."""

from __future__ import annotations

from collections.abc import Sequence

from anygpu.codegen.dialects.opencl_vectors import OpenCLVectors, vector_width
from anygpu.codegen.dialects.vector_syntax import VectorSyntax
from anygpu.codegen.dialects.vectors import VectorPrinter, types_along
from anygpu.codegen.kernel import MINUS_ONE
from anygpu.codegen.kernel_ir import Apply, Buffer, Loop
from anygpu.codegen.syntax import WIDE_TYPES, indented
from anygpu.codegen.target import ComputeType, Target
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
    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._loose: dict[str, int] = {}

    def hides_constants(self, expr: Apply) -> bool:
        """PoCL 3.1 makes nonsense of some functions of constants: rint(1e300) crashed, expm1(NaN) was a number."""
        return expr.args[0].type in ("f32", "f64")

    def must_hide(self, value: float, type: ComputeType) -> bool:
        """PoCL miscompiles its functions of such constants: of `floor(x * NaN)` nothing was stored."""
        return not abs(value) < _LARGE[type]

    def from_bits(self, bits: int, type: ComputeType) -> str:
        # Groups are never counted along the third dimension: this is 0, and no compiler can know.
        name, wide = self.syntax.types[type], type in WIDE_TYPES
        text = f"{bits:#x}ul ^ get_group_id(2)" if wide else f"{bits:#x}u ^ (uint)get_group_id(2)"
        return f"as_{name}({'(ulong)' if wide else ''}({text}))"

    def vector_syntax(self, loop: Loop) -> VectorSyntax:
        natural = self.target.vector_width if self.target.scalar_invocations else 4
        return OpenCLVectors(self, vector_width(natural, types_along(loop.body, loop.variable)))

    def windows(self, buffer: Buffer) -> int:
        """A kernel sees the whole of a buffer; what is too large for that cannot be allocated, either."""
        return 1

    # -- buffers

    def load(self, buffer: Buffer, index: str) -> str:
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
        # Every operation is rounded as it is in NumPy.
        lines = ["#pragma OPENCL FP_CONTRACT OFF"]
        for vector, alignment in self._loose.items():
            lines.append(f"typedef {vector} loose_{vector} __attribute__((aligned({alignment})));")
        return "\n".join(lines)

    def loose_vector(self, vector: str, alignment: int) -> str:
        """A type of vectors that may begin at any element."""
        self._loose[vector] = alignment
        return f"loose_{vector}"

    def _buffer_parameters(self) -> list[str]:
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
