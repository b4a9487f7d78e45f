"""Attention as its template sees it, with what comes before fused in; and as other primitives where that is better.

`tilings_of` lists the ways to cut a node that measuring chooses from, and `attention_kernel` makes the kernel of one:
the accessors here load queries, keys, values and bias at named positions, so that views and elementwise producers cost
nothing. `decomposed` spells a node out as products and a softmax where a target has no kernel for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from anygpu.base.lazy import cached_property
from anygpu.engines.codegen.dialects.printer import Printer
from anygpu.engines.codegen.dialects.wgsl import WGSLPrinter
from anygpu.engines.codegen.elementwise import narrowed
from anygpu.engines.codegen.index import ZERO, Index, flat, unflat
from anygpu.engines.codegen.kernel import Kernel
from anygpu.engines.codegen.kernel_builder import (
    KernelBuilder,
    TemplateKernel,
    VectorAccessor,
    load_function,
    printer,
    store,
    store_function,
)
from anygpu.engines.codegen.kernel_ir import Function
from anygpu.engines.codegen.lower import Lowering, Value
from anygpu.engines.codegen.target import Target, compute_type
from anygpu.engines.codegen.templates import attention
from anygpu.engines.codegen.templates.attention import AttentionSizes, AttentionTiling, AttentionVectors, Meaning
from anygpu.program.dtypes import DType
from anygpu.program.functions import ReduceFunction
from anygpu.program.graph import Program, Recorder
from anygpu.program.ops.linear import Attend
from anygpu.program.primitives import (
    Binary,
    Broadcast,
    Cast,
    Constant,
    Contract,
    Input,
    Iota,
    Primitive,
    Reduce,
    Reshape,
    Select,
    Spec,
    Unary,
    product,
)


def sizes_of(program: Program, node: int) -> AttentionSizes:
    q, k, v = (program.specs[each].shape for each in program.nodes[node].inputs[:3])
    return AttentionSizes(product(q[:-2]), q[-2], k[-2], q[-1], v[-1])


def tilings_of(program: Program, target: Target, node: int) -> list[AttentionTiling]:
    """Candidates, the best guess first; none where it is done in several kernels."""
    if compute_type(program.specs[node].dtype) != "f32":
        return []
    return attention.tilings(target, sizes_of(program, node))


def attention_kernel(builder: KernelBuilder, node: int, tiling: AttentionTiling, name: str) -> Kernel:
    """The kernel of one attention node: the template filled with this tiling and with accessors of its operands."""
    target, accessors, text = builder.target, _Accessors(builder, node), printer(builder.target)
    kernel = TemplateKernel(builder, text, accessors.functions(), [builder.stored[node].buffer])
    flags, in_vectors = accessors.in_vectors(text)
    sizes = accessors.sizes
    template = partial(
        attention.text,
        target.dialect,
        sizes,
        accessors.meaning,
        tiling,
        flags,
        calls={each: text.library_name(*call) for each, call in attention.CALLS.items()},
        exp2="exp2" if "exp2_f32" in target.trusted else "",
    )
    seen = 0.5 if accessors.op.causal else 1.0
    work = seen * 2.0 * sizes.batch * sizes.n * sizes.m * (sizes.d + sizes.e + 8)
    return kernel.filled(name, template, attention.grid(sizes, tiling), in_vectors=in_vectors, work=work, nodes=[node])


class _Accessors:
    """The functions through which the template reads and writes."""

    def __init__(self, builder: KernelBuilder, node: int) -> None:
        """Sizes of an `Attend` node, and the lengths of the positions at which each operand is read."""
        op = builder.program.nodes[node].op
        if not isinstance(op, Attend):
            raise TypeError(f"{op} is not an attention")
        self.builder, self.node, self.op = builder, node, op
        self.inputs = builder.program.nodes[node].inputs
        sizes = self.sizes = sizes_of(builder.program, node)
        self.stack = builder.program.specs[node].shape[:-2]
        self.of_q = {"batch": sizes.batch, "row": sizes.n, "d": sizes.d}
        self.of_k = {"batch": sizes.batch, "key": sizes.m, "d": sizes.d}
        self.of_v = {"batch": sizes.batch, "key": sizes.m, "e": sizes.e}
        self.of_bias = {"batch": sizes.batch, "row": sizes.n, "key": sizes.m}
        self.of_out = {"batch": sizes.batch, "row": sizes.n, "e": sizes.e}

    @cached_property
    def meaning(self) -> Meaning:
        return Meaning(self.op.scale, self.op.causal, self._bias)

    @property
    def _bias(self) -> attention.BiasOf:
        """Whether there is a bias, and whether it is the same for all queries: then it is loaded once for a key."""
        if len(self.inputs) < 4:
            return "none"
        anywhere = self._load("load_bias", self.of_bias, self._at(3, "row", "key"))
        first = self._load("load_bias", self.of_bias, lambda lowering, at: self._bias_of_key(lowering, at))
        return "keys" if anywhere == first else "all"

    def _bias_of_key(self, lowering: Lowering, at: Mapping[str, Index]) -> Value:
        return lowering.value(self.inputs[3], (*unflat(at["batch"], self.stack), ZERO, at["key"]))

    def _at(self, number: int, row: str, column: str) -> Callable[[Lowering, Mapping[str, Index]], Value]:
        """A function that gives an operand at named positions."""

        def at(lowering: Lowering, where: Mapping[str, Index]) -> Value:
            return lowering.value(self.inputs[number], (*unflat(where["batch"], self.stack), where[row], where[column]))

        return at

    def _out(self, lowering: Lowering, at: Mapping[str, Index], value: Value) -> None:
        """Store a result, rounded to its type."""
        spec = self.builder.program.specs[self.node]
        place = flat((*unflat(at["batch"], self.stack), at["row"], at["e"]), spec.shape)
        result = lowering.named("result", narrowed(value[0], spec.dtype))
        store(lowering, self.builder, self.node, place, (result,))

    def _load(
        self, name: str, lengths: Mapping[str, int], at: Callable[[Lowering, Mapping[str, Index]], Value]
    ) -> Function:
        """A function of the kernel that loads one operand."""
        return load_function(self.builder, name, lengths, 0, at, without=[self.node])

    def functions(self) -> list[Function]:
        """Scalar loads of q, k, v and the bias, and the store of the result, as functions that the template calls."""
        found = [
            self._load("load_q", self.of_q, self._at(0, "row", "d")),
            self._load("load_k", self.of_k, self._at(1, "key", "d")),
            self._load("load_v", self.of_v, self._at(2, "key", "e")),
            store_function(self.builder, "store_out", self.of_out, ["f32"], self._out, without=[self.node]),
        ]
        if self.meaning.bias != "none":
            found.append(self._load("load_bias", self.of_bias, self._at(3, "row", "key")))
        return found

    def in_vectors(self, text: Printer) -> tuple[AttentionVectors, list[str]]:
        """The vector accessors that can be made, and their texts. In WGSL buffers are declared in vectors for them."""
        used: set[str] = set()
        if isinstance(text, WGSLPrinter):
            text.declare_in_vectors(None)
        q = self._vector_load(text, "load_q_vector", self.of_q, 0, ("row", "d"), used)
        k = self._vector_load(text, "load_k_vector", self.of_k, 1, ("key", "d"), used)
        v = self._vector_load(text, "load_v_vector", self.of_v, 2, ("key", "e"), used)
        out = self._vector_store(text, used)
        if isinstance(text, WGSLPrinter):
            text.declare_in_vectors(used)
        flags = AttentionVectors(q=q is not None, k=k is not None, v=v is not None, out=out is not None)
        return flags, [each for each in (q, k, v, out) if each is not None]

    def _vector_load(
        self, text: Printer, name: str, lengths: Mapping[str, int], number: int, axes: tuple[str, str], used: set[str]
    ) -> str | None:
        """Return a load of four neighbours of an operand as text, or None where they do not lie side by side."""
        accessor = VectorAccessor(self.builder, text, lengths, axes[1], 4)
        if not accessor.possible:
            return None
        result = accessor.load(name, self._at(number, *axes), without=[self.node], aligned=True)
        used |= accessor.used
        return result

    def _vector_store(self, text: Printer, used: set[str]) -> str | None:
        """The text of a function that stores four neighbours at once; `None` where the result cannot be stored so."""
        accessor = VectorAccessor(self.builder, text, self.of_out, "e", 4)
        if not accessor.possible:
            return None
        result = accessor.store("store_out_vector", "f32", self._out, without=[self.node])
        used |= accessor.used
        return result


# -- as other primitives


def decomposed(program: Program, target: Target) -> tuple[Program, list[int]]:
    """The program with attention that no kernel is good for as products and a softmax.

    With it comes for each node the one that it was; -1 for those that are new.
    """
    parted = {
        node
        for node, (op, _) in enumerate(program.nodes)
        if isinstance(op, Attend) and program.specs[node].size and not tilings_of(program, target, node)
    }
    if not parted:
        return program, list(range(len(program.nodes)))
    recorder = Recorder()
    moved: list[int] = []
    origins: list[int] = []
    for position, (op, inputs) in enumerate(program.nodes):
        spec, line = program.specs[position], program.lines[position]
        sources = [moved[each] for each in inputs]
        if isinstance(op, Input):
            moved.append(recorder.input(spec))
        elif position in parted and isinstance(op, Attend):
            moved.append(_in_parts(recorder, op, sources, [program.specs[each] for each in inputs], line))
        else:
            moved.append(recorder.add(op, *sources, spec=spec, line=line))
        origins += [-1] * (moved[-1] + 1 - len(origins))
        origins[moved[-1]] = position
    return recorder.program([moved[output] for output in program.outputs]), origins


def _in_parts(
    recorder: Recorder, op: Attend, inputs: list[int], specs: list[Spec], line: tuple[str, int] | None
) -> int:
    """Scores, their softmax and the sum of values; what is narrower than 32 bits is computed in those."""
    wanted = specs[0].dtype
    dtype: DType = "float64" if wanted == "float64" else "float32"
    shape, m = specs[0].shape, specs[1].shape[-2]
    n, last = shape[-2], len(shape) - 1
    scored, batch = (*shape[:-1], m), tuple(range(last - 1))

    def add(primitive: Primitive, *sources: int) -> int:
        return recorder.add(primitive, *sources, line=line)

    def number(value: float, as_type: DType, as_shape: tuple[int, ...]) -> int:
        return add(Broadcast(as_shape), add(Constant((), as_type, np.array(value, as_type).tobytes())))

    if m == 0:
        return add(Cast(wanted), number(np.nan, dtype, (*shape[:-1], specs[2].shape[-1])))
    if dtype != wanted:
        inputs = [add(Cast(dtype), each) for each in inputs]
    scores = add(Contract((last,), (last,), batch, batch), inputs[0], inputs[1])
    scores = add(Binary("multiply"), scores, number(op.scale, dtype, scored))
    if len(inputs) == 4:
        scores = add(Binary("add"), scores, inputs[3])
    if op.causal:
        rows = add(Binary("add"), add(Iota(n, "int32")), number(m - n, "int32", (n,)))
        rows = add(Broadcast(scored), add(Reshape((n, 1)), rows))
        seen = add(Binary("less_equal"), add(Broadcast(scored), add(Iota(m, "int32"))), rows)
        scores = add(Select(), seen, scores, number(-np.inf, dtype, scored))

    def for_all_keys(fn: ReduceFunction, source: int) -> int:
        return add(Broadcast(scored), add(Reshape((*shape[:-1], 1)), add(Reduce(fn, (last,)), source)))

    weights = add(Unary("exp"), add(Binary("subtract"), scores, for_all_keys("max", scores)))
    weights = add(Binary("divide"), weights, for_all_keys("sum", weights))
    result = add(Contract((last,), (last - 1,), batch, batch), weights, inputs[2])
    return result if dtype == wanted else add(Cast(wanted), result)
