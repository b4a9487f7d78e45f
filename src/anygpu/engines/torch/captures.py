"""Captures of a function of torch's arrays: the modules, tensors, constants and other functions that it refers to.

What cannot be looked into is refused. A copy of the function runs on copies of the modules, which share their tensors,
so that looking at a function leaves no trace in the user's objects.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import dis
import functools
import math
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from anygpu.engines.torch.row_rules import NotProved

#: Python modules whose functions depend on their arguments only, or whose operators are seen when they run.
_MODULES = frozenset({"torch", "math", "operator", "functools", "itertools", "typing", "collections", "einops", "copy"})
_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), torch.dtype, torch.device, torch.Size)
_CONSTANTS_MORE = (torch.memory_format, torch.layout, slice, range, weakref.ReferenceType)
#: Built-in functions that reach what is not an argument.
_BUILTINS = frozenset({"eval", "exec", "open", "input", "globals", "locals", "setattr", "delattr", "__import__", "id"})
#: Opcodes by which a function changes what it captures.
_STORES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
_DEEPEST = 12


class Captured:
    """The modules and tensors that a function reaches, and the functions that were looked at."""

    def __init__(self) -> None:
        """Nothing found yet."""
        self.modules: list[torch.nn.Module] = []
        self.tensors: list[torch.Tensor] = []
        self.functions: list[types.FunctionType] = []
        #: Constants, and what stands for them, in the order in which they were met.
        self.constants: list[Any] = []
        self._seen: dict[int, Any] = {}

    def is_new(self, value: Any) -> bool:
        """Whether it has not been looked at; it is held, so that its address is no other object's."""
        if id(value) in self._seen:
            return False
        self._seen[id(value)] = value
        return True


class Rebound:
    """A function on copies of the modules that it reaches, which share their tensors."""

    def __init__(self, function: Callable[..., Any], copies: list[torch.nn.Module]) -> None:
        """The function over copies of its modules, whose state is remembered."""
        self._function = function
        self._modules = copies
        self._before = self._state()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call it. Raises `NotProved` where the modules have changed by that."""
        value = self._function(*arguments, **keywords)
        if self._state() != self._before:
            raise NotProved("it changes attributes or buffers of the module")
        return value

    def _state(self) -> list[Any]:
        """The state that a call could add to or replace, as far as it can be compared."""
        return [
            (
                sorted(vars(module)),
                [_plain(value) for value in _attributes(module)],
                [id(each) for each in (*module._parameters.values(), *module._buffers.values())],
            )
            for module in self._modules
        ]


def captured(function: Any) -> Captured:
    """All that the function reaches; raises `NotProved` for what cannot be looked into."""
    found = Captured()
    if torch.nn.modules.module._has_any_global_hook():
        raise NotProved("torch has hooks for all modules")
    _look(function, found, "the function", 0)
    return found


def fingerprint(found: Captured) -> tuple[Any, ...]:
    """A hash of all that a proof depends on: objects, training flags, shapes, hooks and constants."""
    modules = tuple((id(each), id(type(each)), each.training) for each in found.modules)
    tensors = tuple((id(each), tuple(each.shape), each.dtype, each.requires_grad) for each in found.tensors)
    functions = tuple(id(each.__code__) for each in found.functions)
    return modules, tensors, functions, tuple(map(repr, found.constants))


def structure_of(function: Any) -> tuple[Any, ...]:
    """The same in every process: classes, training flags and shapes, by which memory is remembered."""
    try:
        found = captured(function)
    except NotProved:
        found = Captured()
        for module in modules_of(function):
            found.modules += module.modules()
            found.tensors += [*module.parameters(), *module.buffers()]
    modules = tuple((type(each).__qualname__, each.training) for each in found.modules)
    tensors = tuple((tuple(each.shape), str(each.dtype), each.requires_grad) for each in found.tensors)
    return modules, tensors


def modules_of(function: Any) -> list[torch.nn.Module]:
    """The modules that a function captures itself, also if it cannot be looked into."""
    inside: list[Any] = [function, getattr(function, "__self__", None)]
    if isinstance(function, functools.partial):
        inside += [*function.args, *function.keywords.values(), *modules_of(function.func)]
    if isinstance(function, types.FunctionType):
        names = {name for code in _codes(function.__code__) for name in code.co_names}
        inside += [function.__globals__[name] for name in sorted(names) if name in function.__globals__]
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # it is not bound yet
                inside.append(cell.cell_contents)
    return [each for each in inside if isinstance(each, torch.nn.Module)]


def rebound(function: Any, found: Captured) -> Rebound:
    """The function with copies of all that it reaches but tensors."""
    memo: dict[int, Any] = {id(each): each for each in found.tensors}
    made = _copied(function, memo, {}, 0)
    return Rebound(made, [memo.get(id(each), each) for each in found.modules])


# -- looking


def _look(value: Any, found: Captured, what: str, depth: int) -> None:
    """Find what a value can reach: modules, tensors, functions and constants.

    Raises `NotProved` for whatever may depend on more than a function's arguments.
    """
    if isinstance(value, bool | int | float | complex | str | bytes) or value is None:
        found.constants.append(value)
        return
    if not found.is_new(value) or isinstance(value, _CONSTANTS + _CONSTANTS_MORE):
        return
    if depth > _DEEPEST:
        raise NotProved(f"{what} is nested too deeply")
    if isinstance(value, torch.nn.Module):
        _look_at_module(value, found, what, depth)
    elif isinstance(value, torch.Tensor):
        found.tensors.append(value)
    elif isinstance(value, types.FunctionType):
        if not _is_torchs(value.__module__):
            _look_at_function(value, found, depth)
    elif isinstance(value, types.MethodType):
        _look(value.__self__, found, what, depth + 1)
        _look(value.__func__, found, what, depth + 1)
    elif isinstance(value, functools.partial):
        for each in (value.func, *value.args, *value.keywords.values()):
            _look(each, found, what, depth + 1)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            _look(each, found, what, depth + 1)
    elif isinstance(value, dict):
        for key, each in value.items():
            _look(key, found, what, depth + 1)
            _look(each, found, what, depth + 1)
    elif isinstance(value, types.ModuleType):
        if value.__name__.partition(".")[0] not in _MODULES:
            raise NotProved(f"it uses the Python module {value.__name__}, which may depend on more than its arguments")
    elif isinstance(value, types.BuiltinFunctionType | types.WrapperDescriptorType | types.MethodDescriptorType):
        owner = getattr(value, "__module__", None) or "builtins"
        if value.__name__ in _BUILTINS or not (_is_torchs(owner) or owner in ("builtins", "math", "_operator")):
            raise NotProved(f"it uses {owner}.{value.__name__}, which may depend on more than its arguments")
    elif isinstance(value, type):
        if not (_is_torchs(value.__module__) or value.__module__ == "builtins" or issubclass(value, torch.nn.Module)):
            raise NotProved(f"it uses the class {value.__qualname__}, which cannot be looked into")
    elif not _is_torchs(type(value).__module__):
        raise NotProved(f"{what} depends on an object of {type(value).__qualname__}, which cannot be looked into")


def _look_at_module(module: torch.nn.Module, found: Captured, what: str, depth: int) -> None:
    """Find what a module can reach. Raises `NotProved` for hooks, compiled modules and batch norms in training."""
    name = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_orig_mod"):
        raise NotProved(f"{name} is compiled, so that its operators are not seen")
    if module._forward_hooks or module._forward_pre_hooks:
        raise NotProved(f"{name} has hooks, which are not looked into")
    if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
        raise NotProved(f"{name} is in training mode, where it takes its statistics over all rows")
    found.modules.append(module)
    if not _is_torchs(type(module).__module__):
        for method in _methods(type(module)):
            if found.is_new(method):
                _look_at_function(method, found, depth + 1, owner=type(module))
    for each in (*module._parameters.values(), *module._buffers.values()):
        if each is not None and found.is_new(each):
            found.tensors.append(each)
    for child in module._modules.values():
        if child is not None:
            _look(child, found, what, depth + 1)
    for value in _attributes(module):
        _look(value, found, f"an attribute of {name}", depth + 1)


#: Attributes of every module, which are torch's own.
_TORCHS_ATTRIBUTES = frozenset(vars(torch.nn.Module()))


def _attributes(module: torch.nn.Module) -> list[Any]:
    return [value for name, value in sorted(vars(module).items()) if name not in _TORCHS_ATTRIBUTES]


def _methods(kind: type) -> Iterator[types.FunctionType]:
    """The methods that `forward` calls, as far as their names say."""
    waiting, seen = ["forward"], {"forward", "__init__"}
    while waiting:
        method = getattr(kind, waiting.pop(), None)
        if isinstance(method, property):
            method = method.fget
        if not isinstance(method, types.FunctionType) or _is_torchs(method.__module__):
            continue
        yield method
        for code in _codes(method.__code__):
            waiting += [name for name in code.co_names if name not in seen and hasattr(kind, name)]
            seen.update(code.co_names)


def _look_at_function(function: types.FunctionType, found: Captured, depth: int, owner: type | None = None) -> None:
    """Find what a function can reach: globals, captured variables and defaults.

    Raises `NotProved` for captured containers that can be changed, and for variables without a value.
    """
    found.functions.append(function)
    own = function.__closure__ or ()
    for name in _globals_of(function.__code__):
        if name in function.__globals__:
            _look(function.__globals__[name], found, f"the global variable {name}", depth + 1)
        elif hasattr(builtins, name):
            _look(getattr(builtins, name), found, name, depth + 1)
    for name, cell in zip(function.__code__.co_freevars, own, strict=True):
        if name == "__class__" and owner is not None:
            continue
        try:
            content = cell.cell_contents
        except ValueError:
            raise NotProved(f"the captured variable {name} has no value yet") from None
        if isinstance(content, list | dict | set) and not _holds_modules(content):
            raise NotProved(f"it captures {name}, which can be changed")
        _look(content, found, f"the captured variable {name}", depth + 1)
    for each in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        _look(each, found, "a default", depth + 1)


@functools.lru_cache(maxsize=1024)
def _globals_of(outer: types.CodeType) -> tuple[str, ...]:
    """The global names that the code reads; raises `NotProved` if it changes any, or imports what is not known."""
    names: set[str] = set()
    for code in _codes(outer):
        for instruction in dis.get_instructions(code):
            opcode, argument = instruction.opname, instruction.argval
            if opcode in _STORES or (opcode == "STORE_DEREF" and argument in outer.co_freevars):
                raise NotProved(f"it changes the variable {argument}, which is not its own")
            if opcode == "IMPORT_NAME" and str(argument).partition(".")[0] not in _MODULES:
                raise NotProved(f"it imports {argument}, which may depend on more than its arguments")
            if opcode in ("LOAD_GLOBAL", "LOAD_NAME"):
                names.add(argument)
    return tuple(sorted(names))


def _holds_modules(value: Any) -> bool:
    inside = value.values() if isinstance(value, dict) else value
    return bool(value) and all(isinstance(each, torch.nn.Module | torch.Tensor) for each in inside)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those inside of it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _codes(each)


def _is_torchs(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] == "torch"


# -- copying


def _copied(value: Any, memo: dict[int, Any], functions: dict[int, Any], depth: int) -> Any:
    """The value, with modules copied; their tensors are those of the originals."""
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value, memo)
    if isinstance(value, types.MethodType):
        return types.MethodType(value.__func__, _copied(value.__self__, memo, functions, depth + 1))
    if isinstance(value, functools.partial):
        return functools.partial(
            _copied(value.func, memo, functions, depth + 1),
            *(_copied(each, memo, functions, depth + 1) for each in value.args),
            **{name: _copied(each, memo, functions, depth + 1) for name, each in value.keywords.items()},
        )
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_copied(each, memo, functions, depth + 1) for each in value)
    if type(value) is dict:
        return {key: _copied(each, memo, functions, depth + 1) for key, each in value.items()}
    if isinstance(value, types.FunctionType) and not _is_torchs(value.__module__) and depth <= _DEEPEST:
        if id(value) not in functions:
            functions[id(value)] = value  # for one that calls itself
            functions[id(value)] = _copied_function(value, memo, functions, depth)
        return functions[id(value)]
    return value


def _copied_function(
    function: types.FunctionType, memo: dict[int, Any], functions: dict[int, Any], depth: int
) -> types.FunctionType:
    """A function with copies of all that it reaches, so that tracing it changes nothing of the user's."""
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    space = dict(function.__globals__)
    for name in names & space.keys():
        space[name] = _copied(space[name], memo, functions, depth + 1)
    cells = tuple(
        types.CellType(_copied(cell.cell_contents, memo, functions, depth + 1)) for cell in function.__closure__ or ()
    )
    defaults = tuple(_copied(each, memo, functions, depth + 1) for each in function.__defaults__ or ())
    made = types.FunctionType(function.__code__, space, function.__name__, defaults or None, cells or None)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _plain(value: Any) -> Any:
    """A value as it can be compared: what a call could add to or replace."""
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, bool | int | float | complex | str | bytes) or value is None:
        return value
    return type(value).__qualname__
