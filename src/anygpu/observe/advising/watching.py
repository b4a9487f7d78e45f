"""Runs a script as Python would, and watches which of its functions take arrays, how long, and with which arguments.

This file is executed by its path, in a process of its own, and imports nothing of anygpu until the script has ended: so
the script finds the modules, the environment and the output that it would find without us. What is seen comes from
`sys.setprofile`. When the script itself imports anygpu, its calls are observed instead, as `observe.start` does.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib.machinery
import json
import os
import signal
import sys
import sysconfig
import threading
import time
from types import CodeType, FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

#: Bytes of arguments that are copied in all, and calls of one function that are looked at first, before every
#: doubling of their number.
COPIED, LOOKED_AT = 1 << 30, 3
#: Different kinds of arguments of one function that are kept.
KINDS = 3
#: Functions that take less for a call are not worth their arguments.
BRIEF = 2e-5
#: Functions that are watched; a script with more is watched in part.
FUNCTIONS = 5000

_GENERATORS = 0x20 | 0x80 | 0x200  # generators, coroutines, asynchronous generators
_FOREIGN = tuple(
    {
        os.path.normcase(os.path.realpath(path)) + os.sep
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_path(name))
    }
    # anygpu itself, wherever it is.
    | {os.path.normcase(os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))) + os.sep}
)
_clock = time.perf_counter


class CallSample:
    """One call: copies of its arguments, and the least that such calls took."""

    __slots__ = ("arguments", "count", "kept", "keywords", "seconds")

    def __init__(self) -> None:
        self.arguments: tuple[Any, ...] = ()
        self.keywords: dict[str, Any] = {}
        #: Why the arguments were not kept; `None` when they were.
        self.kept: str | None = None
        self.seconds = float("inf")
        self.count = 0


class Watched:
    """A function of the script's, or the code of a module."""

    __slots__ = ("begun", "callers", "calls", "code", "function", "samples", "seconds", "takes_arrays", "within")

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.function: Any = None
        self.calls = 0
        self.begun = 0
        #: Seconds of its calls, without those that it made of itself; and of what it called that is watched too.
        self.seconds = 0.0
        self.within = 0.0
        self.takes_arrays = False
        self.samples: dict[Any, CallSample] = {}
        #: The codes of those that called it.
        self.callers: set[CodeType] = set()


class RunWatch:
    """Records of one run."""

    def __init__(self) -> None:
        self.known: dict[CodeType, Watched | None] = {}
        self.copied = 0
        self.uses_anygpu = False
        #: Seconds that copying and looking took, which are not the script's.
        self.ours = 0.0
        self._imports = Watched((lambda: None).__code__)
        self._stacks: dict[int, list[list[Any]]] = {}

    def start(self) -> None:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def stop(self) -> bool:
        """Whether it was watched until now: a script may have its own profiler."""
        mine = sys.getprofile()
        threading.setprofile(None)
        sys.setprofile(None)
        return getattr(mine, "__self__", None) is self or self.uses_anygpu

    def _profile(self, frame: FrameType, event: str, returned: Any) -> None:
        """The profile function of every thread: a call or return of a function of the user's own."""
        if event == "call":
            code = frame.f_code
            try:
                watched = self.known[code]
            except KeyError:
                watched = self._consider(code)
            if watched is not None:
                self._enter(frame, watched)
        elif event == "return":
            watched = self.known.get(frame.f_code)
            if watched is not None:
                self._leave(watched)
            elif frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "anygpu":
                self._observe()

    def _consider(self, code: CodeType) -> Watched | None:
        watched = None
        if code.co_filename == "<frozen importlib._bootstrap>" and code.co_name == "_find_and_load":
            watched = self._imports
        elif not (code.co_flags & _GENERATORS or len(self.known) > 100 * FUNCTIONS) and _is_users(code.co_filename):
            watched = Watched(code)
        self.known[code] = watched
        return watched

    def _enter(self, frame: FrameType, watched: Watched) -> None:
        """Begin a call: count it, and copy the arguments of the first calls and then of fewer and fewer."""
        stack = self._stacks.setdefault(threading.get_ident(), [])
        if stack:
            watched.callers.add(stack[-1][0].code)
        watched.calls += 1
        watched.begun += 1
        sample, ours = None, 0.0
        number = watched.calls
        if watched is not self._imports and (number <= LOOKED_AT or not number & (number - 1)):
            before = _clock()
            # The script must not fail because of us.
            with contextlib.suppress(Exception):
                sample = self._look(frame, watched)
            ours = _clock() - before
            self.ours += ours
            for outer in stack:
                outer[3] += ours
        # What, when it began, seconds of what it called, seconds of ours inside of it, and its sample.
        stack.append([watched, _clock(), 0.0, 0.0, sample])

    def _leave(self, watched: Watched) -> None:
        """End a call: add its seconds without our own, and the seconds within it to its caller's."""
        end = _clock()
        stack = self._stacks.get(threading.get_ident())
        if not stack or stack[-1][0] is not watched:
            return  # it began before the watch did
        _, begin, within, ours, sample = stack.pop()
        seconds = end - begin - ours
        watched.begun -= 1
        if not watched.begun:
            watched.seconds += seconds
            watched.within += within
        if stack:
            stack[-1][2] += seconds
        if sample is not None:
            sample.seconds = min(sample.seconds, seconds)
            sample.count += 1
            if seconds < BRIEF and sample.kept is None:
                sample.kept = "its calls are too short"
                self.copied -= sum(_nbytes(each) for each in (sample.arguments, sample.keywords))
                sample.arguments, sample.keywords = (), {}

    def _look(self, frame: FrameType, watched: Watched) -> CallSample | None:
        """The sample that the call belongs to; it is made if it is the first with such arguments."""
        numpy = sys.modules.get("numpy")
        if numpy is None or not hasattr(numpy, "ndarray") or watched.code.co_name.startswith("<"):
            return None
        arguments, keywords = _passed(frame)
        kind = _kind((arguments, keywords), numpy)
        if "array" not in str(kind):
            return None
        watched.takes_arrays = True
        sample = watched.samples.get(kind)
        if sample is None:
            if len(watched.samples) >= KINDS:
                return None
            sample = watched.samples[kind] = CallSample()
            if watched.function is None:
                watched.function = _function_of(frame, arguments)
            nbytes = _nbytes((arguments, keywords))
            if self.copied + nbytes > COPIED:
                sample.kept = "its arguments are larger than what may be copied"
            else:
                self.copied += nbytes
                memo: dict[int, Any] = {}
                sample.arguments = tuple(_copied(each, numpy, memo) for each in arguments)
                sample.keywords = {name: _copied(each, numpy, memo) for name, each in keywords.items()}
        return sample

    def _observe(self) -> None:
        """The script has imported anygpu: from now on its calls say what happens."""
        self.uses_anygpu = True
        sys.setprofile(None)
        threading.setprofile(None)
        from anygpu import observe

        observe.start(advice=True)


def _is_users(file: str) -> bool:
    if file.startswith("<"):
        return False
    path = os.path.normcase(os.path.realpath(file))
    return not path.startswith(_FOREIGN)


# -- arguments


def _passed(frame: FrameType) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call that has just begun."""
    code, values = frame.f_code, frame.f_locals
    names = code.co_varnames
    positional = code.co_argcount
    by_name = names[positional : positional + code.co_kwonlyargcount]
    rest = positional + code.co_kwonlyargcount
    arguments = tuple(values[name] for name in names[:positional])
    keywords = {name: values[name] for name in by_name}
    if code.co_flags & 0x04:
        arguments += tuple(values[names[rest]])
        rest += 1
    if code.co_flags & 0x08:
        keywords.update(values[names[rest]])
    return arguments, keywords


def _kind(value: Any, numpy: Any, depth: int = 4) -> Any:
    """The key of a call: types, shapes and dtypes."""
    kind = type(value)
    if kind is numpy.ndarray:
        return "array", value.shape, str(value.dtype)
    if depth and kind in (tuple, list):
        return kind.__name__, tuple(_kind(each, numpy, depth - 1) for each in value[:16]), len(value)
    if depth and kind is dict:
        return "dict", tuple((str(name), _kind(each, numpy, depth - 1)) for name, each in list(value.items())[:16])
    if hasattr(value, "__dict__") and depth == 3 and not isinstance(value, type | ModuleType | FunctionType):
        # A method may compute with the arrays of its object.
        own = [each for each in list(vars(value).values())[:64] if type(each) is numpy.ndarray]
        return kind.__name__, tuple(_kind(each, numpy, 1) for each in own)
    return kind.__name__


def _nbytes(value: Any, depth: int = 4) -> int:
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    if not depth or type(value) not in (tuple, list, dict):
        return 0
    return sum(_nbytes(each, depth - 1) for each in (value.values() if type(value) is dict else value))


def _copied(value: Any, numpy: Any, memo: dict[int, Any], depth: int = 4) -> Any:
    """The value with copies of its arrays; other objects than containers stay themselves."""
    if id(value) in memo:
        return memo[id(value)]
    kind = type(value)
    made = value
    if kind is numpy.ndarray:
        made = numpy.array(value, order="K")
    elif depth and kind in (tuple, list):
        made = kind(_copied(each, numpy, memo, depth - 1) for each in value)
    elif depth and kind is dict:
        made = {name: _copied(each, numpy, memo, depth - 1) for name, each in value.items()}
    memo[id(value)] = made
    return made


def _function_of(frame: FrameType, arguments: tuple[Any, ...]) -> Any:
    """The function whose code runs in the frame; `None` if it cannot be found."""
    code = frame.f_code
    found = [frame.f_globals.get(code.co_name)]
    if arguments:
        found += [vars(each).get(code.co_name) for each in type(arguments[0]).__mro__]
    for each in found:
        inner = each
        for _ in range(8):
            if isinstance(inner, FunctionType) and inner.__code__ is code:
                return inner
            inner = getattr(inner, "__wrapped__", getattr(inner, "__func__", None))
    for each in gc.get_referrers(code):
        if isinstance(each, FunctionType) and each.__code__ is code:
            return each
    return None


# -- the script


def run(script: str, arguments: list[str]) -> int:
    """Run it as `python script arguments` would; returns its exit code."""
    main = ModuleType("__main__")
    path = os.path.abspath(script)
    main.__dict__.update(
        __file__=path,
        __builtins__=builtins,
        __cached__=None,
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
    )
    sys.modules["__main__"] = main
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    try:
        with open(script, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
    except OSError as error:
        print(f"{sys.executable}: can't open file {path!r}: {error}", file=sys.stderr)
        return 2
    except (SyntaxError, ValueError) as error:
        _show(error, None)
        return 1
    try:
        exec(code, main.__dict__)
        return 0
    except SystemExit as left:
        if left.code is None or isinstance(left.code, int):
            return left.code or 0
        print(left.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        _show(error, _without_first(error))
        return -signal.SIGINT
    except BaseException as error:  # noqa: BLE001 - whatever a script raises, Python shows it
        _show(error, _without_first(error))
        return 1


def _without_first(error: BaseException) -> TracebackType | None:
    """Its traceback without the frame of `run`."""
    return error.__traceback__.tb_next if error.__traceback__ is not None else None


def _show(error: BaseException, traceback: TracebackType | None) -> None:
    """As Python does at the end of a script."""
    error.__traceback__ = traceback  # this is what is shown, and not what is passed
    sys.excepthook(type(error), error, traceback)


def _await_threads() -> None:
    """As Python does before it ends."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def main() -> None:
    """Run the script under the watch, and write what was recorded for `anygpu advise`."""
    ours, script = json.loads(sys.argv[1]), sys.argv[2]
    process = os.getpid()
    watch = RunWatch()
    begin = _clock()
    watch.start()
    code = run(script, sys.argv[3:])
    _await_threads()
    is_whole = watch.stop()
    seconds = _clock() - begin - watch.ours
    if os.getpid() == process:  # not in a child that the script has forked off
        _flush()
        _report(watch, script, seconds, ours, is_whole=is_whole)
    if code < 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(process, -code)
    sys.exit(code)


def _report(watch: RunWatch, script: str, seconds: float, ours: dict[str, Any], *, is_whole: bool) -> None:
    """Write what was seen, as JSON, into the file that we were given. The script's own output is over."""
    sys.stdout, out = open(os.devnull, "w"), sys.stdout  # noqa: SIM115 - restored below
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        import warnings

        sys.path.append(ours["path"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from anygpu.observe.advising.judging import report

            text = report(watch, script, seconds, is_whole=is_whole, measure=ours["try"])
        with open(ours["report"], "wb") as file:
            file.write(text)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
        sys.stdout = out


if __name__ == "__main__":
    main()
