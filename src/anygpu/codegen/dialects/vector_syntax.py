"""What each dialect calls vectors, and what it does with them in its own way.

The rules of working in vectors are in `anygpu.codegen.dialects.vectors`; here are only the words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from anygpu.codegen.functions import library
from anygpu.codegen.functions.source import read
from anygpu.codegen.index import Index
from anygpu.codegen.kernel_ir import Buffer, Literal
from anygpu.codegen.target import ComputeType
from anygpu.program.dtypes import ITEMSIZE, DType

if TYPE_CHECKING:
    from anygpu.codegen.dialects.opencl import OpenCLPrinter
    from anygpu.codegen.dialects.wgsl import WGSLPrinter

SIGNS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "bitwise_and": "&", "bitwise_or": "|",
    "bitwise_xor": "^",
}  # fmt: skip
COMPARISONS = {
    "equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
}  # fmt: skip
#: Between truth values, `~` standing for what a dialect calls "not".
LOGIC = {
    "bitwise_and": "{0} & {1}", "minimum": "{0} & {1}", "multiply": "{0} & {1}",
    "bitwise_or": "{0} | {1}", "maximum": "{0} | {1}", "add": "{0} | {1}",
    "bitwise_xor": "{0} != {1}", "not_equal": "{0} != {1}", "equal": "{0} == {1}",
    "less": "~{0} & {1}", "less_equal": "~{0} | {1}", "greater": "{0} & ~{1}", "greater_equal": "{0} | ~{1}",
    "invert": "~{0}",
}  # fmt: skip
#: Buffers whose elements are exactly of a compute type.
EXACT: dict[DType, ComputeType] = {
    "float32": "f32", "float64": "f64", "int32": "i32", "uint32": "u32", "int64": "i64", "uint64": "u64",
}  # fmt: skip
WIDE_TYPES = ("f64", "i64", "u64")


def is_multiple(index: Index, of: int) -> bool:
    """Whether a position surely is a multiple, whatever its variables are."""
    return index.constant % of == 0 and all(factor % of == 0 for _, factor in index.terms)


class VectorWords(ABC):
    """The words of one dialect for vectors of `width` components. Truth values of a vector are a vector, too."""

    width: int
    #: Names of the components.
    components: Sequence[str]
    #: Sums are kept in so many vectors at once, because one would have to wait for its last addition.
    chains: int = 1
    #: Whether an array of vectors is kept in registers when its positions are known.
    has_arrays: bool = False
    #: Whether it is worth while to do single components where there is no other way.
    patient: bool = True
    #: How many loads and stores of whole vectors have been printed.
    together: int = 0

    @abstractmethod
    def type_name(self, type: ComputeType) -> str: ...

    @abstractmethod
    def broadcast(self, type: ComputeType, text: str) -> str: ...

    @abstractmethod
    def joined(self, type: ComputeType, parts: Sequence[str]) -> str:
        """A vector of single values."""

    @abstractmethod
    def let(self, name: str, type: ComputeType, value: str) -> str: ...

    @abstractmethod
    def variable(self, name: str, type: ComputeType, value: str) -> str: ...

    @abstractmethod
    def load(self, buffer: Buffer, index: Index) -> str | None:
        """Neighbours in a buffer from a position on; `None` where they cannot be had together."""

    @abstractmethod
    def store(self, buffer: Buffer, index: Index, value: str) -> list[str] | None: ...

    @abstractmethod
    def word(self, buffer: Buffer, value: str) -> str | None:
        """Elements that fill a word, as that word."""

    @abstractmethod
    def select(self, type: ComputeType, no: str, yes: str, mask: str) -> str: ...

    @abstractmethod
    def compare(self, fn: str, of: ComputeType, one: str, other: str) -> str: ...

    @abstractmethod
    def logic(self, pattern: str, texts: Sequence[str]) -> str: ...

    @abstractmethod
    def cast(self, of: ComputeType, to: ComputeType, text: str) -> str | None: ...

    @abstractmethod
    def call(self, fn: str, of: ComputeType, result: ComputeType, texts: Sequence[str]) -> str | None:
        """A function that takes vectors; `None` when it is for single values only."""

    def opaque(self, type: ComputeType, text: str) -> str:
        """The same values, of which a compiler does not know how they were made."""
        return text

    def component(self, text: str, number: int) -> str:
        return f"{text}.{self.components[number]}"

    def spread(self, buffer: Buffer, index: Index, offsets: Sequence[int]) -> str | None:
        """Elements at fixed distances from a position, as where several numbers share a byte; `None` if one by one."""
        return None

    def halved(self) -> VectorWords | None:
        """Words for vectors of half the size, where a vector has halves called `lo` and `hi`."""
        return None


class WGSLWords(VectorWords):
    """Vectors of four. A buffer is declared in vectors when it is read or written in them (see `WGSLPrinter`)."""

    width = 4
    components = ("x", "y", "z", "w")
    chains = 4

    def __init__(self, printer: WGSLPrinter) -> None:
        self._printer = printer
        #: Buffers that were read or written in vectors.
        self.used: set[str] = set()

    def type_name(self, type: ComputeType) -> str:
        return f"vec4<{type}>"

    def broadcast(self, type: ComputeType, text: str) -> str:
        return f"vec4<{type}>({text})"

    def joined(self, type: ComputeType, parts: Sequence[str]) -> str:
        return f"vec4<{type}>({', '.join(parts)})"

    def let(self, name: str, type: ComputeType, value: str) -> str:
        return f"let {name} = {value};"

    def variable(self, name: str, type: ComputeType, value: str) -> str:
        return f"var {name} = {value};"

    def load(self, buffer: Buffer, index: Index) -> str | None:
        if buffer.has_offset or buffer.atomic or self._printer.windows(buffer) > 1:
            return None
        if buffer.dtype in ("bool", "int8", "uint8"):
            return self._load_bytes(buffer, index)
        grain = self._printer.grain(buffer)
        shift = index.constant % 4
        whole = index - shift
        if not is_multiple(whole, 4) or (shift and grain != 4) or not self._in_vectors(buffer, grain):
            return None
        at = self._printer.position(whole // grain)
        if grain == 2:
            return f"vec4<{EXACT[buffer.dtype]}>({buffer.name}[{at}], {buffer.name}[{at} + 1])"
        if shift:
            after = self._printer.position(whole // grain + 1)
            first, rest = "xyzw"[shift:], "xyzw"[:shift]
            text = f"vec4({buffer.name}[{at}].{first}, {buffer.name}[{after}].{rest})"
        else:
            text = f"{buffer.name}[{at}]"
        return f"vec4<f32>({text})" if buffer.dtype == "float16" else text

    def _in_vectors(self, buffer: Buffer, grain: int) -> bool:
        if grain == 1 or not self._printer.may_be_in_vectors(buffer):
            return False
        self.used.add(buffer.name)
        return True

    def _load_bytes(self, buffer: Buffer, index: Index) -> str | None:
        """Four elements share a word."""
        if not is_multiple(index, 4):
            return None
        word = f"{buffer.name}[{self._printer.position(index // 4)}]"
        if buffer.dtype == "int8":
            return f"((vec4<i32>(bitcast<i32>({word})) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u))"
        parts = f"((vec4<u32>({word}) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u))"
        return f"({parts} != vec4<u32>(0u))" if buffer.dtype == "bool" else parts

    def spread(self, buffer: Buffer, index: Index, offsets: Sequence[int]) -> str | None:
        """All of them out of one word."""
        count = max(offsets) + 1
        plain = not (buffer.has_offset or buffer.atomic or self._printer.windows(buffer) > 1)
        if (
            buffer.dtype not in ("int8", "uint8")
            or not plain
            or count not in (1, 2, 4)
            or not is_multiple(index, count)
        ):
            return None
        place = self._printer.position(index)
        word = f"{buffer.name}[{self._printer.position(index // 4)}]"
        begin = "" if is_multiple(index, 4) else f" + vec4<u32>((u32({place}) & 3u) * 8u)"
        if buffer.dtype == "uint8":
            shifts = ", ".join(f"{8 * offset}u" for offset in offsets)
            return f"((vec4<u32>({word}) >> (vec4<u32>({shifts}){begin})) & vec4<u32>(255u))"
        shifts = ", ".join(f"{24 - 8 * offset}u" for offset in offsets)
        moved = f"vec4<i32>(bitcast<i32>({word})) << (vec4<u32>({shifts}){begin.replace('+', '-')})"
        return f"(({moved}) >> vec4<u32>(24u))"

    def store(self, buffer: Buffer, index: Index, value: str) -> list[str] | None:
        grain = self._printer.grain(buffer)
        if buffer.has_offset or buffer.atomic or self._printer.windows(buffer) > 1 or not is_multiple(index, 4):
            return None
        if not self._in_vectors(buffer, grain):
            return None
        at = self._printer.position(index // grain)
        if grain == 2:
            return [f"{buffer.name}[{at}] = {value}.xy;", f"{buffer.name}[{at} + 1] = {value}.zw;"]
        if buffer.dtype == "float16":
            value = f"vec4<f16>({value})"
        return [f"{buffer.name}[{at}] = {value};"]

    def word(self, buffer: Buffer, value: str) -> str | None:
        match buffer.dtype:
            case "bool":
                bits = f"vec4<u32>({value})"
            case "int8":
                bits = f"bitcast<vec4<u32>>({value}) & vec4<u32>(255u)"
            case "uint8":
                bits = value
            case _:
                return None
        return f"word_{buffer.name} = dot({bits}, vec4<u32>(1u, 256u, 65536u, 16777216u));"

    def select(self, type: ComputeType, no: str, yes: str, mask: str) -> str:
        return f"select({no}, {yes}, {mask})"

    def compare(self, fn: str, of: ComputeType, one: str, other: str) -> str:
        return self._printer.comparison(fn, of, one, other) or f"({one} {COMPARISONS[fn]} {other})"

    def logic(self, pattern: str, texts: Sequence[str]) -> str:
        return f"({pattern.format(*texts)})".replace("~", "!")

    def cast(self, of: ComputeType, to: ComputeType, text: str) -> str | None:
        name = self._printer.library_name(f"cast_{to}", of)
        return None if name in read("wgsl") else f"vec4<{to}>({text})"

    def opaque(self, type: ComputeType, text: str) -> str:
        return self._printer.opaque_vector(type, text)

    def call(self, fn: str, of: ComputeType, result: ComputeType, texts: Sequence[str]) -> str | None:
        if fn == "right_shift" and of == "u32":
            distance = f"({texts[1]} & vec4<u32>(31u))"
            return f"select(vec4<u32>(0u), {texts[0]} >> {distance}, {texts[1]} < vec4<u32>(32u))"
        name = self._printer.library_name(fn, of)
        if name in read("wgsl"):
            return None
        return f"vec4<{name}>({texts[0]})" if name == of else f"{name}({', '.join(texts)})"


class OpenCLWords(VectorWords):
    """As many components as fit into the registers of the device. A truth value is an int: 0, or -1 for true."""

    _NAMES: ClassVar[dict[ComputeType, str]] = {
        "bool": "int", "f32": "float", "f64": "double", "i32": "int", "u32": "uint", "i64": "long", "u64": "ulong",
    }  # fmt: skip
    _ELEMENTS: ClassVar[dict[DType, str]] = {"int8": "char", "uint8": "uchar", "int16": "short", "uint16": "ushort"}

    def __init__(self, printer: OpenCLPrinter, width: int) -> None:
        self._printer = printer
        self.width = width
        self.components = [f"s{number:x}" for number in range(width)]
        self.patient = width <= 4
        self.has_arrays = True
        self.chains = 4 if printer.target.scalar_invocations else 1

    def halved(self) -> VectorWords | None:
        return OpenCLWords(self._printer, self.width // 2) if self.width > 2 else None

    def type_name(self, type: ComputeType) -> str:
        return f"{self._NAMES[type]}{self.width}"

    def broadcast(self, type: ComputeType, text: str) -> str:
        return f"({self.type_name(type)})({text} ? -1 : 0)" if type == "bool" else f"({self.type_name(type)})({text})"

    def joined(self, type: ComputeType, parts: Sequence[str]) -> str:
        values = [f"{part} ? -1 : 0" for part in parts] if type == "bool" else parts
        return f"({self.type_name(type)})({', '.join(values)})"

    def let(self, name: str, type: ComputeType, value: str) -> str:
        return f"const {self.type_name(type)} {name} = {value};"

    def variable(self, name: str, type: ComputeType, value: str) -> str:
        return f"{self.type_name(type)} {name} = {value};"

    def _address(self, buffer: Buffer, index: Index) -> str:
        """As a number of vectors where it is one."""
        first = f"offset_{buffer.name} + " if buffer.has_offset else ""
        if not first and is_multiple(index, self.width):
            return f"{self._printer.position(index // self.width)}, {buffer.name}"
        return f"0, {buffer.name} + {first}{self._printer.position(index)}"

    def load(self, buffer: Buffer, index: Index) -> str | None:
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
        """As many neighbours as are needed, each as often as it is needed."""
        count = max(offsets) + 1
        if count not in (2, 4, 8, 16) or count > self.width:
            return None
        text = OpenCLWords(self._printer, count).load(buffer, index)
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
        if buffer.dtype not in EXACT or not self._printer.target.scalar_invocations:
            return [f"vstore{width}({value}, {at});"]
        # For processors, compilers are known to take vstore apart.
        first = f"offset_{buffer.name} + " if buffer.has_offset else ""
        loose = self._printer.loose_vector(self.type_name(EXACT[buffer.dtype]), ITEMSIZE[buffer.dtype])
        return [f"*(__global {loose} *)({buffer.name} + {first}{self._printer.position(index)}) = {value};"]

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
            return f"convert_{self._NAMES[result]}{self.width}(convert_{narrow}{self.width}({texts[0]}))"
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


def vector_width(target_width: int, types: set[ComputeType]) -> int:
    """As many as fit into a register, when it holds `target_width` of 32 bits; of the narrowest type there is."""
    return max(2, target_width // 2 if types and types <= set(WIDE_TYPES) else target_width)
