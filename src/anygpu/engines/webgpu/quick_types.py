"""Makes wgpu-py find its C types fast, which is most of what opening a device takes.

wgpu-py looks up some fifty types of C by their text. cffi parses each together with a declaration of every type of the
library, about 20 ms for each, while a text needs only those that it names. This cuts the start of a worker by 0.8 s.
"""

from __future__ import annotations

import re
import threading
from typing import Any

_WORDS = re.compile(r"\w+")


def install() -> None:
    """For the whole process, once. Does nothing where wgpu-py or cffi do it in another way."""
    try:
        from wgpu.backends.wgpu_native._ffi import ffi
    except ImportError:
        return
    parser = getattr(ffi, "_parser", None)
    if parser is None or not isinstance(getattr(parser, "_declarations", None), dict):
        return
    if not getattr(parser.parse_type, "quick", False):
        parser.parse_type = _quick(parser)


def _quick(parser: Any) -> Any:
    plainly = parser.parse_type
    # cffi calls it with a lock of its own; this lock is for other callers.
    lock = threading.RLock()

    def parse_type(text: str) -> Any:
        words = set(_WORDS.findall(text))
        with lock:
            everything = parser._declarations
            # Keys are such as "typedef WGPULimits" and "struct WGPULimits".
            parser._declarations = {key: value for key, value in everything.items() if key.split()[-1] in words}
            try:
                return plainly(text)
            finally:
                parser._declarations = everything

    parse_type.quick = True  # type: ignore[attr-defined]
    return parse_type
