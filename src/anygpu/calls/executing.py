"""Whether the code that is running was called by anygpu, as an offloaded function whose place is decided.

Such a function may call another one that could be placed too, a kernel for example. That one then runs where it is
called: the time it takes there is part of what was measured and chosen.

The mark is set around the user's function alone. Code that anygpu calls for other reasons (done-callbacks of futures,
sinks and sources of streams) is not part of a placed call, although anygpu's frames are on its stack.
"""

from __future__ import annotations

from contextvars import ContextVar, Token

_executing: ContextVar[bool] = ContextVar("inside of a placed call", default=False)

#: Whether the caller is inside of a placed call. `ask` must have been called before that call began.
is_executing = _executing.get
#: Whether any code asks. The mark costs a tenth of a microsecond, which the shortest calls are spared until then.
asked = False


def ask() -> None:
    """Let the shortest calls be marked too, from now on."""
    global asked
    asked = True


#: Both halves of `Executing`, for a path on which a context manager would cost too much.
enter = _executing.set
leave = _executing.reset


class Executing:
    """Marks the block as part of a placed call, in this thread or task."""

    __slots__ = ("_token",)

    _token: Token[bool]

    def __enter__(self) -> None:
        self._token = enter(True)

    def __exit__(self, *_: object) -> None:
        leave(self._token)
