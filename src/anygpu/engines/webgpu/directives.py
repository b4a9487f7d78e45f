"""What has to stand before a kernel for some compilers of WGSL, and must not for others.

The standard asks for `enable subgroups;` before a kernel that uses them, and Tint refuses the kernel without it. naga
29 has subgroups, and refuses the directive.
"""

from __future__ import annotations

import re

SUBGROUPS = "enable subgroups;"

_USED = re.compile(r"\bsubgroup[A-Z_]\w*")
_ENABLED = re.compile(r"^[ \t]*enable[ \t]+subgroups[ \t]*;", re.MULTILINE)


def with_subgroups_enabled(source: str) -> str:
    """As the standard has it: the directive comes first where a kernel uses subgroups."""
    if _ENABLED.search(source) is not None or _USED.search(source) is None:
        return source
    return f"{SUBGROUPS}\n{source}"


def without_subgroups_enabled(source: str) -> str:
    """Blanks take its place: a compiler's messages still tell the right line and column."""
    return _ENABLED.sub(lambda match: " " * len(match.group()), source)
