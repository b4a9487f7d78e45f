"""Writes decorators into a script's text, and leaves everything else of it as it is."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from anygpu.observe.source_lines import decode_source, source_lines

DECORATOR, IMPORT = "@anygpu.offload", "import anygpu"


def decorated(source: bytes, lines: Iterable[int]) -> tuple[bytes, list[int]]:
    """The script with a decorator for the functions that begin on these lines, and the lines that got one.

    A function begins with its first decorator, as code objects have it. Ours comes last, directly above `def`: what is
    above it is given the offloaded function. Encoding and line ends stay what they are. A script in which that cannot
    be done without changing anything else is returned as it is.
    """
    tree = ast.parse(source)
    text, encoding = decode_source(source)
    rows = source_lines(text)
    end = next((row[len(row.rstrip("\r\n")) :] for row in rows if row.endswith(("\n", "\r"))), "\n")
    wanted = set(lines)
    found: dict[int, int] = {}
    for function in _functions(tree):
        first = min([function.lineno, *(each.lineno for each in function.decorator_list)])
        if first in wanted:
            found[function.lineno] = first
    at = _place_of_import(tree, min(found.values(), default=0))
    if not found or at is None:
        return source, []
    made: list[str] = []
    for number, row in enumerate(rows, 1):
        if number == at:
            made.append(f"{IMPORT}{end}")
        if number in found:
            made.append(f"{row[: len(row) - len(row.lstrip())]}{DECORATOR}{end}")
        made.append(row)
    copy = "".join(made).encode(encoding)
    return (copy, sorted(found.values())) if _is_decorated(copy, tree, set(found)) else (source, [])


def _place_of_import(tree: ast.Module, function: int) -> int | None:
    """The line above which the import goes: that of the first import if it is above the function, or what follows the
    docstring. `None` if there is no such line.
    """
    places = [(line, each) for line, each in _first_of_lines(tree) if line <= function]
    imports = [line for line, each in places if isinstance(each, ast.Import | ast.ImportFrom)]
    return next(iter([*imports, *(line for line, _ in places)]), None)


def _first_of_lines(tree: ast.Module) -> Iterator[tuple[int, ast.stmt]]:
    """The statements, without those that must come first, that begin on a line of their own; and these lines."""
    last = 0
    for number, each in enumerate(tree.body):
        decorators: list[ast.expr] = getattr(each, "decorator_list", [])
        line = min([each.lineno, *(decorator.lineno for decorator in decorators)])
        is_docstring = number == 0 and isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
        is_future = isinstance(each, ast.ImportFrom) and each.module == "__future__"
        if line > last and not is_docstring and not is_future:
            yield line, each
        last = each.end_lineno or line


def _is_decorated(copy: bytes, tree: ast.Module, found: set[int]) -> bool:
    """Whether the copy is the script with our import and our decorators, and nothing else."""
    try:
        made = ast.parse(copy)
    except (SyntaxError, ValueError):
        return False
    ours = ast.dump(ast.parse(IMPORT).body[0])
    place = next((number for number, each in enumerate(made.body) if ast.dump(each) == ours), None)
    if place is None:
        return False
    del made.body[place]
    # Where the copy is right, the functions of both come in the same order.
    for function, before in zip(_functions(made), _functions(tree), strict=False):
        if before.lineno in found:
            if not function.decorator_list or ast.unparse(function.decorator_list[-1]) != DECORATOR[1:]:
                return False
            function.decorator_list.pop()
    return ast.dump(made) == ast.dump(tree)


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
