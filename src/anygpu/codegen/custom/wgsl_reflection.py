"""The parameters of a WGSL kernel, from its declarations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anygpu.codegen.custom.expressions import Number, evaluate, evaluate_exactly
from anygpu.codegen.custom.reflected import Length, Reflected, ScalarParameter, ScalarType
from anygpu.codegen.custom.tokens import Edit, Unreadable, edited
from anygpu.codegen.custom.wgsl_text import SCALARS, Constant, Function, Module, Type, Variable
from anygpu.program.dtypes import DType
from anygpu.program.ops.custom import Parameter, Role, Three

_BUILTINS = ("global_invocation_id", "workgroup_id", "num_workgroups")
_RESOURCES = ("storage", "uniform", "handle")


class Buffer(NamedTuple):
    """A storage variable as an array of numbers."""

    dtype: DType
    #: Numbers in one element, and elements where the text says how many; 1 without a length is an array of any length.
    parts: int
    fixed: int | None
    #: Whether it is one value, used without an index.
    single: bool


class Part(NamedTuple):
    """One number of a uniform variable: its name for a call, and the byte where it is."""

    name: str
    type: str
    place: int


def reflected_wgsl(
    source: str, entry: str | None, constants: Mapping[str, Number], updates: Sequence[str]
) -> Reflected:
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


def entry_of(module: Module, entry: str | None) -> Function:
    kernels = [each for each in module.functions.values() if "compute" in each.attributes]
    if entry is not None:
        chosen = next((each for each in kernels if each.name.text == entry), None)
        if chosen is None:
            names = ", ".join(each.name.text for each in kernels) or "none"
            raise Unreadable(f"there is no @compute function {entry!r}; available: {names}.")
        return chosen
    if not kernels:
        raise Unreadable("no function is marked with @compute. Write @compute @workgroup_size(64) before fn.")
    if len(kernels) > 1:
        names = ", ".join(each.name.text for each in kernels)
        raise Unreadable(
            f"the source has several @compute functions ({names}). Choose one with entry=.", kernels[1].name
        )
    return kernels[0]


def resources_of(module: Module, function: Function) -> list[Variable]:
    """The resources in the order of their bindings. Each of several kernels in a text has those that it uses."""
    alone = sum("compute" in each.attributes for each in module.functions.values()) == 1
    used, _ = module.reached(function.name.text)
    found: dict[int, Variable] = {}
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


def buffer_of(module: Module, variable: Variable) -> Buffer:
    type = module.resolved(variable.type)
    if type.name != "array":
        dtype, parts = _element(module, type, variable)
        return Buffer(dtype, parts, 1, True)
    if not type.arguments or not isinstance(type.arguments[0], Type):
        raise Unreadable(f"the type of {variable.name.text}'s elements is missing: array<f32>.", type.at)
    dtype, parts = _element(module, type.arguments[0], variable)
    fixed = module.count(type.arguments[1], type.at) if len(type.arguments) > 1 else None
    return Buffer(dtype, parts, fixed, False)


def _element(module: Module, type: Type, variable: Variable) -> tuple[DType, int]:
    name, arguments, at = type
    if name in SCALARS:
        return SCALARS[name], 1
    inner = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], Type) else None
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


def numbers_of(module: Module, variable: Variable) -> tuple[list[Part], int]:
    """The numbers of a uniform variable, and how many bytes it has."""
    type = module.resolved(variable.type)
    if type.name in SCALARS:
        return [Part(variable.name.text, type.name, 0)], module.size(type)[0]
    if type.name not in module.structs:
        raise Unreadable(
            f"{variable.name.text} is {type.name}. Numbers are passed one by one: use a scalar or a struct of scalars.",
            type.at,
        )
    found: list[Part] = []
    places, size, _ = module.layout(type.name)
    for field, place in zip(module.structs[type.name], places, strict=True):
        inner = module.resolved(field.type)
        if inner.name not in SCALARS:
            raise Unreadable(
                f"{field.name.text} is {inner.name}. Numbers are passed one by one: give each a field of its own, or "
                "put them into an array in var<storage, read>.",
                inner.at,
            )
        found.append(Part(field.name.text, inner.name, place))
    return found, size


def group_of(module: Module, function: Function) -> Three:
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


def can_fold(module: Module, function: Function) -> bool:
    """Whether every builtin that gives an invocation its place is a parameter of its own, which can be recomputed."""
    return all(
        "builtin" in each.attributes or not _has_place(module, module.resolved(each.type))
        for each in function.parameters
    )


def _has_place(module: Module, type: Type) -> bool:
    fields = module.structs.get(type.name, ())
    return any("builtin" in each.attributes for each in fields)


def group_memory(module: Module, function: Function) -> int:
    used, _ = module.reached(function.name.text)
    total = 0
    for variable in module.variables.values():
        if variable.space == "workgroup" and variable.name.text in used:
            size, alignment = module.size(variable.type)
            total = -(-total // alignment) * alignment + size
    return total


def with_constants(source: str, overrides: Mapping[str, Constant], given: Mapping[str, Number]) -> str:
    """Overrides become constants, each in its own line, and with the value that was given for it."""
    for name in given:
        if name not in overrides:
            known = ", ".join(overrides) or "none"
            raise Unreadable(f"there is no override {name!r} to set; available: {known}.")
    edits: list[Edit] = []
    for name, constant in overrides.items():
        for attribute in constant.attributes.values():
            blank = "".join(each if each == "\n" else " " for each in source[attribute.at.start : attribute.stop])
            edits.append(Edit(attribute.at.start, attribute.stop, blank))
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


def _literal(constant: Constant, value: Number) -> str:
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
