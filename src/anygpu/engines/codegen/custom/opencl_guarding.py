"""An OpenCL C kernel made ready to run: its parameters in our order, and every index checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from anygpu.engines.codegen.custom.opencl_checking import ADVICE, Checking, Guards, check_attributes, is_forbidden
from anygpu.engines.codegen.custom.opencl_reflection import entry_of, may_be_defined, scalar_of
from anygpu.engines.codegen.custom.opencl_text import TYPES, OpenCLFunction, Text
from anygpu.engines.codegen.custom.reflected import Prepared, Taken
from anygpu.engines.codegen.custom.tokens import KernelToken, Unreadable
from anygpu.program.dtypes import ITEMSIZE

# -- an OpenCL C kernel made ready to run
#
# Its parameters in our order, and every index checked.
#
# OpenCL has no robustness: an index outside of an array writes over whatever is there. So a checked kernel has no
# pointers but its buffers, and these, like the arrays that it declares, are used by an index only, which is looked at
# before. The text that is compiled is rewritten from the tokens that were checked, line by line, so it contains
# nothing else.


#: Numbers are passed as 32-bit words, and put together like this.
_FROM_WORDS = {
    "int": "as_int({0})",
    "uint": "{0}",
    "float": "as_float({0})",
    "half": "as_half((ushort){0})",
    "long": "as_long((ulong){0} | ((ulong){1} << 32))",
    "ulong": "((ulong){0} | ((ulong){1} << 32))",
    "double": "as_double((ulong){0} | ((ulong){1} << 32))",
}

#: An index beyond a word is reported as the largest; one in the upper half of a word as the negative number that it
#: most likely was meant to be.
_GUARD = (
    "long anygpu_at(long index, long length, __global uint* status, uint word) { "
    "if (index >= 0 && index < length) return index; "
    "const long far = index > 4294967295L ? 2147483647L : max(index, -2147483648L); "
    "status[word] = max((uint)(far - length + 1), 1u); return 0; }"
)


@lru_cache(maxsize=256)
def prepared_opencl(source: str, entry: str, *, checked: bool) -> Prepared:
    return _Preparation(source, entry, checked).prepared()


class _Preparation:
    """Rewrites one kernel: its parameters in our order, other kernels removed, and each index checked."""

    def __init__(self, source: str, entry: str, checked: bool) -> None:
        """Read a source and find its entry point; edits are collected until the text is written again."""
        self.text = Text(source)
        self.function = entry_of(self.text, entry)
        self.checked = checked
        self.guards = Guards()
        self.numbers: list[Taken] = []
        #: For each place another text, and texts that come before or after it.
        self.replaced: dict[int, str] = {}
        self.after: dict[int, str] = {}
        self.names: list[str] = []

    def prepared(self) -> Prepared:
        """The rewritten text with the slots of its buffers and numbers."""
        text = self.text
        kept = [each for each in text.functions if not each.is_kernel or each == self.function]
        for function in text.functions:
            if function not in kept:
                self.replaced |= dict.fromkeys(range(function.start, function.end + 1), "")
        private = 0
        if self.checked:
            self._check_outside()
            for place, variable, _ in text.lengths:
                self.guards.declare(text, place, variable)
            checkings = {each.name.text: Checking(text, each, self.guards) for each in kept if each.body >= 0}
            for checking in checkings.values():
                checking.run()
            private = _memory(self.function.name, checkings)
            self.replaced |= self.guards.replaced
        if self.guards.words:
            for function in kept:
                if not function.is_kernel:
                    self._hand_on(function)
            for place, is_empty in self.guards.calls.items():
                self.after[place] = "anygpu_status, anygpu_first_word" + ("" if is_empty else ",")
        self._declare()
        lines = _written(text.tokens, self.replaced, self.guards.before, self.after)
        words = tuple(self.guards.words)
        return Prepared(
            source=f"{_GUARD}\n#line 1\n{lines}" if words else lines,
            words=words,
            numbers=tuple(self.numbers),
            nbytes=4 * len(self.names),
            least=tuple(self.guards.widest.items()),
            private=private,
        )

    # -- parameters

    def _declare(self) -> None:
        """Buffers, the status, and then numbers, each as one or two words."""
        text, function = self.text, self.function
        buffers = [" ".join(token.text for token in each.tokens) for each in function.parameters if each.stars]
        begin: list[str] = []
        for parameter in function.parameters:
            name = parameter.name.text
            if parameter.stars:
                if any(word.array == name and word.length is None for word in self.guards.words):
                    self._take(Taken("length", name, 4 * len(self.names)), f"anygpu_length_{name}")
                continue
            type = scalar_of(text, parameter)
            count = max(1, ITEMSIZE[TYPES[type]] // 4)
            first = len(self.names)
            self.numbers.append(Taken("scalar", name, 4 * first, ITEMSIZE[TYPES[type]]))
            self.names += [f"anygpu_{name}_{part}" for part in range(count)]
            value = _FROM_WORDS[type].format(*self.names[first:])
            begin.append(f"{'const ' if parameter.is_const else ''}{type} {name} = {value};")
        if self.guards.words:
            buffers.append("__global uint* anygpu_status")
            self._take(Taken("first_word", "", 4 * len(self.names)), "anygpu_first_word")
        inner = ", ".join([*buffers, *(f"uint {name}" for name in self.names)])
        for place in range(function.opening + 1, function.closing):
            self.replaced[place] = ""
        self.after[function.opening] = inner
        self.after[function.body] = " ".join([*begin, self.guards.zeros()])

    def _take(self, number: Taken, name: str) -> None:
        self.numbers.append(number)
        self.names.append(name)

    def _hand_on(self, function: OpenCLFunction) -> None:
        """Functions of the user's own that look at indices must be able to report."""
        inner = [self.text.tokens[place].text for place in range(function.opening + 1, function.closing)]
        more = "__global uint* anygpu_status, uint anygpu_first_word"
        if inner in ([], ["void"]):
            for place in range(function.opening + 1, function.closing):
                self.replaced[place] = ""
            self.after[function.opening] = more
        else:
            self.after[function.opening] = f"{more},"

    # -- what is allowed outside of functions

    def _check_outside(self) -> None:
        """Checks what stands outside of bodies: no pointers, attributes that are known, and functions with bodies."""
        text = self.text
        lengths = {each for place, _, after in text.lengths for each in range(place + 1, after)}
        at = 0
        bounds = [(each.start, each.end) for each in text.functions]
        for start, end in [*bounds, (len(text.tokens) - 1, len(text.tokens))]:
            for place in range(at, start):
                token = text.tokens[place]
                is_product = token.text == "*" and place and text.tokens[place - 1].kind == "number"
                if token.text in ("*", "[", "->") and place not in lengths and not is_product:
                    raise Unreadable(f"a checked kernel has no pointers, and no arrays in structs. {ADVICE}", token)
                if token.kind == "string" or is_forbidden(token):
                    raise Unreadable(f"{token.text} cannot be checked. {ADVICE}", token)
            check_attributes(text, at, start)
            at = end + 1
        if text.problems:
            raise text.problems[0]
        defined = {each.name.text for each in text.functions if each.body >= 0}
        for function in text.functions:
            name = function.name
            if name.text not in defined:
                raise Unreadable(f"{name.text} has no body, so it cannot be checked. {ADVICE}", name)
            if is_forbidden(name) or not may_be_defined(name.text):
                raise Unreadable(f"{name.text} is not a name for a function here. Use another one. {ADVICE}", name)
            for place in text.outside(function.start, function.opening):
                if is_forbidden(text.tokens[place]):
                    raise Unreadable(f"{text.tokens[place].text} cannot be checked. {ADVICE}", text.tokens[place])
            check_attributes(text, function.start, function.body if function.body >= 0 else function.end)
            for place in range(function.opening, function.closing) if not function.is_kernel else ():
                if text.tokens[place].text in ("*", "["):
                    raise Unreadable(
                        f"arrays cannot be handed on to {function.name.text}, where their bounds are not known. Hand "
                        f"on their elements, or use the array in the kernel itself. {ADVICE}",
                        text.tokens[place],
                    )


def _memory(start: KernelToken, checkings: Mapping[str, Checking]) -> int:
    """Bytes of the arrays of a function and of those it calls, once for each call."""
    known: dict[str, int] = {}
    above: set[str] = set()

    def memory(name: KernelToken) -> int:
        if name.text in above:
            raise Unreadable(f"{name.text} calls itself, which OpenCL C does not allow. Use a loop.", name)
        checking = checkings.get(name.text)
        if checking is None:
            return 0
        if name.text not in known:
            above.add(name.text)
            inner = {call.text: memory(call) for call in checking.calls.values()}
            above.remove(name.text)
            times = checking.counts()
            known[name.text] = checking.private + sum(times[each] * bytes_ for each, bytes_ in inner.items())
        return known[name.text]

    return memory(start)


def _written(
    tokens: Sequence[KernelToken], replaced: dict[int, str], before: dict[int, str], after: dict[int, str]
) -> str:
    """Word by word, each in its own line."""
    parts: list[str] = []
    line = 1
    for place, token in enumerate(tokens):
        if token.line > line:
            parts.append("\n" * (token.line - line))
            line = token.line
        around = (before.get(place, ""), replaced.get(place, token.text), after.get(place, ""))
        parts += [f"{each} " for each in around if each]
    return "".join(parts) + "\n"
