"""Names by which one process finds what another has kept: hashes of functions, of kinds of arguments, and of devices.

A hash is of content alone: no path, line, address or value of an argument goes into it. It is the same in every
process of one version of Python. The history is a hint, so hashes may tell apart what is the same (then nothing is
known yet), and rarely take for the same what is not (then the hint is wrong, and measurements correct it).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from anygpu.base.digest import blake2b
from anygpu.base.processors import usable_processors
from anygpu.engines.disk_cache import stamp_of
from anygpu.hardware.device import Device
from anygpu.history.records import plain_name

#: How far functions are followed that hold functions, and values that hold values.
_DEEPEST_FUNCTION, _DEEPEST_VALUE = 3, 50
_DIGEST_BYTES = 16


def function_hash(function: Callable[..., Any]) -> str | None:
    """A hash of what the function does, as far as its code says; `None` when there is no telling.

    It is made of bytecode, constants, names and the name of the module, and of those of functions that it captures.
    What else it captures, and what globals hold, does not count. It takes some 20 µs for each function and nested one.
    """
    try:
        content = _function(function, 0)
    except Exception:  # noqa: BLE001 - an object of the user's may raise anything when it is looked at
        return None
    return None if content is None else _digest(content)


def function_name(function: Callable[..., Any]) -> str:
    """For people: the module and the name in it."""
    try:
        inner = function.func if isinstance(function, functools.partial) else function
        name = getattr(inner, "__qualname__", None) or getattr(inner, "__name__", None)
        owner = inner if isinstance(name, str) else type(inner)
        module = getattr(owner, "__module__", None)
        name = name if isinstance(name, str) else type(inner).__qualname__
    except Exception:  # noqa: BLE001 - as above
        return "?"
    return plain_name(f"{module}.{name}" if isinstance(module, str) else name)


def signature_hash(key: Hashable) -> str:
    """A hash of a call's signature, as `anygpu.placement.signature` makes it, for this and other processes.

    Classes of the user's are in a signature by numbers that a process gives them in the order in which it meets them,
    and long strings by hashes with a seed of their own. So calls with these may not be found again, and a program that
    meets its classes in another order may find those of another class.
    """
    return _digest(_value(key, 0))


def device_stamp(device: Device, libraries: Iterable[str], isolation: str | None, cores: int | None = None) -> str:
    """A hash of what has to be the same for a time to hold: device, driver, versions, isolation, and cores.

    `libraries` are the names of the engine's distributions; `cores` are those that this process may use.
    """
    return _digest(_value((stamp_of(device, libraries), device.id, isolation, cores or usable_processors()), 0))


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


# -- values, each as bytes that begin with what it is and how long it is, so that no two run together


def _tagged(tag: str, *parts: bytes) -> bytes:
    return b"".join((f"{tag}:{len(parts)}[".encode(), *(f"{len(part)}:".encode() + part for part in parts)))


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _named(tag: str, what: Any) -> bytes:
    return _tagged(tag, _text(str(what.__module__)), _text(str(what.__qualname__)))


def _value(value: Any, depth: int) -> bytes:
    kind = type(value)
    if depth > _DEEPEST_VALUE:
        return _named("deep", kind)
    if kind is str:
        return _tagged("str", _text(value))
    if kind is bytes:
        return _tagged("bytes", value)
    if kind is int or kind is bool:
        return _tagged(kind.__name__, f"{value:x}".encode())
    if kind is float:
        return _tagged("float", value.hex().encode())
    if kind is complex:
        return _tagged("complex", value.real.hex().encode(), value.imag.hex().encode())
    if kind is tuple:
        return _tagged("tuple", *(_value(each, depth + 1) for each in value))
    if kind is frozenset:
        return _tagged("frozenset", *sorted(_value(each, depth + 1) for each in value))
    if kind is slice:  # a constant of code, since Python 3.14
        return _tagged("slice", *(_value(each, depth + 1) for each in (value.start, value.stop, value.step)))
    if kind is CodeType:
        return _code(value, depth + 1)
    if kind is ModuleType:
        return _tagged("module", _text(value.__name__))
    if isinstance(value, type):
        return _named("type", value)
    # None, Ellipsis and NotImplemented are known by their type, and of anything else there is no more to be told.
    return _named("one", kind)


# -- functions


def _function(function: Any, depth: int) -> bytes | None:
    kind = type(function)  # and not isinstance: an object may say of itself that it is a function
    if depth > _DEEPEST_FUNCTION:
        return _named("deep", kind)
    if kind is FunctionType:
        captured = (_function(each, depth + 1) for each in _captured(function) if type(each) is FunctionType)
        return _tagged(
            "function",
            _text(str(function.__module__)),
            _text(function.__qualname__),
            _code(function.__code__, 0),
            *(each for each in captured if each is not None),
        )
    if kind is MethodType:
        return _with("method", _function(function.__func__, depth + 1), type(function.__self__))
    if kind is functools.partial:
        inner = _function(function.func, depth + 1)
        held = [_function(each, depth + 1) or b"" for each in function.args if callable(each)]
        names = (len(function.args), *sorted(function.keywords))
        return None if inner is None else _tagged("partial", inner, _value(names, 0), *held)
    if kind is np.ufunc or kind is type(np.dot):
        name = function.__name__
        return _tagged("numpy", _text(name)) if getattr(np, name, None) is function else None
    if kind is BuiltinFunctionType:
        owner = function.__self__
        return _tagged("builtin", _text(owner.__name__), _text(function.__qualname__)) if _is_module(owner) else None
    if isinstance(function, type):
        return None
    wrapped = getattr(kind, "__module__", None) == "functools" and getattr(function, "__wrapped__", None)
    if wrapped:  # a cache of functools around a function
        return _with("wrapped", _function(wrapped, depth + 1), kind)
    by_class = kind.__call__
    return _with("callable", _function(by_class, depth + 1), kind) if type(by_class) is FunctionType else None


def _is_module(value: Any) -> bool:
    return type(value) is ModuleType


def _with(tag: str, inner: bytes | None, kind: type) -> bytes | None:
    return None if inner is None else _tagged(tag, inner, _named("type", kind))


def _captured(function: FunctionType) -> Iterator[Any]:
    yield from function.__defaults__ or ()
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is not bound yet
            yield cell.cell_contents


def _code(code: CodeType, depth: int) -> bytes:
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return _tagged(
        "code",
        _text(code.co_name),
        code.co_code,
        code.co_exceptiontable,
        _value(counts, depth),
        _value(names, depth),
        *(_value(each, depth + 1) for each in code.co_consts),
    )
