"""Proves that rows of a batch do not meet: row i of a result depends on row i of the arguments, and on nothing else.

The function is called with a few rows, in tensors that know along which axis their rows lie, and every operator that
torch runs is looked up in `row_rules`. It is called twice, with different numbers of rows: what differs other than by
the rows themselves uses their number as a value. Values cannot be read from such tensors, and their number of rows
cannot be compared, so that Python takes the same way for any number of rows. torch.export and torch's fake tensors are
not used: they load a compiler, which takes seconds, and the first changes `torch.nn.Module` for the whole process.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from anygpu.engines.torch.captures import captured, fingerprint, rebound
from anygpu.engines.torch.row_rules import RULES, SIZES, NotProved, Operand, Operation, RowAxis
from anygpu.errors import text_of

#: Numbers of rows that the function is called with.
_COUNTS = (3, 5)

_aten = torch.ops.aten
#: Reading a value, by which Python could take another way.
_READS = {_aten._local_scalar_dense.default, _aten.item.default, _aten.is_nonzero.default, _aten.equal.default}
_READING = {"numpy", "__array__", "tolist", "item", "data_ptr", "storage", "untyped_storage", "__dlpack__", "__bool__"}
#: Factories of tensors with one value everywhere.
_EVEN = {"zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like"}
#: Operators that ask a tensor something, and compute nothing.
_QUESTIONS = {"_fused_sdp_choice", "device", "is_same_size", "sym_size", "sym_stride", "is_contiguous"}


class Independence(NamedTuple):
    """Whether rows are independent; if so, the axis of the rows in each result."""

    #: Why it is not proved; `None` if it is.
    reason: str | None
    axes: tuple[int, ...] = ()
    #: The fingerprint that the proof holds for: see `captures.fingerprint`.
    fingerprint: Any = None

    @property
    def is_proved(self) -> bool:
        return self.reason is None


def prove(function: Callable[..., Any], arguments: Any, keywords: Any) -> Independence:
    """Whether calls with stacked rows give what separate calls give, but for rounding.

    The tensors among the arguments are examples, with at least one row along their first axis, and not changed.
    """
    try:
        found = captured(function)
        tensors = [each for each in tree_flatten((arguments, keywords))[0] if isinstance(each, torch.Tensor)]
        rows = {each.size(0) if each.dim() else 0 for each in tensors}
        if len(rows) != 1 or 0 in rows:
            raise NotProved("its arguments do not have the same number of rows")
        traces = [_Trace(rebound(function, found), arguments, keywords, count) for count in _COUNTS]
        _require_alike(*traces)
        if rows == {1}:
            # With one row other ways are taken, such as by `squeeze`.
            _require_same_alone(traces[0], tree_flatten(rebound(function, found)(*arguments, **keywords))[0])
        return Independence(None, traces[0].axes, fingerprint(found))
    except NotProved as refused:
        return Independence(refused.reason)
    except Exception as error:  # noqa: BLE001 - the user's code, and torch's own, raise what they like
        first = (text_of(error).strip().splitlines() or [""])[0][:160]
        return Independence(f"it cannot be looked at: {type(error).__name__}: {first}")


def fingerprint_of(function: Callable[..., Any]) -> Any:
    """As in an `Independence`; `None` if the function cannot be looked at any more."""
    try:
        return fingerprint(captured(function))
    except (NotProved, Exception):  # noqa: BLE001
        return None


class _RowCount(int):
    """A number of rows, or a multiple. It may become a size, and Python cannot take a way by it."""

    def __new__(cls, value: int, each: int = 1) -> _RowCount:
        """A number of elements that is `each` times the number of rows."""
        made = super().__new__(cls, value)
        made.each = each
        return made

    each: int

    def _refuse(self, *_: Any) -> NoReturn:
        raise NotProved("it computes with the number of rows, or branches on it")

    def __eq__(self, other: object) -> bool:
        """Whether both are the same for every number of rows; a comparison with a plain number is refused."""
        if isinstance(other, _RowCount):
            return self.each == other.each
        # Torch's own checks of shapes compare with -1.
        return False if other == -1 else self._refuse()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __mul__(self, other: int) -> Any:
        """So many times as many; rows times rows are refused."""
        return (
            self._refuse() if isinstance(other, _RowCount) else _RowCount(int.__mul__(self, other), self.each * other)
        )

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> Any:
        """A part of them; refused where that does not divide evenly for every number of rows."""
        if isinstance(other, _RowCount) or self.each % other:
            self._refuse()
        return _RowCount(int.__floordiv__(self, other), self.each // other)

    __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __bool__ = __int__ = __float__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __truediv__ = __rtruediv__ = __mod__ = _refuse
    __rfloordiv__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __divmod__ = _refuse


class _RowTensor(torch.Tensor):  # type: ignore[misc, no-any-unimported, unused-ignore]
    """A tensor whose rows lie along an axis. Its values cannot be reached from Python."""

    inner: torch.Tensor
    #: `None` for what must not be used.
    rows: RowAxis | None

    @staticmethod
    def __new__(cls, inner: torch.Tensor, rows: RowAxis | None) -> _RowTensor:
        """A tensor that stands for `inner`, with its rows along an axis or without any."""
        made: _RowTensor = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device, layout=inner.layout
        )
        made.inner, made.rows = inner, rows
        return made

    def __repr__(self, **_: Any) -> str:
        return f"<tensor of shape {tuple(self.inner.shape)} with rows along axis {self.rows and self.rows.axis}>"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer questions about sizes with marked numbers, and refuse to read values of rows in Python."""
        name = getattr(func, "__name__", "")
        if name in _READING:
            raise NotProved(f"it reads values of the rows in Python ({name.strip('_')})")
        with torch._C.DisableTorchFunctionSubclass():
            answer = func(*args, **(kwargs or {}))
        if name == "__get__" and getattr(func.__self__, "__name__", "") == "shape":
            return _marked(args[0], answer)
        if name == "size":
            whole = _marked(args[0], args[0].inner.shape)
            asked = [*args[1:], *(kwargs or {}).values()]
            return whole[asked[0]] if asked and asked[0] is not None else whole
        if name in ("numel", "nelement", "__len__") and isinstance(args[0], _RowTensor):
            if name == "__len__":
                raise NotProved("it takes the number of rows as a number (len)")
            rows = args[0].rows
            return answer if rows is None else _RowCount(answer, answer // _count(args[0].inner, rows))
        return answer

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotProved("it keeps a tensor, and uses it when the call is over")


def _marked(tensor: _RowTensor, shape: Sequence[int]) -> Any:
    """A shape in which the number of rows is marked as such."""
    rows = tensor.rows
    if rows is None:
        return tuple(shape)
    each = rows.outer * rows.inner
    return tuple(_RowCount(size, each) if axis == rows.axis else size for axis, size in enumerate(shape))


def _count(inner: torch.Tensor, rows: RowAxis) -> int:
    return int(inner.size(rows.axis)) // (rows.outer * rows.inner)


class _Step(NamedTuple):
    """The part of an operation that two calls with different numbers of rows must have in common."""

    name: str
    where: Any
    constants: tuple[Any, ...]
    tensors: tuple[torch.Tensor, ...]


class _Trace(TorchDispatchMode):  # type: ignore[misc, no-any-unimported, unused-ignore]
    """One call of a function with so many rows."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # That would load torch's compiler, which takes seconds.
        return False

    def __init__(self, function: Callable[..., Any], arguments: Any, keywords: Any, count: int) -> None:
        """Run the function on stand-ins for rows, and check what it returns.

        Raises `NotProved` where results do not come from the rows, need gradients, or have rows apart from each other.
        """
        super().__init__()
        self.count = count
        self.steps: list[_Step] = []
        self._refusal: NotProved | None = None
        #: Storages by address that were made in the call: all of them, and those with one value everywhere.
        self._made: dict[int, torch.Tensor] = {}
        self._even: set[int] = set()
        #: Storages of the arguments.
        self._given: set[int] = set()
        given = tree_map_only(torch.Tensor, self._rows, (arguments, keywords))
        with self, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are the user's when the function runs
            returned = function(*given[0], **given[1])
        if self._refusal is not None:  # the function has caught it
            raise self._refusal
        results = tree_flatten(returned)[0]
        if not results or not all(isinstance(each, _RowTensor) and each.rows is not None for each in results):
            raise NotProved("it returns something that does not come from the rows")
        if any(each.requires_grad for each in results):
            raise NotProved("its results require gradients: call the module inside `with torch.no_grad():`")
        if any(each.rows.outer != 1 for each in results):
            raise NotProved("rows of its results do not lie one after the other")
        self.axes = tuple(each.rows.axis for each in results)
        self.results = [each.inner for each in results]
        self.ends = [(each.rows, each.dtype) for each in results]

    def _rows(self, tensor: torch.Tensor) -> _RowTensor:
        """So many rows of an example, in memory of their own."""
        index = torch.arange(self.count, device=tensor.device) % tensor.size(0)
        made = tensor.detach().index_select(0, index)
        self._given.add(made.untyped_storage().data_ptr())
        self._made[made.untyped_storage().data_ptr()] = made
        return _RowTensor(made, RowAxis(0))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator under the rules; the first refusal is kept, even if the function catches it."""
        try:
            return self._operation(func, args, kwargs or {})
        except NotProved as refused:
            self._refusal = self._refusal or refused
            raise

    def _operation(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run one operator on the tensors behind rows, and find where the rows are in its result.

        Operators without a rule are decomposed. Raises `NotProved` for random numbers, values that steer the function,
        and changes of what is not its own.
        """
        name = func._schema.name.removeprefix("aten::").removeprefix("prim::")
        if func in _READS:
            raise NotProved(f"its way depends on values ({name})")
        is_of_rows = any(isinstance(each, _RowTensor) for each in tree_flatten((args, kwargs))[0])
        base = name.rstrip("_")
        if torch.Tag.nondeterministic_seeded in func.tags and base not in RULES:
            raise NotProved(f"it draws random numbers ({name})")
        if is_of_rows and base not in RULES and name not in _QUESTIONS and base not in _EVEN:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is NotImplemented:
                raise NotProved(f"there is no rule for the operator {name}")
            return result
        mutated = _mutated(func, args, kwargs)
        for each in mutated:
            self._require_own(each, name, is_of_rows=is_of_rows)
        inner_args, inner_kwargs = tree_map_only(_RowTensor, lambda each: each.inner, (args, kwargs))
        result = func(*inner_args, **inner_kwargs)
        if not is_of_rows or name in _QUESTIONS:
            self._note_made(name, result, mutated, (inner_args, inner_kwargs))
            return result
        if base in _EVEN and base.startswith("new"):
            self._note_made(name, result, mutated, ())
            return result
        return self._labelled(func, name, base, args, kwargs, result, mutated)

    def _labelled(
        self, func: Any, name: str, base: str, args: Any, kwargs: Any, result: Any, mutated: list[torch.Tensor]
    ) -> Any:
        """The result of an operator with rows, by its rule; the step is noted for comparison with another trace."""
        names = [each.name for each in func._schema.arguments]
        defaults = {each.name: each.default_value for each in func._schema.arguments if each.has_default_value()}
        given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        operands = {key: tree_map_only(torch.Tensor, self._operand, value) for key, value in given.items()}
        operation = Operation(base, operands, result, self.count)
        where = RULES[base](operation)
        if base in SIZES and base != name and mutated and isinstance(where, RowAxis):
            assert isinstance(mutated[0], _RowTensor)
            if mutated[0].rows != where:
                raise operation.refuse("changes a tensor in place to one with other rows")
        self.steps.append(_step(base, where, operation))
        self._note_made(name, result, mutated, [each.value for each in operation.operands()])
        if mutated:
            return mutated[0] if len(mutated) == 1 else mutated
        if isinstance(result, torch.Tensor):
            assert not isinstance(where, list)
            return _RowTensor(result, where)
        made = [
            _RowTensor(each, axis) if isinstance(each, torch.Tensor) else each
            for each, axis in zip(result, where if isinstance(where, list) else [where] * len(result), strict=True)
        ]
        return made if isinstance(result, list) else tuple(made)

    def _operand(self, tensor: torch.Tensor) -> Operand:
        """A tensor as rules see it, with its rows."""
        if isinstance(tensor, _RowTensor):
            if getattr(tensor, "rows", None) is None:
                raise NotProved("it uses what an operator keeps for a backward pass")
            return Operand(tensor.inner, tensor.rows)
        return Operand(tensor, None, tensor.untyped_storage().data_ptr() in self._even)

    def _note_made(self, name: str, result: Any, mutated: list[torch.Tensor], given: Any) -> None:
        """Remember storages that are new, and keep them, so that no address is used twice."""
        old = {each.untyped_storage().data_ptr() for each in tree_flatten(given)[0] if isinstance(each, torch.Tensor)}
        for each in mutated:
            inner = each.inner if isinstance(each, _RowTensor) else each
            self._even.discard(inner.untyped_storage().data_ptr())
        for each in tree_flatten(result)[0]:
            if isinstance(each, torch.Tensor) and not mutated:
                address = each.untyped_storage().data_ptr()
                if name in _EVEN:
                    self._even.add(address)
                if address not in old:  # else it is a view, of a parameter perhaps
                    self._made.setdefault(address, each)

    def _require_own(self, tensor: torch.Tensor, name: str, *, is_of_rows: bool) -> None:
        """Raise `NotProved` unless a tensor that is changed in place was made during the trace."""
        inner = tensor.inner if isinstance(tensor, _RowTensor) else tensor
        address = inner.untyped_storage().data_ptr()
        if address in self._given:
            raise NotProved(f"it changes an argument in place ({name})")
        if address not in self._made or not _is_new(self._made[address], inner):
            raise NotProved(f"it changes a parameter, a buffer or another tensor in place ({name})")
        if is_of_rows and not isinstance(tensor, _RowTensor):
            raise NotProved(f"it writes rows into a tensor that does not come from them ({name})")


def _is_new(made: torch.Tensor, inner: torch.Tensor) -> bool:
    return bool(made.untyped_storage()._cdata == inner.untyped_storage()._cdata)


def _mutated(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that an operator writes to."""
    found: list[torch.Tensor] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            found += [each for each in tree_flatten(value)[0] if isinstance(each, torch.Tensor)]
    if found and func._schema.name in ("aten::native_batch_norm", "aten::_native_batch_norm_legit"):
        training = args[5] if len(args) > 5 else kwargs.get("training")
        return found if training else []
    return found


def _step(name: str, where: Any, operation: Operation) -> _Step:
    """A step of a trace without its sizes: what must be the same for another number of rows."""
    constants: list[Any] = []
    tensors: list[torch.Tensor] = []

    def add(value: Any) -> None:
        if isinstance(value, Operand):
            if value.rows is None:
                tensors.append(_without_rows(value))
        elif isinstance(value, list | tuple):
            for each in value:
                add(each)
        else:
            constants.append(value)

    for key, value in operation.given.items():
        if key not in SIZES[name]:
            add(value)
    return _Step(name, where, tuple(constants), tuple(tensors))


def _without_rows(operand: Operand) -> torch.Tensor:
    """One place of a tensor that is the same for all rows, if it has one for each: else their number would count."""
    value = operand.value
    if value.dim() and (operand.is_even or 0 in value.stride()):
        return value[tuple(slice(0, 1) if operand.is_even or not stride else slice(None) for stride in value.stride())]
    return value


def _require_alike(one: _Trace, other: _Trace) -> None:
    """Both calls did the same with their rows."""
    for first, second in zip(one.steps, other.steps, strict=False):
        if first.name != second.name:
            raise NotProved(f"it runs other operations for another number of rows ({first.name}, or {second.name})")
        if first.where != second.where:
            raise NotProved(f"{first.name} puts rows elsewhere for another number of rows")
        if not _same(first.constants, second.constants):
            raise NotProved(f"{first.name} takes the number of rows as a value")
        if len(first.tensors) != len(second.tensors) or not all(map(_same_tensor, first.tensors, second.tensors)):
            raise NotProved(f"{first.name} takes a tensor that depends on the number of rows")
    if len(one.steps) != len(other.steps):
        raise NotProved("it runs other operations for another number of rows")
    if one.ends != other.ends:
        raise NotProved("it returns something else for another number of rows")


def _require_same_alone(trace: _Trace, alone: Sequence[Any]) -> None:
    """One row alone gives what it gives among copies of itself. Shapes may not be, as after `squeeze`."""
    for (rows, _), together, found in zip(trace.ends, trace.results, alone, strict=False):
        part = together.narrow(rows.axis, 0, rows.inner)
        if not isinstance(found, torch.Tensor) or found.shape != part.shape or found.dtype != part.dtype:
            raise NotProved("it returns something of another shape for one row alone")


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether constants are the same, NaN included."""
    return len(one) == len(other) and all(
        type(a) is type(b) and (a == b or (a != a and b != b)) for a, b in zip(one, other, strict=True)
    )


def _same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same values, NaN included."""
    if one is other:
        return True
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    with contextlib.suppress(RuntimeError):
        return bool(((one == other) | ((one != one) & (other != other))).all())
    return False
