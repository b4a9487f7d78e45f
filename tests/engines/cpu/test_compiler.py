"""LLVM in its child: what comes back, what LLVM refuses, and what happens when the child dies."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from anygpu.engines.cpu import compile_child, compiler, loader
from anygpu.engines.cpu.compile_child import CannotLink
from anygpu.engines.cpu.loader import HostProcessor, Image, host_processor
from anygpu.errors import CannotCompile, MissingExtra
from tests.engines.cpu.hand_written import head

NUMBER = "define i64 @number() nounwind {{ ret i64 {} }}\n"


def module(number: int) -> str:
    return head() + NUMBER.format(number)


def value(code: loader.Code) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int64)(code["number"])())


def loaded(text: str, **symbols: int) -> Image:
    return Image(compiler.compiled(text, host_processor().as_request()), symbols)


@pytest.fixture
def child() -> Iterator[compiler.CompileChild]:
    made = compiler.CompileChild()
    yield made
    made.close()


def test_functions_refer_to_constants_to_each_other_and_to_what_is_outside() -> None:
    code = loaded(
        head()
        + """
@table = private constant [4 x double] [double 1.0, double 2.5, double 3.0, double 4.0]
@outside = external global i64
declare i64 @labs(i64)
define double @entry(i64 %k) nounwind {
  %p = getelementptr double, ptr @table, i64 %k
  %v = load double, ptr %p
  %w = fadd double %v, 2.25
  ret double %w
}
define ptr @address() nounwind { ret ptr @entry }
define i64 @distance(i64 %a) nounwind {
  %b = load i64, ptr @outside
  %c = sub i64 %a, %b
  %d = call i64 @labs(i64 %c)
  ret i64 %d
}
""",
        outside=ctypes.addressof(outside := ctypes.c_int64(100)),
    )
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64)(code["entry"])(1) == 4.75
    assert ctypes.CFUNCTYPE(ctypes.c_void_p)(code["address"])() == code["entry"]
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code["distance"])(58) == 42
    assert outside.value == 100


def test_a_module_with_state_is_refused() -> None:
    with pytest.raises(CannotCompile, match="writable data"):
        loaded(head() + "@state = global i64 0\ndefine ptr @f() { ret ptr @state }\n")


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(CannotCompile, match="no_such_function"):
        loaded(
            head() + "declare void @no_such_function()\ndefine void @f() { call void @no_such_function() ret void }\n"
        )


def test_llvm_says_what_is_wrong_with_a_text() -> None:
    with pytest.raises(CannotCompile, match="expected"):
        loaded("this is no LLVM IR")
    assert value(loaded(module(3))) == 3


def test_an_abort_of_llvm_stays_in_the_child() -> None:
    # LLVM has no other answer to inline assembly without a parser for it.
    text = head() + 'define void @f() { call void asm sideeffect "nop", ""() ret void }\n'
    with pytest.raises(CannotCompile, match="ended with code"):
        loaded(text)
    assert value(loaded(module(4))) == 4


def test_code_for_arm_is_linked() -> None:
    arm = HostProcessor("generic", "+neon", "aarch64-unknown-linux-gnu", "", "")
    text = """target triple = "aarch64-unknown-linux-gnu"
@table = private constant [4 x double] [double 1.0, double 2.5, double 3.0, double 4.0]
@outside = external global i64
declare i64 @atoll2(i64)
define double @entry(i64 %k) nounwind {
  %p = getelementptr double, ptr @table, i64 %k
  %v = load double, ptr %p
  %b = load i64, ptr @outside
  %d = call i64 @atoll2(i64 %b)
  %f = sitofp i64 %d to double
  %w = fadd double %v, %f
  %x = fmul double %w, 1.2345678
  ret double %x
}
"""
    image = compiler.compiled(text, arm.as_request())
    assert b'"atoll2"' in image.partition(b"\n")[0]


@pytest.mark.parametrize("damage", [b"", b"\x7fELF", b"MZ" + bytes(200)])
def test_only_objects_are_linked(damage: bytes) -> None:
    with pytest.raises(CannotLink):
        compile_child.linked(damage)


def test_a_child_that_is_killed_is_replaced(child: compiler.CompileChild) -> None:
    processor = host_processor().as_request()
    for number in range(10):
        request = compiler.encoded(text=module(number), target=processor, level=0, link=True)
        if number % 2 and child.pid is not None:
            os.kill(child.pid, signal.SIGKILL)
        assert value(Image(child.ask(request)[1:], {})) == number


def test_a_child_is_killed_while_it_compiles(child: compiler.CompileChild, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = host_processor().as_request()
    exchange = compiler._exchange
    left = 0

    def interfere(process: subprocess.Popen[bytes], request: bytes) -> bytes | None:
        nonlocal left
        if left:
            left -= 1
            # Stopped, it has the request and cannot answer it before it is killed.
            process.send_signal(signal.SIGSTOP)
            threading.Timer(0, process.kill).start()
        return exchange(process, request)

    monkeypatch.setattr(compiler, "_exchange", interfere)
    for number, left in enumerate((0, 1, 3, 8, 0)):  # noqa: B007 - `interfere` looks at it
        answer = child.ask(compiler.encoded(text=module(number), target=processor, level=0, link=True))
        if number == 3:
            assert answer.startswith(b"-LLVM's process ended with code -9"), "it is given up at last"
        else:
            assert value(Image(answer[1:], {})) == number


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no limit of processor time")
def test_a_compiler_that_takes_too_long_is_ended(
    child: compiler.CompileChild, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    processor = host_processor().as_request()
    hasty = tmp_path / "compile_child.py"
    text = Path(compile_child.__file__).read_text()
    hasty.write_text(text.replace("COMPILE_SECONDS = 120.0", "COMPILE_SECONDS = 0.02"))
    monkeypatch.setattr(compile_child, "__file__", str(hasty))
    steps = [f"  %x{n + 1} = mul i64 %x{n}, %x{n // 2}" for n in range(20_000)]
    long = "\n".join([head(), "define i64 @number(i64 %x0) {", *steps, "  ret i64 %x20000", "}", ""])
    answer = child.ask(compiler.encoded(text=long, target=processor, level=2, link=True))
    assert answer == b"-LLVM was ended after 120 s of processor time."


def test_an_interrupted_request_does_not_answer_the_next_one(
    child: compiler.CompileChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = host_processor().as_request()
    exchange = compiler._exchange

    def interrupted(process: subprocess.Popen[bytes], request: bytes) -> bytes | None:
        exchange(process, request)
        raise KeyboardInterrupt

    monkeypatch.setattr(compiler, "_exchange", interrupted)
    with pytest.raises(KeyboardInterrupt):
        child.ask(compiler.encoded(text=module(1), target=processor, level=2, link=True))
    monkeypatch.undo()
    request = compiler.encoded(text=module(77), target=processor, level=2, link=True)
    assert value(Image(child.ask(request)[1:], {})) == 77


def test_the_child_lets_calls_go_first(child: compiler.CompileChild) -> None:
    child.start()
    assert child.pid is not None
    least = min(os.getpriority(os.PRIO_PROCESS, 0) + 5, 19)
    assert os.getpriority(os.PRIO_PROCESS, child.pid) == least


def test_without_llvmlite_the_error_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="pip install llvmlite"):
        compiler.llvmlite_folder()


def test_without_a_child_llvm_runs_here() -> None:
    """As in a frozen application, in a process of its own: LLVM stays in it."""
    program = (
        "import sys; sys.frozen = True\n"
        "from tests.engines.cpu.test_compiler import loaded, module, value\n"
        "assert value(loaded(module(9))) == 9\n"
        "assert 'llvmlite' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_this_process_never_loads_llvm() -> None:
    program = (
        "import sys\n"
        "from tests.engines.cpu.hand_written import added\n"
        "import numpy as np\n"
        "assert added((7,))([np.ones(7), np.ones(7)])[0].tolist() == [2.0] * 7\n"
        "assert 'llvmlite' not in sys.modules, 'llvmlite is loaded'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_orc_loads_objects_where_images_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "LOADS_IMAGES", False)
    code = loader.load(module(11), host_processor(), {}, ["number"])
    assert value(code) == 11


def test_ten_thousand_modules_leave_nothing_behind() -> None:
    image = compiler.compiled(module(5), host_processor().as_request())
    mapped = _mappings()
    for _ in range(10_000):
        assert value(Image(image, {})) == 5
    assert _mappings() <= mapped + 10


def _mappings() -> int:
    with open("/proc/self/maps") as file:  # noqa: PTH123
        return len(file.readlines())
