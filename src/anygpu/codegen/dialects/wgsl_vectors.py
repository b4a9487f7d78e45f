"""Vectors in WGSL: four components, and buffers that are declared in vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anygpu.codegen.dialects.vector_syntax import EXACT, VectorSyntax, is_multiple
from anygpu.codegen.functions.source import defined
from anygpu.codegen.index import Index
from anygpu.codegen.kernel_ir import Buffer
from anygpu.codegen.syntax import COMPARISONS
from anygpu.codegen.target import ComputeType

if TYPE_CHECKING:
    from anygpu.codegen.dialects.wgsl import WGSLPrinter


class WGSLVectors(VectorSyntax):
    """Vectors of four. A buffer is declared in vectors when it is read or written in them (see `WGSLPrinter`)."""

    width = 4
    chains = 4

    def __init__(self, printer: WGSLPrinter) -> None:
        self.syntax = printer.syntax
        self._printer = printer
        #: Buffers that were read or written in vectors.
        self.used: set[str] = set()

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
        return None if name in defined("wgsl") else f"vec4<{to}>({text})"

    def opaque(self, type: ComputeType, text: str) -> str:
        return self._printer.opaque_vector(type, text)

    def call(self, fn: str, of: ComputeType, result: ComputeType, texts: Sequence[str]) -> str | None:
        if fn == "right_shift" and of == "u32":
            distance = f"({texts[1]} & vec4<u32>(31u))"
            return f"select(vec4<u32>(0u), {texts[0]} >> {distance}, {texts[1]} < vec4<u32>(32u))"
        name = self._printer.library_name(fn, of)
        if name in defined("wgsl"):
            return None
        return f"vec4<{name}>({texts[0]})" if name == of else f"{name}({', '.join(texts)})"
