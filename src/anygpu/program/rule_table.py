"""Rules of primitives that live outside of programs, such as an engine's, registered where they are defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from anygpu.program.primitive import Primitive

_Rule = TypeVar("_Rule", bound=Callable[..., Any])


class RuleTable(dict[type[Primitive], _Rule]):
    """A function for each primitive: `@LOWER.rule(Sort)` stands above the one for `Sort`."""

    def rule(self, primitive: type[Primitive]) -> Callable[[_Rule], _Rule]:
        def register(function: _Rule) -> _Rule:
            if primitive in self:
                raise ValueError(f"{primitive.__name__} has a rule already")
            self[primitive] = function
            return function

        return register
