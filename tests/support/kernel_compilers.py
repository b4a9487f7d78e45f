"""Compiles kernel texts for what is not here: OpenCL C by Clang for AMD, NVIDIA and SPIR, WGSL by Tint.

The compilers of the devices that tests run on, PoCL's and naga, are lenient in places. These are the ones that other
drivers are made of; nothing is executed.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec

from anygpu.engines.codegen.kernel import Kernel
from anygpu.engines.codegen.target import Dialect, Target
from anygpu.engines.webgpu.pipelines import with_subgroups_enabled
from tests.support.kernel_programs import TARGETS, kernels_of, programs

#: More devices than `scripts/kernel-texts` compares: browsers, and what strict compilers may trip on.
MORE_TARGETS = {
    "wgsl-browser": Target(
        dialect="wgsl", features=("f16", "subgroups"), group_memory=32768, bindings=10, subgroup_size=32
    ),
    "wgsl-narrow": Target(dialect="wgsl", features=("subgroups",), subgroup_size=4, group_limit=128),
    "opencl-least": Target(
        dialect="opencl",
        features=("i64",),
        group_limit=64,
        group_memory=16384,
        bindings=64,
        groups_per_dimension=None,
        loop_limit=(1 << 31) - 1,
    ),
    "opencl-large": Target(
        dialect="opencl",
        features=("f16", "f64", "i64"),
        group_limit=1024,
        group_memory=65536,
        bindings=256,
        groups_per_dimension=None,
        loop_limit=(1 << 31) - 1,
        subgroup_size=64,
        trusted=("exp_f32", "log_f32", "sin_f32", "tanh_f32", "power_f32", "erf_f32", "exp_f64"),
    ),
}


class Text(msgspec.Struct, frozen=True):
    """One kernel, or what a test gave to a compiler itself."""

    dialect: Dialect
    source: str
    name: str = ""
    #: The kinds of its buffers in WebGPU, in their order; `None` where the compiler finds them out.
    layout: tuple[str, ...] | None = None
    #: What a user wrote, where the kernel is a user's own.
    original: str | None = None

    @property
    def key(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()[:20]


class Answer(NamedTuple):
    """What one compiler said to one text."""

    text: Text
    #: Its first words against the text; `None` when it took it.
    refused: str | None


# -- texts


def text_of(kernel: Kernel, dialect: Dialect) -> Text:
    layout = tuple("read-only-storage" if each.access == "read" else "storage" for each in kernel.bindings)
    if dialect == "wgsl" and kernel.numbers:
        layout = (*layout, "uniform")
    original = None if kernel.own is None else kernel.own.source
    return Text(dialect, kernel.source, kernel.name, layout or None, original)


def every_target() -> dict[str, Target]:
    return TARGETS | MORE_TARGETS


def generated(numbers: Iterable[int], targets: Sequence[str] | None = None) -> list[Text]:
    """The kernels of the programs with these numbers, for every target or for the named ones, each text once."""
    every = every_target()
    found: dict[str, Text] = {}
    for number in numbers:
        program = programs()[number][1]()
        for name in targets if targets is not None else every:
            target = every[name]
            try:
                kernels = kernels_of(program, target)
            except NotImplementedError:
                continue  # What no kernel does, linear algebra for one, the engines run on the host.
            for kernel in kernels:
                text = text_of(kernel, target.dialect)
                found.setdefault(text.key, text)
    return list(found.values())


def read(folder: Path) -> list[Text]:
    """What processes with `collecting` on their path wrote."""
    return [msgspec.json.decode(path.read_bytes(), type=Text) for path in sorted(folder.glob("*.json"))]


def write(folder: Path, texts: Iterable[Text]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for text in texts:
        (folder / f"{text.key}.json").write_bytes(msgspec.json.encode(text))


_NUMBERED = re.compile(r"\b\w*\d\w*\b")


def _shapes(text: Text) -> set[str]:
    """Its lines without numbers, and without names that have one in them."""
    return {_NUMBERED.sub("#", line.strip()) for line in text.source.splitlines()}


def sample(texts: Sequence[Text], count: int) -> list[Text]:
    """As many texts, chosen one by one for the most lines that those before do not have."""
    by_key = {text.key: (text, _shapes(text)) for text in texts}
    # What a text adds only becomes less: one that was first, counted again, and still is first adds the most.
    waiting = [(-len(shapes), key) for key, (_, shapes) in by_key.items()]
    heapq.heapify(waiting)
    chosen: list[Text] = []
    seen: set[str] = set()
    while waiting and len(chosen) < count:
        _, key = heapq.heappop(waiting)
        text, shapes = by_key[key]
        again = (-len(shapes - seen), key)
        if waiting and again > waiting[0]:
            heapq.heappush(waiting, again)
            continue
        chosen.append(text)
        seen |= shapes
    return chosen


# -- OpenCL C


class ClangTarget(NamedTuple):
    """A machine that Clang generates code for."""

    name: str
    arguments: tuple[str, ...]


CLANG_TARGETS = (
    ClangTarget("amdgcn gfx906", ("-target", "amdgcn-amd-amdhsa", "-mcpu=gfx906", "-S")),
    ClangTarget(
        "nvptx64 sm_60", ("-target", "nvptx64-nvidia-nvcl", "-Xclang", "-target-cpu", "-Xclang", "sm_60", "-S")
    ),
    ClangTarget("spir64", ("-target", "spir64-unknown-unknown", "-emit-llvm", "-S")),
)
MORE_CLANG_TARGETS = (
    ClangTarget("amdgcn gfx1030", ("-target", "amdgcn-amd-amdhsa", "-mcpu=gfx1030", "-S")),
    ClangTarget("amdgcn gfx90a", ("-target", "amdgcn-amd-amdhsa", "-mcpu=gfx90a", "-S")),
)
#: Clang 16 and later generate this themselves.
SPIRV_TARGET = ClangTarget("spirv64", ("-target", "spirv64-unknown-unknown", "-S"))

#: Beside what Clang warns of by default. A warning counts as a refusal: it is about what another compiler may refuse.
_WARNINGS = (
    *("-Wdouble-promotion", "-Wshift-overflow", "-Wuninitialized", "-Wconditional-uninitialized", "-Wcast-align"),
    # That a number is not equal to itself is how NaN is found.
    "-Wno-tautological-compare",
    # An index along an axis of length 1 is a constant, and so is the condition that it is inside.
    "-Wno-constant-logical-operand",
    # A loop that one target does not unroll is as right as before.
    "-Wno-pass-failed",
    # Tests may end without a newline; what engines compile does not.
    "-Wno-newline-eof",
    *("-Wreturn-type", "-Wunsequenced", "-Wcast-qual", "-Wundef", "-Wvla", "-Wimplicit-fallthrough"),
)
#: Clang 19 and later keep a copy of each kernel as a plain function, and then warn of the group's memory in the copy.
_EXCUSED = "local memory global used by non-kernel function"
_COMPLAINT = re.compile(r"(?:warning|error): (?!.*" + _EXCUSED + r").*")
_ENABLED = re.compile(r"#pragma OPENCL EXTENSION (\w+) *: *enable")


def extensions(source: str) -> tuple[str, ...]:
    """What a device must have for a text: double, which OpenCL 1.2 has without a pragma, and what pragmas enable."""
    double = ("cl_khr_fp64",) if "double" in source else ()
    return (*double, *sorted(set(_ENABLED.findall(source))))


def clang_command(clang: str, target: ClangTarget, source: str) -> list[str]:
    """Strict OpenCL C 1.2, with no extension but those of `extensions`."""
    allowed = ",".join(["-all", *(f"+{name}" for name in extensions(source))])
    strict = ["-x", "cl", "-cl-std=CL1.2", "-pedantic-errors", "-nogpulib", "-Xclang", f"-cl-ext={allowed}", "-O1"]
    return [clang, *strict, *_WARNINGS, *target.arguments, "-o", "/dev/null", "-"]


def clang_refusal(clang: str, target: ClangTarget, text: Text) -> str | None:
    done = subprocess.run(
        clang_command(clang, target, text.source), input=text.source, capture_output=True, text=True, check=False
    )
    complaint = _COMPLAINT.search(done.stderr)
    if complaint is not None:
        return complaint.group()
    return None if done.returncode == 0 else f"{clang} ended with {done.returncode}: {done.stderr[-300:]}"


def compile_opencl(texts: Sequence[Text], clang: str, target: ClangTarget, *, processes: int = 2) -> list[Answer]:
    with ThreadPoolExecutor(processes) as pool:
        refusals = pool.map(lambda text: clang_refusal(clang, target, text), texts)
        return [Answer(text, refused) for text, refused in zip(texts, refusals, strict=True)]


def clang_program() -> str:
    """The one that comes with PoCL on Debian 12, or any other."""
    for name in ("clang-15", "clang"):
        if shutil.which(name):
            return name
    raise FileNotFoundError("Clang is not installed: apt-get install clang-15")


# -- WGSL

#: 64-bit types, which the standard does not have: only naga knows them, where the device has the feature.
_ONLY_NAGA = re.compile(r"\b[iuf]64\b|\b(?:0x[0-9a-f]+|\d[\d.e+-]*)(?:l[iuf])\b")
_JAVASCRIPT = Path(__file__).with_name("tint.js")
_FLAGS = (
    *("--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan"),
    *("--disable-gpu-sandbox", "--disable-background-networking", "--disable-component-update"),
)
_BATCH = 100


class TintAnswers(NamedTuple):
    compiler: str
    #: Texts that need `shader-f16` are left out where the adapter has none.
    answers: list[Answer]
    pipelines: int


def is_standard(text: Text) -> bool:
    return _ONLY_NAGA.search(text.source) is None


def _as_json(texts: Sequence[Text], pipelines: int) -> list[dict[str, object]]:
    """For `tint.js`; pipelines are made of so many texts, evenly spread."""
    step = max(len(texts) // pipelines, 1) if pipelines else len(texts) + 1
    return [
        {
            "source": with_subgroups_enabled(text.source),
            "layout": text.layout,
            "pipeline": pipelines > 0 and place % step == 0,
        }
        for place, text in enumerate(texts)
    ]


def tint_of_chromium(texts: Sequence[Text], *, pipelines: int) -> TintAnswers:
    """On SwiftShader, which compiles a pipeline to machine code and takes its time, and which has no 16-bit numbers."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    if program is None:
        raise FileNotFoundError("Chromium is not installed: apt-get install chromium")
    texts = [text for text in texts if "enable f16;" not in text.source]
    given = _as_json(texts, pipelines)
    said: list[dict[str, object]] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        page = browser.new_page()
        # WebGPU is only there in a secure context, which localhost is; nothing has to listen.
        page.route("**/*", lambda route: route.fulfill(body="<title>Tint</title>", content_type="text/html"))
        page.goto("http://localhost/")
        compile_all = f"(texts) => ({_JAVASCRIPT.read_text()})(navigator.gpu, texts)"
        for first in range(0, len(given), _BATCH):
            said += page.evaluate(compile_all, given[first : first + _BATCH])
        version = browser.version
        browser.close()
    return _tint_answers(f"Tint of Chromium {version.split('.')[0]}", texts, said)


_NODE = """
const [gpu, globals, script, input, output] = await (async () => {
  const { create, globals } = await import(process.argv[1]);
  return [create(["backend=null"]), globals, ...process.argv.slice(2)];
})();
Object.assign(globalThis, globals);
console.error = () => {};
const fs = await import("node:fs");
const compileAll = (0, eval)(fs.readFileSync(script, "utf8"));
fs.writeFileSync(output, JSON.stringify(await compileAll(gpu, JSON.parse(fs.readFileSync(input, "utf8")))));
process.exit(0);
"""


def tint_of_dawn(texts: Sequence[Text], package: Path) -> TintAnswers:
    """On an adapter that has every feature and no hardware. `package` is the npm package `webgpu`, unpacked."""
    with tempfile.TemporaryDirectory() as folder:
        given, said = Path(folder) / "texts.json", Path(folder) / "answers.json"
        given.write_text(json.dumps(_as_json(texts, len(texts))))
        module = str((package / "index.js").resolve())
        subprocess.run(
            ["node", "--input-type=module", "-e", _NODE, module, str(_JAVASCRIPT), str(given), str(said)],
            check=True,
            capture_output=True,
        )
        version = json.loads((package / "package.json").read_text())["version"]
        return _tint_answers(f"Tint of Dawn (npm webgpu {version})", texts, json.loads(said.read_text()))


def _tint_answers(compiler: str, texts: Sequence[Text], said: Sequence[dict[str, object]]) -> TintAnswers:
    answers = [
        Answer(text, None if each["refused"] is None else str(each["refused"]))
        for text, each in zip(texts, said, strict=True)
    ]
    return TintAnswers(compiler, answers, sum(bool(each["pipeline"]) for each in said))
