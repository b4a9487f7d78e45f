"""The rules of a checked OpenCL C kernel, looked at word by word, and the functions that it may call."""

from __future__ import annotations

from collections import Counter

from anygpu.engines.codegen.custom.opencl_reflection import ATOM, ATOMIC, buffer_of, is_harmless
from anygpu.engines.codegen.custom.opencl_text import (
    ATTRIBUTE,
    KERNEL,
    QUALIFIERS,
    SPACES,
    OpenCLFunction,
    OpenCLVariable,
    Text,
)
from anygpu.engines.codegen.custom.reflected import Word
from anygpu.engines.codegen.custom.tokens import KernelToken, Unreadable, words_in

# -- the rules of a checked OpenCL C kernel, looked at word by word
#
# There are no pointers but the kernel's buffers. Buffers and arrays are used by an index only, and each index is
# looked at before it is used. What is not known to be harmless is refused.


#: Bytes of tables in a text: each is part of the compiled kernel.
MOST_CONSTANT = 1 << 20

_LANES = (
    "const size_t anygpu_lane = get_local_id(0) + get_local_size(0) * (get_local_id(1) + get_local_size(1) * "
    "get_local_id(2)); const size_t anygpu_lanes = get_local_size(0) * get_local_size(1) * get_local_size(2);"
)
_ZEROS = (
    "for (size_t anygpu_word = anygpu_lane; anygpu_word < sizeof({name}) / sizeof({word}); "
    "anygpu_word += anygpu_lanes) ((__local {word}*)&{name})[anygpu_word] = 0;"
)

ADVICE = "unchecked=True allows everything, at your own risk."

_WIDTHS = ("2", "3", "4", "8", "16")
#: vloadN(i, p): how many elements each i stands for. The place of i among the arguments is the last but one.
_VECTOR_ACCESS = {f"v{what}{width}": int(width) for what in ("load", "store") for width in _WIDTHS}
_HALF_ACCESS = {f"v{what}_half{width}": int(width or 1) for what in ("load", "store") for width in ("", *_WIDTHS)}
_ROUNDINGS = ("_rte", "_rtz", "_rtp", "_rtn")
_HARMLESS_ATTRIBUTES = words_in(
    "reqd_work_group_size work_group_size_hint vec_type_hint opencl_unroll_hint packed always_inline noinline unused "
    "__packed__ __always_inline__ __noinline__ __unused__"
)
#: Words that make pointers or undeclared memory. Functions are checked where they are called.
_FORBIDDEN = words_in("asm typeof NULL extern alloca va_list")
#: Words of the language that begin with an underscore. Others are names of the compiler and of its built-in functions.
_UNDERSCORED = frozenset({"_Bool", *SPACES, *QUALIFIERS, *KERNEL, *ATTRIBUTE, *_HARMLESS_ATTRIBUTES})
_STATEMENTS = ("if", "while", "for", "switch")
_NOT_OPERANDS = words_in("return case else do goto sizeof")
_TAGGED = ("struct", "union", "enum")


def is_forbidden(token: KernelToken) -> bool:
    """Whether a kernel may not use a name: built-ins that escape the checks, reserved names, and other alphabets."""
    if token.kind != "name":
        return False
    underscored = token.text.startswith("_") and token.text not in _UNDERSCORED
    return token.text in _FORBIDDEN or underscored or not token.text.isascii()


def check_attributes(text: Text, start: int, stop: int) -> None:
    """Checks the attributes from `start` to before `stop`."""
    place = start
    while place < stop:
        if text.tokens[place].text not in ATTRIBUTE:
            place += 1
            continue
        end = text.past_attribute(place)
        for each in range(place + 1, end):
            token = text.tokens[each]
            begins = token.kind == "name" and text.tokens[each - 1].text in ("(", ",")
            if token.kind == "string" or (
                begins and token.text not in _HARMLESS_ATTRIBUTES and not text.is_type(token)
            ):
                raise Unreadable(f"the attribute {token.text} is not known to be safe. {ADVICE}", token)
        place = end


class Guards:
    """The insertions into a text: around indices, and into the calls of functions that must be able to report."""

    def __init__(self) -> None:
        """No checks yet. `before` and `replaced` are edits of tokens by their positions."""
        self.words: list[Word] = []
        #: Insertions before the word at a place, and replacements of it.
        self.before: dict[int, str] = {}
        self.replaced: dict[int, str] = {}
        #: Brackets of calls, and whether there is nothing in them.
        self.calls: dict[int, bool] = {}
        #: Buffers that are used in vectors, and how wide these are.
        self.widest: dict[str, int] = {}
        #: Bytes of what the text itself holds.
        self.constant = 0
        #: Declarations of memory of the group, which go to the beginning of the kernel, and what is declared there.
        self.hoisted: list[str] = []
        self.shared: list[OpenCLVariable] = []

    def declare(self, text: Text, place: int, variable: OpenCLVariable) -> None:
        """Replaces the lengths in the declaration of a name by the computed ones."""
        if variable.space == "constant":
            self.constant += variable.nbytes
            if self.constant > MOST_CONSTANT:
                raise Unreadable(
                    f"{variable.name} and what is __constant before it have {self.constant:,} bytes, and "
                    f"{MOST_CONSTANT:,} is the most. Hand it to the kernel as an array.",
                    text.tokens[place],
                )
        opening = place + 1
        for length in variable.lengths or ():
            closing = text.partners[opening]
            self.replaced |= dict.fromkeys(range(opening + 1, closing), "")
            self.before[closing] = str(length)
            opening = closing + 1

    def begin_with_zero(self, text: Text, after: int, variable: OpenCLVariable) -> None:
        """A variable that begins with nothing would begin with what was in its memory before."""
        place = text.past_attributes(after)
        if text.tokens[place].text in (",", ";"):
            is_number = variable.element is not None and not variable.is_array
            self.before[place] = f"= {'0' if is_number else '{0}'} {self.before.get(place, '')}"

    def hoist(self, text: Text, start: int, end: int) -> None:
        """Move the declaration from `start` to before `end` to the beginning of the kernel."""
        parts: list[str] = []
        for place in range(start, end):
            parts += [self.before.pop(place, ""), self.replaced.get(place, text.tokens[place].text)]
            self.replaced[place] = ""
        self.hoisted.append(" ".join([*filter(None, parts), ";"]))

    def zeros(self) -> str:
        """All that a group shares is set to 0 before anything else happens, by all of its invocations together."""
        if not self.shared:
            return ""
        lines = [*self.hoisted, _LANES]
        for variable in self.shared:
            word = "uint" if variable.element is not None and variable.alignment >= 4 else "uchar"
            lines.append(_ZEROS.format(word=word, name=variable.name))
        return " ".join([*lines, "barrier(CLK_LOCAL_MEM_FENCE);"])

    def add(self, first: int, end: int, length: str, word: Word) -> None:
        """Around the words from `first` to before `end`."""
        if word not in self.words:
            self.words.append(word)
        number = self.words.index(word)
        self.before[first] = f"anygpu_at((long)( {self.before.get(first, '')}"
        closed = f"), {length}, anygpu_status, anygpu_first_word + {number}u)"
        self.before[end] = f"{closed} {self.before.get(end, '')}"


class Checking:
    """One function."""

    def __init__(self, text: Text, function: OpenCLFunction, guards: Guards) -> None:
        """One function of a kernel's text, whose accesses to memory are to be checked; `guards` collects the edits."""
        self.text = text
        self.tokens = text.tokens
        self.partners = text.partners
        self.function = function
        self.guards = guards
        self.own = {each.name.text for each in text.functions if not each.is_kernel}
        #: Variables by name, from the outermost block to the innermost.
        self.scopes: list[dict[str, OpenCLVariable]] = [dict(text.globals), {}]
        #: Places where names are declared, up to the end of their lengths: nothing to check there.
        self.declared: set[int] = set()
        #: Brackets and names of buffers that were looked at.
        self.allowed: set[int] = set()
        #: Functions of the user's that it calls, by their places.
        self.calls: dict[int, KernelToken] = {}
        #: Bytes of the arrays that each invocation has for itself.
        self.private = 0
        #: Places in structs that are declared here.
        self.members: set[int] = set()

    def counts(self) -> Counter[str]:
        return Counter(token.text for token in self.calls.values())

    def run(self) -> None:
        """Checks parameters and every word of the function; raises `Unreadable` at the first that breaks a rule."""
        for parameter in self.function.parameters:
            name, element = parameter.name.text, self.text.element(parameter.words)
            if is_forbidden(parameter.name):
                raise self._refuse(f"{name} is not a name for a parameter here.", parameter.name)
            if parameter.stars:
                buffer_of(self.text, parameter)
            is_const = parameter.is_const or parameter.space == "constant"
            lengths = None if parameter.stars else ()
            self.scopes[-1][name] = OpenCLVariable(name, element, lengths, "global", is_const=is_const)
        place = self.function.body
        while place <= self.function.end:
            place = self._look(place)

    def _refuse(self, why: str, token: KernelToken) -> Unreadable:
        return Unreadable(f"{why} {ADVICE}", token)

    def _find(self, name: str) -> OpenCLVariable | None:
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    def _look(self, place: int) -> int:
        """Check what is here, and say where to go on."""
        token = self.tokens[place]
        if token.kind == "string":
            raise self._refuse("strings are memory, which cannot be checked.", token)
        if token.kind == "mark":
            self._mark(place, token)
        if token.kind != "name":
            return place + 1
        if token.text in ATTRIBUTE:
            end = self.text.past_attribute(place)
            check_attributes(self.text, place, end)
            return end
        if is_forbidden(token):
            why = "cannot be checked" if token.text in _FORBIDDEN else "is not a name that a checked kernel may use"
            raise self._refuse(f"{token.text} {why}.", token)
        if token.text == "typedef":
            raise self._refuse("types are given names outside of functions.", token)
        if token.text in _TAGGED:
            self._struct(place)
        if self.text.begins_statement(place) and self.text.begins_declaration(place):
            self._declaration(place)
        self._name(place, token)
        return place + 1

    def _struct(self, place: int) -> None:
        """Notes the members of a struct that is declared here; refuses enums, and arrays among its members."""
        opening = self.text.past_attributes(place + 1)
        if self.tokens[opening].kind == "name":
            opening = self.text.past_attributes(opening + 1)
        if self.tokens[opening].text == "{":
            if self.tokens[place].text == "enum":
                raise self._refuse("enums are declared outside of functions.", self.tokens[place])
            self.members.update(range(opening, self.partners[opening]))
            for each in range(opening, self.partners[opening]):
                if self.tokens[each].text == "[":
                    raise self._refuse("arrays in structs cannot be checked.", self.tokens[each])

    # -- marks

    def _mark(self, place: int, token: KernelToken) -> None:
        """Follows scopes, and refuses pointers and indices of what is not an array."""
        match token.text:
            case "{":
                self.scopes.append({})
            case "}":
                self.scopes.pop()
            case "->":
                raise self._refuse("-> is a pointer, and a checked kernel has none but its buffers.", token)
            case "*" if self._is_unary(place):
                raise self._refuse("a checked kernel has no pointers but its buffers: use name[i].", token)
            case "&" if self._is_unary(place):
                self._address(place, token)
            case "[" if place not in self.declared and place not in self.allowed:
                raise self._refuse("only buffers and arrays that are declared here can have an index.", token)

    def _is_unary(self, place: int) -> bool:
        """Whether a mark has nothing before it to work on; of what is not sure, that it has not."""
        before = self.tokens[place - 1]
        if before.kind == "name":
            tagged = self.tokens[place - 2].text in _TAGGED
            return tagged or before.text in _NOT_OPERANDS or self._is_of_a_type(before)
        if before.kind == "number" or before.text in ("]", "++", "--"):
            return False
        if before.text != ")":
            return True
        opening = self.partners[place - 1]
        owner = self.tokens[opening - 1]
        if owner.text == "sizeof":
            return False
        if owner.text in ATTRIBUTE or self.tokens[opening + 1].text in ATTRIBUTE:
            return True
        if owner.kind == "name" and owner.text not in _NOT_OPERANDS:
            return owner.text in _STATEMENTS
        # After a cast, it is.
        return self._is_of_a_type(self.tokens[opening + 1])

    def _is_of_a_type(self, token: KernelToken) -> bool:
        return self.text.is_type(token) or token.text in SPACES or token.text in ("const", "volatile", "restrict")

    def _address(self, place: int, token: KernelToken) -> None:
        """`&` is allowed for one whole number, and only as the first argument of an atomic function."""
        operand, variable = self.tokens[place + 1], self._find(self.tokens[place + 1].text)
        end = place + 1
        while self.tokens[end + 1].text == "[":
            end = self.partners[end + 1]
        callee = self.tokens[place - 2].text if self.tokens[place - 1].text == "(" else ""
        whole = self.tokens[end + 1].text in (",", ")") and operand.kind == "name"
        if callee not in ATOMIC | ATOM or not whole or variable is None or variable.element is None:
            raise self._refuse(
                "& makes a pointer, which cannot be checked. Only atomic functions take one: atomic_add(&name[i], 1).",
                token,
            )
        type, count = variable.element
        # A compiler would accept a pointer to another type as well, and write past the element.
        taken: tuple[str, ...] = ("long", "ulong") if callee in ATOM else ("int", "uint")
        if callee == "atomic_xchg":
            taken += ("float",)
        if type not in taken or count != 1:
            raise self._refuse(f"{operand.text} is {type}, and {callee} takes {' and '.join(taken)}.", operand)
        if variable.is_const:
            raise self._refuse(f"{operand.text} is const, and {callee} writes to it.", operand)

    # -- names

    def _declaration(self, place: int) -> None:
        """Notes the variables of a declaration in the innermost scope, and the lengths of arrays among them."""
        in_loop = self.tokens[place - 1].text == "("
        end = self.text.next_mark(place, ";")
        is_shared = False
        for number, (where, variable, after) in enumerate(self.text.declared(place, end)):
            found = self._find(variable.name)
            is_shared = variable.space == "local"
            # Names before it in the same declaration still refer to the outer one.
            if (in_loop or number or is_shared) and found is not None and found.is_array:
                raise self._refuse(f"{variable.name} is an array already. Use another name.", self.tokens[where])
            for each in self.tokens[where + 1 : after]:
                if each.kind == "name" and self._find(each.text) is not None:
                    raise self._refuse(f"{each.text} is a variable here. Write the length as a number.", each)
            if is_forbidden(self.tokens[where]):
                raise self._refuse(f"{variable.name} is not a name for a variable here.", self.tokens[where])
            self.scopes[-1][variable.name] = variable
            self.declared.update(range(where, after))
            self.guards.declare(self.text, where, variable)
            if variable.space == "private" and (variable.is_array or variable.element is None):
                self.private += variable.nbytes
            if variable.space == "private" and place not in self.members:
                self.guards.begin_with_zero(self.text, after, variable)
            if is_shared:
                self.guards.shared.append(variable)
        if is_shared:
            if not self.function.is_kernel:
                raise self._refuse("memory of the group is declared in the kernel itself.", self.tokens[place])
            self.guards.hoist(self.text, place, end)

    def _name(self, place: int, token: KernelToken) -> None:
        """Checks one use of a name: a call, an array with its index, or a plain variable."""
        before, after = self.tokens[place - 1], self.tokens[place + 1]
        if place in self.declared or place in self.allowed or before.text == "." or before.text in ("goto", *_TAGGED):
            return
        if after.text == "(":
            self._call(place, token)
            return
        if token.text in self.own:
            raise self._refuse(f"{token.text} is a function, and is called: {token.text}(...).", token)
        variable = self._find(token.text)
        if variable is None or not variable.is_array:
            return
        if before.text == "(" and after.text == ")" and self.tokens[place - 2].text == "sizeof":
            return
        self._index(place, token, variable)

    def _call(self, place: int, token: KernelToken) -> None:
        """Allows calls of the text's own functions and of built-in ones that take numbers only."""
        if any(each.is_kernel and each.name.text == token.text for each in self.text.functions):
            raise self._refuse(f"{token.text} is a kernel, and kernels are not called here.", token)
        if token.text in self.own:
            self.calls[place] = token
            self.guards.calls[place + 1] = self.tokens[place + 2].text == ")"
            return
        if token.text in _STATEMENTS or token.text in _NOT_OPERANDS or is_harmless(token.text):
            return
        if token.text in ATOMIC | ATOM:
            if self.tokens[place + 2].text != "&":
                raise self._refuse(f"the first argument of {token.text} must be &name[i], or &name.", token)
            return
        plain = next((token.text.removesuffix(each) for each in _ROUNDINGS if token.text.endswith(each)), token.text)
        if plain in _VECTOR_ACCESS:
            self._vector_access(place, token, _VECTOR_ACCESS[plain], is_half=False)
        elif plain in _HALF_ACCESS:
            self._vector_access(place, token, _HALF_ACCESS[plain], is_half=True)
        else:
            raise self._refuse(f"{token.text} is not a function that is known to be safe.", token)

    def _vector_access(self, place: int, token: KernelToken, count: int, *, is_half: bool) -> None:
        """The last argument is the array, and what comes before it is the index, in steps of the vector."""
        closing = self.partners[place + 1]
        bounds = [place + 1]
        at = place + 2
        while at < closing:
            if self.tokens[at].text == ",":
                bounds.append(at)
            at = self.partners[at] + 1 if self.tokens[at].text in ("(", "[", "{") else at + 1
        bounds.append(closing)
        variable = self._find(self.tokens[closing - 1].text)
        if len(bounds) < 3 or bounds[-2] != closing - 2 or variable is None or len(variable.lengths or (0,)) != 1:
            raise self._refuse(f"the last argument of {token.text} must be the name of a buffer or an array.", token)
        if variable.element is None or variable.element[1] != 1 or (variable.element[0] == "half") != is_half:
            raise self._refuse(f"{token.text} does not take {variable.name}, by its type.", token)
        # An index outside becomes 0, where there must be room for a whole vector.
        if variable.lengths is None:
            self.guards.widest[variable.name] = max(count, self.guards.widest.get(variable.name, 0))
        elif variable.lengths[0] < count:
            raise self._refuse(f"{variable.name} has fewer elements than {token.text} takes.", token)
        if token.text.startswith("vstore"):
            if variable.is_const:
                raise self._refuse(f"{variable.name} is const, and {token.text} writes to it.", token)
            if not is_half:
                # For a value of another type a compiler would take the function for that type, which writes more.
                type = f"{variable.element[0]}{count}"
                self.guards.before[bounds[0] + 1] = f"({type})( {self.guards.before.get(bounds[0] + 1, '')}"
                self.guards.before[bounds[1]] = f") {self.guards.before.get(bounds[1], '')}"
        self.allowed.add(closing - 1)
        length = f"({self._length(variable, 0)}) / {count}"
        self.guards.add(bounds[-3] + 1, bounds[-2], length, self._word(variable, 0))

    def _index(self, place: int, token: KernelToken, variable: OpenCLVariable) -> None:
        """Checks that an array is used with an index for each of its axes, and notes each for guarding."""
        opening = place + 1
        axes = len(variable.lengths or (0,))
        for axis in range(axes):
            if self.tokens[opening].text != "[":
                what = "an index for each of its axes" if axis else "an index"
                raise self._refuse(
                    f"{token.text} is used without {what}, where its bounds cannot be checked. Write "
                    f"{token.text}{'[i]' * axes}.",
                    token,
                )
            closing = self.partners[opening]
            self.allowed.add(opening)
            self.guards.add(opening + 1, closing, self._length(variable, axis), self._word(variable, axis))
            opening = closing + 1
        if self.tokens[opening].text == "[":
            raise self._refuse("this index is of a vector, and cannot be checked: use .s0, .s1 and so on.", token)

    def _length(self, variable: OpenCLVariable, axis: int) -> str:
        return f"anygpu_length_{variable.name}" if variable.lengths is None else str(variable.lengths[axis])

    def _word(self, variable: OpenCLVariable, axis: int) -> Word:
        return Word(variable.name, None if variable.lengths is None else variable.lengths[axis])
