"""The methods that NumPy's arrays have, each the function of the same name with the array in front."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anygpu.array.core.array import Array


def _function(module: str, name: str) -> Callable[..., Any]:
    """A method that calls `<name>` of a module of `anygpu.array.functions`; they import Array, so they come later."""

    function: Callable[..., Any] | None = None

    def method(self: Array, *arguments: Any, **options: Any) -> Any:
        nonlocal function
        if function is None:
            function = getattr(importlib.import_module(f"anygpu.array.functions.{module}"), name)
        out = options.pop("out", None) if options else None
        result = function(self, *arguments, **options)
        return result if out is None else out._assign(result)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"`anygpu.{name}` of this array."
    return method


class NumpyMethods:
    """Everything that can be said as `x.name(...)`. Methods that change the array itself are in `Array`."""

    __slots__ = ()

    all = _function("reductions", "all")
    any = _function("reductions", "any")
    argmax = _function("reductions", "argmax")
    argmin = _function("reductions", "argmin")
    cumprod = _function("reductions", "cumprod")
    cumsum = _function("reductions", "cumsum")
    max = _function("reductions", "max")
    mean = _function("reductions", "mean")
    min = _function("reductions", "min")
    prod = _function("reductions", "prod")
    std = _function("reductions", "std")
    sum = _function("reductions", "sum")
    var = _function("reductions", "var")

    argpartition = _function("sorting", "argpartition")
    argsort = _function("sorting", "argsort")
    choose = _function("selecting", "choose")
    nonzero = _function("selecting", "nonzero")
    searchsorted = _function("sorting", "searchsorted")
    take = _function("selecting", "take")

    diagonal = _function("manipulation", "diagonal")
    ravel = _function("manipulation", "ravel")
    repeat = _function("manipulation", "repeat")
    squeeze = _function("manipulation", "squeeze")
    swapaxes = _function("manipulation", "swapaxes")

    clip = _function("elementwise", "clip")
    conj = _function("elementwise", "conj")
    conjugate = _function("elementwise", "conj")
    round = _function("elementwise", "round")

    dot = _function("products", "dot")
    trace = _function("products", "trace")

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> Array:
        """`x.reshape(2, 3)` and `x.reshape((2, 3))` are the same."""
        from anygpu.array.functions.manipulation import reshape

        wanted = shape[0] if len(shape) == 1 else shape
        return reshape(self, wanted, order=order, copy=copy)

    def transpose(self, *axes: Any) -> Array:
        """The axes in the order given, or reversed."""
        from anygpu.array.functions.manipulation import transpose

        wanted = None if not axes else axes[0] if len(axes) == 1 else axes
        return transpose(self, wanted)

    def flatten(self, order: str = "C") -> Array:
        """All elements in one row, as a copy."""
        result: Array = self.ravel(order=order).copy()
        return result

    @property
    def T(self) -> Array:  # noqa: N802 - NumPy's name
        return self.transpose()

    @property
    def mT(self) -> Array:  # noqa: N802 - the standard's name
        from anygpu.array.functions.manipulation import matrix_transpose

        return matrix_transpose(self)

    @property
    def real(self) -> Array:
        from anygpu.array.functions.elementwise import real

        return real(self)

    @property
    def imag(self) -> Array:
        from anygpu.array.functions.elementwise import imag

        return imag(self)

    @property
    def flat(self) -> Any:
        """All elements one after the other. To assign to `x.flat[i]`, write `x[np.unravel_index(i, x.shape)] = v`."""
        return iter(self.ravel())
