"""Types of C that wgpu-py looks up by their text.

For each of some fifty types, cffi parses the text together with a declaration of every type of the library, although a
text needs only those that it names. Nothing outside of cffi's parser changes that, and the parser is only handed a
shorter list: what it makes of a text stays its own. `python -m benchmarks.webgpu_types` measures the need: a process
that opens a device takes 0.06 s of a processor for it instead of 0.42 s.
"""

from __future__ import annotations

import re
import threading
from typing import Any

_WORDS = re.compile(r"\w+")


def find_types_fast() -> None:
    """Let cffi see only the declarations that a text names, for the whole process; may be called twice.

    Does nothing where wgpu-py or cffi are made in another way.
    """
    try:
        from wgpu.backends.wgpu_native._ffi import ffi
    except ImportError:
        return
    parser = getattr(ffi, "_parser", None)
    if parser is None or not isinstance(getattr(parser, "_declarations", None), dict):
        return
    if not getattr(parser.parse_type, "is_fast", False):
        parser.parse_type = _with_named_declarations(parser)


def _with_named_declarations(parser: Any) -> Any:
    parse = parser.parse_type
    # cffi calls it with a lock of its own; this lock is for other callers.
    lock = threading.RLock()

    def parse_type(text: str) -> Any:
        words = set(_WORDS.findall(text))
        with lock:
            everything = parser._declarations
            # Keys are such as "typedef WGPULimits" and "struct WGPULimits".
            parser._declarations = {key: value for key, value in everything.items() if key.split()[-1] in words}
            try:
                return parse(text)
            finally:
                parser._declarations = everything

    parse_type.is_fast = True  # type: ignore[attr-defined]
    return parse_type
