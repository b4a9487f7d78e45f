"""From a function to a program: the function is called once with arrays that have a shape and a type, and no values."""

from __future__ import annotations

import functools
import opcode
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any, Literal, NamedTuple

import numpy as np

from anygpu.array.array import Array
from anygpu.array.captures import GONE, Capture, Search, TooMuch, bits, digest, is_in_order, same_value
from anygpu.array.copies import Copies, Unfollowed, original
from anygpu.array.expression import TakesTooLong, Value, are_needed, leaves_of, limited_to, linearise
from anygpu.array.paper import Fixed, Lifted, Paper, Read, owner_of
from anygpu.array.place import to_numpy_dtype
from anygpu.array.recording import dtype_name
from anygpu.array.structure import LEAF, Structure, flatten, unflatten
from anygpu.array.views import View, follow_on_host
from anygpu.array.weak import Weak, evaluator, in_type
from anygpu.errors import AnyGPUError, InvalidOption, ValueNeeded
from anygpu.program.graph import Program
from anygpu.program.precision import in_single_precision
from anygpu.program.primitives import Spec
from anygpu.units import readable_seconds

Precision = Literal["float32"]


def record(
    function: Callable[..., Any], *arguments: Any, precision: Precision | None = None, **options: Any
) -> Program:
    """The program that `function(*arguments, **options)` performs on its arrays.

    Arrays among the positional arguments (ours, NumPy's, or a `Spec` of shape and type), also in lists and dicts,
    become the program's inputs; everything else is passed on as it is. What the function returns, nested as it may be,
    becomes the outputs in order. With `precision="float32"` 64-bit numbers are narrowed to 32 bits, inputs included;
    never otherwise.
    """
    _check(precision)
    paper = Paper(inlines=False)
    inputs: list[Value] = []

    def sketched(argument: Any) -> Any:
        spec = _spec_of(argument)
        if spec is None:
            leaves, structure = flatten(argument)
            return argument if structure is LEAF else unflatten(structure, [sketched(each) for each in leaves])
        inputs.append(Value.on(paper, None, spec))
        return Array(inputs[-1])

    results = [each for each in flatten(function(*map(sketched, arguments), **options))[0] if isinstance(each, Array)]
    if not results:
        raise InvalidOption(_nothing(function))
    program, leaves, _ = linearise([each._value for each in results], inputs=inputs, keep_held=False)
    captured = leaves[len(inputs) :]
    if captured:
        raise InvalidOption(
            f"{_name(function)} uses {len(captured)} array(s) from outside, such as {captured[0].spec}. "
            "Pass it as an argument."
        )
    return in_single_precision(program) if precision == "float32" else program


class NotTraceable(NamedTuple):
    """Why a function did not become a program: it is called as it is, on the host."""

    #: A clause that goes on after the function's name: "it needs a concrete value …".
    reason: str
    #: The user's own line, where it is known.
    line: str | None = None
    #: Whether it may be another thing when there is more time.
    for_now: bool = False
    #: What the function itself raised while it was recorded.
    error: Exception | None = None


class Given(list[Any]):
    """What a program takes for one call, and everything that was read for it."""

    __slots__ = ("values",)

    def __init__(self, inputs: list[Any], values: list[Any]) -> None:
        super().__init__(inputs)
        self.values = values


class Traced:
    """A function that has become a program, for calls of one kind. It holds nothing of the user's."""

    __slots__ = (
        "_captures",
        "_distinct",
        "_evaluate",
        "_fixed",
        "_leaves",
        "_numbers",
        "_positions",
        "_returned",
        "_single",
        "_steps",
        "_structure",
        "by_value",
        "program",
        "quiet_lines",
    )

    #: What is computed.
    program: Program
    #: Of float and int those whose values decide what the function does: another value is another program.
    by_value: frozenset[type]
    #: Lines on which NumPy has been told to ignore what it would warn of.
    quiet_lines: frozenset[tuple[str, int]]

    def __init__(
        self,
        sketch: _Sketch,
        captures: tuple[Capture, ...],
        *,
        by_value: frozenset[type],
        precision: Precision | None,
    ) -> None:
        self.program = in_single_precision(sketch.program) if precision == "float32" else sketch.program
        self.by_value = by_value
        self.quiet_lines = frozenset(sketch.paper.quiet_lines)
        self._captures = captures
        #: The same for speed, without what only people read.
        self._steps = [
            (each.parent, each.read, each.key, None if each.kind == "same" else each.test, each.expected)
            for each in captures
        ]
        first = [each for each in sketch.reads if each.is_argument]
        self._positions = (
            [each.position for each in first],
            [each.position for each in sketch.reads if not each.is_argument],
        )
        texts = sketch.texts
        specs = self.program.inputs[len(first) : len(first) + len(texts)]
        self._numbers = [to_numpy_dtype(spec.dtype) for spec in specs]
        # Those that are no inputs come last, and are computed only to see whether Python raises an error.
        texts = [*texts, *(each for each in sketch.paper.risky if each not in texts)]
        self._evaluate = evaluator(texts) if texts else None
        self._fixed = sketch.fixed
        self._structure = sketch.structure
        self._returned = sketch.returned
        self._leaves = sketch.leaves
        arrays = [position for position, each in enumerate(captures) if each.kind == "array"]
        self._distinct = arrays if len(arrays) > 1 else []
        only = sketch.leaves[0] if sketch.structure is LEAF else None
        self._single = (
            only is not None and only.argument is None and not only.path and only.finish is _same and not only.own
        )

    def read(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> list[Any] | None:
        """Everything that the program depends on, as it is now; `None` when something that is no input has changed."""
        roots = (arguments, keywords, _as_function(function))
        values: list[Any] = []
        try:
            for parent, read, key, test, expected in self._steps:
                value = read(values[parent] if parent >= 0 else roots, key)
                if not (test(value, expected) if test is not None else value is values[expected]):
                    return None
                values.append(value)
        except GONE:
            return None
        if self._distinct and len({id(values[each]) for each in self._distinct}) != len(self._distinct):
            return None
        return values

    def changed(self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str | None:
        """The name of the first thing that has changed, for people."""
        roots = (arguments, keywords, _as_function(function))
        values: list[Any] = []
        for kind, parent, read, key, test, expected, name in self._captures:
            try:
                value = read(values[parent] if parent >= 0 else roots, key)
                same = value is values[expected] if kind == "same" else test(value, expected)
            except GONE:
                same = False
            if not same:
                return name
            values.append(value)
        return None

    def inputs(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Given | None:
        """What the program takes, one for each of `program.inputs`; `None` when it is not this call's program.

        Arrays among the arguments come first, in their order and without those that the function does not use; then
        numbers, as arrays without axes; then arrays from outside, as they are now; then what the function makes
        itself. The arrays are the caller's own: with `precision="float32"` whoever runs the program narrows them.
        """
        values = self.read(function, arguments, keywords)
        if values is None:
            return None
        before, after = self._positions
        inputs = [values[position] for position in before]
        if self._evaluate is not None:
            try:
                inputs += map(in_type, self._evaluate(values), self._numbers)
            except (ArithmeticError, ValueError, TypeError):
                return None  # Python's own error: the function itself shall raise it
        inputs += [values[position] for position in after]
        inputs += self._fixed
        return Given(inputs, values)

    def rebuild(self, results: Sequence[Any], given: Given | None = None) -> Any:
        """What the function returns, from what the program gave for the call that `given` was read for.

        Without `given` the word `ARGUMENT` stands in the place of arguments that are returned.
        """
        if self._single:
            return results[0]
        leaves = list(self._returned)
        for where, leaf in enumerate(self._leaves):
            if leaf is None:
                if isinstance(leaves[where], np.ndarray):
                    leaves[where] = leaves[where].copy()
                continue
            if leaf.which is None:
                if given is None:
                    leaves[where] = ARGUMENT
                    continue
                assert leaf.argument is not None
                made = given.values[leaf.argument]
            else:
                made = results[leaf.which].copy() if leaf.own else results[leaf.which]
            leaves[where] = leaf.finish(follow_on_host(leaf.path, made) if leaf.path else made)
        return unflatten(self._structure, leaves)

    @property
    def results_returned(self) -> list[int | None]:
        """For each leaf of what the function returns: which result of the program it is; `None` for what is none."""
        return [None if leaf is None else leaf.which for leaf in self._leaves]

    @property
    def returned(self) -> Structure:
        """How what the function returns is nested."""
        return self._structure

    @property
    def owns(self) -> list[bool]:
        """For each leaf of what the function returns: whether it is a result with memory of its own."""
        return [leaf is None or (leaf.argument is None and not leaf.path) for leaf in self._leaves]

    def without_arguments(self, value: Any) -> Any:
        """What the function returned, where arguments and views of them are a word: they are the caller's, as ever."""
        if not any(leaf is not None and leaf.argument is not None for leaf in self._leaves):
            return value
        leaves, structure = flatten(value)
        if structure != self._structure:
            return value
        marked = [
            ARGUMENT if known is not None and known.argument is not None else leaf
            for known, leaf in zip(self._leaves, leaves, strict=True)
        ]
        return unflatten(structure, marked)


#: Stands for an argument that is returned, where nobody has the arguments any more.
ARGUMENT = "an argument"


def trace(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    *,
    precision: Precision | None = None,
    by_value: frozenset[type] = frozenset(),
    views: bool = True,
    seconds: float | None = None,
) -> Traced | NotTraceable:
    """What `function(*arguments, **keywords)` computes, as a program, and how later calls meet it.

    Floats and ints become inputs too, unless their type is in `by_value` or the function asks for their values: then
    they are a part of the program, and `Traced.by_value` says so. Arguments that are returned, and views, are made
    again on the host; without `views` they are results of the program.

    The function is called twice among copies of everything that it can reach, with arrays that have no values, and
    both programs are compared: a function that does something else each time has none. What it would change outside
    of it is changed in the copies alone, and then it has no program either. After so many `seconds` it is given up,
    for now.
    """
    _check(precision)
    try:
        search = Search(_as_function(function), arguments, keywords)
    except TooMuch:
        return NotTraceable("it depends on more than anygpu can look at before every call")
    why = NotTraceable("")
    try:
        for attempt in _attempts(search, by_value):
            with limited_to(seconds):
                sketch = _attempt(search, attempt, views)
            if isinstance(sketch, _Sketch):
                captures = _guards(search, attempt, sketch.paper.layouts)
                return Traced(sketch, captures, by_value=attempt.by_value, precision=precision)
            why = sketch.why
            if not sketch.of_values:
                break
    except TakesTooLong:
        return NotTraceable(f"recording it takes longer than {readable_seconds(seconds or 0.0)}", for_now=True)
    finally:
        search.forget()
    return why


class _Attempt(NamedTuple):
    """What has no values while the function is recorded."""

    by_value: frozenset[type]
    #: Whether arrays that are no arguments have none.
    sketches: bool


def _attempts(search: Search, by_value: frozenset[type]) -> list[_Attempt]:
    """From the most general program to the most particular one."""
    numbers = [each.expected for each in search.captures if each.kind == "number"]
    found = [_Attempt(by_value, True)]
    if any(_family(each) is int for each in numbers) and int not in by_value:
        found.append(_Attempt(by_value | {int}, True))
    if any(_family(each) is float for each in numbers) and float not in by_value:
        found.append(_Attempt(by_value | {int, float}, True))
    if any(each.kind == "array" and not search.is_argument(number) for number, each in enumerate(search.captures)):
        found.append(_Attempt(by_value | {int, float}, False))
    return found


def _family(kind: type[Any]) -> type[Any]:
    return float if issubclass(kind, float | np.floating) else int


#: With more numbers than this some are taken as they are: they are data that should be an array.
MAX_LIFTED = 32


def _lifted(search: Search, attempt: _Attempt) -> frozenset[int]:
    """The numbers that are inputs."""
    found = [
        position
        for position, each in enumerate(search.captures)
        if each.kind == "number" and _family(each.expected) not in attempt.by_value
    ]
    return frozenset(found[:MAX_LIFTED])


def _guards(search: Search, attempt: _Attempt, layouts: set[int]) -> tuple[Capture, ...]:
    """What is looked at before every call: inputs by their type, and all that has become a part of the program."""
    guards = []
    lifted = _lifted(search, attempt)
    for position, capture in enumerate(search.captures):
        value = search.values[position]
        if capture.kind == "number" and position not in lifted:
            capture = capture._replace(kind="value", test=same_value, expected=(type(value), bits(value)))
        elif capture.kind == "array" and not attempt.sketches and not search.is_argument(position):
            capture = capture._replace(test=_same_content, expected=(capture.test, capture.expected, digest(value)))
        elif position in layouts:
            facts = (capture.test, capture.expected, value.strides, value.flags.num)
            capture = capture._replace(test=_same_layout, expected=facts)
        guards.append(capture)
    return tuple(guards)


def _same_layout(value: Any, expected: Any) -> bool:
    test, facts, strides, flags = expected
    return bool(test(value, facts)) and value.strides == strides and value.flags.num == flags


def _same_content(value: Any, expected: Any) -> bool:
    test, facts, known = expected
    return bool(test(value, facts)) and digest(value) == known


def _as_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """An object that can be called, as the method that is called then."""
    if isinstance(function, FunctionType | MethodType | functools.partial):
        return function
    by_class = next((vars(cls)["__call__"] for cls in type(function).__mro__ if "__call__" in vars(cls)), None)
    return MethodType(by_class, function) if isinstance(by_class, FunctionType) else function


class _Failure(NamedTuple):
    """An attempt that led to nothing."""

    why: NotTraceable
    #: Whether it may work with the values of numbers, or of arrays from outside.
    of_values: bool = False


class _Input(NamedTuple):
    """An array that is read for every call."""

    position: int
    is_argument: bool


class _Leaf(NamedTuple):
    """An array or number that is returned, and how it is made."""

    #: Which of the program's results it is made of.
    which: int | None
    #: The capture that it is, or is a view of.
    argument: int | None
    #: The way from there, for a view.
    path: tuple[Any, ...]
    finish: Callable[[Any], Any]
    #: Whether the result's memory may be somebody else's too, so that it must be copied.
    own: bool = False


class _Sketch(NamedTuple):
    """What came out of one call with arrays that have no values."""

    program: Program
    reads: list[_Input]
    #: Expressions over numbers.
    texts: list[str]
    fixed: list[Any]
    digests: list[bytes]
    #: How the return value is nested, and its leaves; where arrays were there is `None`.
    structure: Structure
    returned: list[Any]
    leaves: list[_Leaf | None]
    paper: Paper


def _attempt(search: Search, attempt: _Attempt, views: bool) -> _Sketch | _Failure:
    """Both calls, compared."""
    paper = Paper()
    try:
        first = _call(search, attempt, views, paper)
        if isinstance(first, NotTraceable):
            return _Failure(first)
        paper = Paper()
        second = _call(search, attempt, views, paper)
    except AnyGPUError as error:
        line = error.line if isinstance(error, ValueNeeded) else None
        return _Failure(NotTraceable(paper.reason or _reason(error), line), paper.asked_of_known)
    except Exception as error:  # noqa: BLE001 - the user's own, whatever it is: the function itself raises it again
        if paper.reason is not None:
            return _Failure(NotTraceable(paper.reason), paper.asked_of_known)
        # It may be because of what stands there instead; when nothing does, it is the function's own.
        error.__traceback__ = None if _is_ours(error) else error.__traceback__
        own = None if error.__traceback__ is None else error
        return _Failure(NotTraceable(f"it raises {_shown(error)}", error=own), True)
    if isinstance(second, NotTraceable):
        return _Failure(second)
    difference = _difference(first, second) or _unfollowed(first.paper, second.paper)
    return _Failure(NotTraceable(difference)) if difference is not None else second


def _shown(error: Exception) -> str:
    try:
        return repr(error)
    except Exception:  # noqa: BLE001 - an error that cannot even be shown
        return type(error).__name__


def _unfollowed(first: Paper, second: Paper) -> str | None:
    """An array that was there both times was not made by the function, and nobody knows where it comes from."""
    stayed = [each for identity, each in second.owners.items() if first.owners.get(identity) is each]
    if not stayed:
        return None
    return (
        f"it uses an array of {stayed[0].dtype}{list(stayed[0].shape)} that it finds in a way which anygpu cannot "
        "follow; it should be an argument"
    )


def _call(search: Search, attempt: _Attempt, views: bool, paper: Paper) -> _Sketch | NotTraceable:
    lifted = _lifted(search, attempt)
    arrays: dict[int, Array] = {}

    def stands_for(position: int) -> Any:
        value = search.values[position]
        if search.captures[position].kind == "number":
            if position not in lifted:
                return value
            if isinstance(value, np.generic):
                return Array(paper.number(f"a[{position}]", dtype_name(value.dtype)))
            return Weak(f"a[{position}]", paper, type(value))
        is_argument = search.is_argument(position)
        if is_argument or attempt.sketches:
            spec = Spec(value.shape, dtype_name(value.dtype))
            if isinstance(value, np.ndarray):
                paper.examples[position] = value
            read = Read(position, is_argument)
            made = arrays[position] = Array(Value.on(paper, read, spec, ordered=is_in_order(value)))
            return made
        if isinstance(value, np.ndarray):
            paper.known.add(id(owner_of(value)))
            value = value.view()
            value.flags.writeable = False
        return value

    copies = Copies(search, stands_for, paper.stop)
    try:
        return _record(copies, arrays, search, views, paper)
    finally:
        # Functions and their globals hold each other: what they hold of the user's shall not wait for the collector.
        copies.forget()
        paper.examples.clear()


def _record(
    copies: Copies, arrays: dict[int, Array], search: Search, views: bool, paper: Paper
) -> _Sketch | NotTraceable:
    function, arguments, keywords = copies.call()
    stored = {position: each._stored for position, each in arrays.items()}
    with paper.recording():
        returned, structure = flatten(function(*arguments, **keywords))
    structure = _of_the_users(structure)
    if paper.reason is not None:
        paper.stop_again()
    for position, value in stored.items():
        if arrays[position]._stored is not value:
            return NotTraceable(f"it writes to {search.captures[position].name}")
    changed = copies.changed()
    if changed is not None:
        return NotTraceable(f"it changes {changed}")
    return _drawn(paper, arrays if views else None, returned, structure)


def _of_the_users(structure: Structure) -> Structure:
    """The same with the user's own classes in the place of those that were made for the copies."""
    if structure.container is None:
        return structure
    children = tuple(map(_of_the_users, structure.children))
    return Structure(original(structure.container), structure.names, children)


def _reason(error: AnyGPUError) -> str:
    if isinstance(error, ValueNeeded):
        at = f" ({error.line})" if error.line else ""
        return f"it needs a concrete value{at}, which does not exist while it is traced; np.where() needs none"
    return str(error)


def _is_ours(error: BaseException) -> bool:
    """Whether it may be because what the function was called with is not what it is called with otherwise.

    Then the function itself may be right, so it is called as it is: that shows its own error, if it has one. What the
    user's own code raises by itself is the user's.
    """
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return True
    frame = last.tb_frame
    module = str(frame.f_globals.get("__name__"))
    if module.partition(".")[0] in ("numpy", "anygpu") or "site-packages" in frame.f_code.co_filename:
        return True
    is_raised = frame.f_code.co_code[last.tb_lasti] == _RAISE
    return not is_raised and isinstance(error, ValueError | TypeError | AttributeError | BufferError)


#: The `raise` in somebody's code, as opposed to an operation that failed.
_RAISE = opcode.opmap["RAISE_VARARGS"]


def _drawn(
    paper: Paper, arrays: dict[int, Array] | None, returned: list[Any], structure: Structure
) -> _Sketch | NotTraceable:
    """The program from what was given to what was returned."""
    wanted: list[Value] = []
    numbers: dict[int, int] = {}
    positions = None if arrays is None else {id(array): position for position, array in arrays.items()}
    leaves: list[_Leaf | None] = []
    kept: list[Any] = list(returned)

    def result(value: Value) -> int:
        if id(value) not in numbers:
            numbers[id(value)] = len(wanted)
            wanted.append(value)
        return numbers[id(value)]

    for where, leaf in enumerate(returned):
        if type(leaf) is Weak:
            leaves.append(_Leaf(result(leaf.strong), None, (), _as_python_gives))
        elif isinstance(leaf, Array):
            made = _returned(leaf, positions, result)
            if isinstance(made, str):
                return NotTraceable(made)
            leaves.append(made)
        elif type(leaf) in _PLAIN or (isinstance(leaf, np.generic | np.dtype) or type(leaf) is np.ndarray):
            leaves.append(None)
            continue
        else:
            return NotTraceable(f"it returns a {_kind_of(leaf)}, which anygpu cannot look into")
        kept[where] = None
    if not any(leaf is not None and leaf.which is not None for leaf in leaves):
        return NotTraceable("it returns no array that it computes from its arguments")
    if not are_needed(paper.may_raise, wanted):
        return NotTraceable("it does not use what NumPy may raise an error for, such as an index or an inverse")
    others = leaves_of(wanted)
    for each in others:
        if not isinstance(each.buffer, Read | Lifted | Fixed):
            return NotTraceable(f"it uses an array of {each.spec} from outside, which should be an argument")
    others.sort(key=lambda each: _order(each.buffer))
    program = linearise(wanted, inputs=others, keep_held=False)[0]
    leaves = _unshared(program, leaves)
    buffers = [each.buffer for each in others]
    return _Sketch(
        program,
        [_Input(each.position, each.is_argument) for each in buffers if isinstance(each, Read)],
        [each.text for each in buffers if isinstance(each, Lifted)],
        [each.values for each in buffers if isinstance(each, Fixed)],
        [each.digest for each in buffers if isinstance(each, Fixed)],
        structure,
        kept,
        leaves,
        paper,
    )


def _kind_of(leaf: Any) -> str:
    return "value of an unknown kind" if type(leaf) is Unfollowed else original(type(leaf)).__name__


def _order(buffer: Any) -> tuple[int, int]:
    """Arguments come first, then numbers, then arrays from outside, then what the function makes."""
    if isinstance(buffer, Read):
        return (0 if buffer.is_argument else 2), buffer.position
    return (1, 0) if isinstance(buffer, Lifted) else (3, 0)


def _returned(array: Array, positions: dict[int, int] | None, result: Callable[[Value], int]) -> _Leaf | str:
    """How an array that is returned is made; a sentence when it cannot be."""
    if positions is None:
        return _Leaf(result(array._value), None, (), _same if array.shape else _as_numpy_gives)
    if id(array) in positions:
        return _Leaf(None, positions[id(array)], (), _same)
    view: View | None = array._view
    if view is None:
        return _Leaf(result(array._value), None, (), _same if array.shape else _as_numpy_gives)
    array._value  # noqa: B018 - it looks again at what was written to its base
    if not view.can_be_followed:
        return "it returns a view which anygpu cannot make again; return a copy of it"
    if id(view.base) in positions:
        return _Leaf(None, positions[id(view.base)], view.path, _same)
    return _Leaf(result(view.base._value), None, view.path, _same)


def _difference(first: _Sketch, second: _Sketch) -> str | None:
    """What the function did differently the second time."""
    if first.program != second.program or first.structure != second.structure or first.texts != second.texts:
        return "it is not deterministic: two traces of it gave different programs"
    if first.digests != second.digests or first.reads != second.reads or first.leaves != second.leaves:
        return "it is not deterministic: two traces of it computed with different numbers"
    for one, other in zip(first.returned, second.returned, strict=True):
        if one is not other and not _same_static(one, other):
            return "it is not deterministic: two traces of it returned different values"
    return None


def _unshared(program: Program, leaves: list[_Leaf | None]) -> list[_Leaf | None]:
    """Results that are two to the user, or that are what went in, become copies of their own."""
    first: dict[int, int] = {}
    made: list[_Leaf | None] = []
    for leaf in leaves:
        if leaf is not None and leaf.which is not None and leaf.finish is _same:
            node = program.outputs[leaf.which]
            if node < program.input_count or first.setdefault(node, leaf.which) != leaf.which:
                leaf = leaf._replace(own=True)
        made.append(leaf)
    return made


def _same_static(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    return repr(one) == repr(other)


def _same(result: Any) -> Any:
    return result


def _as_python_gives(result: Any) -> Any:
    return result.item()


def _as_numpy_gives(result: Any) -> Any:
    """NumPy's functions give a scalar where there are no axes."""
    return result[()] if type(result) is np.ndarray else result


#: Types whose values are a part of the program's meaning: another value is another signature.
_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None), type(Ellipsis), slice, range))


def _check(precision: Any) -> None:
    if precision not in (None, "float32"):
        raise InvalidOption(f'precision is "float32" or None; got {precision!r}.')


def _spec_of(argument: Any) -> Spec | None:
    if isinstance(argument, Spec):
        return argument
    # Not what is behind a tensor: asking for that would bring it to its device.
    if isinstance(argument, Array) or (isinstance(argument, np.ndarray) and argument.dtype.kind in "biufc"):
        return Spec(argument.shape, dtype_name(argument.dtype))
    return None


def _nothing(function: Callable[..., Any]) -> str:
    return f"{_name(function)} returns no array, so there is nothing to record."


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))
