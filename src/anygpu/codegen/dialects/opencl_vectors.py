"""Vectors in OpenCL C: of any power of two, loaded and stored from any element on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from anygpu.codegen.dialects.vector_syntax import EXACT, VectorSyntax, is_multiple
from anygpu.codegen.functions import library
from anygpu.codegen.index import ZERO, Atom, Index
from anygpu.codegen.index import Variable as Counter
from anygpu.codegen.kernel_ir import Buffer, Literal
from anygpu.codegen.syntax import COMPARISONS, WIDE_TYPES
from anygpu.codegen.target import ComputeType
from anygpu.program.dtypes import ITEMSIZE, DType

if TYPE_CHECKING:
    from anygpu.codegen.dialects.opencl import OpenCLPrinter


#: Counters of loops that are unrolled: compilers know what they are in each round.
_UNROLLED = ("each", "chain")


class OpenCLVectors(VectorSyntax):
    """Vectors that fill the registers of the device. A truth value is an int: 0, or -1 for true."""

    _ELEMENTS: ClassVar[dict[DType, str]] = {"int8": "char", "uint8": "uchar", "int16": "short", "uint16": "ushort"}

    def __init__(self, printer: OpenCLPrinter, width: int) -> None:
        self.syntax = printer.syntax
        self._printer = printer
        self.width = width
        self.patient = width <= 4
        self.has_arrays = True
        self.chains = 4 if printer.target.scalar_invocations else 1

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

    def _pointer(self, buffer: Buffer, index: Index) -> str | None:
        """The vector in place, where the device is a processor: PoCL's vload and vstore are of halves and quarters.

        What is known when loops are unrolled is added last: then it is a part of the instruction, not one of its own.
        """
        if buffer.dtype not in EXACT or not self._printer.target.scalar_invocations:
            return None
        known = Index(index.constant, [(atom, factor) for atom, factor in index.terms if _is_unrolled(atom)])
        offset = f" + offset_{buffer.name}" if buffer.has_offset else ""
        parts = [self._printer.position(each) for each in (index - known, known) if each != ZERO]
        at = "".join(f" + ({part})" if _is_sum(part) else f" + {part}" for part in parts)
        loose = self._printer.loose_vector(self.type_name(EXACT[buffer.dtype]), ITEMSIZE[buffer.dtype])
        constness = "const " if buffer.access == "read" else ""
        return f"*(__global {constness}{loose} *)({buffer.name}{offset}{at})"

    def load(self, buffer: Buffer, index: Index) -> str | None:
        pointer = self._pointer(buffer, index)
        if pointer is not None:
            return f"({pointer})"
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
        pointer = self._pointer(buffer, index)
        return [f"{pointer} = {value};" if pointer is not None else f"vstore{width}({value}, {at});"]

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
        if to == "bool":
            return self.compare("not_equal", of, text, self._printer.literal(Literal(0, of)))
        one, zero = (self.broadcast(to, self._printer.literal(Literal(number, to))) for number in (1, 0))
        if of == "bool":
            return self.select(to, zero, one, text)
        name = self._printer.library_name(f"cast_{to}", of)
        return f"{name}{self.width}({text})" if name.startswith("convert_") else None

    def call(self, fn: str, of: ComputeType, result: ComputeType, texts: Sequence[str]) -> str | None:
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


def _is_sum(text: str) -> bool:
    return " + " in text or " - " in text


def _is_unrolled(atom: Atom) -> bool:
    return isinstance(atom, Counter) and atom.name in _UNROLLED


def vector_width(target_width: int, types: set[ComputeType]) -> int:
    """The components of the narrowest type that fit into a register, which holds `target_width` of 32 bits."""
    return max(2, target_width // 2 if types and types <= set(WIDE_TYPES) else target_width)
