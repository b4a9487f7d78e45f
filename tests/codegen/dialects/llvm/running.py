"""Compiles modules of nests with llvmlite in this process, and calls them with NumPy's arrays."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from anygpu.base.typing import HostArray
from anygpu.engines.codegen.dialects.llvm.loops import module_text
from anygpu.engines.codegen.dialects.llvm.values import NativeTarget
from anygpu.engines.codegen.index import Index, IndexVariable
from anygpu.engines.codegen.kernel import Slot
from anygpu.engines.codegen.kernel_ir import Buffer, Expr, Let, Load, Loop, Name, Statement, Store
from anygpu.engines.codegen.nests.steps import Nest, NestProgram, Scratch
from anygpu.engines.codegen.target import ComputeType
from anygpu.program.dtypes import DType

_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
BEGIN, END = Name("begin", "i32"), Name("end", "i32")


@cache
def host() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple()


def machine(cpu: str | None = None, features: str | None = None, triple: str | None = None) -> Any:
    """Of this processor, or of another one."""
    host_features = llvm.get_host_cpu_features().flatten()
    kind = host()
    if triple is not None:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        kind = llvm.Target.from_triple(triple)
    return kind.create_target_machine(
        cpu=llvm.get_host_cpu_name() if cpu is None else cpu,
        features=host_features if features is None else features,
        opt=2,
        reloc="pic",
        codemodel="jitdefault",
    )


@cache
def native(vector_bytes: int = 64, plain: bool = False) -> NativeTarget:
    """The target of this processor, or of one that has nothing beyond x86-64."""
    of = machine("x86-64", "") if plain else machine()
    enabled = frozenset(name for name, has in llvm.get_host_cpu_features().items() if has)
    return NativeTarget(of.triple, str(of.target_data), frozenset() if plain else enabled, vector_bytes)


def optimised(text: str, of: Any) -> Any:
    """The module after the passes that it needs."""
    module = llvm.parse_assembly(text)
    module.verify()
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, llvm.create_pass_builder(of, llvm.create_pipeline_tuning_options()))
    return module


def undefined_symbols(text: str, of: Any) -> set[str]:
    """What the object code of a module needs from elsewhere; ELF of 64 bits."""
    elf: bytes = of.emit_object(optimised(text, of))
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count = struct.unpack_from("<HH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, table + number * size) for number in range(count)]
    found = set()
    for _, kind, _, _, offset, length, names, *_ in sections:
        for at in range(offset, offset + length, 24) if kind == 2 else ():
            name, _, _, section = struct.unpack_from("<IBBH", elf, at)
            start = sections[names][4] + name
            if section == 0 and name:
                found.add(elf[start : elf.index(b"\0", start)].decode())
    return found


class Code:
    """A module of nests in this process."""

    def __init__(self, nests: NestProgram, target: NativeTarget | None = None, plain: bool = False) -> None:
        self.nests = nests
        self.text = module_text(nests, target or native(plain=plain))
        of = machine("x86-64", "") if plain else machine()
        self._engine = llvm.create_mcjit_compiler(optimised(self.text, of), of)
        self._engine.finalize_object()

    def run(self, arrays: Sequence[HostArray]) -> None:
        """All nests in order, part by part; an array for each slot."""
        table = (ctypes.c_void_p * len(arrays))(*(each.ctypes.data for each in arrays))
        for step in self.nests.steps:
            assert isinstance(step, Nest)
            call = _CALL(self._engine.get_function_address(step.name))
            for part in range(step.parts):
                begin = part * step.grain
                call(ctypes.addressof(table), begin, min(begin + step.grain, step.count), part)


def program(
    buffers: Sequence[Buffer], body: Sequence[Statement], *, count: int = 1, grain: int = 0,
    scratch: Sequence[Scratch] = (), status: int | None = None,
) -> NestProgram:  # fmt: skip
    """A program of one nest; slots are numbered as their buffers are."""
    nest = Nest(
        name="nest", buffers=tuple(buffers), body=tuple(body), count=count, grain=grain or count, scratch=tuple(scratch)
    )
    slots = tuple(Slot(each.nbytes, "input") for each in buffers)
    if status is not None:
        slots = (*slots, Slot(64, "status"))
    return NestProgram(slots=slots, steps=(nest,), outputs=(), status=status)


def counter(name: str, count: int) -> Index:
    return Index(0, [(IndexVariable(name, 0, count - 1), 1)])


def mapped(
    value: Expr, inputs: Sequence[tuple[DType, ComputeType]], output: DType, count: int, lanes: int, grain: int = 0
) -> NestProgram:
    """`value` of `x0`, `x1`, … at each of `count` places."""
    i = counter("i", count)
    buffers = [Buffer(f"in{k}", k, dtype, count) for k, (dtype, _) in enumerate(inputs)]
    buffers.append(Buffer("out", len(inputs), output, count, "write"))
    body: list[Statement] = [Let(f"x{k}", Load(f"in{k}", i, type)) for k, (_, type) in enumerate(inputs)]
    body.append(Store("out", i, value))
    return program(buffers, [Loop("i", BEGIN, END, 1, tuple(body), vector=lanes)], count=count, grain=grain)
