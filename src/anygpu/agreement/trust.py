"""Whether a device's result may stand for NumPy's: what was compared, how results lie in memory, what NumPy warns of.

NumPy's floating-point modes and Python's warning filters decide when a call has to run on NumPy for their sake. `Trust`
is what one call site has learnt of all this.
"""

from __future__ import annotations

import cmath
import contextlib
import math
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from anygpu.array.core.layouts import copy_in_order
from anygpu.array.core.structure import flatten, unflatten
from anygpu.base.typing import HostArray
from anygpu.base.warning_filters import SHOWS_EACH, action_of
from anygpu.engines.codegen.kernel import BEYOND, HIDDEN, RESULT, UNKNOWN, WRAPPED
from anygpu.engines.numpy import lowering
from anygpu.program.dtypes import is_inexact
from anygpu.program.graph import Program
from anygpu.program.primitives import Cast, Constant

if TYPE_CHECKING:
    from anygpu.agreement.analysis import Flag
    from anygpu.agreement.comparison import Judgement
    from anygpu.agreement.float_errors import FloatErrors
    from anygpu.array.trace.traced import Traced
    from anygpu.placement.plan.chunking import Chunks

#: Programs and orders of memory that are remembered for one kind of calls.
_MOST = 64

#: All arguments lie in memory as C has it.
_PLAIN: Hashable = "C"


class Sample(NamedTuple):
    """A call that ran on NumPy, copied so that a device can be compared with it later."""

    traced: Traced
    inputs: list[Any]
    #: The function's value; `None` with anygpu's own arrays, where the program on NumPy is the reference.
    expected: Any
    is_ours: bool
    #: The warning filters at that call.
    filters: Filters


class Trust:
    """The comparisons of one call site: which programs agreed on which workers, and how NumPy's results look.

    An agreement holds for a program, its chunks, the generation of its worker, and the kinds of numbers among the
    arguments.
    """

    def __init__(self) -> None:
        self._agreed: dict[tuple[str, str], tuple[Chunks | None, int]] = {}
        #: By the same keys: the kinds compared for each number among the inputs, and the comparisons under way.
        self._kinds: dict[tuple[str, str], list[set[NumberKind]]] = {}
        self._comparing: set[tuple[str, str, tuple[NumberKind, ...]]] = set()
        self._layouts: dict[Hashable, tuple[tuple[int, ...] | None, ...] | None] = {}
        #: By the key of a program: how far its results were from NumPy's when they agreed.
        self.usual: dict[str, tuple[float, ...]] = {}
        #: Warnings of NumPy in every call, whatever the values: errors in what the function computes from constants.
        self.constant_flags: frozenset[Flag] = frozenset()
        #: Warnings seen on NumPy; devices do not report errors that no result shows, such as a masked NaN.
        self.flags: frozenset[Flag] = frozenset()
        #: The warning filters at the last call on NumPy, and the warnings that were given under them.
        self.filters_at_last_numpy_call: Filters | None = None
        self._shown: frozenset[Flag] = frozenset()
        #: By the key of a program, the code that finds its floating-point errors; `None` if there is none.
        self._errors: dict[str, FloatErrors | None] = {}
        #: A warning that a filter turned into an error, for the next call to raise.
        self.pending_warning: Warning | None = None

    def warn_later(self, warning: Warning | None) -> None:
        """Have the next call raise a warning that was given in the background, and that a filter made an error of."""
        self.pending_warning = warning

    def raise_pending_warning(self) -> None:
        """Raise the warning that was left for the next call, once."""
        warning, self.pending_warning = self.pending_warning, None
        if warning is not None:
            raise warning

    def agree(
        self,
        program: str,
        name: str,
        chunks: Chunks | None,
        generation: int,
        kinds: Sequence[NumberKind] = (),
    ) -> None:
        """Note that this program, in these chunks and by a worker of this generation, gave NumPy's results for such
        numbers.
        """
        if len(self._agreed) >= _MOST:
            self._agreed.clear()
            self._kinds.clear()
        self._agreed[program, name] = (chunks, generation)
        self.begin_with_numbers(program, name, kinds)

    def agreed(self, program: str, name: str, chunks: Chunks | None, generation: int) -> bool:
        """Return whether this program, in these chunks, has agreed with NumPy since this worker was opened."""
        return self._agreed.get((program, name)) == (chunks, generation)

    # -- numbers among the arguments

    def begin_with_numbers(self, program: str, name: str, kinds: Sequence[NumberKind]) -> None:
        """Note the kinds of numbers for which the first results were compared there."""
        self._kinds[program, name] = [{kind} for kind in kinds]

    def knows_numbers(self, program: str, name: str, kinds: Sequence[NumberKind]) -> bool:
        """Return whether results for numbers of these kinds were compared since the program first agreed."""
        known = self._kinds.get((program, name))
        return not known or all(kind in seen for kind, seen in zip(kinds, known, strict=False))

    def begin_comparing(self, program: str, name: str, kinds: tuple[NumberKind, ...]) -> bool:
        """Return whether the caller is to compare numbers of these kinds: no other one does until `end_comparing`."""
        key = (program, name, kinds)
        begun = key in self._comparing
        self._comparing.add(key)
        return not begun

    def end_comparing(self, program: str, name: str, kinds: tuple[NumberKind, ...], *, agreed: bool) -> None:
        """End what `begin_comparing` began; if the results agreed, calls with such numbers may run there."""
        self._comparing.discard((program, name, kinds))
        if agreed:
            for kind, seen in zip(kinds, self._kinds.get((program, name), ()), strict=False):
                seen.add(kind)

    # -- warnings

    def hear(self) -> None:
        """Note the warning filters of a call that has just run on NumPy; if they are new, forget the warnings shown
        before.
        """
        if self.filters_at_last_numpy_call is None or not self.filters_at_last_numpy_call.unchanged():
            self.filters_at_last_numpy_call, self._shown = Filters.now(), frozenset()

    def warned(self, flags: frozenset[Flag], filters: Filters) -> None:
        """Note that NumPy has given these warnings under these filters."""
        self.flags |= flags
        if self.filters_at_last_numpy_call is not None and self.filters_at_last_numpy_call.found is filters.found:
            self._shown |= flags

    def prepare_errors(self, traced: Traced) -> None:
        """Compile the code that finds the floating-point errors of a program; called in the background."""
        key = traced.program.key
        if key in self._errors:
            return
        if len(self._errors) >= _MOST:
            self._errors.clear()
        self._errors[key] = None
        from anygpu.agreement.float_errors import FloatErrors

        # Without it, NumPy repeats calls that may have such an error.
        with contextlib.suppress(Exception):
            self._errors[key] = FloatErrors(traced.program, quiet_lines(traced))

    def may_be_shown(self, traced: Traced, inputs: Sequence[Any], module: str) -> bool:
        """Return whether Python may show, or raise, a warning of NumPy about these inputs.

        Return False only if that is proved: no value can cause a warning, the filters ignore it, or Python shows it
        once and has done so.
        """
        if ignores_float_warnings():
            return False
        finder = self._errors.get(traced.program.key)
        if finder is None:
            return True
        with contextlib.suppress(Exception):  # of values that native code cannot use
            return self.is_shown(finder.met(inputs), module)
        return True

    def is_shown(self, flags: Iterable[Flag], module: str) -> bool:
        """Return whether Python would show, or raise, one of these warnings if NumPy gave it now.

        Filters that show a warning once for each line hide the ones that were shown, as long as the filters stay the
        same.
        """
        is_known = self.filters_at_last_numpy_call is not None and self.filters_at_last_numpy_call.unchanged()
        seen = self._shown | self.constant_flags if is_known else frozenset()
        for flag in flags:
            line = None if flag.line is None else flag.line[1]
            action = action_of(RuntimeWarning, f"{flag.kind} encountered in {flag.operation}", module, line)
            if action in _EVERY_TIME or (action != "ignore" and flag not in seen):
                return True
        return False

    # -- the order of memory

    def see(self, traced: Traced, inputs: Sequence[Any], value: Any) -> None:
        """Note the memory order of what NumPy returned for arguments in this memory order."""
        key = _order_of(inputs)
        if key not in self._layouts:
            if len(self._layouts) >= _MOST:
                self._layouts.clear()
            from anygpu.agreement.comparison import layout

            leaves = flatten(value)[0]
            orders = tuple(
                [
                    layout(leaf) if type(leaf) is np.ndarray and is_own else None
                    for leaf, is_own in zip(leaves, traced.owns, strict=True)
                ]
            )
            self._layouts[key] = orders if any(orders) or traced.reorders else None

    @property
    def plain_orders(self) -> tuple[tuple[int, ...] | None, ...] | None:
        """The memory orders of results for arguments in C order; `None` if they are all C order too."""
        return self._layouts[_PLAIN]

    @property
    def knows_plain_order(self) -> bool:
        """Return whether NumPy's order of results is known for arguments in C order."""
        return _PLAIN in self._layouts

    def recall_order(self, orders: tuple[tuple[int, ...] | None, ...] | None) -> None:
        """Take over the `plain_orders` that an earlier process has seen."""
        self._layouts[_PLAIN] = orders

    def knows_order(self, inputs: Sequence[Any]) -> bool:
        """Return whether the memory order of results is known for arguments with the memory order of these."""
        return _order_of(inputs) in self._layouts

    def in_order(self, traced: Traced, inputs: Sequence[Any], value: Any) -> Any:
        """Return a device's result in the memory order of NumPy's result, copied if it has another one."""
        orders = self._layouts.get(_order_of(inputs))
        if orders is None:
            return value
        leaves, structure = flatten(value)
        made: dict[int, Any] = {}  # an array that is returned twice stays one
        for leaf, order in zip(leaves, orders, strict=True):
            if id(leaf) not in made:
                made[id(leaf)] = _ordered(leaf, order)
        return unflatten(structure, [made[id(leaf)] for leaf in leaves])


#: The special properties of a number: a wrong program is often right for such numbers only.
NumberKind = frozenset[str]
_ORDINARY: NumberKind = frozenset()


def number_kinds(traced: Traced, inputs: Sequence[Any]) -> tuple[NumberKind, ...]:
    """Return the kinds of the numbers among the inputs of a program."""
    return tuple([number_kind(each.item()) for each in inputs[traced.numbers]])


def number_kind(number: Any) -> NumberKind:
    """Return what is special about a number: 0, 1, NaN, infinity, sign, power of two; nothing for an ordinary one."""
    if isinstance(number, complex):
        parts = (("real", number.real), ("imaginary", number.imag))
        return frozenset(f"{part} {each}" for part, value in parts for each in number_kind(value))
    if number != number:
        return frozenset(("NaN",))
    if number in (0, 1):
        return frozenset((str(int(number)),))
    found = {"negative"} if number < 0 else set()
    if math.isinf(number):
        found.add("infinite")
    elif math.frexp(abs(number))[0] == 0.5:
        found.add("power of two")
    return frozenset(found) if found else _ORDINARY


def _order_of(inputs: Sequence[Any]) -> Hashable:
    """Return a key for the memory order of all inputs."""
    for each in inputs:
        if type(each) is np.ndarray and not each.flags.c_contiguous:
            return tuple([other.strides if type(other) is np.ndarray else None for other in inputs])
    return _PLAIN


def _ordered(leaf: Any, order: tuple[int, ...] | None) -> Any:
    """Return the array with its axes in this memory order; `None` leaves it as it is."""
    if order is None:
        return leaf
    from anygpu.agreement.comparison import layout

    if layout(leaf) == order:
        return leaf
    return copy_in_order(leaf, (*order, *(axis for axis in range(leaf.ndim) if axis not in order)))


def sample_of(traced: Traced, inputs: Sequence[Any], value: Any, *, ours: bool) -> Sample:
    """Return a copied sample of a call: the caller may write to its arrays before anything is compared.

    With `ours` only the inputs are copied: the expected result is the program's on NumPy.
    """
    if ours:
        return Sample(traced, [np.array(each) for each in inputs], None, True, Filters.now())
    leaves, structure = flatten(traced.without_arguments(value))
    copied = [each.copy(order="K") if isinstance(each, np.ndarray) else each for each in leaves]
    # Two places of one array stay one.
    seen: dict[int, Any] = {}
    copied = [seen.setdefault(id(leaf), copy) for leaf, copy in zip(leaves, copied, strict=True)]
    return Sample(traced, [np.array(each) for each in inputs], unflatten(structure, copied), False, Filters.now())


def why_not_replaceable(traced: Traced, value: Any, inputs: Sequence[Any]) -> str | None:
    """Return why a device cannot return such a value, as a clause to follow the function's name; `None` if it can."""
    every, structure = flatten(value)
    if structure != traced.returned:
        return "it returns something other than when it was traced"
    # Arguments that are returned, and views, are made again as NumPy makes them.
    leaves = [leaf for leaf, is_own in zip(every, traced.owns, strict=True) if is_own and isinstance(leaf, np.ndarray)]
    for number, leaf in enumerate(leaves):
        if not leaf.flags.writeable:
            return "it returns an array that cannot be written to"
        if any(isinstance(each, np.ndarray) and np.may_share_memory(leaf, each) for each in inputs):
            return "it returns a view of its argument; return a copy instead"
        if not _is_dense(leaf):
            return "it returns a part of a larger array; return a copy instead"
        if any(leaf is not other and np.may_share_memory(leaf, other) for other in leaves[:number]):
            return "it returns two arrays that share memory; return copies instead"
    return None


def _is_dense(array: Any) -> bool:
    """Return whether an array fills its memory without gaps, in any order of its axes and none of them reversed."""
    if array.flags.forc or not array.size:
        return True
    step = array.itemsize
    for stride, length in sorted((stride, n) for stride, n in zip(array.strides, array.shape, strict=True) if n > 1):
        if stride != step:
            return False
        step *= length
    return True


def code_of(function: Callable[..., Any]) -> Hashable:
    """Return the key by which functions are pinned: the code, which all instances and closures share."""
    inner = getattr(function, "__func__", function)
    code: Hashable = getattr(inner, "__code__", None)
    return code if code is not None else id(type(function))


# -- comparing with NumPy, which needs no planner


def compared(sample: Sample, results: Sequence[Any], usual: Sequence[float] = ()) -> Judgement:
    """Judge a device's results against NumPy's for the same inputs; `usual` are differences that were right before."""
    from anygpu.agreement.comparison import judge  # for trials, which are made in the background

    program = sample.traced.program
    arrays = [np.asarray(each) for each in results]
    if sample.is_ours:
        expected = tuple(np.asarray(each) for each in lowering.run(program, sample.inputs))
        return judge(program, sample.inputs, expected, arrays, tuple, usual=usual)
    return judge(program, sample.inputs, sample.expected, arrays, sample.traced.rebuild, usual=usual)


def quiet_lines(traced: Any) -> frozenset[tuple[str, int]]:
    """Return the lines on which the function itself has silenced warnings of NumPy."""
    found: frozenset[tuple[str, int]] = getattr(traced, "quiet_lines", frozenset())
    return found


def learn_flags(trust: Trust, sample: Sample) -> None:
    """Remember which warnings NumPy gave in a call; called in the background, where nothing may be raised."""
    program, quiet = sample.traced.program, quiet_lines(sample.traced)
    if not may_warn_at_all(program, quiet):
        return
    with contextlib.suppress(Exception):
        from anygpu.agreement.analysis import flags_of

        heard = frozenset(flag for flag in flags_of(program, sample.inputs) if flag.line not in quiet)
        trust.warned(heard, sample.filters)


def may_hide(program: Program, quiet: frozenset[tuple[str, int]]) -> bool:
    """Return whether NumPy could give a warning that no NaN or infinity in a result shows."""
    return any(
        op.may_raise_flags and program.lines[position] not in quiet
        for position, (op, _) in enumerate(program.nodes)
        if is_inexact(program.specs[position].dtype) or isinstance(op, Cast)
    )


def may_warn_at_all(program: Program, quiet: frozenset[tuple[str, int]]) -> bool:
    """Return whether NumPy could warn at all, also about a NaN that is masked later or cast to an integer."""
    return may_warn(program, quiet) or any(
        spec.dtype not in ("bool",) and program.lines[position] not in quiet
        for position, spec in enumerate(program.specs)
        if position >= program.input_count
    )


def minded(traced: Traced) -> int:
    """Return the bits that native code notes and NumPy may warn about, or whose result only NumPy knows."""
    program, quiet = traced.program, quiet_lines(traced)
    is_known = not (traced.is_exact or traced.has_complex_products)
    found = RESULT | UNKNOWN if may_warn(program, quiet if is_known else frozenset()) else 0
    return found | WRAPPED | BEYOND | (HIDDEN if may_hide(program, quiet) else 0)


def only_numpy_knows(traced: Traced, results: Sequence[Any]) -> str | None:
    """Return why only NumPy can compute these results, as a clause; `None` in most cases."""
    if traced.is_exact and any(np.isnan(each).any() for each in results if np.asarray(each).dtype.kind in "fc"):
        return "exact=True asks for every bit of a NaN, whose sign depends on the order of instructions"
    if traced.has_complex_products and not is_finite(results):
        return "which parts of a product of complex matrices are infinite or NaN depends on the order of its steps"
    return None


# -- floating-point modes and warning filters

#: Modes that only NumPy can honour at the line where it happens.
_RAISING = frozenset(("raise", "call", "print", "log"))
_WATCHED = ("divide", "over", "invalid")
#: The modes that every thread begins with.
USUAL_MODES = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
#: Each occurrence is shown or raised.
_EVERY_TIME = (*SHOWS_EACH, "error")


T = TypeVar("T")


class Filters(NamedTuple):
    """The warning filters at one moment. Entering or leaving `catch_warnings` makes others of them."""

    found: list[Any]
    length: int
    first: Any

    @classmethod
    def now(cls) -> Filters:
        """Return the filters as they are now."""
        found: Any = warnings.filters
        return cls(found, len(found), found[0] if found else None)

    def unchanged(self) -> bool:
        """Return whether the filters are still the same."""
        found: Any = warnings.filters
        return found is self.found and len(found) == self.length and (not found or found[0] is self.first)


class Modes(NamedTuple):
    """NumPy's floating-point modes, where they are not as usual."""

    by_kind: dict[str, Any]
    handler: Any

    @classmethod
    def unusual(cls) -> Modes | None:
        """Return the modes of this thread or task; `None` where they are those that every thread begins with."""
        found: Any = np.geterr()
        return None if found == USUAL_MODES else cls(found, np.geterrcall())

    def hold(self) -> np.errstate:
        """Apply these modes in a block that runs on another thread."""
        return np.errstate(call=self.handler, **self.by_kind)


def mode_token() -> object:
    """Return an object that stays the same as long as NumPy's modes do, in this thread or task; a new one if unknown.

    NumPy keeps its modes in a context variable, which takes a twentieth of the time that `np.geterr` takes.
    """
    return object() if _MODES is None else _MODES.get()


_MODES: ContextVar[object] | None = getattr(np._core.umath, "_extobj_contextvar", None)  # type: ignore[attr-defined]


def listening(heard: set[str], tracing: Callable[[], T]) -> T:
    """Trace in a context of its own, and add the kinds of floating-point errors that NumPy would warn about."""
    np.seterrcall(lambda kind, flag: heard.add(kind))
    warned: Any = {name: "call" for name, mode in modes_now().items() if mode == "warn"}
    np.seterr(**warned)
    return tracing()


def modes_now() -> Mapping[str, str]:
    """Return NumPy's reaction to each kind of floating-point error, in this thread or task."""
    found: Any = np.geterr()
    return found  # type: ignore[no-any-return]


def raising_modes(modes: Mapping[str, str]) -> str | None:
    """Return why these modes of `np.geterr()` need NumPy itself; `None` if they do not."""
    for name, mode in modes.items():
        if mode in _RAISING or (name == "under" and mode != "ignore"):
            return f'np.errstate({name}="{mode}") is set, which only NumPy honours.'
    return None


def warns(modes: Mapping[str, str]) -> bool:
    """Return whether NumPy would warn about a result that is not finite."""
    return any(modes[name] != "ignore" for name in _WATCHED)


def ignores_float_warnings() -> bool:
    """Return whether the filters ignore every RuntimeWarning, from any module and with any text."""
    found: Any = warnings.filters
    for action, message, category, where, number in found:
        if issubclass(RuntimeWarning, category):
            if action != "ignore":
                return False
            if message is None and where is None and not number:
                return True
    return str(getattr(warnings, "defaultaction", "default")) == "ignore"


def may_warn(program: Program, quiet_lines: frozenset[tuple[str, int]] = frozenset()) -> bool:
    """Return whether NumPy could give a warning that leaves a NaN or an infinity in a result of this program.

    Lines on which the function has silenced NumPy do not count.
    """
    if not any(is_inexact(spec.dtype) for spec in program.results):
        return False
    for position, (op, _) in enumerate(program.nodes):
        if not is_inexact(program.specs[position].dtype) or program.lines[position] in quiet_lines:
            continue
        if op.may_raise_flags:
            return True
        # A constant may come from a warning that recording has already heard.
        if isinstance(op, Constant) and not np.isfinite(np.frombuffer(op.data, op.dtype)).all():
            return True
    return False


def is_finite(arrays: Sequence[Any]) -> bool:
    """Return whether all floats in these arrays are finite.

    A finite sum, or a finite product for small arrays, shows it in a third of the time of adding two such arrays.
    """
    for each in arrays:
        values = np.asarray(each)
        if values.dtype.kind in "fc" and not _has_finite_sum(values) and not np.isfinite(values).all():
            return False
    return True


#: Below, NumPy's BLAS computes a product on one thread, and sooner than `np.isfinite` does.
_SHORT_PRODUCT = 8192


def _has_finite_sum(values: HostArray) -> bool:
    """Return whether the sum of all values is finite, which proves that they are; an overflow proves nothing."""
    if values.dtype.char in "fdFD" and values.size <= _SHORT_PRODUCT:
        return cmath.isfinite(np.vdot(values, values))
    if values.dtype.char not in "fdFD":
        return False
    with np.errstate(all="ignore"):
        return cmath.isfinite(np.add.reduce(values, axis=None))
