"""From a function to a program: the function is called once with arrays that have a shape and a type, and no values."""

from __future__ import annotations

import opcode
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any, Literal, NamedTuple

import numpy as np

from anygpu.array.array import Array
from anygpu.array.expression import TakesTooLong, Value, leaves_of, linearise, recording_limited_to
from anygpu.array.outside import Outside, is_array, is_users, outside_of, undisturbed
from anygpu.array.paper import Fixed, Lifted, Live, Paper
from anygpu.array.place import to_numpy_dtype
from anygpu.array.recording import dtype_name
from anygpu.array.structure import LEAF, Structure, flatten, unflatten
from anygpu.array.swapping import Swapping
from anygpu.array.weak import Weak, evaluator, in_type
from anygpu.errors import AnyGPUError, InvalidOption, ValueNeeded
from anygpu.program.dtypes import DTYPES
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

    #: A clause that goes on after the function's name: "it asks for a value …".
    reason: str
    #: The user's own line, where it is known.
    line: str | None = None
    #: Whether it may be another thing when there is more time.
    for_now: bool = False


class Traced:
    """A function that has become a program, for calls of one signature."""

    __slots__ = (
        "_arrays",
        "_copied",
        "_evaluate",
        "_given",
        "_live",
        "_numbers",
        "_positions",
        "_returned",
        "_single",
        "_structure",
        "lifted",
        "outside",
        "program",
    )

    #: What is computed.
    program: Program
    #: What the function uses beside its arguments.
    outside: Outside
    #: Whether floats among the arguments are inputs, so that other values need no other program.
    lifted: bool

    def __init__(
        self, sketch: _Sketch, given: Structure, outside: Outside, *, lifted: bool, precision: Precision | None
    ) -> None:
        self.program = in_single_precision(sketch.program) if precision == "float32" else sketch.program
        self.outside = outside
        self.lifted = lifted
        self._given = given
        self._positions = sketch.positions
        texts = [each.text for each in sketch.others if isinstance(each, Lifted)]
        first = len(sketch.positions)
        self._numbers = [to_numpy_dtype(spec.dtype) for spec in self.program.inputs[first : first + len(texts)]]
        self._evaluate = evaluator(texts) if texts else None
        self._live = [
            each.source if isinstance(each, Live) else each.values
            for each in sketch.others
            if not isinstance(each, Lifted)
        ]
        self._structure = sketch.structure
        self._returned = sketch.returned
        self._arrays = _unshared(sketch)
        kept = {id(each.array) for each in outside.arrays}
        self._copied = [
            where for where, each in enumerate(sketch.returned) if isinstance(each, np.ndarray) and id(each) not in kept
        ]
        self._single = self._arrays[0][2] if sketch.structure is LEAF else None

    def unchanged(self) -> bool:
        """Whether the program still is what the function does: everything that surrounds it is what it was."""
        return self.outside.unchanged()

    def inputs(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> list[Any]:
        """What the program takes, one for each of `program.inputs`, from a call of the same signature.

        Arrays among the arguments come first, in their order and without those that the function does not use; then
        numbers, as arrays without axes; then arrays from outside, as they are now; then what the function makes
        itself. The arrays are the caller's own: with `precision="float32"` whoever runs the program narrows them.
        """
        leaves, given = flatten((arguments, keywords)) if keywords else flatten(arguments)
        if given is not self._given and given != self._given:
            raise InvalidOption(f"the call is nested as {given}; the function was recorded for {self._given}.")
        inputs = [leaves[position] for position in self._positions]
        if self._evaluate is not None:
            inputs += map(in_type, self._evaluate(leaves), self._numbers)
        if self._live:
            inputs += self._live
        return inputs

    def rebuild(self, results: Sequence[Any]) -> Any:
        """What the function returns, from what the program gave."""
        if self._single is not None:
            return self._single(results[0])
        leaves = list(self._returned)
        for where, which, convert in self._arrays:
            leaves[where] = convert(results[which])
        for where in self._copied:
            leaves[where] = leaves[where].copy()
        return unflatten(self._structure, leaves)


def trace(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    *,
    precision: Precision | None = None,
    lift: bool = True,
    seconds: float | None = None,
) -> Traced | NotTraceable:
    """What `function(*arguments, **keywords)` computes, as a program, and how later calls meet it.

    Floats among the arguments become inputs too, unless `lift` is false or the function asks for their values: then
    they are a part of the program, and `Traced.lifted` says so.

    The function is called twice, with arrays that have no values, and both programs are compared: a function that
    does something else each time has none. So whatever else it does (printing, counting, appending) happens twice,
    and once or twice more where its floats or arrays from outside turn out to decide what it does. Sources of random
    numbers that it uses are put back, and what it would write down outside of it is kept from everybody. An exception
    that the user's own code raises comes out unchanged. After so many `seconds` it is given up, for now.
    """
    try:
        with recording_limited_to(seconds):
            return _trace(function, arguments, keywords, precision, lift)
    except TakesTooLong:
        return NotTraceable(f"recording it takes longer than {readable_seconds(seconds or 0.0)}", for_now=True)


def _trace(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    precision: Precision | None,
    lift: bool,
) -> Traced | NotTraceable:
    _check(precision)
    leaves, structure = flatten((arguments, keywords)) if keywords else flatten(arguments)
    for number, each in enumerate(leaves):
        if (isinstance(each, np.ndarray) and not is_array(each)) or isinstance(each, dict | list | tuple):
            about = f" of {each.dtype}" if isinstance(each, np.ndarray) else " with attributes of its own"
            return NotTraceable(f"its argument number {number + 1} is a {type(each).__name__}{about}")
    call = _Call(_as_function(function), leaves, structure, bool(keywords))
    floats = sum(_is_float(each) for each in leaves)
    lifts = lift and 0 < floats <= MAX_LIFTED
    sketches = bool(call.outside.arrays)
    with undisturbed(call.outside.generators):
        while True:
            sketch = call.attempt(lift=lifts, sketch=sketches)
            if isinstance(sketch, _Sketch):
                break
            again = lifts and not sketch.of_number, sketches and not sketch.of_outside
            if again == (lifts, sketches):
                if sketch.error is not None:
                    raise sketch.error
                return sketch.why
            lifts, sketches = again
    if not call.outside.unchanged():
        return NotTraceable("it changes something outside of it")
    call.outside.forget_ways()
    return Traced(sketch, structure, call.outside, lifted=lifts or not floats, precision=precision)


def _as_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """An object that can be called, as the method that is called then."""
    by_class = next((vars(cls)["__call__"] for cls in type(function).__mro__ if "__call__" in vars(cls)), None)
    return MethodType(by_class, function) if isinstance(by_class, FunctionType) else function


#: With more floats than this among the arguments they are data that should be an array, and are taken as they are.
MAX_LIFTED = 32


class _Failure(NamedTuple):
    """An attempt that led to nothing."""

    why: NotTraceable
    #: Whether it may work with the values of numbers.
    of_number: bool = False
    #: Whether it may work with the values of arrays from outside.
    of_outside: bool = False
    #: The function's own error.
    error: Exception | None = None


class _Sketch(NamedTuple):
    """What came out of one call with arrays that have no values."""

    program: Program
    #: Which leaves of the arguments are the first inputs.
    positions: list[int]
    #: What the other inputs are.
    others: list[Lifted | Live | Fixed]
    #: How the return value is nested, and its leaves; where arrays were there is `None`.
    structure: Structure
    returned: list[Any]
    #: For each array of the return value: which leaf it is, of which of the program's results it is made, and how.
    arrays: list[tuple[int, int, Callable[[Any], Any]]]
    paper: Paper


class _Call:
    """A call that is to be recorded."""

    def __init__(
        self, function: Callable[..., Any], leaves: list[Any], structure: Structure, has_keywords: bool
    ) -> None:
        self._function = function
        self._leaves = leaves
        self._structure = structure
        self._has_keywords = has_keywords
        objects = [each for each in leaves if not is_array(each) and type(each) not in _PLAIN]
        self.outside = outside_of(function, objects)

    def attempt(self, *, lift: bool, sketch: bool) -> _Sketch | _Failure:
        """Both calls, compared. With `lift` numbers have no values, with `sketch` arrays from outside have none."""
        if not sketch:
            # What the function makes of them by itself is a part of the program, so they must stay as they are.
            self.outside.watch_values(each.array for each in self.outside.arrays)
        paper = Paper(self.outside.owners)
        try:
            first = self._call(paper, lift, sketch)
            if isinstance(first, NotTraceable):
                return _Failure(first)
            paper = Paper(self.outside.owners)
            second = self._call(paper, lift, sketch)
        except AnyGPUError as error:
            line = error.line if isinstance(error, ValueNeeded) else None
            return _Failure(NotTraceable(_reason(error), line), paper.asked_of_number, paper.asked_of_outside)
        except Exception as error:  # noqa: BLE001 - the user's own, whatever it is: it is raised in the end
            # It may be because of what stands there instead; when nothing does, it is the function's own.
            own = None if _is_ours(error) else error
            return _Failure(NotTraceable(f"it raises {error!r}"), True, True, own)
        if isinstance(second, NotTraceable):
            return _Failure(second)
        difference = _difference(first, second) or self._unfollowed(first.paper, second.paper)
        return _Failure(NotTraceable(difference)) if difference is not None else second

    def _unfollowed(self, first: Paper, second: Paper) -> str | None:
        """An array that was there both times was not made by the function, and nobody knows where it comes from."""
        stayed = [each for identity, each in second.owners.items() if first.owners.get(identity) is each]
        if not stayed:
            return None
        if not self.outside.remembers:
            return (
                f"it uses an array of {stayed[0].dtype}{list(stayed[0].shape)} that it finds in a way which anygpu "
                "cannot follow; it should be an argument"
            )
        self.outside.watch_values(stayed)
        return None

    def _call(self, paper: Paper, lift: bool, sketch: bool) -> _Sketch | NotTraceable:
        values: dict[int, Value] = {}
        given = list(self._leaves)
        for position, leaf in enumerate(self._leaves):
            spec = _spec_of(leaf)
            if spec is not None:
                values[position] = Value.on(paper, None, spec)
                given[position] = Array(values[position])
            elif lift and type(leaf) is float:
                given[position] = Weak(f"a[{position}]", paper)
            elif lift and _is_float(leaf):
                given[position] = Array(paper.number(f"a[{position}]", dtype_name(leaf.dtype)))
        around = {id(array): _in_place_of(array, paper if sketch else None) for array, _ in self.outside.arrays}
        stored = {identity: each._stored for identity, each in around.items() if isinstance(each, Array)}
        swapping = Swapping(self.outside, around)
        self.outside.watch_values(swapping.unreached)
        function = swapping.of(self._function)
        for position, leaf in enumerate(self._leaves):
            if given[position] is leaf:
                given[position] = swapping.of(leaf)
        swapping.seal()
        whole = unflatten(self._structure, given)
        arguments, keywords = whole if self._has_keywords else (whole, {})
        returned, structure = flatten(function(*arguments, **keywords))
        if paper.asked is not None:
            raise paper.asked
        for position, value in values.items():
            if given[position]._stored is not value:
                return NotTraceable(f"it writes to its argument number {position + 1}")
        for array, name in self.outside.arrays:
            if id(array) in stored and around[id(array)]._stored is not stored[id(array)]:
                return NotTraceable(f"it writes to {name}")
        changed = swapping.changed()
        if changed is not None:
            return NotTraceable(f"it changes {changed}")
        return _drawn(paper, values, returned, structure)


def _in_place_of(array: Any, paper: Paper | None) -> Any:
    """What the function finds instead of an array from outside: a sketch, or its values, which it cannot write to."""
    spec = _spec_of(array)
    if paper is not None and spec is not None:
        return Array(Value.on(paper, Live(array), spec))
    if isinstance(array, np.ndarray):
        array = array.view()
        array.flags.writeable = False
    return array


def _is_float(leaf: Any) -> bool:
    return type(leaf) is float or (isinstance(leaf, np.floating) and leaf.dtype.name in DTYPES)


def _reason(error: AnyGPUError) -> str:
    if isinstance(error, ValueNeeded):
        at = f" ({error.line})" if error.line else ""
        return f"it asks for a value{at}, and while it is recorded there are none; where() does without"
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
    if not is_users(frame.f_globals.get("__name__")) or "site-packages" in frame.f_code.co_filename:
        return True
    is_raised = frame.f_code.co_code[last.tb_lasti] == _RAISE
    return not is_raised and isinstance(error, ValueError | TypeError | AttributeError | BufferError)


#: The `raise` in somebody's code, as opposed to an operation that failed.
_RAISE = opcode.opmap["RAISE_VARARGS"]


def _drawn(paper: Paper, values: dict[int, Value], returned: list[Any], structure: Structure) -> _Sketch | NotTraceable:
    """The program from what was given to what was returned."""
    wanted: list[Value] = []
    numbers: dict[int, int] = {}
    arrays: list[tuple[int, int, Callable[[Any], Any]]] = []
    for where, leaf in enumerate(returned):
        is_number = type(leaf) is Weak
        if is_number or isinstance(leaf, Array):
            if id(leaf) not in numbers:
                numbers[id(leaf)] = len(wanted)
                wanted.append(leaf.strong if is_number else leaf._value)
            arrays.append((where, numbers[id(leaf)], _as_python_gives if is_number else _way_back(leaf)))
        elif not (type(leaf) in _PLAIN or isinstance(leaf, np.generic | np.ndarray | np.dtype)):
            return NotTraceable(f"it returns a {type(leaf).__name__}, which anygpu cannot look into")
    if not any(isinstance(leaf, Array) for leaf in returned):
        return NotTraceable("it returns no array that depends on its arguments")
    found = leaves_of(wanted)
    is_used = {id(leaf) for leaf in found}
    positions = [position for position, value in values.items() if id(value) in is_used]
    given = {id(value) for value in values.values()}
    others = [leaf for leaf in found if id(leaf) not in given]
    for leaf in others:
        if not isinstance(leaf.buffer, Lifted | Live | Fixed):
            return NotTraceable(f"it uses an array of {leaf.spec} from outside, which should be an argument")
    others.sort(key=lambda leaf: _ORDER.index(type(leaf.buffer)))
    program = linearise(wanted, inputs=[*(values[each] for each in positions), *others], keep_held=False)[0]
    kept: list[Any] = [None if isinstance(leaf, Array) or type(leaf) is Weak else leaf for leaf in returned]
    buffers: list[Any] = [leaf.buffer for leaf in others]
    return _Sketch(program, positions, buffers, structure, kept, arrays, paper)


#: In which order inputs that are no arguments come.
_ORDER: tuple[type[Any], ...] = (Lifted, Live, Fixed)


def _way_back(array: Array) -> Callable[[Any], Any]:
    return _same if array.shape else _as_numpy_gives


def _difference(first: _Sketch, second: _Sketch) -> str | None:
    """What the function did differently the second time."""
    if first.program != second.program or first.structure != second.structure:
        return "it does something else each time that it is called"
    if [_trait(each) for each in first.others] != [_trait(each) for each in second.others]:
        return "it computes with other numbers each time that it is called"
    for one, other in zip(first.returned, second.returned, strict=True):
        if one is not other and not _same_static(one, other):
            return "it returns something else each time that it is called"
    return None


def _trait(other: Lifted | Live | Fixed) -> Any:
    """What must be the same in both calls."""
    if isinstance(other, Lifted):
        return other.text
    if isinstance(other, Fixed):
        return other.digest
    source = other.source
    return id(source) if isinstance(source, Array) else (source.ctypes.data, source.strides)


def _same_static(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    return repr(one) == repr(other)


def _unshared(sketch: _Sketch) -> list[tuple[int, int, Callable[[Any], Any]]]:
    """The ways back, where arrays that are two to the user, or that are kept here, are copies of their own."""
    program = sketch.program
    first = len(sketch.positions)
    kept = {first + number for number, each in enumerate(sketch.others) if isinstance(each, Fixed)}
    shown: dict[int, int] = {}
    ways = []
    for where, which, convert in sketch.arrays:
        node = program.outputs[which]
        if convert is _same and (node in kept or shown.setdefault(node, which) != which):
            convert = _copied
        ways.append((where, which, convert))
    return ways


def _same(result: Any) -> Any:
    return result


def _copied(result: Any) -> Any:
    return result.copy()


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
