"""Arrays: lazy, and ordinary to use. Operations on them become a program, which runs when a value is needed.

`core` has the array itself, `functions` NumPy's functions on arrays, `trace` turns a Python function into a program.
The core calls the other two through `overrides`; they are connected here, and imported when they are first needed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from anygpu.array.core import overrides

if TYPE_CHECKING:
    import numpy as np

    from anygpu.array.core.array import Array
    from anygpu.array.core.expression import Tracer


def _call_ufunc() -> Callable[[np.ufunc, str, tuple[Any, ...], dict[str, Any]], Any]:
    """Load what calls ufuncs on arrays."""
    from anygpu.array.functions.ufuncs import call_ufunc

    return call_ufunc


def _call_plain_ufunc() -> Callable[[np.ufunc, tuple[Any, ...]], Array | None]:
    """Load what calls ufuncs without options on arrays."""
    from anygpu.array.functions.ufuncs import call_plain_ufunc

    return call_plain_ufunc


def _call_function() -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]:
    """Load what calls NumPy's functions on arrays."""
    from anygpu.array.functions.numpy_functions import call_function

    return call_function


def _load_functions() -> Callable[[Any], None]:
    """Load what finds our functions for NumPy's."""
    from anygpu.array.functions.numpy_functions import load_functions

    return load_functions


def _note_result() -> Callable[[Any, tuple[Any, ...], dict[str, Any], Any], Any]:
    """Load what notes the results of NumPy's functions while a function is traced."""
    from anygpu.array.core.call_notes import note_result

    return note_result


def _imitate_attribute() -> Callable[[Array, str, Tracer], Any]:
    """Load what imitates attributes of NumPy's arrays while a function is traced."""
    from anygpu.array.trace.numpy_names import attribute

    return attribute


def _get_item() -> Callable[[Array, Any], Array]:
    """Load what indexes arrays."""
    from anygpu.array.core.indexing import get

    return get


def _set_item() -> Callable[[Array, Any, Any], None]:
    """Load what assigns to parts of arrays."""
    from anygpu.array.core.indexing import put_at

    return put_at


overrides.get_item.connect(_get_item)
overrides.set_item.connect(_set_item)
overrides.call_ufunc.connect(_call_ufunc)
overrides.call_plain_ufunc.connect(_call_plain_ufunc)
overrides.call_function.connect(_call_function)
overrides.note_result.connect(_note_result)
overrides.load_functions.connect(_load_functions)
overrides.imitate_attribute.connect(_imitate_attribute)


class _Package(ModuleType):
    """`ag.array([1, 2])` is what a NumPy user types first; "module is not callable" would not help."""

    def __call__(self, *arguments: Any, **options: Any) -> NoReturn:
        raise TypeError("anygpu.array is a part of the package. Make arrays with anygpu.asarray(...).")


sys.modules[__name__].__class__ = _Package
