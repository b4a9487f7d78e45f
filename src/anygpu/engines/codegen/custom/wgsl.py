"""A user's WGSL kernel: its parameters, from its declarations, and the text that a driver compiles.

Only declarations are read, by their form. What stands in functions is the compiler's to understand, and so are bounds:
WGSL keeps every index inside its array by itself. `prepared_wgsl` adds what our way to pass arguments needs: bindings
in our order, uniform variables as one block of numbers, the true lengths of arrays, which may be bound with a few
bytes more, and a long grid folded into two dimensions.
"""

from __future__ import annotations

import ast
import contextlib
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from anygpu.engines.codegen.custom.reflected import (
    ConstantNumber,
    Length,
    Reflected,
    ScalarParameter,
    Unreadable,
    entry_among,
)
from anygpu.program.dtypes import ITEMSIZE, DType
from anygpu.program.ops.custom import Parameter, Three

#: Types of numbers that arrays and programs have, too.
SCALARS: dict[str, DType] = {
    "f32": "float32",
    "i32": "int32",
    "u32": "uint32",
    "f16": "float16",
    "f64": "float64",
    "i64": "int64",
    "u64": "uint64",
}
_SHORT = {"f": "f32", "i": "i32", "u": "u32", "h": "f16"}
#: Whole numbers that are computed alike in every type: nothing wraps, and no sign is lost.
_PLAIN = range(1 << 31)
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: lambda left, right: left << min(right, 31),
    ast.RShift: operator.rshift,
}

_INSIDE = r"\(((?:[^()]|\([^()]*\))*)\)"
_ATTRIBUTE = re.compile(rf"@\s*(\w+)(?:\s*{_INSIDE})?")
_ATTRIBUTES = rf"((?:@\s*\w+(?:\s*{_INSIDE})?\s*)*)"
_FUNCTION = re.compile(rf"{_ATTRIBUTES}\bfn\s+(?P<name>\w+)\s*\(")
_VARIABLE = re.compile(
    rf"{_ATTRIBUTES}\bvar\b\s*(?:<(?P<space>[\w\s,]*)>)?\s*(?P<name>\w+)\s*(?::(?P<type>[^;=]*))?[;=]"
)
_CONSTANT = re.compile(
    rf"{_ATTRIBUTES}\b(?P<keyword>const|override)\s+(?P<name>\w+)\s*(?::\s*(?P<type>\w+)\s*)?(?:=(?P<value>[^;]*))?;"
)
_STRUCT = re.compile(r"\bstruct\s+(\w+)\s*\{([^{}]*)\}")
_ALIAS = re.compile(r"\balias\s+(\w+)\s*=([^;]*);")
_COMMENT = re.compile(r"//[^\n]*|/\*")
_NESTED = re.compile(r"/\*|\*/")
_LENGTH = re.compile(r"\barrayLength\b\s*(\(\s*&\s*(\w+)\s*\))?")

#: Another text for the characters from the first place to before the second.
Edit = tuple[int, int, str]
Kind = Literal["length", "scalar", "groups", "row"]


class WGSLType(NamedTuple):
    """A type as it is written: `array<vec4<f32>, 16>` has the arguments "vec4<f32>" and "16"."""

    name: str
    arguments: tuple[str, ...]


class WGSLVariable(NamedTuple):
    """A variable of the module's scope."""

    name: str
    #: "storage", "uniform", "workgroup" or "private"; "handle" for textures and samplers.
    space: str
    access: str
    type: str
    #: Where its name and its type are in the text, and its attributes.
    at: int
    type_at: int
    attributes: dict[str, re.Match[str]]


class WGSLFunction(NamedTuple):
    """A function, by the places of its parts in the text."""

    name: str
    attributes: dict[str, re.Match[str]]
    #: Where it begins with its attributes, its name, and the brackets of its parameters and of its body.
    start: int
    at: int
    parameters: tuple[int, int]
    body: tuple[int, int]


class WGSLBuffer(NamedTuple):
    """A storage variable as an array of numbers."""

    dtype: DType
    #: Numbers in one element, and elements where the text says how many.
    parts: int
    fixed: int | None


class Number(NamedTuple):
    """A number of the kernel: where it is from, and at which byte of the block of numbers it is."""

    kind: Kind
    #: The buffer, the scalar or the axis.
    name: str
    type: str
    place: int


class Prepared(NamedTuple):
    """The text that a driver compiles. Independent of lengths, values and grids, so that it is compiled once."""

    source: str
    numbers: tuple[Number, ...]
    #: The size of the numbers, a multiple of 4.
    nbytes: int


class Module:
    """The declarations of a text, by their names."""

    def __init__(self, source: str) -> None:
        """Find them. Raises `Unreadable` for brackets that are never closed, and for names that are ours."""
        self.source = source
        #: Of the same length, with blanks in place of comments; and of what is outside of functions.
        self.text = without_comments(source)
        ours = re.search(r"\banygpu_", self.text)
        if ours is not None:
            raise Unreadable("names that begin with anygpu_ are reserved. Use another name.", ours.start())
        self.functions = {each.name: each for each in self._functions()}
        outside = self.text
        for each in self.functions.values():
            outside = _blanked(outside, each.parameters[0], each.body[1])
        self.constants = {found["name"]: found for found in _CONSTANT.finditer(outside)}
        #: Those of them that are whole numbers, whatever their types.
        self.values: dict[str, int] = {}
        for name, found in self.constants.items():
            if found["value"] and not (found["type"] or "").startswith("f"):
                with contextlib.suppress(Unreadable):
                    self.values[name] = self.number(found["value"], found.start("value"))
        self.structs = {found[1]: list(parts_of(found[2], found.start(2))) for found in _STRUCT.finditer(outside)}
        self.aliases = {found[1]: found[2] for found in _ALIAS.finditer(outside)}
        self.variables = {each.name: each for each in map(_variable, _VARIABLE.finditer(outside))}

    def _functions(self) -> Iterator[WGSLFunction]:
        for found in _FUNCTION.finditer(self.text):
            closing = self._partner(found.end() - 1, "()")
            opening = self.text.find("{", closing)
            if opening < 0:
                raise Unreadable(f"the body of {found['name']} is missing.", found.start("name"))
            yield WGSLFunction(
                found["name"],
                _attributes(found),
                found.start(),
                found.start("name"),
                (found.end() - 1, closing),
                (opening, self._partner(opening, "{}")),
            )

    def _partner(self, opening: int, pair: str) -> int:
        """Return the bracket that closes the one at `opening`."""
        depth = 0
        for found in re.compile(f"[{re.escape(pair)}]").finditer(self.text, opening):
            depth += 1 if found[0] == pair[0] else -1
            if not depth:
                return found.start()
        raise Unreadable(f"this {pair[0]} is never closed. Write {pair[1]} where it ends.", opening)

    def number(self, text: str, at: int) -> int:
        """Return the value of a constant expression. Raises `Unreadable` for what is more than plain arithmetic."""
        plain = re.sub(r"\b(0[xX][\da-fA-F]+|\d+)[iu]\b", r"\1", text)
        try:
            return self._worked_out(ast.parse(f"({plain})", mode="eval").body)
        except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
            raise Unreadable(
                f"{' '.join(text.split()) or 'this'} is not a constant that is known here. Write a whole number below "
                "2³¹, or plain arithmetic with such.",
                at,
            ) from None

    def _worked_out(self, node: ast.expr) -> int:
        """Work out an expression of names, whole numbers and plain arithmetic. Raises `ValueError` otherwise."""
        match node:
            case ast.Constant(value=int() as value) if not isinstance(value, bool):
                pass
            case ast.Name(name) if name in self.values:
                value = self.values[name]
            case ast.BinOp(left, sign, right) if type(sign) in _OPERATORS:
                value = _OPERATORS[type(sign)](self._worked_out(left), self._worked_out(right))
            case ast.Call(ast.Name("u32" | "i32" | "min" | "max" as name), given) if given:
                value = (max if name == "max" else min)(map(self._worked_out, given))
            case _:
                raise ValueError(node)
        if value not in _PLAIN:
            raise ValueError(value)
        return value

    def type(self, text: str, at: int, depth: int = 0) -> WGSLType:
        """Return the type without aliases, and with `vec4f` written as `vec4<f32>`."""
        found = re.fullmatch(r"\s*(\w+)\s*(?:<(.*)>)?\s*", text, re.DOTALL)
        if found is None or depth > 20:
            raise Unreadable(f"{text.strip() or 'this'} is not a type.", at)
        name, inner = found[1], found[2]
        if inner is None and name in self.aliases:
            return self.type(self.aliases[name], at, depth + 1)
        if inner is None and re.fullmatch(r"(?:vec[234]|mat[234]x[234])[fiuh]", name):
            return WGSLType(name[:-1], (_SHORT[name[-1]],))
        return WGSLType(name, tuple(part for part, _ in parts_of(inner or "", 0)))

    def size(self, text: str, at: int, depth: int = 0) -> tuple[int, int]:
        """Return bytes and alignment of a value in the memory of a group."""
        name, arguments = self.type(text, at, depth)
        if name in SCALARS or name == "bool":
            return (ITEMSIZE[SCALARS[name]] if name in SCALARS else 4,) * 2
        if name in self.structs:
            end, largest = 0, 1
            for part, place in self.structs[name]:
                size, alignment = self.size(_field(part, place)[1], place, depth + 1)
                end, largest = _up(end, alignment) + size, max(largest, alignment)
            return _up(end, largest), largest
        if not arguments:
            raise Unreadable(f"the size of {name} is not known.", at)
        inner, alignment = self.size(arguments[0], at, depth + 1)
        if name == "atomic":
            return inner, alignment
        if name == "array" and len(arguments) == 2:
            return _up(inner, alignment) * self.number(arguments[1], at), alignment
        if found := re.fullmatch(r"vec([234])|mat([234])x([234])", name):
            rows, columns = int(found[1] or found[3]), int(found[2] or 1)
            alignment = inner * (2 if rows == 2 else 4)
            return alignment * columns if found[2] else inner * rows, alignment
        raise Unreadable(f"the size of {name} is not known.", at)

    def reached(self, entry: str) -> set[str]:
        """Return the names that a function uses, by itself or through the functions it calls."""
        names: set[str] = set()
        waiting = [entry]
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            used = self._used(self.functions[name])
            names |= used
            waiting += used & self.functions.keys()
        return names

    def _used(self, function: WGSLFunction) -> set[str]:
        """Return the names in a function's body, except those that it declares before it uses them."""
        body = self.text[function.body[0] : function.body[1]]
        own = set(re.findall(r"(\w+)\s*:", self.text[function.parameters[0] : function.parameters[1]]))
        for found in re.finditer(r"\b(?:let|var|const)\b\s*(?:<[^>]*>)?\s*(\w+)([^;]*)", body):
            word = re.compile(rf"(?<![.\w]){found[1]}\b")
            if not word.search(body[: found.start(1)]) and not word.search(found[2]):
                own.add(found[1])
        return set(re.findall(r"(?<![.\w])[A-Za-z_]\w*", body)) - own


def without_comments(source: str) -> str:
    """Return the source with blanks in place of comments; block comments nest."""
    parts: list[str] = []
    place = 0
    while (found := _COMMENT.search(source, place)) is not None:
        end, depth = found.end(), int(found[0] == "/*")
        while depth:
            mark = _NESTED.search(source, end)
            if mark is None:
                raise Unreadable("this comment is never closed. Write */ at its end.", found.start())
            end, depth = mark.end(), depth + (1 if mark[0] == "/*" else -1)
        parts += [source[place : found.start()], _blank(source, found.start(), end)]
        place = end
    return "".join((*parts, source[place:]))


def _blanked(text: str, start: int, stop: int) -> str:
    return f"{text[:start]}{_blank(text, start, stop)}{text[stop:]}"


def _blank(text: str, start: int, stop: int) -> str:
    return re.sub(r"[^\n]", " ", text[start:stop])


def parts_of(text: str, at: int) -> Iterator[tuple[str, int]]:
    """Return the parts between commas outside of brackets, each with its place. A trailing comma is allowed."""
    depth = first = 0
    # A shift to the left opens nothing; two closing brackets look like one to the right.
    for place, character in enumerate(f"{text.replace('<<', '  ')},"):
        depth += (character in "(<[") - (character in ")>]")
        if character == "," and (depth <= 0 or place == len(text)):
            part = text[first:place]
            if part.strip():
                yield part.strip(), at + first + len(part) - len(part.lstrip())
            first = place + 1


def _field(text: str, at: int) -> tuple[str, str, int]:
    """Return the name and type of a member or parameter, without attributes, and where the type is."""
    found = re.fullmatch(rf"{_ATTRIBUTES}(?P<name>\w+)\s*:\s*(?P<type>.*)", text, re.DOTALL)
    if found is None:
        raise Unreadable(f"{text} is not understood: write name: type.", at)
    return found["name"], found["type"], at + found.start("type")


def _attributes(found: re.Match[str]) -> dict[str, re.Match[str]]:
    return {each[1]: each for each in _ATTRIBUTE.finditer(found.string, found.start(1), found.end(1))}


def _variable(found: re.Match[str]) -> WGSLVariable:
    attributes = _attributes(found)
    space, _, access = (found["space"] or "").replace(" ", "").partition(",")
    if not space:
        space = "handle" if "binding" in attributes else "private"
    type = found["type"] or ""
    type_at = max(found.start("type"), 0) + len(type) - len(type.lstrip())
    return WGSLVariable(
        found["name"], space.strip(), access.strip() or "read", type, found.start("name"), type_at, attributes
    )


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


# -- the parameters of a kernel


def reflected_wgsl(source: str, entry: str | None, constants: Mapping[str, ConstantNumber]) -> Reflected:
    """Return the buffers, scalars and group size of a kernel, read from its declarations.

    Raises `Unreadable` with the place of what is not understood.
    """
    source = with_constants(Module(source), constants)
    module = Module(source)
    function = entry_of(module, entry)
    parameters: list[Parameter] = []
    scalars: list[ScalarParameter] = []
    lengths: dict[str, Length] = {}
    for variable in resources_of(module, function):
        if variable.space == "uniform":
            scalars += [ScalarParameter(name, SCALARS[type]) for name, type in numbers_of(module, variable)]  # type: ignore[arg-type]
            continue
        buffer = buffer_of(module, variable)
        parameters.append(Parameter(variable.name, buffer.dtype, "input" if variable.access == "read" else "output"))
        if buffer.fixed is not None:
            lengths[variable.name] = Length(exactly=buffer.fixed * buffer.parts)
        elif buffer.parts > 1:
            lengths[variable.name] = Length(multiple=buffer.parts)
    return Reflected(
        language="wgsl",
        entry=function.name,
        source=source,
        parameters=tuple(parameters),
        scalars=tuple(scalars),
        group=group_of(module, function),
        lengths=lengths,
        group_memory=group_memory(module, function),
    )


def entry_of(module: Module, entry: str | None) -> WGSLFunction:
    kernels = [name for name, each in module.functions.items() if "compute" in each.attributes]
    return module.functions[entry_among(kernels, entry, "@compute")]


def resources_of(module: Module, function: WGSLFunction) -> list[WGSLVariable]:
    """The resources in the order of their bindings. Each of several kernels in a text has those that it uses."""
    alone = sum("compute" in each.attributes for each in module.functions.values()) == 1
    used = module.reached(function.name) if not alone else module.variables
    found: dict[int, WGSLVariable] = {}
    for variable in module.variables.values():
        name, at, attributes = variable.name, variable.at, variable.attributes
        if variable.space not in ("storage", "uniform", "handle") or name not in used:
            continue
        if variable.space == "handle":
            raise Unreadable(
                f"{name} is a texture or a sampler. Kernels take arrays: use var<storage, read> {name}: array<f32>, "
                "and index it.",
                at,
            )
        group, binding = (attributes.get(each) for each in ("group", "binding"))
        if group is None or binding is None:
            raise Unreadable(f"{name} has no @group(0) @binding(n) before it.", at)
        if module.number(group[2] or "", group.start()):
            raise Unreadable(f"{name} is in another group: put all of them into @group(0).", group.start())
        number = module.number(binding[2] or "", binding.start())
        if number in found:
            raise Unreadable(
                f"{name} and {found[number].name} are both at binding {number}. Renumber one.", binding.start()
            )
        found[number] = variable
    return [found[number] for number in sorted(found)]


def buffer_of(module: Module, variable: WGSLVariable) -> WGSLBuffer:
    """Return the element type of a storage variable; one that is no array has one element."""
    name, at = variable.name, variable.type_at
    type = module.type(variable.type, at)
    fixed: int | None = 1
    if type.name == "array":
        if not type.arguments:
            raise Unreadable(f"the type of {name}'s elements is missing: array<f32>.", at)
        fixed = None
        if len(type.arguments) > 1:
            place = at + max(variable.type.strip().find(type.arguments[1]), 0)
            fixed = module.number(type.arguments[1], place)
            if not fixed:
                raise Unreadable("0 is not a number of elements.", place)
        at += max(variable.type.strip().find(type.arguments[0]), 0)
        type = module.type(type.arguments[0], at)
    inner = type.arguments[0] if type.arguments else ""
    if type.name == "vec3":
        raise Unreadable(
            f"elements of array<vec3<...>> are 16 bytes apart, which no array of {name}'s type is. Use array<f32> and "
            "three indices, or vec4.",
            at,
        )
    if type.name in SCALARS or (type.name == "atomic" and inner in SCALARS):
        return WGSLBuffer(SCALARS[inner or type.name], 1, fixed)
    if type.name in ("vec2", "vec4") and inner in SCALARS:
        return WGSLBuffer(SCALARS[inner], int(type.name[3]), fixed)
    what = "a struct" if type.name in module.structs else "an array of arrays" if type.name == "array" else type.name
    raise Unreadable(
        f"{name} holds {what}. Buffers are arrays of numbers: {', '.join(SCALARS)}, vectors of 2 or 4 of them, or "
        "atomic<u32> and atomic<i32>.",
        at,
    )


def numbers_of(module: Module, variable: WGSLVariable) -> list[tuple[str, str]]:
    """Return the numbers of a uniform variable, each with its type."""
    advice = "Numbers are passed one by one: use a scalar or a struct of scalars"
    type = module.type(variable.type, variable.type_at).name
    if type in SCALARS:
        return [(variable.name, type)]
    if type not in module.structs:
        raise Unreadable(f"{variable.name} is {type}. {advice}.", variable.type_at)
    found: list[tuple[str, str]] = []
    for part, place in module.structs[type]:
        name, written, at = _field(part, place)
        inner = module.type(written, at).name
        if inner not in SCALARS:
            raise Unreadable(f"{name} is {inner}. {advice}, or an array in var<storage, read>.", at)
        found.append((name, inner))
    return found


def group_of(module: Module, function: WGSLFunction) -> Three:
    """The three sizes of `@workgroup_size`; raises `Unreadable` where they are missing or no constants."""
    attribute = function.attributes.get("workgroup_size")
    if attribute is None:
        raise Unreadable(f"{function.name} has no @workgroup_size. Write @workgroup_size(64).", function.at)
    parts = list(parts_of(attribute[2] or "", attribute.start(2)))
    sizes = [module.number(part, at) for part, at in parts]
    if not 1 <= len(sizes) <= 3 or not all(sizes):
        raise Unreadable("@workgroup_size takes one to three numbers, none of them 0.", attribute.start())
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def group_memory(module: Module, function: WGSLFunction) -> int:
    """Return the bytes of workgroup memory that an entry point uses. wgpu does not check them against the device's
    limit.
    """
    used = module.reached(function.name)
    total = 0
    for variable in module.variables.values():
        if variable.space == "workgroup" and variable.name in used:
            size, alignment = module.size(variable.type, variable.type_at)
            total = _up(total, alignment) + size
    return total


def with_constants(module: Module, given: Mapping[str, ConstantNumber]) -> str:
    """Overrides become constants, each in its own line, and with the value that was given for it."""
    overrides = {name: each for name, each in module.constants.items() if each["keyword"] == "override"}
    for name in given:
        if name not in overrides:
            known = ", ".join(overrides) or "none"
            raise Unreadable(f"there is no override {name!r} to set; available: {known}.")
    edits: list[Edit] = []
    for name, found in overrides.items():
        edits.append((found.start(1), found.end(1), _blank(module.source, found.start(1), found.end(1))))
        edits.append((*found.span("keyword"), "const   "))
        if name in given:
            start, stop = found.span("value") if found["value"] else (found.end() - 1,) * 2
            text = _literal(found, given[name]) + "\n" * module.source.count("\n", start, stop)
            edits.append((start, stop, f" {text}" if found["value"] else f" = {text}"))
        elif not found["value"]:
            raise Unreadable(f"{name} has no value. Give it one: constants={{{name!r}: ...}}.", found.start("name"))
    return edited(module.source, edits)


def _literal(constant: re.Match[str], value: ConstantNumber) -> str:
    """Return the value as WGSL writes it, with a point if the constant has one. The compiler checks that it fits."""
    if isinstance(value, bool):
        return str(value).lower()
    before = (constant["value"] or "").strip()
    is_real = constant["type"].startswith("f") if constant["type"] else re.match(r"-?[\d.]+[.eEfh]", before)
    return repr(float(value) if is_real else value)


def edited(source: str, edits: list[Edit]) -> str:
    """Return the source with each text in place of the characters from start to stop."""
    parts, last = [], 0
    for start, stop, text in sorted(edits, key=lambda each: each[:2]):
        parts += [source[last:start], text]
        last = stop
    return "".join((*parts, source[last:]))


# -- a kernel made ready to run
#
# Lines and what a person reads in them stay: everything that is added stands in the user's lines, or after the last
# one.


@lru_cache(maxsize=256)
def prepared_wgsl(source: str, entry: str, *, folded: bool) -> Prepared:
    """Return the kernel with storage buffers bound in the order of our parameters, and its numbers as one block after
    them.

    `folded` folds a grid that is too long for one dimension into two. Raises `Unreadable` where that is not possible.
    """
    module = Module(source)
    function = entry_of(module, entry)
    resources = resources_of(module, function)
    storage = [each for each in resources if each.space == "storage"]
    edits = [(*each.attributes["binding"].span(2), str(position)) for position, each in enumerate(storage)]
    kept: list[WGSLFunction] = []
    for each in module.functions.values():
        if each is function or not {"compute", "vertex", "fragment"} & each.attributes.keys():
            kept.append(each)
        else:
            edits.append((each.start, each.body[1] + 1, _blank(source, each.start, each.body[1] + 1)))
    wanted: list[tuple[Kind, str, str]] = []
    values: dict[str, str] = {}
    for variable in resources:
        if variable.space == "uniform":
            found = numbers_of(module, variable)
            first = len(wanted)
            wanted += [("scalar", name, type) for name, type in found]
            fields = ", ".join(f"anygpu_numbers.number_{first + place}" for place in range(len(found)))
            type = module.type(variable.type, variable.type_at).name
            values[variable.name] = fields if type in SCALARS else f"{type}({fields})"
    edits += list(_with_values(module, kept, values))
    lengths = {each.name: len(wanted) + place for place, each in enumerate(storage)}
    used = list(_with_lengths(module, kept, lengths))
    edits += used
    if used:
        wanted += [("length", each.name, "u32") for each in storage]
    added: list[str] = []
    if folded:
        added.append(_folded(module, function, len(wanted), edits))
        wanted += [*(("groups", axis, "u32") for axis in "xyz"), ("row", "", "u32")]
    numbers: list[Number] = []
    end = 0
    for kind, name, type in wanted:
        size = ITEMSIZE[SCALARS[type]]
        numbers.append(Number(kind, name, type, _up(end, size)))
        end = numbers[-1].place + size
    if numbers:
        members = ", ".join(f"number_{place}: {each.type}" for place, each in enumerate(numbers))
        added += [
            f"struct anygpu_Numbers {{ {members} }}",
            f"@group(0) @binding({len(storage)}) var<uniform> anygpu_numbers: anygpu_Numbers;",
        ]
    return Prepared("\n".join([edited(source, edits), *added, ""]), tuple(numbers), _up(end, 4))


def _with_values(module: Module, functions: Sequence[WGSLFunction], values: Mapping[str, str]) -> Iterator[Edit]:
    """Declare uniform variables in each function that names them, around its body, so that its own names go first."""
    for function in functions:
        opening, closing = function.body
        parameters = module.text[function.parameters[0] : function.parameters[1]]
        declared = [
            f"let {name} = {value};"
            for name, value in values.items()
            if re.search(rf"\b{name}\b", module.text[opening:closing]) and not re.search(rf"\b{name}\s*:", parameters)
        ]
        if declared:
            yield opening + 1, opening + 1, f" {' '.join(declared)} {{"
            yield closing, closing, "} "


def _with_lengths(module: Module, functions: Sequence[WGSLFunction], numbers: Mapping[str, int]) -> Iterator[Edit]:
    """Replace `arrayLength` by the number of elements: more than these may be bound."""
    for function in functions:
        for found in _LENGTH.finditer(module.text, *function.body):
            if found[2] not in module.variables:
                raise Unreadable("write the buffer's own name here: arrayLength(&name).", found.start())
            if found[2] in numbers:
                yield found.start(), found.end(), f"anygpu_numbers.number_{numbers[found[2]]}"


def _folded(module: Module, function: WGSLFunction, first: int, edits: list[Edit]) -> str:
    """Return an entry point that computes, for each group, its place in the grid that was asked for.

    It calls the user's function; surplus groups return. `first` is the position of its first number.
    """
    x, y, z = group_of(module, function)
    places = {
        "workgroup_id": "here",
        "num_workgroups": "groups",
        "local_invocation_id": "local",
        "global_invocation_id": f"here * vec3<u32>({x}u, {y}u, {z}u) + local",
    }
    taken = ["@builtin(workgroup_id) group: vec3<u32>", "@builtin(local_invocation_id) local: vec3<u32>"]
    handed: list[str] = []
    start = function.parameters[0] + 1
    for part, at in parts_of(module.text[start : function.parameters[1]], start):
        builtin = re.match(rf"{_ATTRIBUTE.pattern}\s*\w+\s*:", part)
        if builtin is None or builtin[1] != "builtin":
            raise Unreadable(
                "its grid has more groups in one dimension than the device, and the places of its invocations are in a "
                "struct. Take them as parameters: @builtin(global_invocation_id) id: vec3<u32>.",
                function.at,
            )
        which = builtin[2].strip()
        if which not in places:
            taken.append(f"{builtin[0].rsplit(')', 1)[0]}) own_{which}: {_field(part, at)[1]}")
        handed.append(places.get(which, f"own_{which}"))
        edits.append((at, at + part.index(")") + 1, " "))
    edits += [(*function.attributes[name].span(), " ") for name in ("compute", "workgroup_size")]
    edits.append((function.at, function.at + len(function.name), "anygpu_body"))
    sizes = ", ".join(f"anygpu_numbers.number_{first + axis}" for axis in range(3))
    return (
        f"@compute @workgroup_size({x}, {y}, {z}) fn {function.name}({', '.join(taken)}) {{ "
        f"let groups = vec3<u32>({sizes}); let number = group.x + group.y * anygpu_numbers.number_{first + 3}; "
        "if (number >= groups.x * groups.y * groups.z) { return; } "
        "let here = vec3<u32>(number % groups.x, number / groups.x % groups.y, number / (groups.x * groups.y)); "
        f"anygpu_body({', '.join(handed)}); }}"
    )
