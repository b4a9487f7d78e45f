"""A user's WGSL kernel: its parameters, from its declarations, and a text in which every index is checked.

`reflected_wgsl` finds the entry point, the buffers that it reaches and their roles. `prepared_wgsl` writes the text
again: bindings in our order, uniform numbers as one block, each index of a buffer clamped to its length and reported,
and a long grid folded into two dimensions where that is possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from anygpu.engines.codegen.custom.reflected import (
    ConstantNumber,
    Length,
    Prepared,
    Reflected,
    ScalarParameter,
    ScalarType,
    Taken,
    Word,
    entry_among,
    evaluate,
    evaluate_exactly,
)
from anygpu.engines.codegen.custom.tokens import Edit, Unreadable, edited
from anygpu.engines.codegen.custom.wgsl_text import (
    SCALARS,
    SIZES,
    Module,
    WGSLConstant,
    WGSLFunction,
    WGSLType,
    WGSLVariable,
)
from anygpu.program.dtypes import DType
from anygpu.program.ops.custom import Parameter, Role, Three

# -- the parameters of a WGSL kernel, from its declarations


_BUILTINS = ("global_invocation_id", "workgroup_id", "num_workgroups")
_RESOURCES = ("storage", "uniform", "handle")


class WGSLBuffer(NamedTuple):
    """A storage variable as an array of numbers."""

    dtype: DType
    #: Numbers in one element, and elements where the text says how many; 1 without a length is an array of any length.
    parts: int
    fixed: int | None
    #: Whether it is one value, used without an index.
    single: bool


class WGSLPart(NamedTuple):
    """One number of a uniform variable: its name for a call, and the byte where it is."""

    name: str
    type: str
    place: int


def reflected_wgsl(
    source: str, entry: str | None, constants: Mapping[str, ConstantNumber], updates: Sequence[str]
) -> Reflected:
    """The buffers, scalars, constants and group size of a kernel, read from its declarations; raises `Unreadable`
    with the place of what is not understood.
    """
    module = Module(source)
    overrides = {name: each for name, each in module.constants.items() if each.keyword.text == "override"}
    changed = with_constants(source, overrides, constants)
    if changed != source:
        source, module = changed, Module(changed)
    function = entry_of(module, entry)
    resources = resources_of(module, function)
    parameters: list[Parameter] = []
    scalars: list[ScalarParameter] = []
    order: list[str] = []
    lengths: dict[str, Length] = {}
    for variable in resources:
        name = variable.name.text
        if variable.space == "storage":
            buffer = buffer_of(module, variable)
            role: Role = "input" if variable.access == "read" else "update" if name in updates else "output"
            parameters.append(Parameter(name, buffer.dtype, role))
            order.append(name)
            if buffer.fixed is not None:
                lengths[name] = Length(exactly=buffer.fixed * buffer.parts)
            elif buffer.parts > 1:
                lengths[name] = Length(multiple=buffer.parts)
        else:
            numbers, _ = numbers_of(module, variable)
            scalars += [ScalarParameter(each.name, _scalar(each.type)) for each in numbers]
            order += [each.name for each in numbers]
    return Reflected(
        language="wgsl",
        entry=function.name.text,
        source=source,
        parameters=tuple(parameters),
        scalars=tuple(scalars),
        order=tuple(order),
        group=group_of(module, function),
        constants={name: module.values[name] for name in overrides if name in module.values},
        lengths=lengths,
        foldable=can_fold(module, function),
        group_memory=group_memory(module, function),
    )


def _scalar(type: str) -> ScalarType:
    return SCALARS[type]  # type: ignore[return-value]


def entry_of(module: Module, entry: str | None) -> WGSLFunction:
    """The compute function of this name, or the only one; raises `Unreadable` otherwise."""
    kernels = [each for each in module.functions.values() if "compute" in each.attributes]
    return entry_among(kernels, entry, "@compute", "@compute @workgroup_size(64) before fn")


def resources_of(module: Module, function: WGSLFunction) -> list[WGSLVariable]:
    """The resources in the order of their bindings. Each of several kernels in a text has those that it uses."""
    alone = sum("compute" in each.attributes for each in module.functions.values()) == 1
    used, _ = module.reached(function.name.text)
    found: dict[int, WGSLVariable] = {}
    for variable in module.variables.values():
        if variable.space not in _RESOURCES or not (alone or variable.name.text in used):
            continue
        if variable.space == "handle":
            raise Unreadable(
                f"{variable.name.text} is a texture or a sampler. Kernels take arrays: use var<storage, read> "
                f"{variable.name.text}: array<f32>, and index it.",
                variable.name,
            )
        group, binding = module.number(variable.attributes, "group"), module.number(variable.attributes, "binding")
        if group is None or binding is None:
            raise Unreadable(f"{variable.name.text} has no @group(0) @binding(n) before it.", variable.name)
        if group != 0:
            at = variable.attributes["group"].at
            raise Unreadable(f"{variable.name.text} is in group {group}; put all of them into @group(0).", at)
        if binding in found:
            other = found[binding].name.text
            at = variable.attributes["binding"].at
            raise Unreadable(f"{variable.name.text} and {other} are both at binding {binding}. Renumber one.", at)
        if variable.space == "storage" and variable.access not in ("read", "read_write"):
            raise Unreadable(f"{variable.access} is no access: storage is read or read_write.", variable.name)
        found[binding] = variable
    return [found[binding] for binding in sorted(found)]


def buffer_of(module: Module, variable: WGSLVariable) -> WGSLBuffer:
    """The element type of a storage variable, and whether it is a single value."""
    type = module.resolved(variable.type)
    if type.name != "array":
        dtype, parts = _element(module, type, variable)
        return WGSLBuffer(dtype, parts, 1, True)
    if not type.arguments or not isinstance(type.arguments[0], WGSLType):
        raise Unreadable(f"the type of {variable.name.text}'s elements is missing: array<f32>.", type.at)
    dtype, parts = _element(module, type.arguments[0], variable)
    fixed = module.count(type.arguments[1], type.at) if len(type.arguments) > 1 else None
    return WGSLBuffer(dtype, parts, fixed, False)


def _element(module: Module, type: WGSLType, variable: WGSLVariable) -> tuple[DType, int]:
    """The type of an element, and how many numbers it has."""
    name, arguments, at = type
    if name in SCALARS:
        return SCALARS[name], 1
    inner = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], WGSLType) else None
    if name == "atomic" and inner is not None and inner.name in SCALARS:
        return SCALARS[inner.name], 1
    if name == "vec3":
        raise Unreadable(
            f"elements of array<vec3<...>> are 16 bytes apart, which no array of {variable.name.text}'s type is. Use "
            "array<f32> and three indices, or vec4.",
            at,
        )
    if name in ("vec2", "vec4") and inner is not None and inner.name in SCALARS:
        return SCALARS[inner.name], int(name[3])
    what = "a struct" if name in module.structs else "an array of arrays" if name == "array" else name
    raise Unreadable(
        f"{variable.name.text} holds {what}. Buffers are arrays of numbers: f32, i32, u32, f16, f64, i64, u64, "
        "vectors of 2 or 4 of them, or atomic<u32> and atomic<i32>.",
        at,
    )


def numbers_of(module: Module, variable: WGSLVariable) -> tuple[list[WGSLPart], int]:
    """The numbers of a uniform variable, and how many bytes it has."""
    type = module.resolved(variable.type)
    if type.name in SCALARS:
        return [WGSLPart(variable.name.text, type.name, 0)], module.size(type)[0]
    if type.name not in module.structs:
        raise Unreadable(
            f"{variable.name.text} is {type.name}. Numbers are passed one by one: use a scalar or a struct of scalars.",
            type.at,
        )
    found: list[WGSLPart] = []
    places, size, _ = module.layout(type.name)
    for field, place in zip(module.structs[type.name], places, strict=True):
        inner = module.resolved(field.type)
        if inner.name not in SCALARS:
            raise Unreadable(
                f"{field.name.text} is {inner.name}. Numbers are passed one by one: give each a field of its own, or "
                "put them into an array in var<storage, read>.",
                inner.at,
            )
        found.append(WGSLPart(field.name.text, inner.name, place))
    return found, size


def group_of(module: Module, function: WGSLFunction) -> Three:
    """The three sizes of `@workgroup_size`; raises `Unreadable` where they are missing or no constants."""
    attribute = function.attributes.get("workgroup_size")
    if attribute is None:
        raise Unreadable(f"{function.name.text} has no @workgroup_size. Write @workgroup_size(64).", function.name)
    if not 1 <= len(attribute.arguments) <= 3:
        raise Unreadable("@workgroup_size takes one to three numbers.", attribute.at)
    sizes: list[int] = []
    for argument in attribute.arguments:
        value = evaluate_exactly(argument, module.exact)
        if not value:
            raise Unreadable(f"{value} is not a size of a group.", argument[0])
        sizes.append(value)
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def can_fold(module: Module, function: WGSLFunction) -> bool:
    """Whether every builtin that gives an invocation its place is a parameter of its own, which can be recomputed."""
    return all(
        "builtin" in each.attributes or not _has_place(module, module.resolved(each.type))
        for each in function.parameters
    )


def _has_place(module: Module, type: WGSLType) -> bool:
    fields = module.structs.get(type.name, ())
    return any("builtin" in each.attributes for each in fields)


def group_memory(module: Module, function: WGSLFunction) -> int:
    """Bytes of workgroup memory that an entry point reaches, with alignment, in the order of declaration."""
    used, _ = module.reached(function.name.text)
    total = 0
    for variable in module.variables.values():
        if variable.space == "workgroup" and variable.name.text in used:
            size, alignment = module.size(variable.type)
            total = -(-total // alignment) * alignment + size
    return total


def with_constants(source: str, overrides: Mapping[str, WGSLConstant], given: Mapping[str, ConstantNumber]) -> str:
    """Overrides become constants, each in its own line, and with the value that was given for it."""
    for name in given:
        if name not in overrides:
            known = ", ".join(overrides) or "none"
            raise Unreadable(f"there is no override {name!r} to set; available: {known}.")
    edits: list[Edit] = []
    for name, constant in overrides.items():
        edits += [_blank(source, each.at.start, each.stop) for each in constant.attributes.values()]
        edits.append(Edit(constant.keyword.start, constant.keyword.stop, "const   "))
        if name in given:
            text = _literal(constant, given[name])
            if constant.value:
                first, last = constant.value[0].start, constant.value[-1].stop
                edits.append(Edit(first, last, text + "\n" * source.count("\n", first, last)))
            else:
                edits.append(Edit(constant.end.start, constant.end.start, f" = {text}"))
        elif not constant.value:
            raise Unreadable(f"{name} has no value. Give it one: constants={{{name!r}: ...}}.", constant.name)
    return edited(source, edits)


def _blank(source: str, start: int, stop: int) -> Edit:
    """A part of the text taken out, and its lines kept."""
    return Edit(start, stop, "".join(each if each == "\n" else " " for each in source[start:stop]))


def _literal(constant: WGSLConstant, value: ConstantNumber) -> str:
    """The value as a literal of the constant's type."""
    name = constant.name.text
    type = constant.type.name if constant.type is not None else None
    if type is None:
        first = evaluate(constant.value, {}) if constant.value else value
        type = "bool" if isinstance(first, bool) else "i32" if isinstance(first, int) else "f32"
    if type == "bool":
        if not isinstance(value, bool):
            raise Unreadable(f"{name} is true or false, not {value!r}.", constant.name)
        return "true" if value else "false"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unreadable(f"{name} is a number, not {value!r}.", constant.name)
    if type.startswith("f"):
        number = float(value)
        if number != number or number in (float("inf"), float("-inf")):
            raise Unreadable(f"{name} cannot be {value}: WGSL has no such constant.", constant.name)
        return f"{type}({number!r})"
    if isinstance(value, float) and not value.is_integer():
        raise Unreadable(f"{name} is a whole number, not {value!r}.", constant.name)
    least, most = {"u32": (0, (1 << 32) - 1), "i32": (-(1 << 31), (1 << 31) - 1)}.get(type, (-(1 << 63), (1 << 64) - 1))
    if not least <= value <= most:
        raise Unreadable(f"{name} is {type}, which {value} does not fit into.", constant.name)
    return f"{type}({int(value)})"


# -- a WGSL kernel made ready to run
#
# Its bindings renumbered, its numbers in one block, and its indices checked.
#
# Lines and what a person reads in them stay: everything that is added stands in the user's lines, or after the last
# one.


_STAGES = ("compute", "vertex", "fragment")
_PLACES = ("workgroup_id", "local_invocation_id", "global_invocation_id", "num_workgroups")


@lru_cache(maxsize=256)
def prepared_wgsl(source: str, entry: str, *, checked: bool, folded: bool) -> Prepared:
    return _Preparation(source, entry, checked, folded).prepared()


class _Preparation:
    """Rewrites one kernel: bindings renumbered, uniforms in one block, and each index checked."""

    def __init__(self, source: str, entry: str, checked: bool, folded: bool) -> None:
        """Read a module and its entry point; `folded` folds a grid that is too long for one dimension into two.

        Storage buffers are numbered in the order of our parameters, not by the bindings that the source names.
        """
        self.module = Module(source)
        self.function = entry_of(self.module, entry)
        self.checked = checked
        self.folded = folded
        resources = resources_of(self.module, self.function)
        self.storage = [each for each in resources if each.space == "storage"]
        self.uniforms = [each for each in resources if each.space == "uniform"]
        self.position = {each.name.text: place for place, each in enumerate(self.storage)}
        self.single = {each.name.text for each in self.storage if buffer_of(self.module, each).single}
        self.edits: list[Edit] = []
        #: Buffers whose lengths are asked for, and those whose indices are checked.
        self.measured: set[str] = set()
        self.guarded: set[str] = set()
        self.added: list[str] = []

    def prepared(self) -> Prepared:
        """The rewritten text with the places of its buffers and numbers."""
        for place, variable in enumerate(self.storage):
            (number,) = variable.attributes["binding"].arguments
            self.edits.append(Edit(number[0].start, number[-1].stop, str(place)))
        for variable in self.uniforms:
            self._remove(variable.start, variable.stop)
        for function in self.module.functions.values():
            is_other = any(stage in function.attributes for stage in _STAGES) and function != self.function
            if is_other:
                self._remove_function(function)
            else:
                self._rewrite(function)
        words = tuple(Word(name, None) for name in self.position if name in self.guarded)
        numbers, nbytes = self._numbers(bool(words))
        bindings = len(self.storage)
        if words:
            self.added.append(f"@group(0) @binding({bindings}) var<storage, read_write> anygpu_status: array<u32>;")
            bindings += 1
        if numbers:
            self.added.append(f"@group(0) @binding({bindings}) var<uniform> anygpu_numbers: anygpu_Numbers;")
        self.added += [_guard(self.position[word.array], place) for place, word in enumerate(words)]
        text = edited(self.module.source, self.edits)
        return Prepared("\n".join([text, *self.added, ""]), words, numbers, nbytes)

    def _remove(self, start: int, stop: int) -> None:
        self.edits.append(_blank(self.module.source, start, stop))

    def _remove_function(self, function: WGSLFunction) -> None:
        """Remove a function with its attributes from the text."""
        first = min((each.at.start for each in function.attributes.values()), default=function.name.start)
        start = self.module.source.rfind("fn", 0, function.name.start)
        self._remove(min(first, start), self.module.tokens[function.closing].stop)

    # -- uses

    def _rewrite(self, function: WGSLFunction) -> None:
        """Replaces uses of buffers and uniforms inside one function."""
        uniforms = {each.name.text for each in self.uniforms}
        tokens = self.module.tokens
        if self.folded and function == self.function:
            self._fold()
        for place in self.module.references(function):
            name = tokens[place].text
            if name in uniforms:
                self.edits.append(Edit(tokens[place].start, tokens[place].stop, f"anygpu_numbers.{name}"))
            elif name in self.position:
                self._use(place, name)
            elif name == "arrayLength" and not self._names_a_buffer(place):
                raise Unreadable("write the buffer's own name here: arrayLength(&name).", tokens[place])

    def _names_a_buffer(self, place: int) -> bool:
        """Whether the argument here is the address of a variable of the module."""
        tokens = self.module.tokens
        texts = [token.text for token in tokens[place + 1 : place + 5]]
        return texts[:2] == ["(", "&"] and texts[2] in self.module.variables and texts[3:] == [")"]

    def _use(self, place: int, name: str) -> None:
        """Replaces one use of a buffer: its length by a number, its index by a checked one."""
        tokens = self.module.tokens
        before = [token.text for token in tokens[place - 3 : place]]
        if before == ["arrayLength", "(", "&"] and tokens[place + 1].text == ")":
            self.measured.add(name)
            length = f"anygpu_numbers.length_{self.position[name]}"
            self.edits.append(Edit(tokens[place - 3].start, tokens[place + 1].stop, length))
        elif name in self.single:
            return
        elif tokens[place + 1].text == "[":
            if self.checked:
                self.guarded.add(name)
                closing = self.module.partners[place + 1]
                opened = f"anygpu_at_{self.position[name]}(u32("
                self.edits.append(Edit(tokens[place + 1].stop, tokens[place + 1].stop, opened))
                self.edits.append(Edit(tokens[closing].start, tokens[closing].start, "))"))
        elif self.checked:
            raise Unreadable(
                f"{name} is used without an index here, where its bounds cannot be checked. Write {name}[i], or "
                f"arrayLength(&{name}); unchecked=True allows everything, at your own risk.",
                tokens[place],
            )

    # -- numbers

    def _numbers(self, has_status: bool) -> tuple[tuple[Taken, ...], int]:
        """The block of numbers: uniform variables, each at a multiple of 16, and then ours."""
        fields: list[str] = []
        numbers: list[Taken] = []
        end = 0
        for variable in self.uniforms:
            found, size = numbers_of(self.module, variable)
            type = self.module.resolved(variable.type)
            alignment = max(16, self.module.size(type)[1])
            place = _up(end, alignment)
            fields.append(f"@align({alignment}) {variable.name.text}: {variable.type.name}")
            numbers += [Taken("scalar", each.name, place + each.place, SIZES[each.type]) for each in found]
            end = place + size
        own: list[tuple[str, Taken]] = []
        end = _up(end, 16)
        for name in self.position:
            if name in self.measured or name in self.guarded:
                own.append((f"length_{self.position[name]}", Taken("length", name, end + 4 * len(own))))
        if has_status:
            own.append(("first_word", Taken("first_word", "", end + 4 * len(own))))
        if self.folded:
            for axis in "xyz":
                own.append((f"groups_{axis}", Taken("groups", axis, end + 4 * len(own))))
            own.append(("row", Taken("row", "", end + 4 * len(own))))
        for number, (name, taken) in enumerate(own):
            fields.append(f"{'@align(16) ' if number == 0 else ''}{name}: u32")
            numbers.append(taken)
        if fields:
            self.added.insert(0, f"struct anygpu_Numbers {{ {', '.join(fields)} }}")
        return tuple(numbers), _up(end + 4 * len(own), 4)

    # -- grids of more groups than a dimension has

    def _fold(self) -> None:
        """Every group finds out which one it would be in the grid that was asked for; what is over returns."""
        if not can_fold(self.module, self.function):
            raise Unreadable(
                "its grid has more groups in one dimension than the device, and the places of its invocations are in a "
                "struct. Take them as parameters: @builtin(global_invocation_id) id: vec3<u32>.",
                self.function.name,
            )
        tokens = self.module.tokens
        kept: list[str] = []
        names: dict[str, str] = {}
        for field in self.function.parameters:
            builtin = field.attributes.get("builtin")
            words = [word.text for argument in builtin.arguments for word in argument] if builtin else []
            which = words[0] if len(words) == 1 else ""
            if which in _PLACES:
                names[which] = field.name.text
            else:
                first = min([each.at.start for each in field.attributes.values()] + [field.name.start])
                kept.append(self.module.source[first : field.type.at.stop])
        local = names.get("local_invocation_id", "anygpu_local")
        kept.insert(0, f"@builtin(local_invocation_id) {local}: vec3<u32>")
        kept.insert(0, "@builtin(workgroup_id) anygpu_group: vec3<u32>")
        opening = next(
            place for place, token in enumerate(tokens) if token is self.function.name and tokens[place + 1].text == "("
        )
        closing = self.module.partners[opening + 1]
        lines = "\n" * self.module.source.count("\n", tokens[opening + 1].stop, tokens[closing].start)
        self.edits.append(Edit(tokens[opening + 1].stop, tokens[closing].start, ", ".join(kept) + lines))
        x, y, z = group_of(self.module, self.function)
        asked = "anygpu_numbers.groups_"
        body = [
            "let anygpu_number = anygpu_group.x + anygpu_group.y * anygpu_numbers.row;",
            f"if (anygpu_number >= {asked}x * {asked}y * {asked}z) {{ return; }}",
            f"let anygpu_here = vec3<u32>(anygpu_number % {asked}x, anygpu_number / {asked}x % {asked}y, "
            f"anygpu_number / ({asked}x * {asked}y));",
        ]
        if "workgroup_id" in names:
            body.append(f"let {names['workgroup_id']} = anygpu_here;")
        if "global_invocation_id" in names:
            body.append(f"let {names['global_invocation_id']} = anygpu_here * vec3<u32>({x}u, {y}u, {z}u) + {local};")
        if "num_workgroups" in names:
            body.append(f"let {names['num_workgroups']} = vec3<u32>({asked}x, {asked}y, {asked}z);")
        start = tokens[self.function.opening].stop
        self.edits.append(Edit(start, start, " " + " ".join(body)))


def _guard(position: int, number: int) -> str:
    """A function that reports an index out of bounds by its distance from the end, never 0; see `Check`."""
    return (
        f"fn anygpu_at_{position}(index: u32) -> u32 {{ let length = anygpu_numbers.length_{position}; "
        f"if (index < length) {{ return index; }} "
        f"anygpu_status[anygpu_numbers.first_word + {number}u] = max(index - length + 1u, 1u); return 0u; }}"
    )


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
