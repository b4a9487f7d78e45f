"""Writes decorators into a script's text, and leaves everything else of it as it is."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable

DECORATOR, IMPORT = "@anygpu.offload", "import anygpu"


def decorated(source: bytes, lines: Iterable[int]) -> tuple[bytes, list[int]]:
    """The script with a decorator for the functions that begin on these lines, and the lines that got one.

    A function begins with its first decorator, as code objects have it. Ours comes last, directly above `def`: what is
    above it is given the offloaded function. Encoding and line ends stay what they are.
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    text = source.decode(encoding)
    rows = text.splitlines(keepends=True)
    end = next((row[len(row.rstrip("\r\n")) :] for row in rows if row.endswith(("\n", "\r"))), "\n")
    tree = ast.parse(source)
    wanted = set(lines)
    found: dict[int, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first in wanted:
                found[node.lineno] = first
    if not found:
        return source, []
    at = _place_of_import(tree)
    made: list[str] = []
    for number, row in enumerate(rows, 1):
        if number == at:
            made.append(f"{IMPORT}{end}")
        if number in found:
            made.append(f"{row[: len(row) - len(row.lstrip())]}{DECORATOR}{end}")
        made.append(row)
    return "".join(made).encode(encoding), sorted(found.values())


def _place_of_import(tree: ast.Module) -> int:
    """The line above which the import goes: that of the first import, or what follows the docstring."""
    body = list(tree.body)
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body.pop(0)
    while body and isinstance(body[0], ast.ImportFrom) and body[0].module == "__future__":
        body.pop(0)
    first = next((each for each in body if isinstance(each, ast.Import | ast.ImportFrom)), body[0])
    decorators: list[ast.expr] = getattr(first, "decorator_list", [])
    return min([first.lineno, *(each.lineno for each in decorators)])
