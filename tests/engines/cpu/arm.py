"""Programs as native code of another processor: made here by LLVM, and run by qemu.

What qemu runs is an ELF file that has everything in it: the image of the program, the table of buffers, the buffers,
and a few instructions that call the nests, write the results to standard output and end.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from anygpu.base.typing import HostArray
from anygpu.engines.codegen.dialects.llvm.loops import module_text
from anygpu.engines.codegen.dialects.llvm.values import NativeTarget
from anygpu.engines.codegen.nests.schedule import nests
from anygpu.engines.cpu import pool
from anygpu.engines.cpu.compiler import compiled
from anygpu.engines.cpu.loader import HostProcessor, _Header
from anygpu.engines.cpu.planning import entry_text, run_plan
from anygpu.engines.cpu.run_plan import HostRun, exports_of
from anygpu.engines.host_arrays import numpy_dtype, raise_broken
from anygpu.engines.numpy.lowering import evaluate_constant
from anygpu.program.graph import Program
from anygpu.program.transforms import simplified

PROCESSOR = HostProcessor(
    cpu="generic",
    features="+fp-armv8,+neon",
    triple="aarch64-unknown-linux-gnu",
    data_layout="e-m:e-p270:32:32-p271:32:32-p272:64:64-i8:8:32-i16:16:32-i64:64-i128:128-n32:64-S128-Fn32",
    llvm="",
)
TARGET = NativeTarget(PROCESSOR.triple, PROCESSOR.data_layout, PROCESSOR.present, PROCESSOR.vector_bytes)

_BASE = 0x10000000
_WRITE, _EXIT = 64, 93
#: What LLVM may call by itself.
_MEMORY_FUNCTIONS = """
define ptr @memset(ptr %p, i32 %v, i64 %n) nounwind "no-builtins" {
entry:
  %b = trunc i32 %v to i8
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %each ]
  %more = icmp ult i64 %k, %n
  br i1 %more, label %each, label %out
each:
  %q = getelementptr i8, ptr %p, i64 %k
  store volatile i8 %b, ptr %q
  %k1 = add i64 %k, 1
  br label %next
out:
  ret ptr %p
}
define ptr @memcpy(ptr %p, ptr %s, i64 %n) nounwind "no-builtins" {
entry:
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %each ]
  %more = icmp ult i64 %k, %n
  br i1 %more, label %each, label %out
each:
  %r = getelementptr i8, ptr %s, i64 %k
  %b = load volatile i8, ptr %r
  %q = getelementptr i8, ptr %p, i64 %k
  store volatile i8 %b, ptr %q
  %k1 = add i64 %k, 1
  br label %next
out:
  ret ptr %p
}
"""


def qemu() -> str | None:
    """The qemu that scripts/setup has put beside Python, or one of the system; `ANYGPU_QEMU` names another one."""
    beside = shutil.which("qemu-aarch64-static", path=Path(sys.executable).parent)
    return (
        os.environ.get("ANYGPU_QEMU") or beside or shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    )


def run_on_arm(program: Program, inputs: Sequence[HostArray], folder: Path) -> list[HostArray] | None:
    """The results; `None` for a program of which NumPy computes a part."""
    program = simplified(program, evaluate_constant)
    # Scratch stays on the stack, which is long enough here.
    scheduled = nests(program, vector_bytes=PROCESSOR.vector_bytes)
    plan = run_plan(scheduled, program.inputs, own=len(scheduled.slots))
    if any(isinstance(step, HostRun) for step in plan.steps):
        return None
    entries = entry_text(plan).replace("declare void @pool_run(ptr, ptr, i64, i64)", pool._ALONE)
    text = module_text(scheduled, TARGET) + entries + _MEMORY_FUNCTIONS
    for name in ("memset", "memcpy"):
        text = "\n".join(line for line in text.splitlines() if not line.startswith(f"declare ptr @{name}("))
    line, _, body = compiled(text, PROCESSOR.as_request()).partition(b"\n")
    header = msgspec.json.decode(line, type=_Header)
    assert not header.imports, header.imports

    # Instructions, code, table and buffers, one after the other.
    calls = exports_of(plan)
    code_at = -(-(64 + 56 + 4 * (16 * len(calls) + 32)) // 4096) * 4096
    table_at = code_at + -(-len(body) // 4096) * 4096
    at = table_at + -(-8 * len(plan.slots) // 4096) * 4096
    order = sorted(range(len(plan.slots)), key=lambda slot: plan.slots[slot].role in ("output", "status"))
    where: dict[int, int] = {}
    for slot in order:
        where[slot] = at
        at += -(-max(plan.slots[slot].nbytes, 1) // 64) * 64
    places = [where[slot] for slot in range(len(plan.slots))]
    results = [slot for slot in order if plan.slots[slot].role in ("output", "status")]
    memory = bytearray(at)
    memory[code_at : code_at + len(body)] = body
    for place, offset in header.relative:
        struct.pack_into("<Q", memory, code_at + place, _BASE + code_at + offset)
    for number, place in enumerate(places):
        struct.pack_into("<Q", memory, table_at + 8 * number, _BASE + place)
        described = plan.slots[number]
        given = np.ascontiguousarray(inputs[number]).tobytes() if described.role == "input" else described.data
        data = given or b""
        memory[place : place + len(data)] = data
    begin = min((where[slot] for slot in results), default=at)
    words: list[int] = []
    for name in calls:
        words += [*_load(0, _BASE + table_at), *_load(16, _BASE + code_at + header.exports[name]), 0xD63F0200]
    words += [*_load(0, 1), *_load(1, _BASE + begin), *_load(2, at - begin), *_load(8, _WRITE), 0xD4000001]
    words += [*_load(0, 0), *_load(8, _EXIT), 0xD4000001]
    instructions = struct.pack(f"<{len(words)}I", *words)
    memory[: 64 + 56] = _elf_header(len(memory))
    memory[120 : 120 + len(instructions)] = instructions

    file = folder / "program"
    file.write_bytes(memory)
    file.chmod(0o700)
    written = subprocess.run([str(qemu()), str(file)], check=True, stdout=subprocess.PIPE, timeout=300).stdout
    if plan.status is not None:
        status = written[where[plan.status] - begin :][: plan.slots[plan.status].nbytes]
        raise_broken(plan.checks, np.frombuffer(status, np.uint32))
    found = []
    for output in plan.outputs:
        first = where[output.slot] - begin + output.offset
        part = np.frombuffer(written[first : first + output.spec.nbytes], numpy_dtype(output.spec.dtype))
        found.append(part.reshape(output.spec.shape))
    return found


def _load(register: int, value: int) -> list[int]:
    """movz and movk: a number of 32 bits into a register."""
    return [0xD2800000 | (value & 0xFFFF) << 5 | register, 0xF2A00000 | (value >> 16 & 0xFFFF) << 5 | register]


def _elf_header(nbytes: int) -> bytes:
    """An executable for aarch64 that is loaded in one piece, and begins after its header."""
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack("<HHIQQQIHHHHHH", 2, 183, 1, _BASE + 120, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return identity + header + struct.pack("<IIQQQQQQ", 1, 7, 0, _BASE, _BASE, nbytes, nbytes, 4096)
