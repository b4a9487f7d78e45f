"""WGSL: typed, without pointers into buffers, nothing narrower than 32 bits in them, and vectors of four."""

from __future__ import annotations

from collections.abc import Sequence, Set

from anygpu.engines.codegen.dialects.vector_text import EXACT, VectorSyntax, is_multiple
from anygpu.engines.codegen.dialects.vectors import VectorPrinter
from anygpu.engines.codegen.functions.source import defined
from anygpu.engines.codegen.index import Index
from anygpu.engines.codegen.kernel import MINUS_ONE
from anygpu.engines.codegen.kernel_ir import Apply, Assign, Buffer, Fold, Loop, Statement
from anygpu.engines.codegen.target import COMPARISONS, INDENT, WIDE_TYPES, ComputeType, Target, indented
from anygpu.program.dtypes import ITEMSIZE, DType

_ELEMENTS: dict[DType, str] = {
    "int32": "i32",
    "uint32": "u32",
    "float32": "f32",
    "int64": "i64",
    "uint64": "u64",
    "float64": "f64",
}
#: Numbers up to this, and down to its inverse, have an inverse that is exact to the last bit but one.
_ORDINARY = {"f32": 2.0**100, "f64": 2.0**1000}


class WGSLPrinter(VectorPrinter):
    """Kernels as WGSL."""

    def __init__(self, target: Target) -> None:
        """Begin with single elements; which buffers are arrays of vectors is found while a kernel is printed."""
        super().__init__(target)
        self._needs_zero = False
        #: A buffer has one type of elements in all of a kernel: those that are declared in vectors, when that is known.
        self._in_vectors: frozenset[str] | None = frozenset()
        self._done_in_vectors: set[str] = set()
        self._stored_singly: set[str] = set()
        self._alone = False

    def comparison(self, fn: str, of: ComputeType, one: str, other: str) -> str | None:
        """Drivers have been seen to say that NaN is not unequal to anything; that it is not equal, all of them know."""
        return f"!({one} == {other})" if fn == "not_equal" and of in ("f32", "f64") else None

    def hides_constants(self, expr: Apply) -> bool:
        """Compilers compute what is constant themselves, and refuse what overflows or what they cannot compute."""
        return True

    def must_hide(self, value: float, type: ComputeType) -> bool:
        """All but ordinary numbers.

        lavapipe was seen to take a division by the constant 0 for undefined (and to store nothing then), and products
        with 0 and quotients of 0 for 0. Compilers also divide by multiplying with the inverse, which must exist.
        """
        size = abs(value)
        return not 1 / _ORDINARY[type] <= size <= _ORDINARY[type]

    def from_bits(self, bits: int, type: ComputeType) -> str:
        """A number by its bits, combined with a `zero` that is known only when the kernel runs.

        Compilers of WGSL compute with constants beforehand, and refuse those that overflow or are not finite.
        """
        self._needs_zero = True
        if type == "bool":
            return f"(zero {'==' if bits else '!='} 0u)"
        wide = type in WIDE_TYPES
        text = f"({bits:#x}lu ^ u64(zero))" if wide else f"({bits:#x}u ^ zero)"
        return text if type in ("u32", "u64") else f"bitcast<{type}>{text}"

    def opaque(self, value: str, type: ComputeType) -> str:
        """The same number, hidden from the compiler's algebra by a zero that is known only when the kernel runs."""
        self._needs_zero = True
        if type == "f64":
            return f"bitcast<f64>(bitcast<u64>({value}) ^ u64(zero))"
        return f"bitcast<f32>(bitcast<u32>({value}) ^ zero)"

    def opaque_vector(self, type: ComputeType, value: str) -> str:
        """The same for vectors."""
        self._needs_zero = True
        zero, bits = ("u64(zero)", "u64") if type == "f64" else ("zero", "u32")
        return f"bitcast<vec4<{type}>>(bitcast<vec4<{bits}>>({value}) ^ vec4<{bits}>({zero}))"

    def library_texts(self) -> str:
        """The definitions that are used, with the hidden zero where one is needed."""
        # Groups are never counted along the third dimension: this is 0, and no compiler can know.
        zero = "var<private> zero: u32;\n\n" if self._needs_zero else ""
        return f"{zero}{super().library_texts()}".strip()

    # -- vectors

    def vector_syntax(self, loop: Loop) -> VectorSyntax:
        return WGSLVectors(self)

    def loop(self, loop: Loop) -> list[str]:
        """The lines of a loop; one that is `alone` stores elements that no vector overlaps."""
        outside, self._alone = self._alone, self._alone or loop.alone
        lines = super().loop(loop)
        self._alone = outside
        return lines

    def done_in(self, syntax: VectorSyntax) -> None:
        if isinstance(syntax, WGSLVectors):
            self._done_in_vectors |= syntax.used

    def rehearse(self, body: Sequence[Statement]) -> None:
        super().rehearse(body)
        self._needs_zero = False

    def try_out(self, body: Sequence[Statement]) -> None:
        """Finds out which buffers are read or written in vectors, and then whether that suffices.

        One component of a vector may be written only by the invocation that has all of it: the store may touch others.
        """
        self._in_vectors, self._done_in_vectors, self._stored_singly = None, set(), set()
        super().try_out(body)
        self._in_vectors = frozenset(self._done_in_vectors - self._stored_singly)
        super().try_out(body)

    def declare_in_vectors(self, names: Set[str] | None) -> None:
        """Sets the buffers that are declared in vectors; `None` while that is being found out."""
        self._in_vectors = None if names is None else frozenset(names)

    def may_be_in_vectors(self, buffer: Buffer) -> bool:
        return self._in_vectors is None or buffer.name in self._in_vectors

    def grain(self, buffer: Buffer) -> int:
        """The elements of a vector in a buffer; 1 where the dialect has no vectors of the type."""
        if buffer.dtype == "float16":
            return 4 if self.target.has("f16") else 1
        return 16 // ITEMSIZE[buffer.dtype] if buffer.dtype in _ELEMENTS else 1

    # -- lanes

    def fold(self, fold: Fold) -> list[str]:
        """Lanes that are one subgroup need neither shared memory nor barriers."""
        size = self.target.subgroup_size if self.target.has("subgroups") else 0
        if fold.lanes * fold.rows > size or any(name.type in WIDE_TYPES for name in fold.names):
            return super().fold(fold)
        name, function = fold.names[0], _subgroup_function(fold)
        if function is not None:
            return [f"{name.name} = {function}({name.name});"]
        shuffled = []
        for mine, other in zip(fold.names, fold.others, strict=True):
            moved = f"subgroupShuffleXor({self.as_shared(mine)}, reach)"
            shuffled.append(self.let(other.name, other.type, self.from_shared(moved, other.type)))
        head = f"for (var reach = {fold.lanes // 2}u; reach > 0u; reach /= 2u) {{"
        return [head, *indented([*shuffled, *self.lines(fold.combine)]), "}"]

    # -- buffers

    def _declared(self, buffer: Buffer) -> str:
        """The type of a whole buffer, with its length where all of it is bound: no arrayLength() is needed then."""
        element, count = self._element(buffer), buffer.size
        if buffer.name in (self._in_vectors or ()):
            grain = self.grain(buffer)
            element, count = f"vec{grain}<{element}>", -(-count // grain)
        elif buffer.dtype not in _ELEMENTS and element == "u32":
            count = -(-buffer.nbytes // 4)
        sized = not buffer.has_offset and self.windows(buffer) == 1
        return f"array<{element}, {max(count, 1)}>" if sized else f"array<{element}>"

    def _element(self, buffer: Buffer) -> str:
        """The type of a buffer's elements: narrow ones share words."""
        if buffer.atomic:
            return f"atomic<{_ELEMENTS[buffer.dtype]}>"
        if buffer.dtype == "float16" and self.target.has("f16"):
            return "f16"
        return _ELEMENTS.get(buffer.dtype, "u32")

    def load(self, buffer: Buffer, index: str) -> str:
        """The element at a position, through a function where the buffer has several windows."""
        index = self._shifted(buffer, index)
        if self.windows(buffer) > 1:
            return f"load_{buffer.name}({index})"
        return self._unpacked(buffer, buffer.name, index)

    def _unpacked(self, buffer: Buffer, array: str, index: str) -> str:
        """The value of an element, out of the word that it is in."""
        dtype = buffer.dtype
        if dtype in _ELEMENTS:
            return f"{array}[{self._place(buffer, index)}]"
        if dtype == "float16" and self.target.has("f16"):
            return f"f32({array}[{self._place(buffer, index)}])"
        simple = index if index.isidentifier() or index.isdigit() else f"({index})"
        if ITEMSIZE[dtype] == 1:
            word, shift, bits = f"{array}[{simple} >> 2u]", f"(u32({index}) & 3u) << 3u", 8
        else:
            word, shift, bits = f"{array}[{simple} >> 1u]", f"(u32({index}) & 1u) << 4u", 16
        if dtype in ("int8", "int16"):
            return f"extractBits(bitcast<i32>({word}), {shift}, {bits}u)"
        unsigned = f"extractBits({word}, {shift}, {bits}u)"
        if dtype == "bool":
            return f"({unsigned} != 0u)"
        if dtype in ("float16", "bfloat16"):
            name = self.library_name("f16_from_bits" if dtype == "float16" else "bf16_from_bits", "u32")
            return f"{name}({unsigned})"
        return unsigned

    def _place(self, buffer: Buffer, index: str) -> str:
        """The index of an element in its buffer; in a buffer of vectors, a component of one."""
        if buffer.name not in (self._in_vectors or ()):
            return index
        simple, grain = index if index.isidentifier() else f"({index})", self.grain(buffer)
        return f"{simple} / {grain}][{simple} % {grain}"

    def store(self, buffer: Buffer, index: str, value: str) -> list[str]:
        """The statements that store a value at a position, through a function where the buffer has several windows."""
        if not self._alone:
            self._stored_singly.add(buffer.name)
        index = self._shifted(buffer, index)
        if self._element(buffer) == "f16":
            value = f"f16({value})"
        if self.windows(buffer) > 1:
            return [f"store_{buffer.name}({index}, {value});"]
        return [f"{buffer.name}[{self._place(buffer, index)}] = {value};"]

    def add_to_word(self, buffer: Buffer, value: str) -> str:
        """The statement that puts a narrow element into its part of a 32-bit word, which is stored whole later."""
        match buffer.dtype:
            case "bool":
                bits = f"select(0u, 1u, {value})"
            case "int8" | "int16":
                bits = f"(bitcast<u32>({value}) & {255 if buffer.dtype == 'int8' else 65535}u)"
            case "float16" | "bfloat16":
                name = self.library_name("f16_to_bits" if buffer.dtype == "float16" else "bf16_to_bits", "f32")
                bits = f"{name}({value})"
            case _:
                bits = value
        return f"word_{buffer.name} |= {bits} << (u32(part) * {8 * ITEMSIZE[buffer.dtype]}u);"

    def _shifted(self, buffer: Buffer, index: str) -> str:
        return f"i32(numbers.offset_{buffer.name}) + {index}" if buffer.has_offset else index

    def report(self, number: int, value: str) -> str:
        return f"status[{number}] = select(u32({value}) + 1u, {MINUS_ONE}u, {value} == -1);"

    # -- texts

    def declarations(self, numbers: Sequence[str]) -> str:
        """The declarations of buffers with their bindings, and of the numbers that a launch passes."""
        lines: list[str] = []
        if any(self._element(buffer) == "f16" for buffer in self.buffers.values()):
            lines += ["enable f16;", ""]
        binding = 0
        accessors: list[str] = []
        for buffer in self.buffers.values():
            access = "read" if buffer.access == "read" and not buffer.atomic else "read_write"
            count = self.windows(buffer)
            names = [buffer.name] if count == 1 else [f"{buffer.name}_{number}" for number in range(count)]
            for name in names:
                lines.append(f"@group(0) @binding({binding}) var<storage, {access}> {name}: {self._declared(buffer)};")
                binding += 1
            if count > 1:
                accessors += self._windowed(buffer, names)
        if numbers:
            fields = ", ".join(f"{name}: u32" for name in numbers)
            lines += [f"struct Numbers {{ {fields} }}", f"@group(0) @binding({binding}) var<uniform> numbers: Numbers;"]
        return "\n".join(lines + accessors)

    def _windowed(self, buffer: Buffer, names: Sequence[str]) -> list[str]:
        """The buffer is larger than one binding: an element is in the window that its position says."""
        shift = (self.window_bytes // ITEMSIZE[buffer.dtype]).bit_length() - 1
        mask = (1 << shift) - 1
        type = _value_type(buffer.dtype)
        lines = ["", f"fn load_{buffer.name}(i: i32) -> {type} {{", f"{INDENT}let inside = i & {mask};"]
        lines.append(f"{INDENT}switch i >> {shift}u {{")
        for number, name in enumerate(names[:-1]):
            lines.append(f"{INDENT * 2}case {number}: {{ return {self._unpacked(buffer, name, 'inside')}; }}")
        lines.append(f"{INDENT * 2}default: {{ return {self._unpacked(buffer, names[-1], 'inside')}; }}")
        lines += [f"{INDENT}}}", "}"]
        if buffer.access != "read":
            stored = self._element(buffer)
            lines += ["", f"fn store_{buffer.name}(i: i32, value: {stored}) {{", f"{INDENT}let inside = i & {mask};"]
            lines.append(f"{INDENT}switch i >> {shift}u {{")
            for number, name in enumerate(names[:-1]):
                lines.append(f"{INDENT * 2}case {number}: {{ {name}[inside] = value; }}")
            lines.append(f"{INDENT * 2}default: {{ {names[-1]}[inside] = value; }}")
            lines += [f"{INDENT}}}", "}"]
        return lines

    def store_word(self, buffer: Buffer, word: str) -> list[str]:
        """A whole word of a buffer whose elements share syntax."""
        if self.windows(buffer) == 1:
            return [f"{buffer.name}[{word}] = word_{buffer.name};"]
        shift = (self.window_bytes // 4).bit_length() - 1
        lines = [f"switch {word} >> {shift}u {{"]
        names = [f"{buffer.name}_{number}" for number in range(self.windows(buffer))]
        inside = f"{word} & {(1 << shift) - 1}"
        for number, name in enumerate(names[:-1]):
            lines.append(f"{INDENT}case {number}: {{ {name}[{inside}] = word_{buffer.name}; }}")
        lines.append(f"{INDENT}default: {{ {names[-1]}[{inside}] = word_{buffer.name}; }}")
        return [*lines, "}"]

    def parameters(self, numbers: Sequence[str]) -> str:
        return ""

    @property
    def handed_on(self) -> str:
        return ""

    @property
    def taken(self) -> list[str]:
        return []

    def shared_texts(self) -> str:
        """The declarations of the group's memory; bools are words there."""
        return "\n".join(
            self.syntax.shared_array(array.name, "u32" if array.type == "bool" else array.type, array.size)
            for array in self.shared.values()
        )

    def group_line(self, groups: int, numbers: Sequence[str]) -> str:
        """The line that computes the number of the group.

        More groups than a dimension allows are folded into two dimensions, and those beyond the last one return at
        once.
        """
        zero = " zero = group_id.z;" if self._needs_zero else ""
        limit = self.target.groups_per_dimension
        first = "i32(numbers.first_group) + " if "first_group" in numbers else ""
        if limit is None or groups <= limit:
            return f"{self.syntax.position('group', f'{first}i32(group_id.x)')}{zero}"
        folded = self.syntax.position("group", f"{first}i32(group_id.x) + i32(group_id.y) * {limit}")
        return f"{folded}\n{INDENT}if (group >= {groups}) {{ return; }}{zero}"

    def entry(self, name: str, group_size: int, numbers: Sequence[str], body: Sequence[str]) -> str:
        """The text of the entry point. The lane is an argument only if the body uses it."""
        used = "\n".join(body)
        lane = [self.syntax.position("lane", self.syntax.lane)] if "lane" in used else []
        arguments = "@builtin(workgroup_id) group_id: vec3<u32>"
        if lane:
            arguments += ", @builtin(local_invocation_index) lane_index: u32"
        head = [f"@compute @workgroup_size({group_size})", f"fn {name}({arguments}) {{"]
        return "\n".join([*head, *indented([body[0], *lane, *body[1:]]), "}"])


def _subgroup_function(fold: Fold) -> str | None:
    """The built-in function that combines a value of all lanes at once."""
    match fold.combine:
        case (Assign(value=Apply() as combined),):
            floating = combined.type in ("f32", "f64")
            if combined.type == "bool":
                return {"bitwise_or": "subgroupAny", "bitwise_and": "subgroupAll"}.get(combined.fn)
            # The specification does not say what subgroupMin and subgroupMax make of NaN.
            known = {"add": "subgroupAdd", "multiply": "subgroupMul"}
            if not floating:
                known |= {"minimum": "subgroupMin", "maximum": "subgroupMax"}
            return known.get(combined.fn)
    return None


def _value_type(dtype: DType) -> str:
    known = {"bool": "bool", "int8": "i32", "int16": "i32", "uint8": "u32", "uint16": "u32"}
    return known.get(dtype) or _ELEMENTS.get(dtype, "f32")


# -- vectors in WGSL
#
# Four components, and buffers that are declared in vectors.


class WGSLVectors(VectorSyntax):
    """Vectors of four. A buffer is declared in vectors when it is read or written in them (see `WGSLPrinter`)."""

    width = 4
    chains = 4

    def __init__(self, printer: WGSLPrinter) -> None:
        """Vectors of four; `used` collects the buffers that are read or written in them."""
        self.syntax = printer.syntax
        self._printer = printer
        #: Buffers that were read or written in vectors.
        self.used: set[str] = set()

    def load(self, buffer: Buffer, index: Index) -> str | None:
        """Four neighbours from a position on, or `None`.

        Buffers are declared as arrays of vectors for it, so the position must be a multiple of four plus a constant;
        where the constant is not 0, two vectors are loaded and joined.
        """
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
        """Whether a buffer may be an array of vectors, and note it."""
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
        """The statements that store four neighbours at a multiple of four; `None` where that cannot be done."""
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
        """The statement that makes a word of four narrow elements, or `None` for types that are not a byte wide."""
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
        """A built-in function of vectors, or `None` where it is one of our library, which takes single values."""
        if fn == "right_shift" and of == "u32":
            distance = f"({texts[1]} & vec4<u32>(31u))"
            return f"select(vec4<u32>(0u), {texts[0]} >> {distance}, {texts[1]} < vec4<u32>(32u))"
        name = self._printer.library_name(fn, of)
        if name in defined("wgsl"):
            return None
        return f"vec4<{name}>({texts[0]})" if name == of else f"{name}({', '.join(texts)})"
