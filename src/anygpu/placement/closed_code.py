"""Whether a function's code can come to nothing but its arguments and what it makes itself.

Then a call can be deferred automatically: nothing that it writes to outlives it but its arguments and what it
returns, and nobody else writes to the memory of these. The tree of the function is compared with lists of what is
allowed, and so are those of the functions that it calls; where anything else occurs it is refused. No value is
followed: all that such code can have are arrays, numbers, texts, None, and tuples, lists and dicts of these.
"""

from __future__ import annotations

import ast
import math
import timeit
import types
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from anygpu.array.deferred.conversions import CONVERTED
from anygpu.array.deferred.layouts import can_stand_for
from anygpu.placement.definitions import MISSING, Guards, definition_of

#: Functions that are followed.
_MOST_FUNCTIONS = 32

_NUMBERS = (bool, int, float, complex)
#: What may be a constant, an argument beside arrays, or the value of a name outside: nothing can be reached from it.
_PLAIN = frozenset((*_NUMBERS, str, bytes, type(None), slice, range, type(...)))
_NUMPY = """
abs absolute all allclose amax amin angle any append arange argmax argmin argpartition argsort argwhere around array
array_equal array_equiv array_split asanyarray asarray ascontiguousarray atleast_1d atleast_2d atleast_3d average
bartlett bincount blackman block broadcast_arrays broadcast_to clip column_stack compress concatenate convolve copy
corrcoef correlate count_nonzero cov cross cumprod cumsum delete diag diagflat diagonal diff digitize dot dsplit
dstack ediff1d einsum empty empty_like expand_dims extract eye fix flatnonzero flip fliplr flipud full full_like
geomspace gradient hamming hanning histogram histogram2d histogram_bin_edges hsplit hstack i0 identity imag indices
inner insert interp intersect1d isclose isin isneginf isposinf isreal kaiser kron lexsort linspace logspace max mean
median meshgrid min moveaxis nan_to_num nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmedian nanmin
nanpercentile nanprod nanquantile nanstd nansum nanvar ndim nonzero ones ones_like outer packbits pad partition
percentile poly polyadd polyder polyfit polyint polymul polysub polyval prod ptp quantile ravel real repeat reshape
roll rollaxis roots rot90 round searchsorted select setdiff1d setxor1d shape sinc size sort split squeeze stack std
sum swapaxes take take_along_axis tensordot tile trace transpose trapezoid tri tril tril_indices trim_zeros triu
triu_indices union1d unique unpackbits unwrap vander var vdot vsplit vstack where zeros zeros_like
"""
_LINALG = """
cholesky cond det eigvals eigvalsh inv lstsq matrix_power matrix_rank multi_dot norm pinv solve
"""
_FFT = "fft fft2 fftfreq fftn fftshift ifft ifft2 ifftn ifftshift irfft irfft2 irfftn rfft rfft2 rfftfreq rfftn"
#: NumPy's functions that keep nothing, call nothing back, and give arrays, numbers, or tuples and lists of these.
_FUNCTIONS = frozenset(
    getattr(module, name)
    for module, names in ((np, _NUMPY), (np.linalg, _LINALG), (np.fft, _FFT))
    for name in names.split()
    if hasattr(module, name)
)
#: Builtins that do the same; of texts too.
_BUILTINS = frozenset((abs, divmod, len, pow, round))
_USE_UP = frozenset((all, any, max, min, sorted, sum))
_TYPES = frozenset((bool, int, float, complex))
_CONTAINERS = frozenset((list, tuple, dict))
#: Builtins that give iterators: these may hold arrays, and so they are allowed only where they are used up at once.
_ITERATORS = frozenset((enumerate, zip, range, reversed))
_ERRORS = frozenset((ValueError, TypeError, RuntimeError, ArithmeticError, ZeroDivisionError, IndexError, KeyError))
#: Attributes of arrays and numbers; and methods of these, of lists and of dicts.
_ATTRIBUTES = frozenset(("shape", "ndim", "size", "dtype", "T", "real", "imag", "nbytes", "itemsize", "kind"))
_NAMES_OF_METHODS = """
all any argmax argmin argpartition argsort astype clip conj conjugate copy cumprod cumsum diagonal dot fill flatten
item max mean min nonzero partition prod ptp put ravel repeat reshape round searchsorted sort squeeze std sum
swapaxes take tolist trace transpose var append extend insert pop get clear setdefault update
"""
_METHODS = frozenset(_NAMES_OF_METHODS.split())
_STATEMENTS = (
    ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return, ast.If, ast.While, ast.For, ast.Break,
    ast.Continue, ast.Pass, ast.Raise, ast.Assert,
)  # fmt: skip


class _Refused(Exception):
    pass


class ClosedCode:
    """What was found of a function's code. It is about all calls of it, as long as names mean the same."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.why_not: str | None = None
        self._guards = Guards()
        self._seen: set[types.FunctionType] = set()
        try:
            self._follow(function)
        except _Refused as refused:
            self.why_not = str(refused)

    @property
    def seconds(self) -> float:
        """What it takes to look whether names mean the same."""
        return math.inf if self.why_not else min(timeit.repeat(self._guards.hold, number=1, repeat=3))

    @property
    def names_conversions(self) -> bool:
        """Whether it names one of NumPy's functions that give an array back as it is."""
        return any(not CONVERTED.isdisjoint(_names_outside(each.__code__)) for each in self._seen)

    def holds(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
        """Whether it is true of a call with these arguments."""
        for each in (*arguments, *keywords.values()):
            if not (can_stand_for(each) or _is_plain(each)):
                return False
        return self.why_not is None and self._guards.hold()

    def _follow(self, function: Any) -> None:
        if not isinstance(function, types.FunctionType):
            raise _Refused(f"{_shown(function)} is no function of Python's")
        if function in self._seen:
            return
        self._seen.add(function)
        if len(self._seen) > _MOST_FUNCTIONS:
            raise _Refused("it calls too many functions")
        self._guards.function(function)
        definition = definition_of(function.__code__)
        if not isinstance(definition, ast.FunctionDef):
            raise _Refused(f"there is no source of {function.__qualname__}")
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        if not all(map(_is_plain, defaults)):
            raise _Refused(f"{function.__qualname__} has a default that it might change")
        _Tree(function, definition, self._guards, self._follow).check()


class _Tree:
    """The tree of one function."""

    def __init__(
        self,
        function: types.FunctionType,
        definition: ast.FunctionDef,
        guards: Guards,
        follow: Callable[[Any], None],
    ) -> None:
        self._function, self._definition, self._guards, self._follow = function, definition, guards, follow
        self._line = function.__code__.co_firstlineno - min(
            [definition.lineno, *(each.lineno for each in definition.decorator_list)]
        )
        self._names = {*function.__code__.co_varnames, *function.__code__.co_cellvars}

    def check(self) -> None:
        """Raise `_Refused` where anything is not allowed."""
        given = self._definition.args
        if given.vararg or given.kwarg:
            raise self._refused(self._definition, "it takes any number of arguments")
        # Comprehensions have variables of their own: no other variable, from outside, may have the same name.
        inner = {
            each.id
            for node in ast.walk(self._definition)
            if isinstance(node, ast.comprehension)
            for each in ast.walk(node.target)
            if isinstance(each, ast.Name)
        }
        if not inner.isdisjoint(_names_outside(self._function.__code__)):
            raise self._refused(self._definition, "a variable of a comprehension has the name of something outside")
        self._names |= inner
        for each in self._definition.body:
            self._statement(each)

    def _refused(self, node: ast.AST, why: str) -> _Refused:
        line = getattr(node, "lineno", self._definition.lineno) + self._line
        return _Refused(f"{why} ({self._function.__code__.co_filename}:{line})")

    # -- statements

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.With):
            self._with(node)
        elif not isinstance(node, _STATEMENTS):
            raise self._refused(node, f"it has a statement of the kind {type(node).__name__}")
        if isinstance(node, ast.Raise):
            self._raise(node)
        elif isinstance(node, ast.Assign):
            for each in node.targets:
                self._target(each)
            self._value(node.value)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            self._target(node.target)
            if node.value is not None:
                self._value(node.value)
        elif isinstance(node, ast.For):
            self._target(node.target)
            self._iterated(node.iter)
        elif isinstance(node, ast.If | ast.While | ast.Assert):
            self._value(node.test)
            if isinstance(node, ast.Assert) and node.msg is not None:
                self._value(node.msg)
        elif isinstance(node, ast.Expr | ast.Return) and node.value is not None:
            self._value(node.value)
        for each in (*getattr(node, "body", ()), *getattr(node, "orelse", ())):
            self._statement(each)

    def _with(self, node: ast.With) -> None:
        """`np.errstate` that hides warnings."""
        for each in node.items:
            call = each.context_expr
            hides = isinstance(call, ast.Call) and not call.args and self._resolved(call.func) is np.errstate
            if (
                not hides
                or each.optional_vars is not None
                or not all(
                    isinstance(one.value, ast.Constant) and one.arg and one.value.value in ("ignore", "warn")
                    for one in call.keywords  # type: ignore[attr-defined]
                )
            ):
                raise self._refused(node, "it enters a context")

    def _raise(self, node: ast.Raise) -> None:
        made = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        if made is None or node.cause is not None or not _among(self._resolved(made), _ERRORS):
            raise self._refused(node, "it raises something else than a new error of Python's")
        if isinstance(node.exc, ast.Call):
            if node.exc.keywords:
                raise self._refused(node, "it raises an error with attributes")
            for each in node.exc.args:
                self._value(each)

    def _target(self, node: ast.expr) -> None:
        if isinstance(node, ast.Tuple | ast.List):
            for each in node.elts:
                self._target(each)
        elif isinstance(node, ast.Subscript):
            self._value(node.value)
            self._value(node.slice)
        elif not (isinstance(node, ast.Name) and node.id in self._names):
            raise self._refused(node, "it sets something that may outlive it")

    # -- expressions

    def _value(self, node: ast.expr) -> None:
        if isinstance(node, ast.Call):
            self._call(node)
        elif isinstance(node, ast.Attribute):
            self._attribute(node)
        elif isinstance(node, ast.Name):
            if node.id not in self._names and not _is_plain(self._resolved(node)):
                raise self._refused(node, f"it uses {node.id}")
        elif isinstance(node, ast.Compare):
            self._compare(node)
        elif isinstance(node, ast.ListComp | ast.DictComp):
            self._comprehension(node)
        elif isinstance(node, _PLAIN_EXPRESSIONS):
            for each in ast.iter_child_nodes(node):
                if isinstance(each, ast.expr):
                    self._value(each)
        else:
            raise self._refused(node, f"it has an expression of the kind {type(node).__name__}")

    def _compare(self, node: ast.Compare) -> None:
        values = [node.left, *node.comparators]
        for number, op in enumerate(node.ops):
            if isinstance(op, ast.In | ast.NotIn) and not _are_constants(values[number + 1]):
                raise self._refused(node, "it looks for something in something else")
            if isinstance(op, ast.Is | ast.IsNot) and not any(
                isinstance(each, ast.Constant) and (each.value is None or isinstance(each.value, bool))
                for each in values[number : number + 2]
            ):
                raise self._refused(node, "it asks whether two objects are the same one")
        for each in values:
            self._value(each)

    def _comprehension(self, node: Any) -> None:
        for each in node.generators:
            if each.is_async:
                raise self._refused(node, "it is asynchronous")
            self._target(each.target)
            self._iterated(each.iter)
            for test in each.ifs:
                self._value(test)
        for each in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self._value(each)

    def _iterated(self, node: ast.expr) -> None:
        """What is iterated over at once: iterators are nowhere else."""
        if isinstance(node, ast.GeneratorExp):
            self._comprehension(node)
        elif isinstance(node, ast.Call) and _among(self._resolved(node.func), _ITERATORS):
            self._keywords(node, ("start", "strict"))
            for each in node.args:
                self._iterated(each)
        else:
            self._value(node)

    def _attribute(self, node: ast.Attribute) -> None:
        found = self._resolved(node)
        if found is not MISSING:
            if not _is_plain(found):
                raise self._refused(node, f"it uses {ast.unparse(node)}")
        elif node.attr not in _ATTRIBUTES:
            raise self._refused(node, f"it asks for the attribute {node.attr}")
        else:
            self._value(node.value)

    def _keywords(self, node: ast.Call, allowed: tuple[str, ...] | None = None) -> None:
        for each in node.keywords:
            if each.arg is None or (allowed is not None and each.arg not in allowed):
                raise self._refused(node, f"it calls something with {each.arg or 'any keywords'}")
            self._value(each.value)

    def _call(self, node: ast.Call) -> None:
        function = node.func
        found = self._resolved(function)
        if found is isinstance and len(node.args) == 2 and not node.keywords:
            kinds = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
            if not all(_is_type(self._resolved(each)) or _among(self._resolved(each), _CONTAINERS) for each in kinds):
                raise self._refused(node, "it asks for a class")
            self._value(node.args[0])
            return
        if _among(found, _BUILTINS):
            self._keywords(node, ("ndigits",))
            for each in node.args:
                self._value(each)
            return
        if _among(found, _CONTAINERS) or _among(found, _USE_UP):
            self._keywords(node, None if found is dict else ("default", "reverse", "start"))
            for number, each in enumerate(node.args):
                # One argument is iterated over; of several, the first of these.
                is_used_up = number == 0 and (len(node.args) == 1 or found is sum)
                self._iterated(each) if is_used_up else self._value(each)
            return
        if isinstance(found, types.FunctionType) and not _among(found, _FUNCTIONS):
            self._follow(found)
            self._keywords(node)
            for each in node.args:
                self._value(each)
            return
        if found is MISSING:
            if not isinstance(function, ast.Attribute) or function.attr not in _METHODS:
                raise self._refused(node, f"it calls {ast.unparse(function)}")
            self._value(function.value)
        elif not (
            _among(found, _FUNCTIONS)
            or _among(found, _TYPES)
            or (isinstance(found, np.ufunc) and _is_numpys(found))
            or (_is_type(found) and issubclass(found, np.generic))
            or (isinstance(getattr(found, "__self__", None), np.ufunc) and _is_numpys(found.__self__))
        ):
            raise self._refused(node, f"it calls {ast.unparse(function)}")
        for each in (*node.args, *[one.value for one in node.keywords]):
            # A type says of which numbers an array shall be. It is nowhere else: its methods take NumPy's own arrays.
            if not _is_type(self._resolved(each)) or self._resolved(each) is np.ndarray:
                self._value(each)
        if any(each.arg is None for each in node.keywords):
            raise self._refused(node, "it calls something with any keywords")

    # -- names

    def _resolved(self, node: ast.expr) -> Any:
        """The object that a name outside, or an attribute of one of NumPy's modules, is; `MISSING` for others."""
        if isinstance(node, ast.Name):
            return MISSING if node.id in self._names else self._outside(node)
        if not isinstance(node, ast.Attribute):
            return MISSING
        of = self._resolved(node.value)
        if type(of) is types.ModuleType and of.__name__ in ("numpy", "numpy.linalg", "numpy.fft"):
            return self._guards.name(vars(of), node.attr)
        if isinstance(of, np.ufunc) and node.attr in ("reduce", "accumulate", "outer", "reduceat", "at"):
            return getattr(of, node.attr)
        if of is not MISSING and not _is_plain(of):
            raise self._refused(node, f"it uses {ast.unparse(node)}")
        return MISSING

    def _outside(self, node: ast.Name) -> Any:
        function, guards = self._function, self._guards
        if node.id in function.__code__.co_freevars:
            found = guards.cell((function.__closure__ or ())[function.__code__.co_freevars.index(node.id)])
        else:
            found = guards.name(function.__globals__, node.id)
            if found is MISSING:
                found = guards.name(cast(Any, function).__builtins__, node.id)
        if found is MISSING:
            raise self._refused(node, f"{node.id} is not known")
        return found


_PLAIN_EXPRESSIONS = (
    ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.IfExp, ast.Subscript,
    ast.Slice, ast.JoinedStr, ast.FormattedValue,
)  # fmt: skip


def _are_constants(node: ast.expr) -> bool:
    """Whether it is a tuple or list of constants: each of them is compared, as by `==`."""
    return isinstance(node, ast.Tuple | ast.List) and all(isinstance(each, ast.Constant) for each in node.elts)


def _among(found: Any, allowed: frozenset[Any]) -> bool:
    """Whether it is one of these objects, without a comparison that others could answer."""
    return any(found is each for each in allowed)


def _is_plain(value: Any) -> bool:
    """Whether it never changes, and leads to nothing else."""
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return type(value) in _PLAIN or (isinstance(value, np.generic | np.dtype) and _is_number_type(value))


def _is_number_type(value: Any) -> bool:
    kind = value.dtype if isinstance(value, np.generic) else value
    return kind.kind in "biufc" and type(value).__module__.startswith("numpy")


def _is_type(value: Any) -> bool:
    """Whether it is a type of numbers, or of arrays."""
    if not isinstance(value, type):
        return False
    is_numpys = value.__module__ == "numpy" and issubclass(value, np.number | np.bool_)
    return is_numpys or _among(value, _TYPES) or value is np.ndarray


def _names_outside(code: types.CodeType) -> set[str]:
    """Names that the code, or that of its comprehensions, looks up outside of it; and those of attributes."""
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return {*code.co_names, *code.co_freevars}.union(*(set(each.co_names) for each in _all_codes(inner)))


def _all_codes(codes: list[types.CodeType]) -> list[types.CodeType]:
    found = list(codes)
    for each in codes:
        found += _all_codes([one for one in each.co_consts if isinstance(one, types.CodeType)])
    return found


def _is_numpys(ufunc: np.ufunc) -> bool:
    return getattr(np, ufunc.__name__, None) is ufunc


def _shown(value: Any) -> str:
    return str(getattr(value, "__qualname__", type(value).__qualname__))
