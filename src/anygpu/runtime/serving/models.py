"""Models: functions and programs, with the names and types of what they take and return.

First programs as functions, then `TensorMetadata` and `Model`, then how models are made of what a user passes to
`serve`. Types come from annotations and programs, or are learned from calls.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import msgspec
import numpy as np

from anygpu.array.core.array import Array
from anygpu.array.core.recording import apply
from anygpu.base.typing import HostArray
from anygpu.calls.offload import Offloaded, check_function
from anygpu.engines.numpy.lowering import run
from anygpu.errors import InvalidOption, InvalidProgram
from anygpu.program.graph import Program
from anygpu.program.ops.source import Input
from anygpu.program.primitive import Spec
from anygpu.program.wire import MAX_BYTES, from_bytes
from anygpu.runtime.serving.limits import InvalidRequest
from anygpu.runtime.serving.protocol import datatype_of


def read_program(path: str | Path) -> Program:
    """The program in a file that `to_bytes` was written to; checked in full.

    Raises `InvalidOption` if the file cannot be read, `InvalidProgram` if it is no program.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidOption(f"the program {str(path)!r} cannot be read: {error.strerror}.") from None
    try:
        return from_bytes(data)
    except InvalidProgram as error:
        raise InvalidProgram(f"{path} is not a saved program: {error}") from None


def function_of(program: Program, name: str) -> Callable[..., Any]:
    """The program as a function of its inputs, in order; it returns an array, or a tuple of several.

    Called with anygpu's arrays it is recorded node by node, with NumPy's it runs.
    """

    def replay(*inputs: Any) -> Any:
        traced = any(isinstance(each, Array) for each in inputs)
        results = _recorded(program, inputs) if traced else run(program, inputs)
        return results[0] if len(results) == 1 else tuple(results)

    replay.__name__ = replay.__qualname__ = name
    return replay


def _recorded(program: Program, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a program whose nodes are recorded again on these inputs."""
    values = [each._value for each in inputs]
    for node in program.nodes:
        if not isinstance(node.op, Input):
            values.append(apply(node.op, *[values[position] for position in node.inputs]))
    return [Array(values[output]) for output in program.outputs]


#: Every model has one version.
VERSION = "1"
#: In place of a type that is not known before the first call.
UNKNOWN = "UNKNOWN"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
#: As `anygpu explain` writes arrays; -1 stands for any length.
_ANNOTATION = re.compile(r"""['"]?(?P<dtype>[a-z]+[0-9]*)\[(?P<shape>[-0-9, ]*)\]['"]?""")


class TensorMetadata(msgspec.Struct, frozen=True):
    """An input or output as the protocol describes it."""

    name: str
    datatype: str = UNKNOWN
    #: -1 stands for a length that varies, or is not known yet.
    shape: tuple[int, ...] = (-1,)

    def seen(self, array: HostArray) -> TensorMetadata:
        """The metadata after one more array: lengths that differ become -1, a type stays what it was first."""
        datatype = datatype_of(array.dtype) or UNKNOWN
        if self.datatype == UNKNOWN:
            return TensorMetadata(self.name, datatype, array.shape)
        if len(self.shape) != array.ndim or self.datatype != datatype:
            return self
        shape = tuple(one if one == other else -1 for one, other in zip(self.shape, array.shape, strict=True))
        return TensorMetadata(self.name, self.datatype, shape)

    def misfit(self, array: HostArray) -> str | None:
        """A clause that says why the array does not have this type and shape; `None` if it has."""
        datatype = datatype_of(array.dtype)
        if datatype != self.datatype:
            return f"is {self.datatype}, not {datatype}"
        lengths = zip(self.shape, array.shape, strict=False)
        if len(self.shape) != array.ndim or any(one not in (-1, other) for one, other in lengths):
            return f"has the shape {list(self.shape)}, not {list(array.shape)}"
        return None


class _Input(msgspec.Struct, frozen=True):
    """A parameter of a model: its name, default, and declared type and shape."""

    name: str
    keyword_only: bool = False
    default: Any = inspect.Parameter.empty
    #: Given by an annotation or a program.
    declared: TensorMetadata | None = None

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


class Model:
    """A function under a name. `call` gives what to submit, `outputs` names what came back.

    Used by the server's event loop alone.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        inputs: Sequence[_Input],
        outputs: Sequence[TensorMetadata] = (),
        *,
        platform: str = "anygpu_function",
    ) -> None:
        self.name = name
        self.function = function
        self.platform = platform
        self._inputs = tuple(inputs)
        self._names = frozenset(each.name for each in inputs)
        self._plain = not any(each.keyword_only for each in inputs)
        self._seen = {each.name: each.declared or TensorMetadata(each.name) for each in inputs}
        self._last: tuple[Any, ...] = ()
        self._outputs = {each.name: each for each in outputs}

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self._inputs)

    # -- calls

    def call(self, given: Mapping[str, HostArray]) -> tuple[Callable[..., Any], list[Any]]:
        """The function and its arguments for named inputs; raises `InvalidRequest` for inputs that do not fit.

        Inputs that are left out have their defaults; keyword-only ones are bound by `functools.partial`.
        """
        if not self._names >= given.keys():
            unknown = next(name for name in given if name not in self._names)
            raise InvalidRequest(f"{self.name} has no input {unknown[:64]!r}; it has {self._listed()}.")
        arguments: list[Any] = []
        keywords: dict[str, Any] = {}
        for each in self._inputs:
            value = given.get(each.name)
            if value is None:
                if each.required:
                    raise InvalidRequest(f"{self.name} needs the input {each.name!r}; it takes {self._listed()}.")
                if not each.keyword_only:
                    arguments.append(each.default)
                continue
            if each.declared is not None and (misfit := each.declared.misfit(value)) is not None:
                raise InvalidRequest(f"the input {each.name!r} of {self.name} {misfit}.")
            if each.keyword_only:
                keywords[each.name] = value
            else:
                arguments.append(value)
        return functools.partial(self.function, **keywords) if keywords else self.function, arguments

    def outputs(self, value: Any) -> dict[str, HostArray]:
        """The returned arrays by name. The protocol need not have a form for them.

        Dictionaries and named tuples have names; other tuples become `output_0` and so on, a single value `output`.
        """
        if type(value) is np.ndarray:
            return {"output": value}
        if isinstance(value, dict):
            named = {str(name): each for name, each in value.items()}
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            named = dict(zip(value._fields, value, strict=True))
        elif isinstance(value, tuple | list):
            named = {f"output_{number}": each for number, each in enumerate(value)}
        else:
            named = {"output": value}
        return {name: np.asarray(each) for name, each in named.items()}

    # -- metadata

    def learn(self, inputs: Mapping[str, HostArray], outputs: Mapping[str, HostArray]) -> None:
        """Widens the metadata by the shapes and types of a call; does nothing if they are those of the last one."""
        kinds = tuple([(each.shape, each.dtype.num) for some in (inputs, outputs) for each in some.values()])
        if kinds == self._last:
            return
        self._last = kinds
        for each in self._inputs:
            if each.declared is None and each.name in inputs:
                self._seen[each.name] = self._seen[each.name].seen(inputs[each.name])
        if self.platform == "anygpu_function":
            self._outputs = {
                name: self._outputs.get(name, TensorMetadata(name)).seen(array) for name, array in outputs.items()
            }

    def metadata(self) -> dict[str, Any]:
        """The metadata as the protocol has it."""
        outputs = self._outputs or {"output": TensorMetadata("output")}
        return {
            "name": self.name,
            "versions": [VERSION],
            "platform": self.platform,
            "inputs": [self._seen[each.name] for each in self._inputs],
            "outputs": list(outputs.values()),
        }

    def _listed(self) -> str:
        return ", ".join(each.name for each in self._inputs) or "none"


def models_of(given: Any) -> dict[str, Model]:
    """Models from functions, programs and paths of saved programs, by name."""
    if not isinstance(given, Mapping) or not given:
        raise InvalidOption(f'serve takes functions by name, as in serve({{"score": score}}); got {given!r}.')
    return {name: model_of(name, each) for name, each in given.items()}


def model_of(name: Any, given: Any) -> Model:
    """The model of a function, a program, or the file of one. Raises `InvalidOption` for anything else."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidOption(f"a model's name has letters, digits, and . _ - between them; got {name!r}.")
    if isinstance(given, str | Path):
        given = read_program(given)
    if isinstance(given, Program):
        inputs = [
            _Input(each.name, declared=each)
            for each in (_of_spec(f"input_{number}", spec) for number, spec in enumerate(given.inputs))
        ]
        names = [f"output_{number}" for number in range(len(given.results))] if len(given.results) > 1 else ["output"]
        outputs = [_of_spec(each, spec) for each, spec in zip(names, given.results, strict=True)]
        return Model(name, function_of(given, name), inputs, outputs, platform="anygpu_program")
    check_function(given.function if isinstance(given, Offloaded) else given)
    return Model(name, given, _inputs_of(name, given))


def _of_spec(name: str, spec: Spec) -> TensorMetadata:
    """The metadata of a program's input or output. Raises `InvalidOption` for a type that the protocol lacks."""
    datatype = None if spec.dtype == "bfloat16" else datatype_of(np.dtype(spec.dtype))
    if datatype is None:
        raise InvalidOption(f"the program's {name} is {spec.dtype}, which the protocol has no type for.")
    return TensorMetadata(name, datatype, spec.shape)


def _inputs_of(name: str, function: Callable[..., Any]) -> list[_Input]:
    """The inputs of a function by its parameters and their annotations.

    Raises `InvalidOption` if they cannot be read.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        raise InvalidOption(f"the parameters of {name} are not known: wrap it in a function of your own.") from None
    annotations = _annotations(function)
    inputs = []
    for each in parameters:
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            if each.kind is each.VAR_POSITIONAL:
                raise InvalidOption(
                    f"{name} takes *{each.name}, and inputs have names: serve a function with a parameter for each."
                )
            continue
        declared = _declared(each.name, annotations.get(each.name, each.annotation))
        inputs.append(_Input(each.name, each.kind is each.KEYWORD_ONLY, each.default, declared))
    return inputs


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function; none if evaluating them raises."""
    try:
        return inspect.get_annotations(inspect.unwrap(function), eval_str=True)
    except Exception:  # noqa: BLE001 - annotations are code of the user's, which need not run
        return {}


def _declared(name: str, annotation: Any) -> TensorMetadata | None:
    """The type and shape of an annotation; `None` if it says none.

    From `x: "float32[-1, 784]"`, or `x: Annotated[np.ndarray, "float32[-1, 784]"]`.
    """
    texts = get_args(annotation)[1:] if get_origin(annotation) is Annotated else (annotation,)
    for text in texts:
        found = _ANNOTATION.fullmatch(text.strip()) if isinstance(text, str) else None
        if found is None:
            continue
        try:
            datatype = datatype_of(np.dtype(found["dtype"]))
            lengths = found["shape"].strip().rstrip(",")
            shape = tuple(int(length) for length in lengths.split(",")) if lengths else ()
        except (TypeError, ValueError):
            continue
        if datatype is not None:
            return TensorMetadata(name, datatype, shape)
    return None
