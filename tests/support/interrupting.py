"""Two ways to interrupt a call in the main thread, as Ctrl-C or a handler of SIGALRM does.

At random: a timer's signal comes after some microseconds, and its handler raises. That is the real thing, also inside
of calls that wait; but no number of times shows that every moment was hit.

Exhaustively: Python calls handlers at certain instructions only. These are the beginning of a function, what follows a
call, and a jump backwards. A trace function is told of every instruction, and what it raises is raised there. So a call
is made once to list these moments, and then again and again, interrupted at another of them each time.
"""

from __future__ import annotations

import dis
import gc
import signal
import sys
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

#: After a call, also one of a function of Python, where today's interpreters do not look.
_CALLS = frozenset(dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "CALL_KW") if name in dis.opmap)
_JUMPS = frozenset(number for name, number in dis.opmap.items() if "JUMP_BACKWARD" in name)

#: Python itself does not survive an interrupt in these few lines, in which it takes the lock of all imports.
_IMPORTING = "<frozen importlib"

Raised = type[BaseException]


class Alarm(Exception):
    """What a program of a user raises in its handler: an ordinary exception."""


#: Code and an offset in it, and the number of times that a call comes by there.
Place = tuple[CodeType, int, int]


class AtMoment:
    """Interrupts a call in the main thread when it comes to a place for the given time; without one, never."""

    def __init__(self, place: Place | None, kind: Raised = KeyboardInterrupt) -> None:
        self._code: CodeType | None = None
        self._offset = self._left = 0
        if place is not None:
            self._code, self._offset, self._left = place
        self._kind = kind
        self.raised = False
        #: The frames of the moment, the innermost first, as text.
        self.where: list[str] = []
        #: How often the call came by each place.
        self.passed: Counter[tuple[CodeType, int]] = Counter()

    def run(self, call: Callable[[], object]) -> bool:
        """Whether the call was interrupted."""
        before = signal.signal(signal.SIGALRM, self._handle)
        gc.disable()  # which runs finalizers in between, at other moments each time
        try:
            sys.settrace(self._begin)
            call()
        except self._kind:
            pass
        finally:
            sys.settrace(None)
            gc.enable()
            signal.signal(signal.SIGALRM, before)
        return self.raised

    def _handle(self, _: int, frame: FrameType | None) -> None:
        """The handler of a signal that is never sent: what it raises looks as if it had been."""
        self.where = _frames(frame, _RUN)
        raise self._kind

    def _begin(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code is _RUN or code.co_filename.startswith(_IMPORTING):
            return None
        self._look(frame, -1)
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        codes, handlers = _code_of(code)
        before = -1

        def follow(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal before
            if event == "opcode":
                now = frame.f_lasti
                last, before = before, now
                # What is raised by the interpreter counts as raised by the call, so it must be in the same `try`.
                same = last >= 0 and handlers.get(last) == handlers.get(now)
                if same and (codes[last] in _CALLS or (codes[last] in _JUMPS and now < last)):
                    self._look(frame, now)
            return follow

        return follow

    def _look(self, frame: FrameType, offset: int) -> None:
        if self._code is None:
            self.passed[frame.f_code, offset] += 1
        elif frame.f_code is self._code and offset == self._offset and not self.raised:
            self._left -= 1
            if self._left == 0:
                self.raised = True
                self._handle(signal.SIGALRM, frame)


def places_of(call: Callable[[], object], *, most: int = 1000) -> list[Place]:
    """Every moment of a call; of one with more than `most` the first and the last time at each instruction.

    Those in anygpu's own code come first.
    """
    look = AtMoment(None)
    look.run(call)
    whole = look.passed.total() <= most
    places = [
        (code, offset, time)
        for (code, offset), times in look.passed.items()
        for time in (range(1, times + 1) if whole else sorted({1, times}))
    ]
    return sorted(places, key=lambda place: "anygpu" not in place[0].co_filename)


def _frames(frame: FrameType | None, end: CodeType) -> list[str]:
    found = []
    while frame is not None and frame.f_code is not end:
        found.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}")
        frame = frame.f_back
    return found


_RUN = AtMoment.run.__code__
_known: dict[CodeType, tuple[bytes, dict[int, int]]] = {}


def _code_of(code: CodeType) -> tuple[bytes, dict[int, int]]:
    """Its instructions as they were compiled, and where each that is in a `try` or a `with` goes when it raises."""
    found = _known.get(code)
    if found is None:
        handlers = {
            place: entry.target
            for entry in dis._parse_exception_table(code)  # type: ignore[attr-defined]
            for place in range(entry.start, entry.end, 2)
        }
        found = _known[code] = (code.co_code, handlers)
    return found


class AfterSeconds:
    """Interrupts a call after so many seconds, by a signal."""

    def __init__(self, seconds: float, kind: Raised = KeyboardInterrupt) -> None:
        self._seconds = max(seconds, 1e-6)
        self._kind = kind
        self._armed = False
        self.where: list[str] = []
        #: Whether the handler has raised.
        self.raised = False

    def run(self, call: Callable[[], object]) -> bool:
        """Whether the call was interrupted before its end."""
        before = signal.signal(signal.SIGALRM, self._handle)
        try:
            try:
                self._armed = True
                signal.setitimer(signal.ITIMER_REAL, self._seconds)
                call()
            finally:
                self._armed = False
        except self._kind:
            self._armed = False
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        return self.raised

    def _handle(self, _: int, frame: FrameType | None) -> None:
        if not self._armed:
            return
        self._armed = False
        self.raised = True
        self.where = _frames(frame, _RUN_AFTER)
        raise self._kind


_RUN_AFTER = AfterSeconds.run.__code__
