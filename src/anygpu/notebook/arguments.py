"""The lines behind magics: what is asked for, and with what. Pure."""

from __future__ import annotations

import ast
import shlex
from typing import Any, cast

from anygpu.errors import InvalidOption
from anygpu.placement.options import CallOptions

#: What `offload` takes.
OPTIONS = tuple(CallOptions.__annotations__)


def offload_options(line: str) -> CallOptions:
    """From `on=gpu fallback=raise`: Python's literals and bare words; several words with commas are a list."""
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
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        words = [word for word in text.split(",") if word]
        return words if "," in text else text


def call_in(text: str) -> ast.Call:
    """The call of `explain score(x, w)`."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        tree = None
    if not isinstance(tree, ast.Call):
        raise InvalidOption(f"%anygpu explain takes a call, such as score(x, w); got {text.strip() or 'nothing'!r}.")
    return tree


def receipt_count(text: str, most: int) -> int:
    """How many receipts: ten by default."""
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
