"""A call site is written by its own methods alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import anygpu
from anygpu.placement import call_site, candidates

PACKAGE = Path(anygpu.__file__).parent
#: What call sites are called where they are used.
NAMES = {"state", "site", "early", "call_site", "host", "candidates", "programs"}


def _attributes(source: str) -> set[str]:
    """Those that the classes of call sites have."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name in ("CallSite", "Candidates", "HostCalls", "Programs"):
            for each in ast.walk(node):
                if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                    found.add(each.attr)
    return found


def _written(source: str, attributes: set[str]) -> Iterator[str]:
    """Attributes of call sites that a module assigns to or deletes, or whose items it does."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            node = node.value
        elif not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)):
            continue
        if not isinstance(node, ast.Attribute) or node.attr not in attributes:
            continue
        owner = node.value
        name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
        if name in NAMES:
            yield f"{node.lineno}: {ast.unparse(node)}"


def test_no_other_module_writes_to_a_call_site() -> None:
    own = [Path(call_site.__file__), Path(candidates.__file__)]
    attributes = set().union(*(_attributes(each.read_text()) for each in own))
    assert {"skip_planning", "current", "predictions", "evaluated", "chooser"} <= attributes
    found = {
        str(path.relative_to(PACKAGE)): lines
        for path in PACKAGE.rglob("*.py")
        if path not in own and (lines := list(_written(path.read_text(), attributes)))
    }
    assert not found


def test_writing_would_be_found_out() -> None:
    source = "call.site.programs.current = None\nhost.skip_planning -= 1\nstate.candidates.predictions['a'] = 1\n"
    assert [each.split()[0] for each in _written(source, {"current", "skip_planning", "predictions"})] == [
        "1:",
        "2:",
        "3:",
    ]
