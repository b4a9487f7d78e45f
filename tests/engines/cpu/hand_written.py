"""Programs with their nests and LLVM IR written by hand, so that running them is tested apart from making them."""

from __future__ import annotations

from anygpu.engines.codegen.kernel import Check, Output, Slot
from anygpu.engines.codegen.kernel_ir import Buffer
from anygpu.engines.codegen.nests.steps import HostStep, Nest, NestCost, NestProgram
from anygpu.engines.cpu.compiler import compiled
from anygpu.engines.cpu.engine import CpuExecutable
from anygpu.engines.cpu.loader import LOADS_IMAGES, host_processor
from anygpu.engines.cpu.planning import entry_text, run_plan
from anygpu.engines.cpu.run_plan import NativeProgram
from anygpu.program.dtypes import DType
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import Binary, Gather, Input, Reduce, Spec, Unary

#: A loop over `begin` to `end`, whose body is given `%i`.
_LOOP = """
define void @{name}(ptr %buffers, i64 %begin, i64 %end, i64 %part) nounwind {{
entry:
{slots}
  %any = icmp slt i64 %begin, %end
  br i1 %any, label %loop, label %out
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %done ]
{body}
  br label %done
done:
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %out
out:
  ret void
}}
"""


def loop(name: str, slots: int, body: str) -> str:
    """A function over %s0, %s1, … (the slots)."""
    loads = "\n".join(
        f"  %e{k} = getelementptr ptr, ptr %buffers, i64 {k}\n  %s{k} = load ptr, ptr %e{k}" for k in range(slots)
    )
    return _LOOP.format(name=name, slots=loads, body=body)


def head() -> str:
    processor = host_processor()
    return f'target triple = "{processor.triple}"\ntarget datalayout = "{processor.data_layout}"\n'


def nest(name: str, slots: int, count: int, grain: int, nbytes: float = 0.0) -> Nest:
    buffers = tuple(Buffer(f"b{slot}", slot, "float64", count) for slot in range(slots))
    return Nest(name=name, buffers=buffers, body=(), count=count, grain=grain, cost=NestCost(bytes=nbytes))


def built(program: Program, nests: NestProgram, text: str) -> CpuExecutable:
    plan = run_plan(nests, program.inputs, own=len(nests.slots))
    image = compiled(text + entry_text(plan), host_processor().as_request(), link=LOADS_IMAGES)
    return CpuExecutable(program, NativeProgram(plan, image))


def _slot(spec: Spec, role: str, data: bytes | None = None) -> Slot:
    return Slot(spec.nbytes, role, data)  # type: ignore[arg-type]


ADD = """
  %p0 = getelementptr double, ptr %s0, i64 %i
  %p1 = getelementptr double, ptr %s1, i64 %i
  %p2 = getelementptr double, ptr %s2, i64 %i
  %a = load double, ptr %p0
  %b = load double, ptr %p1
  %c = fadd double %a, %b
  store double %c, ptr %p2"""


def added(shape: tuple[int, ...] = (100,), grain: int | None = None) -> CpuExecutable:
    """x + y of float64."""
    spec = Spec(shape, "float64")
    program = Program([Node(Input(*spec)), Node(Input(*spec)), Node(Binary("add"), (0, 1))], [2])
    nests = NestProgram(
        slots=(_slot(spec, "input"), _slot(spec, "input"), _slot(spec, "output")),
        steps=(nest("add", 3, spec.size, grain or max(1, spec.size), 3.0 * spec.nbytes),),
        outputs=(Output(2, spec),),
    )
    return built(program, nests, head() + loop("add", 3, ADD))


SQUARE = """
  %p0 = getelementptr double, ptr %s0, i64 %i
  %p2 = getelementptr double, ptr %s2, i64 %i
  %a = load double, ptr %p0
  %c = fmul double %a, %a
  store double %c, ptr %p2"""

TWICE = """
  %p0 = getelementptr double, ptr %s2, i64 %i
  %p2 = getelementptr double, ptr %s1, i64 %i
  %a = load double, ptr %p0
  %c = fadd double %a, %a
  store double %c, ptr %p2"""


def twice_the_square(size: int, grain: int) -> CpuExecutable:
    """2·x², in two nests with a temporary between them."""
    spec = Spec((size,), "float64")
    nodes = [Node(Input(*spec)), Node(Binary("multiply"), (0, 0)), Node(Binary("add"), (1, 1))]
    nests = NestProgram(
        slots=(_slot(spec, "input"), _slot(spec, "output"), _slot(spec, "temporary")),
        steps=(nest("square", 3, size, grain, 2.0 * spec.nbytes), nest("twice", 3, size, grain, 2.0 * spec.nbytes)),
        outputs=(Output(1, spec),),
    )
    return built(Program(nodes, [2]), nests, head() + loop("square", 3, SQUARE) + loop("twice", 3, TWICE))


TAKE = """
  %p1 = getelementptr i64, ptr %s1, i64 %i
  %at = load i64, ptr %p1
  %low = icmp sge i64 %at, 0
  %high = icmp slt i64 %at, LENGTH
  %inside = and i1 %low, %high
  br i1 %inside, label %fetch, label %report
report:
  %wrong = trunc i64 %at to i32
  %plus = add i32 %wrong, 1
  %minus = icmp eq i32 %wrong, -1
  %word = select i1 %minus, i32 -2147483648, i32 %plus
  store atomic i32 %word, ptr %s3 monotonic, align 4
  br label %done
fetch:
  %p0 = getelementptr double, ptr %s0, i64 %at
  %a = load double, ptr %p0
  %p2 = getelementptr double, ptr %s2, i64 %i
  store double %a, ptr %p2"""


def taken(length: int, count: int) -> CpuExecutable:
    """x[indices], which may be wrong."""
    spec, indices = Spec((length,), "float64"), Spec((count,), "int64")
    nodes = [Node(Input(*spec)), Node(Input(*indices)), Node(Gather(axis=0), (0, 1))]
    nests = NestProgram(
        slots=(_slot(spec, "input"), _slot(indices, "input"), Slot(count * 8, "output"), Slot(4, "status")),
        steps=(nest("take", 4, count, count),),
        outputs=(Output(2, Spec((count,), "float64")),),
        status=3,
        checks=(Check(0, "index", length),),
    )
    text = head() + loop("take", 4, TAKE.replace("LENGTH", str(length))).replace(
        "br label %done\ndone", "br label %done\ndone"
    )
    return built(Program(nodes, [2]), nests, text)


def mixed(size: int) -> CpuExecutable:
    """sum(2·(x·x)) twice over: a nest, a step of NumPy on its temporary, and results that share a slot."""
    spec, one = Spec((size,), "float64"), Spec((), "float64")
    nodes = [
        Node(Input(*spec)),
        Node(Binary("multiply"), (0, 0)),
        Node(Reduce("sum", (0,)), (1,)),
        Node(Unary("negative"), (2,)),
    ]
    nests = NestProgram(
        slots=(_slot(spec, "input"), _slot(one, "output"), _slot(spec, "temporary")),
        steps=(nest("square", 3, size, size), HostStep(node=2, sources=(2,), slot=1)),
        outputs=(Output(1, one), Output(1, one), Output(0, spec)),
    )
    return built(Program(nodes, [2, 2, 0]), nests, head() + loop("square", 3, SQUARE))


def constant_added(dtype: DType = "float64") -> CpuExecutable:
    """x + [0, 1, …, 9], a constant."""
    import numpy as np

    spec = Spec((10,), dtype)
    program = Program([Node(Input(*spec)), Node(Unary("negative"), (0,))], [1])
    nests = NestProgram(
        slots=(_slot(spec, "input"), _slot(spec, "constant", np.arange(10.0).tobytes()), _slot(spec, "output")),
        steps=(nest("add", 3, 10, 10),),
        outputs=(Output(2, spec),),
    )
    return built(program, nests, head() + loop("add", 3, ADD))
