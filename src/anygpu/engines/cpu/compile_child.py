"""Programs to images: code that runs wherever it is copied to, once the addresses that it lacks are filled in.

This file is what the compiling child runs (see `anygpu.engines.cpu.compiler`). It takes LLVM IR, for which it needs
llvmlite and the standard library alone, or a program of anygpu: what makes IR of that is loaded while nothing is asked.

LLVM makes an ELF object of each module. The child links it: sections are laid out one after the other, references
between them are resolved, and what remains is a list of places for absolute addresses. So loading an image takes
microseconds and no LLVM. A module has no writable data: its functions are given all that they write to.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
from typing import Any, BinaryIO

#: What the emitter writes is good code already: with LLVM's own list of level 2 it is as fast, and takes two to three
#: times as long to compile.
PASSES = ("sroa", "instruction_combine", "simplify_cfg")

#: Changes whenever the same text would become another image.
FORMAT = 2

#: For programs, in parts: a request that comes meanwhile waits for one.
_LOADED_AHEAD = ("msgspec", "anygpu.program.primitives", "anygpu.engines.codegen.lower", "anygpu.engines.cpu.planning")

#: Seconds without a request after which the child ends.
_IDLE_SECONDS = 60.0
#: Processor seconds for one module: more than that is a compiler that hangs. The system ends the child then.
COMPILE_SECONDS = 120.0

_ALLOCATED, _WRITABLE = 2, 1
_SYMBOLS, _RELOCATIONS, _NO_BITS = 2, 4, 8
_X86_64, _AARCH64 = 62, 183


class CannotLink(Exception):
    """An object has something that an image cannot have."""


# -- compiling


def host() -> dict[str, str]:
    """The processor of this machine, as LLVM names it."""
    import llvmlite.binding as llvm

    machine = _machine({"triple": llvm.get_process_triple(), "cpu": "", "features": ""}, 2)
    return {
        "cpu": llvm.get_host_cpu_name(),
        "features": llvm.get_host_cpu_features().flatten(),
        "triple": machine.triple,
        "data_layout": str(machine.target_data),
        "llvm": ".".join(map(str, llvm.llvm_version_info)),
    }


def compile_module(text: str, target: dict[str, str], level: int) -> bytes:
    """The object of a module. Level 0 takes a third of the time of level 2, for slower code with the same results."""
    import llvmlite.binding as llvm

    machine = _machine(target, level)
    module = llvm.parse_assembly(text)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    passes = llvm.create_new_module_pass_manager()
    for name in PASSES:
        getattr(passes, f"add_{name}_pass")()
    passes.run(module, builder)
    emitted: bytes = machine.emit_object(module)
    return emitted


def _machine(target: dict[str, str], level: int) -> Any:
    """LLVM's target machine for a processor, which may be another kind than this one."""
    import llvmlite.binding as llvm

    if llvm.get_process_triple().split("-")[0] == target["triple"].split("-")[0]:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    found = llvm.Target.from_triple(target["triple"])
    return found.create_target_machine(
        cpu=target["cpu"], features=target["features"], opt=level, reloc="pic", codemodel="small"
    )


# -- linking


def linked(elf: bytes) -> bytes:
    """The image of an object: a line of JSON, and the bytes to load.

    `exports` has the offset of each function, `imports` where the address of each missing symbol goes, and `relative`
    where the image's own address goes, plus an offset. The image is to begin at a multiple of a page.
    """
    if elf[:6] != b"\x7fELF\x02\x01":
        raise CannotLink("not a little-endian ELF object of 64 bits")
    (architecture,) = struct.unpack_from("<H", elf, 18)
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count, names_at = struct.unpack_from("<HHH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, table + number * size) for number in range(count)]
    names = [_word(elf, sections[names_at][4] + section[0]) for section in sections]

    body, places = bytearray(), {}
    # Code comes first, and constants after it.
    for number in sorted(range(count), key=lambda each: not sections[each][2] & 4):
        _, kind, flags, _, offset, length, _, _, alignment, _ = sections[number]
        if not flags & _ALLOCATED or names[number] == ".eh_frame" or not length:
            continue
        if flags & _WRITABLE or kind == _NO_BITS:
            raise CannotLink(f"writable data in {names[number]}")
        _pad(body, max(alignment, 1))
        places[number] = len(body)
        body += elf[offset : offset + length]

    symbols: list[tuple[str, int | None]] = []
    exports = {}
    for section in sections:
        if section[1] != _SYMBOLS:
            continue
        texts = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            name_at, info, _, where, value, _ = struct.unpack_from("<IBBHQQ", elf, at)
            place = places[where] + value if where in places else None
            name = _word(elf, texts + name_at)
            symbols.append((name, place))
            if info >> 4 and place is not None:
                exports[name] = place

    link = _Link(body, _apply_x86 if architecture == _X86_64 else _apply_arm, architecture)
    for section in sections:
        if section[1] != _RELOCATIONS or section[7] not in places:
            continue
        for at in range(section[4], section[4] + section[5], 24):
            offset, info, addend = struct.unpack_from("<QQq", elf, at)
            name, place = symbols[info >> 32]
            link.resolve(places[section[7]] + offset, info & 0xFFFFFFFF, name, place, addend)
    import json  # late, as in `answer`: the caller's process reads the constants above, and most need no more

    header = {"exports": exports, "imports": link.imports, "relative": link.relative}
    return json.dumps(header).encode() + b"\n" + bytes(body)


class _Link:
    """References of one image, as they are resolved."""

    def __init__(self, body: bytearray, apply: Any, architecture: int) -> None:
        """Link an image. `imports` are the addresses to fill in by name, `relative` those inside of the image."""
        self.body = body
        self.imports: list[tuple[int, str]] = []
        self.relative: list[tuple[int, int]] = []
        self._apply = apply
        self._architecture = architecture
        self._addresses: dict[tuple[str, int | None], int] = {}
        self._jumps: dict[str, int] = {}

    def resolve(self, at: int, kind: int, name: str, place: int | None, addend: int) -> None:
        self._apply(self, at, kind, name, place, addend)

    def address_of(self, name: str, place: int | None) -> int:
        """Where in the image the absolute address of a symbol is."""
        if (name, place) not in self._addresses:
            _pad(self.body, 8)
            self._addresses[name, place] = len(self.body)
            self.absolute(len(self.body), name, place, 0)
            self.body += bytes(8)
        return self._addresses[name, place]

    def absolute(self, at: int, name: str, place: int | None, addend: int) -> None:
        """Note an address of 64 bits that the loader fills in. Raises `CannotLink` for one inside of an import."""
        if place is not None:
            self.relative.append((at, place + addend))
        elif addend:
            raise CannotLink(f"an address inside of {name}")
        else:
            self.imports.append((at, name))

    def jump_to(self, name: str) -> int:
        """Where in the image a jump to a function outside of it is."""
        if name not in self._jumps:
            address = self.address_of(name, None)
            _pad(self.body, 16)
            here = self._jumps[name] = len(self.body)
            if self._architecture == _X86_64:
                self.body += b"\xff\x25" + struct.pack("<i", address - here - 6)
            else:  # ldr x16, address; br x16
                self.body += struct.pack("<II", 0x58000010 | ((address - here) // 4 & 0x7FFFF) << 5, 0xD61F0200)
        return self._jumps[name]


def _apply_x86(link: _Link, at: int, kind: int, name: str, place: int | None, addend: int) -> None:
    """Apply one relocation of x86-64: `at` is where, `place` what it refers to, `None` for imports.

    Raises `CannotLink` for kinds that our code does not have.
    """
    if kind == 1:  # R_X86_64_64
        link.absolute(at, name, place, addend)
        return
    if kind in (2, 4) and place is None:  # PC32, PLT32: all that is called is a function
        place = link.jump_to(name)
    elif kind in (9, 41, 42):  # GOTPCREL and what linkers may shorten
        place = link.address_of(name, place)
    elif kind not in (2, 4) or place is None:
        raise CannotLink(f"relocation {kind} of x86-64 to {name}")
    struct.pack_into("<i", link.body, at, place + addend - at)


#: Loads and stores of aarch64 whose offset in the page counts in elements: the shift.
_ARM_SHIFTS = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4, 312: 3}


def _apply_arm(link: _Link, at: int, kind: int, name: str, place: int | None, addend: int) -> None:
    """Apply one relocation of aarch64, by setting bits of an instruction; see `_apply_x86`."""
    if kind == 257:  # R_AARCH64_ABS64
        link.absolute(at, name, place, addend)
        return
    if kind in (311, 312):  # the page and the offset of an address
        place = link.address_of(name, place)
    elif kind in (282, 283) and place is None:  # JUMP26, CALL26
        place = link.jump_to(name)
    if place is None:
        raise CannotLink(f"relocation {kind} of aarch64 to {name}")
    target = place + addend
    if kind in (260, 261):  # PREL64, PREL32
        struct.pack_into("<q" if kind == 260 else "<i", link.body, at, target - at)
        return
    (word,) = struct.unpack_from("<I", link.body, at)
    if kind in (275, 311):  # ADR_PREL_PG_HI21, ADR_GOT_PAGE
        pages = (target >> 12) - (at >> 12)
        word |= (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    elif kind in _ARM_SHIFTS:
        word |= (target & 0xFFF) >> _ARM_SHIFTS[kind] << 10
    elif kind in (282, 283):
        word |= (target - at) >> 2 & 0x3FFFFFF
    else:
        raise CannotLink(f"relocation {kind} of aarch64 to {name}")
    struct.pack_into("<I", link.body, at, word)


def _pad(body: bytearray, alignment: int) -> None:
    body += bytes(-len(body) % alignment)


def _word(data: bytes, at: int) -> str:
    return data[at : data.index(0, at)].decode()


# -- the child


def answer(encoded: bytes) -> bytes:
    """What the child says to a request, without its first byte."""
    import json

    line, _, data = encoded.partition(b"\n")
    request = json.loads(line)
    if request["ask"] == "host":
        return json.dumps(host()).encode()
    if request["ask"] == "program":
        return _compiled_program(request, data)
    emitted = compile_module(request["text"], request["target"], request["level"])
    return linked(emitted) if request["link"] else emitted


def _compiled_program(request: dict[str, Any], pickled: bytes) -> bytes:
    """The native code of a program and how to run it, as a `NativeProgram`."""
    import pickle

    import msgspec

    from anygpu.base.version import __version__
    from anygpu.engines.codegen.dialects.llvm.values import NativeTarget
    from anygpu.engines.cpu.planning import native_module
    from anygpu.engines.cpu.run_plan import NativeProgram

    if request["version"] != __version__:
        raise RuntimeError(f"anygpu is {request['version']} in this process and {__version__} on disk: start it again.")
    target = request["target"]
    features = frozenset(each[1:] for each in target["features"].split(",") if each.startswith("+"))
    processor = NativeTarget(target["triple"], target["data_layout"], features, int(target["vector_bytes"]))
    plan, text = native_module(pickle.loads(pickled), processor)
    emitted = compile_module(text, target, 2)
    return msgspec.msgpack.encode(NativeProgram(plan, linked(emitted) if request["link"] else emitted))


def message_of(error: Exception) -> str:
    """What the caller hears of it: a `CannotCompile` of ours says it in full."""
    return getattr(error, "detail", None) or f"{type(error).__name__}: {error}"


def main() -> None:
    """Answer requests from standard input until it is closed or nothing comes for a while.

    Standard output is for replies alone: whatever libraries print goes to standard error. A request that takes more
    than `COMPILE_SECONDS` of processor time ends the process.
    """
    # Whatever LLVM prints must not come between the answers.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path += sys.argv[1:]
    # Loaded before anything is asked: whoever has started this process has something to do meanwhile.
    host()
    ahead = [*_LOADED_AHEAD]
    while (request := _read(sys.stdin.buffer, ahead)) is not None:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, COMPILE_SECONDS)
        try:
            reply = b"+" + answer(request)
        except Exception as error:  # noqa: BLE001 - all that LLVM may say is the caller's to hear
            reply = b"-" + message_of(error).encode()
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(struct.pack("<Q", len(reply)) + reply)
        replies.flush()
    os._exit(0)


def _read(requests: BinaryIO, ahead: list[str]) -> bytes | None:
    """The next request; while there is none, what later ones need is loaded."""
    import importlib
    import select  # late, as json

    if sys.platform != "win32":
        while ahead and not select.select([requests], [], [], 0)[0]:
            importlib.import_module(ahead.pop(0))
        if not select.select([requests], [], [], _IDLE_SECONDS)[0]:
            return None
    length = requests.read(8)
    return requests.read(struct.unpack("<Q", length)[0]) if len(length) == 8 else None


if __name__ == "__main__":
    main()
