"""What a deferred call has recorded since a value was last needed.

The record is a script (see `script`), which gives what the function would have got as long as what it reads is what was
there when it was recorded. That is so for memory that only arrays of this recorder refer to, by its reference count;
for the memory of arguments where the function can reach it in no other way (`trusts_arguments`); all else is copied.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import numpy as np

from anygpu.array.deferred.layouts import (
    FITS_ALL,
    Fact,
    Op,
    Outcome,
    Selection,
    can_stand_for,
    is_number,
    layout_of,
    number_key,
    selection,
)
from anygpu.array.deferred.masks import ASSIGNED, REDUCED, SELECTED, mask_key, selected_by
from anygpu.array.deferred.modes import Modes, as_recorded, meaning_of, modes_now
from anygpu.array.deferred.references import COUNTS, NO_OTHERS, ONLY_HERE, owns_memory, references, referred_to
from anygpu.array.deferred.script import Place, Script, Structures, Where, called_from

if TYPE_CHECKING:
    from anygpu.array.deferred.standing_in import StandIn

#: Calls on arrays of at most so many elements that are all there are made at once.
SMALL = 2048
#: A script is run when it has so many entries, whether a value is needed or not.
MOST_ENTRIES = 2000

NEW, VIEW, ITSELF, AT_ONCE = Outcome.NEW, Outcome.VIEW, Outcome.ITSELF, Outcome.AT_ONCE
_new = object.__new__
_frame = sys._getframe
_ident = threading.get_ident
_clock = time.perf_counter


class Ended(NamedTuple):
    """Why a segment ended."""

    why: str
    place: Place | None
    calls: int


class Recorder:
    """What one deferred call has recorded. It belongs to the thread of that call."""

    def __init__(
        self,
        compute: Callable[[Script], list[Any]],
        *,
        trusts_arguments: bool = False,
        structures: Structures | None = None,
    ) -> None:
        """`structures` are the scripts that other calls of the function have recorded."""
        self._compute = compute
        self.trusts_arguments = trusts_arguments
        self.thread = threading.get_ident()
        self.is_open = True
        #: An object that is another one after each segment.
        self.segment = object()
        #: Calls that were recorded, those that NumPy made at once, and bytes that were copied.
        self.recorded = self.at_once = self.copied = 0
        self.ended: list[Ended] = []
        self.filters = warnings.filters
        self._structures = structures or Structures()
        #: The last entry; what goes in; where each call was made; and the arrays that wait, whether needed or not.
        self._step = self._structures.begin()
        #: NumPy's modes as they were last seen, if calls can wait with them; else these. And those of the first call.
        self._modes: object
        self._loud: object
        self._calm: object = None
        self._found_first: Modes
        self._see_modes(modes_now())
        self.values: list[Any] = []
        self._places: list[Where | None] = []
        self._made: list[StandIn] = []
        #: Those that a mask has selected.
        self._selections: list[StandIn] = []
        #: Every array that has a value, to see which of them outlive the call.
        self.all: list[ref[StandIn]] = []

    @property
    def waits(self) -> bool:
        return self._step.number >= 0

    @staticmethod
    def is_small(array: StandIn) -> bool:
        """Whether calls on an array that is there are made at once."""
        return array._layout.size <= SMALL

    # -- recording

    def again(self, key: tuple[Any, ...], first: Any, depth: int = 2) -> Any:
        """An array for a call that was recorded at this point of a script before; `None` if there was none.

        `key` is what was called, and the entry or the kind of number of each operand, of which `first` is the first.
        The user's code is `depth` frames above. The caller adds numbers to `values`.
        """
        if modes_now() is not self._modes and not self._may_wait():
            return None
        step = self._step.next.get(key)
        if step is None or _ident() != self.thread:
            return None
        fact = step.fact
        if fact.outcome is VIEW and first._value is not None and not self._may_view(first, fact):
            return None  # it was recorded of an argument, and what waits would not see a write to this array
        if warnings.filters is not self._calm and not (self._is_quiet and fact.op.is_silent):
            return None
        frame = _frame(depth)
        self._step = step
        self._places.append((frame.f_code, frame.f_lasti, frame.f_globals))
        made = _new(StandIn_)
        made._recorder = self
        made._layout = fact.layout
        made._entry = step.number
        made._segment = self.segment
        made._parent = first if fact.outcome is VIEW else None
        made._fact = fact
        made._value = made._source = None
        made._selected = step.selected
        made._views = ()
        made._is_argument = made._is_exposed = False
        self._made.append(made)
        return made

    def record(self, op: Op, operands: tuple[Any, ...], depth: int = 2) -> Any:
        """A call of NumPy's: recorded if it can be, else made at once. The user's code is `depth` frames above."""
        key: list[Any] = [op]
        numbers = []
        segment = self.segment
        for each in operands:
            if type(each) is StandIn_ and each._segment is segment:
                key.append(each._entry)
            elif type(each) is float:
                key.append(float)
                numbers.append(each)
            elif type(each) is int:
                kind = int if 0 <= each <= FITS_ALL else number_key(each, operands)
                key.append(int if kind is int else (each,))
                numbers.append(each)
            elif type(each) is StandIn_ and each._layout.is_number and each._value is not None:
                key.append(each._layout)
                numbers.append(each._value)
            elif type(each) is StandIn_ and (entry := self._entered(each)) is not None:
                key.append(entry)
            else:
                return self._record(op, operands, None, depth + 1)
        made = self.again(tuple(key), operands[0], depth + 1)
        if made is None:
            return self._record(op, operands, tuple(key), depth + 1)
        self.values += numbers
        return made

    def _entered(self, array: StandIn) -> int | None:
        """The entry of a large array that is there, if its memory can be trusted; `None` for others."""
        if array._value is None or array._layout.size <= SMALL or array._recorder is not self:
            return None
        if not self.is_open or _ident() != self.thread or not self._is_safe(array):
            return None
        return self._entry_of(array)

    def _record(self, op: Op, operands: tuple[Any, ...], again: tuple[Any, ...] | None, depth: int) -> Any:
        """The same for a call that is new at this point of a script; if it is recorded, it is `again` from now on."""
        segment = self.segment
        layouts = _layouts_worth_recording(operands) if self.is_open else None
        if layouts is None:
            return self._at_once(op, operands, depth + 1)
        selected: Any = None
        if self._selections and Selection in map(type, layouts) and op not in _OF_SELECTED:
            selected = selected_by(op, operands, self.segment)
            if selected is None or (layouts not in op.facts and not op.foresee_selection(layouts, operands)):
                return self._at_once(op, operands, depth + 1)
        fact = op.facts.get(layouts)
        if fact is None:
            fact = op.foresee(layouts, layouts[0]) if op.only_view else None
            if fact is None:
                return self._learn(op, layouts, operands, depth + 1)
        outcome = fact.outcome
        first = operands[0]
        if outcome is ITSELF and not op.writes:
            return first
        if outcome is VIEW and type(first) is StandIn_ and first._value is not None and not self._may_view(first, fact):
            return self._view(fact, first)
        if (
            outcome is AT_ONCE
            or _ident() != self.thread
            or (not self._may_wait())
            or (warnings.filters is not self._calm and not (self._is_quiet and op.is_silent))
            or (op.writes and not self._can_write(first))
        ):
            return self._at_once(op, operands, depth + 1)
        before = self._step
        references = []
        for each in operands:
            entry = self._entry_of(each)
            if entry is None:
                return self._at_once(op, operands, depth + 1)
            references.append(entry)
        frame = _frame(depth)
        number = self._add_call(fact, tuple(references), (frame.f_code, frame.f_lasti, frame.f_globals))
        if op.writes:
            return first
        assert fact.layout is not None
        made = StandIn_(self, fact.layout, None, number, first if outcome is VIEW else None, fact)
        self._made.append(made)
        made._selected = self._step.selected = selected
        if again is not None and segment is self.segment and number < MOST_ENTRIES:
            before.next[again] = self._step
        if number > MOST_ENTRIES:
            self.compute("it is long", depth + 1)
        return made

    # -- elements that a mask selects

    def select(self, array: StandIn, mask: StandIn, depth: int = 2) -> Any:
        """`array[mask]`, for a mask of the same shape: it waits until somebody wants more than to compute with it."""
        layouts = (array._layout, mask._layout)
        op = SELECTED
        if op.facts.get(layouts) is None:
            op.remember(layouts, NEW, selection(array._layout.dtype, array._layout.size))
        made = self._record(op, (array, mask), None, depth + 1)
        if type(made) is StandIn_ and made._segment is self.segment:
            made._selected = self._step.selected = mask_key(self._step, mask)
            if array._value is None or self._is_safe(array):
                made._source = (array, mask)  # which nobody writes to without our knowledge
            self._selections.append(made)
        return made

    def reduce_selected(self, name: str, array: Any, depth: int = 2) -> Any:
        """The sum or the mean of elements that a mask has selected, as long as they wait; `None` for anything else."""
        op = REDUCED.get(name)
        if op is None or type(array) is not StandIn_ or type(array._layout) is not Selection:
            return None
        if array._segment is not self.segment or array._source is None or array._layout.dtype != np.float64:
            return None
        if self._is_quiet:
            return None  # of no elements at all NumPy warns whatever its modes are
        whole, mask = array._source
        layouts = (array._layout, mask._layout, whole._layout)
        if op.facts.get(layouts) is None:
            op.remember(layouts, NEW, layout_of(np.float64(0)))
        return self._record(op, (array, mask, whole), None, depth + 1)

    def assign_selected(self, array: StandIn, mask: StandIn, values: StandIn, depth: int = 2) -> bool:
        """`array[mask] = values`, for elements that the same mask has selected; whether that was recorded."""
        if values._value is not None or values._segment is not self.segment or mask._segment is not self.segment:
            return False
        if values._selected != mask_key(self._step, mask) or values._layout.dtype != array._layout.dtype:
            return False
        layouts = (array._layout, mask._layout, values._layout)
        if ASSIGNED.facts.get(layouts) is None:
            ASSIGNED.remember(layouts, ITSELF, array._layout)
        self._record(ASSIGNED, (array, mask, values), None, depth + 1)
        return True

    def _before_write(self, root: StandIn) -> bool:
        """Whether memory can be written to as far as elements are concerned that were selected in it or by it."""
        if root._layout.dtype == np.bool_:
            return False  # a mask would be another one
        for each in self._selections:
            if each._source is not None and _root(each._source[0]) is root:
                each._source = None  # what it was made of is no more
        return True

    def _may_wait(self) -> bool:
        """Whether NumPy's modes allow that a call is made later."""
        modes = modes_now()
        if modes is not self._modes and modes is not self._loud and _ident() == self.thread:
            before = self._found
            self._see_modes(modes)
            if self.waits and modes is self._modes and before != self._found:
                self._add(self._found)
        return modes is self._modes

    def _see_modes(self, modes: object) -> None:
        self._found, is_loud, raises_warnings = meaning_of(modes)
        self._is_quiet = self._found.is_quiet
        self._modes, self._loud = (None, modes) if is_loud else (modes, self)
        if warnings.filters is self.filters:
            #: The filters with which calls may wait that warn of something: they raise nothing.
            self._calm = None if raises_warnings else self.filters
        if not self.waits:
            self._found_first = self._found

    def see_filters(self, before: Any, *, are_collected: bool) -> None:
        """Look at the filters of warnings, which have changed; those of `before` were there until then.

        Calls wait with those of a `catch_warnings` too, unless warnings `are_collected`: a list has them at once.
        """
        if before is self.filters and not are_collected:
            self.filters = warnings.filters
        self._see_modes(modes_now())

    def _entry_of(self, operand: Any) -> int | None:
        """The entry of an operand; `None` for memory that can be neither trusted nor copied."""
        if type(operand) is not StandIn_:
            return self._input(type(operand), operand) if number_key(operand) is not None else self._copied(operand)
        array: StandIn = operand
        if array._segment is self.segment:
            return array._entry
        if array._recorder is not self:
            return self._copied(array._computed("another deferred call reads it"))
        if array._layout.is_number:
            return self._input(array._layout, array._value)
        if not self._is_safe(array):
            return self._copied(array._value)
        if array._parent is None:
            number: int | None = self._input(array._layout, array._value)
        else:
            assert array._fact is not None
            number = self._view_entry(array._parent, array._fact)
        if number is not None:
            array._segment, array._entry = self.segment, number
        return number

    def _copied(self, value: Any) -> int | None:
        """The entry of memory that others can write to; `None` where a copy would lie differently."""
        if isinstance(value, np.ndarray):
            if not value.flags.forc:
                return None
            self.copied += value.nbytes
            value = value.copy("K")
        return self._input(layout_of(value), value)

    def _may_view(self, array: StandIn, fact: Fact) -> bool:
        """Whether a view of an array that is there is made when it is needed.

        It can be of an argument: nothing can take the place of what it is a view of.
        """
        is_large = fact.layout is not None and fact.layout.size > SMALL
        return is_large and array._is_argument and array._segment is self.segment

    def _view_entry(self, parent: StandIn, fact: Fact) -> int | None:
        source = self._entry_of(parent)
        return None if source is None else self._add_call(fact, (source,), None)

    def _input(self, what: Any, value: Any) -> int:
        self.values.append(value)
        return self._add(what)

    def _add_call(self, fact: Fact, references: tuple[int, ...], place: Where | None) -> int:
        self._places.append(place)
        return self._add((fact, references))

    def _add(self, entry: Any) -> int:
        step = self._step.next.get(entry)
        if step is None:
            step = self._structures.add(self._step, entry)
        self._step = step
        return step.number

    def _is_safe(self, array: StandIn) -> bool:
        """Whether nobody but this recorder can write to the memory of an array that is there."""
        root = _root(array)
        if root._is_exposed:
            return False
        if root._is_argument:
            return self.trusts_arguments
        if root._segment is self.segment:
            return True  # since it was seen to be, nothing was handed out without ending the segment
        if root._value is None or not COUNTS or not owns_memory(root._value):
            return False
        views = 0
        for each in root._views:
            view = each()
            if view is not None and view._value is not None:
                views += 1
                if references(view) != NO_OTHERS:
                    return False
        return references(root) == NO_OTHERS + views

    def _can_write(self, array: Any) -> bool:
        """Whether a write can be recorded: nobody else sees the memory, or only arrays that wait too."""
        if type(array) is not StandIn_ or array._recorder is not self:
            return False
        root = _root(array)
        if self._selections and not self._before_write(root):
            return False
        if root._value is None:
            return True
        if root._is_argument or root._is_exposed or root._layout.is_number or not root._value.flags.forc:
            return False
        if not (root._value.flags.writeable and (array._value is None or array._value.flags.writeable)):
            return False  # NumPy raises its error
        if root._value.base is not None:
            return False  # the only view of its memory; a copy would be none, which shows in its flags
        if root._segment is not self.segment and not self._is_safe(root):
            return False
        # A copy that is written to takes its place: what is computed never changes what went in.
        source = self._entry_of(root)
        assert source is not None
        fact = _COPY.facts.get((root._layout,)) or _COPY.remember((root._layout,), NEW, root._layout)
        root._value, root._segment, root._entry = None, self.segment, self._add_call(fact, (source,), None)
        self._made.append(root)
        for each in root._views:
            view = each()
            if view is not None and view._parent is not None and view._fact is not None:
                number = self._add_call(view._fact, (view._parent._entry,), None)
                view._value, view._segment, view._entry = None, self.segment, number
                self._made.append(view)
        root._views = ()
        return True

    # -- at once

    def _learn(self, op: Op, key: tuple[Any, ...], operands: tuple[Any, ...], depth: int) -> Any:
        """The first call of its kind is NumPy's; what came out is remembered."""
        real = self._all_real(operands, f"the first call of {op.text} tells what it gives", depth + 1)
        if op.writes and self.waits:
            self.compute(_WRITES, depth + 1)
        result = self._called(op, real, depth + 1)
        fact = op.learn(key, real, result)
        return self._given(fact.outcome, fact, operands, result)

    def _at_once(self, op: Op, operands: tuple[Any, ...], depth: int) -> Any:
        real = self._all_real(operands, f"NumPy computes {op.text} at once", depth + 1)
        if op.writes and self.waits:
            self.compute(_WRITES, depth + 1)
        result = self._called(op, real, depth + 1)
        key = (
            tuple([number_key(each, real) or layout_of(each) for each in real]) if all(map(_has_layout, real)) else None
        )
        fact = op.facts.get(key) if key is not None else None
        if fact is None and key is not None:
            fact = op.learn(key, real, result)
        return self._given(AT_ONCE if fact is None else fact.outcome, fact, operands, result)

    def _all_real(self, operands: tuple[Any, ...], why: str, depth: int) -> tuple[Any, ...]:
        real = []
        for each in operands:  # no comprehension, which is a frame of its own in some versions of Python
            real.append(self.real(each, why, depth + 1))  # noqa: PERF401
        return tuple(real)

    def _called(self, op: Op, real: tuple[Any, ...], depth: int) -> Any:
        self.at_once += 1
        return self.call_here(op.call, op.arranged(real), depth + 1)

    def call_here(self, function: Callable[..., Any], arguments: tuple[Any, ...], depth: int = 2) -> Any:
        """Call NumPy as if it stood on the line of the user's code, `depth` frames above."""
        frame = _frame(depth)
        return called_from((frame.f_code, frame.f_lasti, frame.f_globals))(function, arguments)

    def _given(self, outcome: Outcome, fact: Fact | None, operands: tuple[Any, ...], result: Any) -> Any:
        """What the user's code gets for a result of NumPy's."""
        first = operands[0]
        if outcome is ITSELF:
            return first
        if outcome is VIEW and fact is not None and type(first) is StandIn_ and first._recorder is self:
            return self._view_of(fact, first, result)
        if isinstance(result, np.ndarray) and result.base is not None:
            for each in operands:
                if type(each) is StandIn_ and np.may_share_memory(result, each._value):
                    _root(each)._is_exposed = True  # a view that nobody here knows as one
        return self.stand_in(result)

    def _view(self, fact: Fact, array: StandIn) -> StandIn:
        return self._view_of(fact, array, fact.op.apply(array._value))

    def _view_of(self, fact: Fact, array: StandIn, value: Any) -> StandIn:
        made: StandIn = StandIn_(self, layout_of(value), value, -1, array, fact)
        held = ref(made)
        self.all.append(held)
        root = _root(array)
        if not root._is_argument:
            root._views = (*(each for each in root._views if each() is not None), held)
        return made

    def stand_in(self, value: Any, *, is_argument: bool = False) -> Any:
        """An array that stands for one of NumPy's; anything else is itself."""
        if not can_stand_for(value) or not self.is_open:
            return value
        made = StandIn_(self, layout_of(value), value, -1, None, None)
        made._is_argument = is_argument
        self.all.append(ref(made))
        return made

    def real(self, value: Any, why: str, depth: int) -> Any:
        """NumPy's own array or number for one of ours."""
        if type(value) is not StandIn_:
            return value
        if value._value is None:
            value._recorder.compute(why, depth + 1)
        return value._value

    # -- computing

    def compute(self, why: str, depth: int = 2) -> None:
        """Compute what was recorded; arrays that are still referred to have their values then."""
        step = self._step
        if step.number < 0:
            return
        frame = _frame(depth)
        place = Place(frame.f_code, frame.f_lasti, frame.f_globals)
        self._selections.clear()
        wanted = self._still_wanted()
        # Views are made of what they are views of, which they keep alive.
        own = [array for array in wanted if array._parent is None and array._source is None]
        form = step.form(tuple([array._entry for array in own]), self._found_first)
        script = Script(form, self.values, self._places)
        if len(script.values) != len(form.inputs) or len(script.places) != form.calls:
            self._made = wanted
            raise RuntimeError("an operation was interrupted while it was recorded")
        segment = self.segment
        self.segment, self._step = object(), self._structures.begin()
        self.values, self._places, self._made = [], [], []
        self._found_first = self._found
        try:
            results: list[Any] = []
            is_as_recorded = self.filters is warnings.filters and modes_now() is self._modes
            if is_as_recorded and len(form.modes) == 1:
                results = [] if form.is_idle else self._compute(script)
            elif not form.is_idle:
                with as_recorded(self.filters, form.modes):
                    results = self._compute(script)
        except BaseException:
            # It was interrupted, or there was no memory: what went in is as it was, and it can be computed again.
            self.segment, self._step, self.values, self._places, self._made = segment, step, *script[1:], wanted
            self._found_first = form.modes[0]
            raise
        if not form.is_idle:
            self.ended.append(Ended(why, place, form.calls))
            self.recorded += form.calls
        if len(self.all) > MOST_ENTRIES:
            self.all = [each for each in self.all if each() is not None]
        for array, result in zip(own, results, strict=True):
            array._value, array._segment = result, None
            if type(result) is np.ndarray and result.strides != array._layout.strides:
                array._layout = layout_of(result)
            self.all.append(ref(array))
        for array in wanted:
            if array._parent is not None:
                assert array._fact is not None
                array._value, array._segment = array._fact.op.apply(array._parent._value), None
                root = _root(array)
                held = ref(array)
                self.all.append(held)
                if not root._is_argument:
                    root._views = (*root._views, held)
        for array in wanted:
            if array._source is not None:
                whole, mask = array._source
                array._value, array._segment, array._source = whole._value[mask._value], None, None
                array._layout = layout_of(array._value)
                self.all.append(ref(array))

    def _still_wanted(self) -> list[StandIn]:
        """The arrays that wait and that somebody refers to, in the order in which they were made."""
        wanted = referred_to(self._made, ONLY_HERE) if COUNTS else self._made
        return [array for array in wanted if array._value is None]

    def close(self) -> list[StandIn]:
        """End the call, after all was computed; the arrays that are still referred to."""
        self.is_open = False
        self.segment = object()
        return [array for each in self.all if (array := each()) is not None]


def _layouts_worth_recording(operands: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The layouts of operands, or keys of numbers; `None` if one has none, or all are there and small."""
    key: list[Any] = []
    is_waiting, size = False, 0
    for each in operands:
        if type(each) is StandIn_:
            layout = each._layout
            if each._value is None:
                is_waiting = True
            elif layout.size > size:
                size = layout.size
        elif (layout := number_key(each, operands)) is None:
            if not (can_stand_for(each) or isinstance(each, np.generic)):
                return None
            layout = layout_of(each)
            if layout.size > size:
                size = layout.size
        key.append(layout)
    return tuple(key) if is_waiting or size > SMALL else None


def _has_layout(value: Any) -> bool:
    return is_number(value) or can_stand_for(value)


_OF_SELECTED = frozenset(REDUCED.values())
_COPY = Op(lambda x: x.copy("K"), "{0}.copy()")


def _root(array: StandIn) -> StandIn:
    """The array whose memory it is."""
    while array._parent is not None:
        array = array._parent
    return array


_WRITES = "it writes to memory that others can see"

#: `StandIn`, which imports this module.
StandIn_: Any = None
