"""Views that behave as NumPy's do: what is written into one is seen in its base, and the other way round.

A view knows its base and the path from there, as movement primitives. Every write to the base makes a new version, and
a view of an older version follows the path again. Writing into a view follows the path back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal
from weakref import ref

from anygpu.array.core.abstract_device import AbstractDevice
from anygpu.array.core.device import to_numpy_dtype
from anygpu.array.core.expression import Value, active_tracer, is_ordered
from anygpu.array.core.layouts import Layouts, follow, in_c_order, is_movement
from anygpu.array.core.recording import apply
from anygpu.base.typing import HostArray
from anygpu.program.primitives import (
    Flip,
    Permute,
    Primitive,
    Reshape,
    Shape,
    Slice,
    Unary,
    Update,
)

if TYPE_CHECKING:
    from anygpu.array.core.array import Array


class SharedState:
    """The state that an array shares with its views."""

    __slots__ = ("doubts", "version")

    def __init__(self) -> None:
        #: Incremented by every write.
        self.version = 0
        #: Reshapes that NumPy might have copied; only the memory layout, unknown here, would tell.
        self.doubts: list[ref[Array]] = []


class View:
    """The path from a base to a view of it."""

    __slots__ = ("base", "path", "refusal", "shared", "version")

    def __init__(self, base: Array, path: tuple[Primitive, ...], refusal: str | None = None) -> None:
        if base._shared is None:
            base._shared = SharedState()
        self.base = base
        self.shared = base._shared
        self.path = path
        self.version = base._shared.version
        #: Why the view is read-only; `None` when it is writable.
        self.refusal = refusal

    @property
    def stale(self) -> bool:
        """Whether the base was written to since it was last looked at."""
        return self.version != self.shared.version

    @property
    def can_be_followed(self) -> bool:
        """Whether NumPy makes the same view of the same base along the path, so that it can be made at each call."""
        parts = any(isinstance(op, Unary) for op in self.path)
        known = self.refusal is None or self.refusal in (_DOUBT, REPEATS) or parts
        return known and all(map(is_movement, self.path))

    def look(self) -> Value:
        """The value as the base has it now."""
        self.version = self.shared.version
        value = self.base._stored
        for op in self.path:
            value = apply(op, value)
        return value


def attach(array: Array, base: Array, path: tuple[Primitive, ...], refusal: str | None = None) -> Array:
    """Make `array`, whose value was computed along the path, a view of `base`, or of the array that `base` is a view
    of.

    Where NumPy would have made a copy, or `base` is a scalar, it stays an array of its own. Where that is unknown, the
    view is read-only (`_DOUBT`), and its base cannot be written to while the view lives. `refusal` is why it is
    read-only.
    """
    if base._is_number:
        return array  # what a method of one of NumPy's numbers gives has memory of its own
    seen = base._view
    root, way = (base, path) if seen is None else (seen.base, seen.path + path)
    inherited = seen.refusal if seen is not None else None
    known = refusal or inherited
    outcome = "view" if known is not None else _outcome(root, way, len(way) - len(path))
    if outcome == "copy":
        return array
    doubtful = outcome == "doubt" or inherited is _DOUBT
    array._view = View(root, way, _DOUBT if doubtful else known)
    if doubtful:
        shared = array._view.shared
        shared.doubts = [*(each for each in shared.doubts if each() is not None), ref(array)]
    return array


#: NumPy makes such views read-only.
REPEATS = "it may show an element more than once. Write y = x.copy() and change that."

_DOUBT = (
    "this is a reshape of an array whose order in memory is not known here, so NumPy might have made it a view or a "
    "copy. Write y = x.reshape(...).copy() for a copy, or assign to x itself."
)


def _outcome(root: Array, path: tuple[Primitive, ...], first: int) -> Literal["view", "copy", "doubt"]:
    """Whether NumPy makes a view of the path from the step `first` on; "doubt" where the layout of the base is unknown.

    Only reshapes copy, and axes of length 1 come and go without a copy.
    """
    if not any(isinstance(op, Reshape) for op in path[first:]):
        return "view"
    spec = root._stored.spec
    for step, op in enumerate(path):
        before, spec = spec, op.infer(spec)
        if step >= first and isinstance(op, Reshape) and _without_ones(before.shape) != _without_ones(spec.shape):
            layout = _layout_of_base(root)
            if layout is None:
                return "doubt"
            try:
                for each in path[: step + 1]:
                    layout = follow(each, layout)
            except ValueError:
                return "copy"
    return "view"


def _layout_of_base(base: Array) -> HostArray | None:
    """How an array that is no view would lie in memory; `None` when that is not known."""
    stored, tracer = base._stored, active_tracer.get()
    if isinstance(tracer, AbstractDevice):
        return Layouts(tracer, exact=True).of(stored)
    return in_c_order(stored.spec.shape, to_numpy_dtype(stored.spec.dtype)) if is_ordered(stored) else None


def layout_of(array: Array) -> HostArray | None:
    """How an array would lie in memory: a NumPy array that must not be read; `None` when that is not known."""
    view = array._view
    layout = _layout_of_base(array if view is None else view.base)
    if view is None or layout is None:
        return layout
    try:
        for op in view.path:
            layout = follow(op, layout)
    except ValueError:  # a reshape in doubt
        return None
    return layout


def follow_on_host(path: tuple[Primitive, ...], base: HostArray) -> HostArray:
    """The view of a NumPy array that the path leads to; where NumPy makes a copy, that copy."""
    for op in path:
        base = base.reshape(op.shape) if isinstance(op, Reshape) else follow(op, base)
    return base


def _without_ones(shape: Shape) -> Shape:
    """A shape without its axes of length 1."""
    return tuple(length for length in shape if length != 1)


def put(base: Value, path: tuple[Primitive, ...], new: Value) -> Value:
    """The base with `new` in the place that the path leads to: each step of the path is undone, the last one first."""
    if not path:
        return new
    op = path[0]
    changed = put(apply(op, base), path[1:], new)
    match op:
        case Slice(starts=starts, steps=steps):
            return apply(Update(starts, steps), base, changed)
        case Flip():
            return apply(op, changed)
        case Permute(axes=axes):
            return apply(Permute(tuple(axes.index(axis) for axis in range(len(axes)))), changed)
        case Reshape():
            return apply(Reshape(base.spec.shape), changed)
    raise AssertionError(f"{op.name} makes no view that can be written to")


def write(array: Array, new: Value) -> None:
    """Replace the array's elements in place, and with them those of everything that shares them; nothing is computed.

    Raises `ValueError` for a read-only view, and where a reshape of unknown memory would see the write or not. A trace
    ends where the array stands for a NumPy scalar: NumPy refuses such a write, or loses it.
    """
    tracer = active_tracer.get()
    if isinstance(tracer, AbstractDevice) and array._is_number:
        tracer.stop("it writes to a NumPy scalar")
    if new.device is None:
        # A constant has no device; what it is written into stays on its own.
        new = Value(new.op, new.inputs, new.spec, array._device, new.line)
    view = array._view
    if view is None:
        _replace(array, new)
        return
    if view.refusal is not None:
        raise ValueError(f"the array cannot be written to: {view.refusal}")
    _replace(view.base, put(view.base._stored, view.path, new), unless=array)
    array._stored = new
    view.version = view.shared.version


def _replace(base: Array, new: Value, unless: Array | None = None) -> None:
    """Give an array a new value, which its views see; raises `ValueError` where NumPy might do otherwise."""
    shared = base._shared
    if shared is not None and any(each() is not None and each() is not unless for each in shared.doubts):
        raise ValueError(
            "the array cannot be changed in place: it was reshaped before, and whether NumPy would have made that a "
            "view or a copy is not known here. Write x.reshape(...).copy() there, or x = x + 1 instead of x += 1."
        )
    tracer = active_tracer.get()
    if isinstance(tracer, AbstractDevice):
        if new.holder is not None:  # it is what another array shows, whose memory is not this one's
            new = apply(Reshape(new.spec.shape), new, spec=new.spec)
        tracer.replaced[id(new)] = (new, base._stored)
        tracer.shown.append(new)
    base._stored = new
    new.holder = ref(base)
    if shared is not None:
        shared.version += 1
