"""The segments of deferred calls as native code.

A segment is a script of NumPy's calls, known by its structure. It is written down as a function of Python, and that is
traced, compiled in the child, compared with what NumPy gave, sampled and kept on disk by what does so for users'
functions (see `native`). Until then, and wherever NumPy's word is needed, the script runs on NumPy, each call as if it
stood on the user's own line.
"""

from __future__ import annotations

import builtins
import functools
import threading
import time
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from anygpu.array.deferred.layouts import Layout
from anygpu.array.deferred.masks import SELECTED, ones_are_harmless, text_with_ones
from anygpu.array.deferred.modes import ignores_warnings
from anygpu.array.deferred.script import Form, Script, Structures
from anygpu.base.own_files import blake2b
from anygpu.placement import loading
from anygpu.placement.history.hints import NATIVE, NUMPY, change_marks, hints_path, mark_of, marks_on
from anygpu.placement.known import PLAN, Known
from anygpu.placement.native_site import NativeSite
from anygpu.placement.options import Options
from anygpu.receipts.notes import HostNote

#: Structures that are remembered for a function, and calls in one that is compiled.
_MOST, _MOST_CALLS = 256, 400
#: Runs as native code after which it is known what that takes.
_RUNS = 16
#: Numbers that are constants of a program as long as they stay the same.
_NUMBERS = (bool, int, float, complex)

_clock = time.perf_counter


class SegmentSite(NativeSite):
    """A segment with some constants: on NumPy until native code for it is ready."""

    __slots__ = ("_make", "_scripts", "function", "operations", "runs", "task")

    runs_as_is = False

    def __init__(
        self, task: str, make: Callable[[], FunctionType], operations: int, options: Options, *, at_once: bool
    ) -> None:
        """Native code is tried once calls have taken long, or `at_once`; `make` writes the segment as a function."""
        self.known = known = Known(options)
        known.native_marks, known.numpy_marks = marks_on(NATIVE), marks_on(NUMPY)
        self._make = make
        #: The segment as a function, once it was written: that takes longer than most operations.
        self.function: FunctionType | None = None
        self.task, self.operations = task, operations
        #: Runs as native code.
        self.runs = 0
        #: What a thread computes.
        self._scripts = threading.local()
        if known.native_marks or (known.numpy_marks and not at_once):
            self.written()
        super().__init__(known, (), HostNote(f"a segment of {task}", "it is new.", None))
        if at_once:
            self._next_look = 0.0

    def written(self) -> FunctionType:
        """The segment as a function."""
        function = self.function
        if function is None:
            self.function = function = self._make()
            self.known.code = function.__code__
        return function

    def _look(self) -> None:
        """Have what tries native code for segments loaded before the first trial."""
        if loading.native.is_ready and not loading.segments.is_ready:
            from anygpu.placement.native_loading import begin_segments

            begin_segments(soon=True)
        else:
            super()._look()

    def begin_trial(self) -> Callable[..., Any]:
        """What runs the next call: it has native code tried."""
        from anygpu.placement.segment_trial import try_segment

        return functools.partial(try_segment, self)

    def call_on_host(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """What NumPy gives, for what native code would return."""
        results = self._scripts.now.run()
        return tuple(results) if len(results) != 1 else results[0]

    def compute(self, script: Script, arguments: tuple[Any, ...]) -> tuple[Any, bool]:
        """What the function of the segment returns, and whether native code computed it."""
        begin = _clock()
        direct = self.direct  # read once: another thread may take it away
        self._scripts.now = script
        try:
            # A script of the same structure may stand on another line, whose warning nobody has seen yet.
            is_quiet = script.form.is_quiet or getattr(direct, "is_silent", True) or ignores_warnings()
            if direct is not None and is_quiet:
                before = self.calls
                value = direct(self.function, arguments, {}, begin)
                if value is not PLAN:
                    is_native = self.calls == before
                    self.runs += is_native
                    return value, is_native
            value = self.call_on_host(None, (), {})
        finally:
            del self._scripts.now
        self.ran_on_host(_clock() - begin)
        return value, False


class Segment:
    """Scripts of one structure. Numbers in it that change from one to the next are inputs, others are constants."""

    def __init__(self, task: str, form: Form, options: Options, *, at_once: bool = False) -> None:
        self._task, self._options, self._structure, self._at_once = task, options, form, at_once
        #: Of what goes in, the numbers.
        self._numbers = [place for place, entry in enumerate(form.inputs) if form.entries[entry] in _NUMBERS]
        #: What runs it: the numbers that are constants, what goes in, and the code. Replaced as a whole.
        self._form: tuple[dict[int, Any], list[int], SegmentSite] | None = None
        self.calls = form.calls
        #: How often it ran.
        self.count = 0
        # Of elements that a mask has selected, native code knows no number.
        has_shapes = all(type(form.entries[each][0].layout) is Layout for each in form.outputs)
        is_whole = has_shapes and not any(_loses_imaginary_part(form, each) for each in form.entries)
        self.may_be_native = bool(form.outputs) and is_whole and self.calls <= _MOST_CALLS and options.allows_native

    @property
    def site(self) -> SegmentSite | None:
        """The call site of the segment, once it has run often enough to have one."""
        return None if self._form is None else self._form[2]

    @property
    def is_settled(self) -> bool:
        """Whether it is known if native code runs it."""
        site = self.site
        return not self.may_be_native or (site is not None and (site.is_settled or site.runs >= _RUNS))

    def run(self, script: Script) -> tuple[list[Any], bool]:
        """The results, and whether native code computed them."""
        self.count += 1
        if not self.may_be_native:
            return script.run(), False
        values = script.values
        form = self._form
        if form is None:
            form = self._formed({place: values[place] for place in self._numbers})
        constants, inputs, site = form
        for place, value in constants.items():
            if value is not values[place] and not _is_same(value, values[place]):
                same = {place: value for place, value in constants.items() if _is_same(value, values[place])}
                _, inputs, site = self._formed(same)
                break
        value, is_native = site.compute(script, tuple([values[place] for place in inputs]))
        return (list(value) if len(script.form.outputs) != 1 else [value]), is_native

    def _formed(self, constants: dict[int, Any]) -> tuple[dict[int, Any], list[int], SegmentSite]:
        """The segment with these constants; other numbers go in."""
        structure = self._structure
        inputs = [place for place in range(len(structure.inputs)) if place not in constants]
        known = {structure.inputs[place]: value for place, value in constants.items()}
        make = functools.partial(written, structure, [structure.inputs[place] for place in inputs], known)
        site = SegmentSite(self._task, make, self.calls, self._options, at_once=self._at_once)
        self._form = form = (constants, inputs, site)
        return form


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal and look the same."""
    return one is other or (one == other and repr(one) == repr(other))


def written(script: Form, inputs: Sequence[int], constants: dict[int, Any]) -> FunctionType:
    """The script as a function of Python: of its arrays, and of the numbers that are no constants."""
    names = {place: f"a{place}" for place in inputs}
    lines = []
    unused = _unused_selections(script)
    takes_ones = ones_are_harmless(script, constants)
    for place, entry in enumerate(script.entries):
        if place in constants:
            names[place] = f"({constants[place]!r})"
        elif type(entry) is tuple:
            fact, operands = entry
            if place in unused:
                names[place] = ""
                continue
            is_with_ones = fact.op is SELECTED and takes_ones
            text = (text_with_ones(fact) if is_with_ones else fact.op.text).format(*[names[each] for each in operands])
            if fact.op.writes:
                names[place] = names[operands[0]]
                lines.append(text)
            else:
                names[place] = f"v{place}"
                lines.append(f"v{place} = {text}")
    lines.append(f"return {', '.join([names[place] for place in script.outputs])}")
    head = ", ".join([names[place] for place in inputs])
    body = "\n    ".join(lines)
    # What the code is kept by on disk is its name and its bytecode, without constants.
    shapes = repr([(entry.shape, entry.dtype.str) for entry in script.entries if type(entry) is Layout])
    name = "segment_" + blake2b(f"{head}\n{body}\n{shapes}".encode(), digest_size=12).hexdigest()
    source = f"def {name}({head}):\n    {body}\n"
    space: dict[str, Any] = {"np": np, "nan": np.nan, "inf": np.inf, "__name__": "anygpu.segment"}
    space["__builtins__"] = builtins
    exec(compile(source, f"<{name}>", "exec"), space)
    made: FunctionType = space.pop(name)
    made.__doc__ = source
    return made


def _loses_imaginary_part(form: Form, entry: Any) -> bool:
    """Whether a call converts complex numbers to others: NumPy warns of that, whatever its modes are."""
    if type(entry) is not tuple:
        return False
    fact, operands = entry
    if not (fact.op.writes or ".astype(" in fact.op.text) or fact.layout is None or fact.layout.dtype.kind == "c":
        return False
    layouts = [each[0].layout if type(each := form.entries[place]) is tuple else each for place in operands]
    return any(each is complex or getattr(getattr(each, "dtype", None), "kind", "") == "c" for each in layouts)


def _unused_selections(script: Form) -> set[int]:
    """The elements that a mask has selected which native code needs not: their sum needs the mask, for example."""
    unused: set[int] = set()
    used = set(script.outputs)
    for place, entry in reversed([*enumerate(script.entries)]):
        if type(entry) is not tuple:
            continue
        fact, operands = entry
        if fact.op is SELECTED and place not in used:
            unused.add(place)
        else:
            used.update(each for number, each in enumerate(operands) if f"{{{number}}}" in fact.op.text)
    return unused


class Segments:
    """The segments of one function."""

    def __init__(self, task: str, function: Callable[..., Any], options: Options, *, at_once: bool = False) -> None:
        """Native code for them is tried once they have taken long, or `at_once`."""
        self._task, self._function, self._options, self._at_once = task, function, options, at_once
        self._known: dict[Any, Segment] = {}
        self.structures = Structures()
        self._is_marked = False

    def __iter__(self) -> Any:
        return iter(list(self._known.values()))

    @property
    def are_settled(self) -> bool:
        """Whether it is known for each that comes often if it runs as native code."""
        known = [each for each in self if each.count > 2]
        return (bool(known) or not self._known) and all(each.is_settled for each in known)

    @property
    def are_tried(self) -> bool:
        """Whether native code for one of them is being compiled and compared."""
        return any(each.site is not None and each.site.is_tried for each in self)

    def run(self, script: Script) -> tuple[list[Any], bool]:
        """The results of a script, and whether native code computed them."""
        form = script.form
        found: Segment | None = form.kept
        if found is None:
            found = self._known.get(form.key)
            if found is None:
                if len(self._known) >= _MOST:
                    return script.run(), False
                found = self._known[form.key] = Segment(self._task, form, self._options, at_once=self._at_once)
            form.kept = found
        results, is_native = found.run(script)
        if is_native and not self._is_marked:
            self._is_marked = True
            self._mark()
        return results, is_native

    def _mark(self) -> None:
        """Let the next process load what native code needs before the first call."""
        from anygpu.placement.native_calls import background

        path, mark = hints_path(NATIVE), mark_of(self._function)
        if path is not None and mark is not None:
            background.submit(functools.partial(change_marks, path, [mark], []))
