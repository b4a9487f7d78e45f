"""A WGSL text as declarations: its variables, types, constants and functions, and what each name in them refers to."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from anygpu.engines.codegen.custom.reflected import ConstantNumber, evaluate, evaluate_exactly
from anygpu.engines.codegen.custom.tokens import KernelToken, Unreadable, partners, separated, tokens_of
from anygpu.program.dtypes import DType

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
#: Bytes; a truth value counts as what it takes in the memory of a group.
SIZES = {"f32": 4, "i32": 4, "u32": 4, "f16": 2, "f64": 8, "i64": 8, "u64": 8, "bool": 4}
#: Names that inserted texts use, and that sizes of types depend on: a kernel may not redefine them.
_KEPT = frozenset({*SIZES, "vec2", "vec3", "vec4", "array", "atomic", "max", "min", "arrayLength"})
#: Passes over constants that refer to constants further down.
_ROUNDS = 10
_SHORT = {"f": "f32", "i": "i32", "u": "u32", "h": "f16"}


class WGSLType(NamedTuple):
    """A type as it is written: `array<vec4<f32>, 16>` has the arguments vec4<f32> and 16."""

    name: str
    arguments: tuple[WGSLType | tuple[KernelToken, ...], ...]
    at: KernelToken


class WGSLAttribute(NamedTuple):
    """Such as `@binding(3)`."""

    name: str
    arguments: tuple[tuple[KernelToken, ...], ...]
    at: KernelToken
    #: After its last character.
    stop: int


Attributes = Mapping[str, WGSLAttribute]


class WGSLVariable(NamedTuple):
    """A variable of the module's scope."""

    name: KernelToken
    attributes: Attributes
    #: "storage", "uniform", "workgroup" or "private", and "read" or "read_write".
    space: str
    access: str
    type: WGSLType
    #: All of it in the text.
    start: int
    stop: int


class WGSLConstant(NamedTuple):
    """A const or an override."""

    keyword: KernelToken
    name: KernelToken
    attributes: Attributes
    type: WGSLType | None
    value: tuple[KernelToken, ...]
    end: KernelToken


class Field(NamedTuple):
    """A member of a struct, or a parameter of a function."""

    name: KernelToken
    attributes: Attributes
    type: WGSLType


class WGSLFunction(NamedTuple):
    """One function, by the places of its tokens."""

    name: KernelToken
    attributes: Attributes
    parameters: tuple[Field, ...]
    #: Places of the brackets around its body among the tokens.
    opening: int
    closing: int


class Module:
    """The declarations of a text, by their names."""

    def __init__(self, source: str) -> None:
        """Read a WGSL module: variables, constants, structs, aliases, functions and extensions.

        Raises `Unreadable` for names that begin with `anygpu_`, which prepared texts use.
        """
        self.source = source
        self.tokens = tokens_of(source, "wgsl")
        for token in self.tokens:
            if token.text.startswith("anygpu_"):
                raise Unreadable("names that begin with anygpu_ are reserved. Use another name.", token)
        self.partners = partners(self.tokens)
        self.variables: dict[str, WGSLVariable] = {}
        self.constants: dict[str, WGSLConstant] = {}
        self.structs: dict[str, tuple[Field, ...]] = {}
        self.aliases: dict[str, WGSLType] = {}
        self.functions: dict[str, WGSLFunction] = {}
        self.extensions: set[str] = set()
        self._at = 0
        self._read_all()
        self.values = self._values()
        #: The constants that are whole numbers whatever their types.
        self.exact = self._exact()

    # -- declarations

    def _read_all(self) -> None:
        """Reads declarations from the first token to the last."""
        while self._here.kind != "end":
            start = self._at
            attributes = self._attributes()
            keyword = self._here
            match keyword.text:
                case ";":
                    self._at += 1
                case "enable" | "requires" | "diagnostic":
                    self._directive()
                case "const_assert":
                    self._to(";")
                case "struct":
                    self._struct()
                case "alias":
                    self._alias()
                case "const" | "override":
                    self._constant(attributes)
                case "var":
                    self._variable(attributes, self.tokens[start])
                case "fn":
                    self._function(attributes)
                case _:
                    raise Unreadable(
                        f"{keyword.text!r} does not start a declaration. At module scope, only struct, alias, const, "
                        "override, var and fn are allowed.",
                        keyword,
                    )

    @property
    def _here(self) -> KernelToken:
        return self.tokens[self._at]

    def _take(self, text: str) -> KernelToken:
        """The token here, which must be this text; go on behind it. Raises `Unreadable` otherwise."""
        token = self._here
        if token.text != text:
            found = token.text or "the end of the text"
            raise Unreadable(f"{text!r} is missing here; there is {found!r}.", token)
        self._at += 1
        return token

    def _name(self) -> KernelToken:
        """The name that stands here; go on behind it. Raises `Unreadable` otherwise."""
        token = self._here
        if token.kind != "name":
            raise Unreadable(f"a name is missing here; there is {token.text!r}.", token)
        self._at += 1
        return token

    def _global_name(self) -> KernelToken:
        """The name of a declaration. Raises `Unreadable` for names of the language."""
        token = self._name()
        if token.text in _KEPT:
            raise Unreadable(f"{token.text} is a name of the language itself. Use another one.", token)
        return token

    def _to(self, text: str) -> KernelToken:
        """Past everything up to a mark outside of brackets."""
        while self._here.text != text:
            if self._here.kind == "end":
                raise Unreadable(f"{text!r} is missing at the end.", self._here)
            self._at = self.partners.get(self._at, self._at) + 1 if self._here.text in ("(", "[", "{") else self._at + 1
        self._at += 1
        return self.tokens[self._at - 1]

    def _directive(self) -> None:
        """Read `enable` and its like up to the semicolon, and note the extensions that are enabled."""
        if self._here.text == "enable":
            place = self._at + 1
            while self.tokens[place].kind == "name" or self.tokens[place].text == ",":
                self.extensions.add(self.tokens[place].text)
                place += 1
        self._to(";")

    def _attributes(self) -> dict[str, WGSLAttribute]:
        """The attributes that stand here, by name."""
        found: dict[str, WGSLAttribute] = {}
        while self._here.text == "@":
            at = self._here
            self._at += 1
            if self._here.kind != "name":
                raise Unreadable("the name of an attribute is missing here.", self._here)
            name = self._here.text
            self._at += 1
            arguments: tuple[tuple[KernelToken, ...], ...] = ()
            if self._here.text == "(":
                closing = self.partners[self._at]
                arguments = tuple(separated(self.tokens, self.partners, self._at + 1, closing))
                self._at = closing + 1
            found[name] = WGSLAttribute(name, arguments, at, self.tokens[self._at - 1].stop)
        return found

    def _type(self, depth: int = 0) -> WGSLType:
        """The type that stands here, with its arguments."""
        token = self._here
        if token.kind != "name":
            raise Unreadable(f"a type is missing here; there is {token.text!r}.", token)
        if depth > 20:
            raise Unreadable("this type is nested too deeply.", token)
        self._at += 1
        arguments: list[WGSLType | tuple[KernelToken, ...]] = []
        if self._here.text == "<":
            self._at += 1
            while self._here.text != ">":
                arguments.append(self._argument(depth))
                if self._here.text == ",":
                    self._at += 1
                elif self._here.text != ">":
                    raise Unreadable("'>' is missing at the end of this type.", self._here)
            self._at += 1
        return WGSLType(token.text, tuple(arguments), token)

    def _argument(self, depth: int) -> WGSLType | tuple[KernelToken, ...]:
        """A type, or an expression: a name that stands alone is looked at later."""
        if self._here.kind == "name" and self.tokens[self._at + 1].text in ("<", ",", ">"):
            return self._type(depth + 1)
        first = self._at
        while self._here.text not in (",", ">"):
            if self._here.kind == "end" or self._here.text in (";", "{"):
                raise Unreadable("'>' is missing at the end of this type.", self._here)
            self._at = self.partners[self._at] + 1 if self._here.text in ("(", "[") else self._at + 1
        return tuple(self.tokens[first : self._at])

    def _struct(self) -> None:
        """Notes a struct with its fields."""
        self._at += 1
        name = self._global_name()
        self._take("{")
        closing = self.partners[self._at - 1]
        fields: list[Field] = []
        while self._at < closing:
            attributes = self._attributes()
            field = self._name()
            self._take(":")
            fields.append(Field(field, attributes, self._type()))
            if self._at < closing:
                self._take(",")
        self._at = closing + 1
        self.structs[name.text] = tuple(fields)

    def _alias(self) -> None:
        """Read the declaration of an alias."""
        self._at += 1
        name = self._global_name()
        self._take("=")
        self.aliases[name.text] = self._type()
        self._take(";")

    def _constant(self, attributes: Attributes) -> None:
        """Notes a `const` or `override`."""
        keyword = self._here
        self._at += 1
        name = self._global_name()
        type = None
        if self._here.text == ":":
            self._at += 1
            type = self._type()
        first = self._at
        if self._here.text == "=":
            first += 1
        end = self._to(";")
        self.constants[name.text] = WGSLConstant(
            keyword, name, attributes, type, tuple(self.tokens[first : self._at - 1]), end
        )

    def _variable(self, attributes: Attributes, first: KernelToken) -> None:
        """Notes a `var` of the module's scope."""
        self._at += 1
        space, access = "private", ""
        if self._here.text == "<":
            words: list[KernelToken] = []
            self._at += 1
            while self._here.text != ">":
                if self._here.kind == "name":
                    words.append(self._here)
                elif self._here.text != ",":
                    raise Unreadable("'>' is missing here.", self._here)
                self._at += 1
            self._at += 1
            space = words[0].text if words else space
            access = words[1].text if len(words) > 1 else "read" if space == "storage" else ""
        elif "binding" in attributes:
            space = "handle"
        name = self._global_name()
        if self._here.text != ":":
            if space == "private":
                self._to(";")
                return
            raise Unreadable(f"the type of {name.text} is missing. Write it as {name.text}: <type>.", self._here)
        self._at += 1
        type = self._type()
        end = self._to(";")
        self.variables[name.text] = WGSLVariable(name, attributes, space, access, type, first.start, end.stop)

    def _function(self, attributes: Attributes) -> None:
        """Notes a function with its parameters and body."""
        self._at += 1
        name = self._global_name()
        opening = self._at
        self._take("(")
        closing = self.partners[opening]
        parameters: list[Field] = []
        while self._at < closing:
            own = self._attributes()
            parameter = self._name()
            self._take(":")
            parameters.append(Field(parameter, own, self._type()))
            if self._at < closing:
                self._take(",")
        self._at = closing + 1
        while self._here.text != "{":
            if self._here.kind == "end" or self._here.text == ";":
                raise Unreadable(f"the body of {name.text} is missing.", self._here)
            self._at += 1
        body = self._at
        self._at = self.partners[body] + 1
        self.functions[name.text] = WGSLFunction(name, attributes, tuple(parameters), body, self.partners[body])

    # -- meaning

    def _values(self) -> dict[str, ConstantNumber]:
        """Values of the constants that are plain numbers."""
        values: dict[str, ConstantNumber] = {}
        waiting = dict(self.constants)
        for _ in range(_ROUNDS):
            found: dict[str, ConstantNumber] = {}
            for name, constant in waiting.items():
                try:
                    value = evaluate(constant.value, ChainMap(found, values))
                except Unreadable:
                    continue
                whole = constant.type is None or not constant.type.name.startswith("f")
                found[name] = value if whole else float(value)
            if not found:
                break
            values |= found
            waiting = {name: constant for name, constant in waiting.items() if name not in found}
        return values

    def _exact(self) -> dict[str, ConstantNumber]:
        """The values of constants that are exactly known, found round by round as they refer to each other."""
        found: dict[str, ConstantNumber] = {}
        for _ in range(_ROUNDS):
            before = len(found)
            for name, constant in self.constants.items():
                if name not in found and (constant.type is None or not constant.type.name.startswith("f")):
                    try:
                        found[name] = evaluate_exactly(constant.value, found)
                    except Unreadable:
                        continue
            if len(found) == before:
                break
        return found

    def resolved(self, type: WGSLType, depth: int = 0) -> WGSLType:
        """The type without aliases, and with `vec4f` written as `vec4<f32>`."""
        name, arguments, at = type
        if depth > 20:
            raise Unreadable(f"{at.text} is defined by itself.", at)
        if name in self.aliases and not arguments:
            return self.resolved(self.aliases[name], depth + 1)
        if len(name) == 5 and name.startswith("vec") and name[3] in "234" and name[4] in _SHORT and not arguments:
            return WGSLType(name[:4], (WGSLType(_SHORT[name[4]], (), at),), at)
        return WGSLType(
            name,
            tuple(self.resolved(each, depth + 1) if isinstance(each, WGSLType) else each for each in arguments),
            at,
        )

    def count(self, argument: WGSLType | tuple[KernelToken, ...], at: KernelToken) -> int:
        """The number of elements that an argument of a type stands for."""
        tokens = (argument.at,) if isinstance(argument, WGSLType) else argument
        value = evaluate_exactly(tokens, self.exact)
        if not value:
            raise Unreadable(f"{value} is not a number of elements.", tokens[0] if tokens else at)
        return value

    def size(self, type: WGSLType, depth: int = 0) -> tuple[int, int]:
        """Bytes and alignment of a value."""
        name, arguments, at = self.resolved(type)
        if depth > 20:
            raise Unreadable("this type is nested too deeply.", at)
        if name in SIZES:
            return SIZES[name], SIZES[name]
        if name == "atomic" and len(arguments) == 1 and isinstance(arguments[0], WGSLType):
            return self.size(arguments[0], depth + 1)
        if name in ("vec2", "vec3", "vec4") and len(arguments) == 1 and isinstance(arguments[0], WGSLType):
            inner, _ = self.size(arguments[0], depth + 1)
            return inner * int(name[3]), inner * (2 if name == "vec2" else 4)
        if name == "array" and len(arguments) == 2 and isinstance(arguments[0], WGSLType):
            inner, alignment = self.size(arguments[0], depth + 1)
            return _up(inner, alignment) * self.count(arguments[1], at), alignment
        if name.startswith("mat") and len(name) == 6 and len(arguments) == 1 and isinstance(arguments[0], WGSLType):
            inner, _ = self.size(arguments[0], depth + 1)
            rows = 2 if name[5] == "2" else 4
            return inner * rows * int(name[3]) if name[3].isdigit() else 0, inner * rows
        if name in self.structs:
            _, size, alignment = self.layout(name, depth + 1)
            return size, alignment
        raise Unreadable(f"the size of {at.text} is not known.", at)

    def layout(self, struct: str, depth: int = 0) -> tuple[list[int], int, int]:
        """The offsets of a struct's fields, its size and its alignment."""
        places: list[int] = []
        end, largest = 0, 1
        for field in self.structs[struct]:
            size, alignment = self.size(field.type, depth)
            if "align" in field.attributes:
                alignment = self._attribute_number(field.attributes["align"])
            if "size" in field.attributes:
                size = self._attribute_number(field.attributes["size"])
            places.append(_up(end, alignment))
            end, largest = places[-1] + size, max(largest, alignment)
        return places, _up(end, largest), largest

    def _attribute_number(self, attribute: WGSLAttribute) -> int:
        """The one number of an attribute such as `@binding`. Raises `Unreadable` otherwise."""
        if len(attribute.arguments) != 1:
            raise Unreadable(f"@{attribute.name} takes one number.", attribute.at)
        return evaluate_exactly(attribute.arguments[0], self.exact)

    def number(self, attributes: Attributes, name: str) -> int | None:
        return self._attribute_number(attributes[name]) if name in attributes else None

    # -- what names refer to

    def references(self, function: WGSLFunction) -> list[int]:
        """Places of the names in its body that mean something declared outside of it."""
        return list(_References(self, function).found())

    def reached(self, entry: str) -> tuple[set[str], list[WGSLFunction]]:
        """Everything outside that a function uses, by itself or through those it calls; and all those functions."""
        names: set[str] = set()
        functions: dict[str, WGSLFunction] = {}
        waiting = [entry]
        while waiting:
            name = waiting.pop()
            if name in functions:
                continue
            functions[name] = self.functions[name]
            for place in self.references(functions[name]):
                text = self.tokens[place].text
                names.add(text)
                if text in self.functions:
                    waiting.append(text)
        return names, list(functions.values())


class _References:
    """Finds names in a function's body that refer to the module's declarations, not to local ones."""

    def __init__(self, module: Module, function: WGSLFunction) -> None:
        self.module = module
        self.function = function

    def found(self) -> Iterator[int]:
        """The places of such names, in order."""
        tokens, pairs = self.module.tokens, self.module.partners
        #: Names of each block that is open, and the place where it ends.
        scopes: list[tuple[set[str], int]] = [
            ({each.name.text for each in self.function.parameters}, self.function.closing)
        ]
        #: Names that are declared once their statement is over.
        declared: list[tuple[str, int]] = []
        place = self.function.opening + 1
        while place < self.function.closing:
            token = tokens[place]
            while scopes[-1][1] <= place:
                scopes.pop()
            if token.text == "{":
                scopes.append((set(), pairs[place]))
            elif token.text == "for" and tokens[place + 1].text == "(":
                body = pairs[place + 1] + 1
                scopes.append((set(), pairs.get(body, body)))
            elif token.text == ";" or (token.text == "{" and declared):
                for name, depth in declared:
                    if depth <= len(scopes):
                        scopes[depth - 1][0].add(name)
                declared.clear()
            elif token.text in ("let", "var", "const") and token.kind == "name":
                place = self._past_template(place + 1)
                if tokens[place].kind == "name":
                    declared.append((tokens[place].text, len(scopes)))
            elif (
                token.kind == "name"
                and tokens[place - 1].text not in (".", "@")
                and not any(token.text in names for names, _ in scopes)
            ):
                yield place
            place += 1

    def _past_template(self, place: int) -> int:
        """The position behind a template list such as `<f32>`, or the same position where there is none."""
        tokens = self.module.tokens
        if tokens[place].text != "<":
            return place
        while tokens[place].text != ">" and place < self.function.closing:
            place += 1
        return place + 1


def _up(value: int, step: int) -> int:
    return -(-value // max(step, 1)) * max(step, 1)
