"""A WGSL kernel made ready to run: its bindings renumbered, its numbers in one block, and its indices checked.

Lines and what a person reads in them stay: everything that is added stands in the user's lines, or after the last one.
"""

from __future__ import annotations

from functools import lru_cache

from anygpu.codegen.custom.prepared_kernel import Prepared, Taken, Word
from anygpu.codegen.custom.tokens import Edit, Unreadable, edited
from anygpu.codegen.custom.wgsl_reflection import buffer_of, can_fold, entry_of, group_of, numbers_of, resources_of
from anygpu.codegen.custom.wgsl_text import SIZES, Function, Module

_STAGES = ("compute", "vertex", "fragment")
_PLACES = ("workgroup_id", "local_invocation_id", "global_invocation_id", "num_workgroups")


@lru_cache(maxsize=256)
def prepared_wgsl(source: str, entry: str, *, checked: bool, folded: bool) -> Prepared:
    return _Preparation(source, entry, checked, folded).prepared()


class _Preparation:
    def __init__(self, source: str, entry: str, checked: bool, folded: bool) -> None:
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
        blank = "".join(each if each == "\n" else " " for each in self.module.source[start:stop])
        self.edits.append(Edit(start, stop, blank))

    def _remove_function(self, function: Function) -> None:
        first = min((each.at.start for each in function.attributes.values()), default=function.name.start)
        start = self.module.source.rfind("fn", 0, function.name.start)
        self._remove(min(first, start), self.module.tokens[function.closing].stop)

    # -- uses

    def _rewrite(self, function: Function) -> None:
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
        tokens = self.module.tokens
        texts = [token.text for token in tokens[place + 1 : place + 5]]
        return texts[:2] == ["(", "&"] and texts[2] in self.module.variables and texts[3:] == [")"]

    def _use(self, place: int, name: str) -> None:
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
