"""Fills the holes of a template: `$name` becomes a value, and a line `@name` a block, indented as the line is."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from string import Template
from textwrap import indent


def render(template: str, values: Mapping[str, object], **blocks: str) -> str:
    """The template's text, filled. A hole without a value raises `KeyError`; an empty block leaves no line."""
    rendered = []
    for line in _text(template).splitlines(keepends=True):
        bare = line.strip()
        if bare.startswith("@"):
            rendered.append(indent(blocks[bare[1:]], line[: line.index("@")]))
        else:
            rendered.append(Template(line).substitute(values))
    return "".join(rendered)


def _text(template: str) -> str:
    return files("anygpu.fleet.templates").joinpath(f"{template}.in").read_text(encoding="utf-8")
