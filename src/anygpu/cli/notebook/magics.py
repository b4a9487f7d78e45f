"""`%load_ext anygpu`: the magics `%anygpu` and `%%offload`. The only module that imports IPython.

First what is typed after a magic becomes options and calls, then the magics, then how they are loaded and unloaded.
"""

from __future__ import annotations

import ast
import functools
import shlex
from collections.abc import Callable
from typing import Any, NoReturn, cast

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand, output_can_be_silenced
from IPython.display import display

from anygpu import api
from anygpu.base import events
from anygpu.calls.offload import Offloaded
from anygpu.calls.options import CallOptions
from anygpu.cli.notebook.outcomes import WRITTEN, write
from anygpu.cli.notebook.receipts import MOST_KEPT, Keeping, Notice, Said
from anygpu.errors import AnyGPUError, InvalidOption

#: The options of `offload`.
OPTIONS = tuple(CallOptions.__annotations__)


def offload_options(line: str) -> CallOptions:
    """From `on=gpu fallback=raise`: Python's literals and bare words; several words with commas are a list.

    Raises `InvalidOption` for anything that is not `name=value` with a name of `OPTIONS`.
    """
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        raise InvalidOption(f"{line!r} has a quotation mark without its partner.") from None
    given: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise InvalidOption(f"%%offload takes options as name=value, such as on=gpu; got {word!r}.")
        if name not in OPTIONS:
            raise InvalidOption(f"%%offload has no option {name!r}; it has {', '.join(OPTIONS)}.")
        given[name] = _value(value)
    return cast(CallOptions, given)


def _value(text: str) -> Any:
    """A literal of Python, or else the text; a list of words if it has commas."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        words = [word for word in text.split(",") if word]
        return words if "," in text else text


def call_in(text: str) -> ast.Call:
    """The call in `explain score(x, w)`, parsed and not run. Raises `InvalidOption` if it is no call."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        tree = None
    if not isinstance(tree, ast.Call):
        raise InvalidOption(f"%anygpu explain takes a call, such as score(x, w); got {text.strip() or 'nothing'!r}.")
    return tree


def receipt_count(text: str, most: int) -> int:
    """The number of receipts to show: ten by default. Raises `InvalidOption` unless it is from 1 to `most`."""
    wanted = text.strip() or "10"
    if not wanted.isdecimal() or not 1 <= int(wanted) <= most:
        raise InvalidOption(f"%anygpu receipts takes a number from 1 to {most}; got {wanted!r}.")
    return int(wanted)


class Decorating(ast.NodeTransformer):
    """Puts a decorator above every `def` at the top level of a cell, and above nothing else."""

    def __init__(self, decorator: str) -> None:
        self._decorator = decorator

    def visit_Module(self, node: ast.Module) -> ast.Module:
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef):
                name = ast.Name(self._decorator, ast.Load())
                statement.decorator_list.insert(0, ast.copy_location(name, statement))
        return node


#: The name of the decorator while a cell runs: no user's name looks like it.
_DECORATOR = "__anygpu_offload__"
_ARGUMENTS = "__anygpu_arguments__"

#: IPython has types in part.
_display: Callable[[Any], object] = display

_NO_FUNCTION = Said("%%offload", "found no function: it decorates those that a cell defines.")

SUBCOMMANDS = ("explain", "receipts", "devices", "doctor", "statistics", "help")
HELP = """\
%anygpu explain score(x, w)   where the call would run and why, without running it
%anygpu receipts [n]          the last n calls since %load_ext anygpu; ten by default
%anygpu devices               the devices of this machine
%anygpu doctor                why a GPU is not used, and what to do
%anygpu statistics            what calls have taken since anygpu.observe.start()
%anygpu help                  this text
%%offload [on=gpu ...]        offload every function that the cell defines with def at its top level"""


class PlainText(str):
    """Shown as it is, without quotation marks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@magics_class
class AnyGPUMagics(Magics):
    """The magics, and the last calls. Errors of ours become IPython's usage errors, in one line."""

    def __init__(self, shell: Any, keeping: Keeping) -> None:
        super().__init__(shell)
        self.keeping = keeping

    @no_var_expand
    @output_can_be_silenced
    @line_magic
    def anygpu(self, line: str) -> Any:
        """What anygpu knows: explain, receipts, devices, doctor, statistics. `%anygpu help` lists them."""
        name, _, rest = line.strip().partition(" ")
        subcommand = name or "help"
        if subcommand not in SUBCOMMANDS:
            _refuse(f"%anygpu has no {name!r}; it has {', '.join(SUBCOMMANDS)}.")
        try:
            if subcommand == "explain":
                return self._explain(rest)
            if subcommand == "receipts":
                return self.keeping.last(receipt_count(rest, MOST_KEPT))
            return _without_arguments(subcommand, rest)
        except AnyGPUError as error:
            _refuse(str(error))

    @no_var_expand
    @output_can_be_silenced
    @cell_magic
    def offload(self, line: str, cell: str) -> Any:
        """Run the cell with `@anygpu.offload` above every `def` at its top level: `%%offload on=gpu fallback=raise`."""
        __tracebackhide__ = True
        try:
            options = offload_options(line)
            decorating = _CellDecorator(options)
        except AnyGPUError as error:
            _refuse(str(error))
        shell: Any = self.shell
        source = shell.transform_cell(cell)
        # As IPython does with a cell of its own, so that tracebacks and `inspect` find the lines.
        name = shell.compile.cache(source, shell.execution_count, raw_code=cell)
        try:
            tree = shell.transform_ast(Decorating(_DECORATOR).visit(shell.compile.ast_parse(source, filename=name)))
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            # All of it before any of it runs.
            statements = compile(tree, name, "exec", dont_inherit=True)
            shown = None if last is None else compile(ast.Expression(last.value), name, "eval", dont_inherit=True)
        except SyntaxError as error:
            if "await" in str(error):
                _refuse(
                    "%%offload cannot run a cell with await at its top level: define functions in a cell before it."
                )
            raise
        names = shell.user_ns
        names[_DECORATOR] = decorating
        try:
            exec(statements, names)
            value = None if shown is None else eval(shown, names)
        finally:
            names.pop(_DECORATOR, None)
        _display(Notice(decorating.said or [_NO_FUNCTION]))
        return value

    def _explain(self, text: str) -> Any:
        """The plan of a call whose function and arguments are evaluated in the notebook; the function is not called."""
        call = call_in(text)
        function, arguments, keywords = self._evaluated(call)
        return api.explain(functools.partial(function, **keywords) if keywords else function, *arguments)

    def _evaluated(self, call: ast.Call) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """The function and what it would be called with, by the names of the notebook.

        Raises `InvalidOption` with the error of whatever cannot be evaluated.
        """
        shell: Any = self.shell
        names = {**shell.user_ns, _ARGUMENTS: lambda *given, **named: (given, named)}
        collecting = ast.Call(ast.Name(_ARGUMENTS, ast.Load()), call.args, call.keywords)
        try:
            function = eval(_compiled(call.func, call), names)
            given, named = eval(_compiled(collecting, call), names)
        except Exception as error:
            raise InvalidOption(f"the call cannot be explained: {type(error).__name__}: {error}") from error
        return function, given, named


class _CellDecorator:
    """Decorates the functions of one cell, and remembers what it did. What cannot be offloaded stays as it is."""

    def __init__(self, options: CallOptions) -> None:
        api.offload(**options)(_nothing)  # so that options that make no sense are refused before anything runs
        self._offload = api.offload(**options)
        self.said: list[Said] = []

    def __call__(self, function: Any) -> Any:
        name = getattr(function, "__name__", repr(function))
        if isinstance(function, Offloaded):
            self.said.append(Said(name, "has a decorator of its own, and keeps its options."))
            return function
        try:
            made = self._offload(function)
        except InvalidOption as error:
            self.said.append(Said(name, f"stays as it is: {error}"))
            return function
        self.said.append(Said(name, "is offloaded: its calls run where they are fastest."))
        return made


def load(shell: Any) -> None:
    """Registers the magics, the formatters for text and the completions. A second time changes nothing."""
    if _loaded(shell) is None:
        keeping = Keeping()
        shell.register_magics(AnyGPUMagics(shell, keeping))
        events.calls.append(keeping)
        for module, name in WRITTEN:
            _text_formatter(shell).for_type_by_name(module, name, write)
        shell.set_hook("complete_command", _completed, str_key="%anygpu")
        shell.set_hook("complete_command", _completed_option, str_key="%%offload")


def unload(shell: Any) -> None:
    """Takes back what `load` has registered; the hooks for completion stay."""
    magics = _loaded(shell)
    if magics is not None:
        if magics.keeping in events.calls:
            events.calls.remove(magics.keeping)
        for module, name in WRITTEN:
            _text_formatter(shell).pop(f"{module}.{name}", None)
        shell.magics_manager.registry.pop(AnyGPUMagics.__name__)
        shell.magics_manager.magics["line"].pop("anygpu", None)
        shell.magics_manager.magics["cell"].pop("offload", None)


def _text_formatter(shell: Any) -> Any:
    return shell.display_formatter.formatters["text/plain"]


def _loaded(shell: Any) -> AnyGPUMagics | None:
    """The magics that are registered in this shell; `None` before `load`."""
    found: AnyGPUMagics | None = shell.magics_manager.registry.get(AnyGPUMagics.__name__)
    return found


def _completed(_: Any, event: Any) -> list[str]:
    """The subcommands, while the first word after `%anygpu` is typed."""
    return list(SUBCOMMANDS) if event.line.lstrip().count(" ") <= 1 else []


def _completed_option(_: Any, event: Any) -> list[str]:
    return [f"{name}=" for name in OPTIONS]


def _without_arguments(name: str, text: str) -> Any:
    """The value of a subcommand that takes nothing. Raises `InvalidOption` if there is something."""
    if text.strip():
        raise InvalidOption(f"%anygpu {name} takes no arguments; got {text.strip()!r}.")
    if name == "help":
        return PlainText(HELP)
    functions: dict[str, Callable[[], Any]] = {
        "devices": api.devices,
        "doctor": api.doctor,
        "statistics": api.statistics,
    }
    return functions[name]()


def _compiled(expression: ast.expr, where: ast.expr) -> Any:
    """The code of an expression, with the place of another for its errors."""
    whole = ast.fix_missing_locations(ast.Expression(ast.copy_location(expression, where)))
    return compile(whole, "<%anygpu explain>", "eval", dont_inherit=True)


def _nothing() -> None: ...


def _refuse(message: str) -> NoReturn:
    """Raises an error that IPython shows in one line, without a traceback."""
    raise UsageError(" ".join(message.split()))
