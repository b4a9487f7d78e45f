"""A program for a target: what is stored where, which kernels make it, and in which order they run.

`schedule` chooses what is stored (`materialise`), groups it into kernels (`grouping`) and makes these by their kind.
The functions at the end choose shapes of groups, and the alternatives that tuning measures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from anygpu.engines.codegen.attention import attention_kernel, decomposed, tilings_of
from anygpu.engines.codegen.convolutions import Convolution, contract_tilings, convolution_kernel, convolutions_in
from anygpu.engines.codegen.custom.lowering import launch_kernel, launches_in, with_copies
from anygpu.engines.codegen.grouping import Group, grouped, row_sizes
from anygpu.engines.codegen.index import last_long_axis
from anygpu.engines.codegen.kernel import Check, Kernel, KernelChoice, Output, Schedule, Slot, identifier, renumbered
from anygpu.engines.codegen.kernel_builder import GroupShape, KernelBuilder
from anygpu.engines.codegen.kernel_ir import Buffer
from anygpu.engines.codegen.lower import (
    NotInKernel,
    Stored,
    buffer_names,
    single_value,
    spec_of_parts,
    surely_not_negative,
)
from anygpu.engines.codegen.maps import map_kernel, piece_kernels
from anygpu.engines.codegen.materialise import chosen, is_row_reduction, matrix_sizes
from anygpu.engines.codegen.operations import operation_kernels, search_function
from anygpu.engines.codegen.products import product_kernels
from anygpu.engines.codegen.rows import part_buffers, part_size, rows_kernel, two_stage_kernels
from anygpu.engines.codegen.target import WIDE, Target, is_narrow
from anygpu.engines.codegen.templates.attention import AttentionTiling as Attending
from anygpu.engines.codegen.templates.convolution import ConvolutionTiling as Direct
from anygpu.engines.codegen.templates.matmul import Tiling
from anygpu.program.dtypes import ITEMSIZE, KIND
from anygpu.program.graph import Node, Program
from anygpu.program.ops.custom import Custom
from anygpu.program.ops.linear import Attend
from anygpu.program.primitives import (
    Binary,
    Cast,
    Concatenate,
    Constant,
    Contract,
    Gather,
    Input,
    Permute,
    Reduce,
    Reshape,
    Scatter,
    Search,
    Slice,
    Spec,
    free_axes,
)

TunedSizes = TypeVar("TunedSizes", bound=msgspec.Struct)

#: Whether no run can give a Gather or Scatter an index outside of its axis.
InRange = Callable[[int], bool]


def schedule(
    program: Program,
    target: Target,
    *,
    in_range: InRange = lambda node: False,
    distinct: InRange = lambda node: False,
    offsets: Sequence[bool] = (),
    chosen: Mapping[str, msgspec.Struct] | None = None,
) -> Schedule:
    """`offsets` says of each input whether its data may begin inside of what is bound.

    `chosen` has sizes for some kernels, by the names of an earlier schedule's choices; the others have the best guess.
    """
    program, before = with_copies(program, tuple(offsets))
    program, after = decomposed(program, target)
    origins = [before[node] for node in after]
    return _Scheduler(
        program,
        target,
        lambda node: in_range(origins[node]),
        lambda node: distinct(origins[node]),
        offsets,
        chosen or {},
    ).schedule()


class _Scheduler:
    """Makes the kernels of one program for one target."""

    def __init__(
        self,
        program: Program,
        target: Target,
        in_range: InRange,
        distinct: InRange,
        offsets: Sequence[bool],
        chosen: Mapping[str, msgspec.Struct],
    ) -> None:
        """Nothing is declared yet, and no kernel made.

        `in_range` and `distinct` tell what is known of indices, `offsets` which inputs may begin inside of their
        buffers. `chosen` has the sizes that tuning found, by the name of a kernel; others take their first candidate.
        """
        self.program = program
        self.target = target
        self.in_range = in_range
        self.distinct = distinct
        self.offsets = offsets
        self.chosen = chosen
        self.choices: list[KernelChoice] = []
        self.convolutions: dict[int, Convolution] = {}
        self.launches = launches_in(program)
        #: Nodes that a launch for another one makes as well.
        self.made: set[int] = set()
        self.names = buffer_names(program)
        self.slots: list[Slot] = []
        self.stored: dict[int, Stored] = {}
        self.buffers: dict[str, Buffer] = {}
        self.slot_of: dict[int, int] = {}
        self.checks: list[Check] = []
        self.rules: dict[int, int | None] = {}
        self.status: int | None = None
        self.steps: list[Kernel] = []

    def schedule(self) -> Schedule:
        """The kernels in order, the memory that they use, the results as parts of it, and the checks.

        Values to store are chosen first, then declared, then grouped into kernels.
        """
        aliases = {output: self._alias(output) for output in self.program.outputs}
        packed = self._with_packing([base for base, _ in aliases.values()])
        aliases = {output: (packed.get(base, base), offset) for output, (base, offset) in aliases.items()}
        program, target = self.program, self.target
        bases = [base for base, _ in aliases.values()]
        trimmed = Program.trusted(program.nodes, tuple(dict.fromkeys(bases)), program.specs, program.lines)
        roots = chosen(trimmed, target, lambda root: parts_for(program, target, root))
        for position, spec in enumerate(program.inputs):
            self._declare(position, spec, "input", offset=bool(self.offsets) and self.offsets[position])
        for position, (op, _) in enumerate(program.nodes):
            if isinstance(op, Constant) and (position in bases or single_value(op) is None) and op.data:
                self._declare(position, program.specs[position], "constant", data=op.data)
        roots = [root for root in roots if root not in self.stored]
        for root in roots:
            self._declare(root, program.specs[root], "output" if root in bases else "temporary")
        for base in bases:
            if base not in self.stored and not isinstance(program.nodes[base].op, Input):
                self._declare(base, program.specs[base], "output")
        parts = {root: parts_for(program, target, root) for root in roots if is_row_reduction(program, root, target)}
        self._plan_checks()
        self._make_all(trimmed, roots, parts)
        outputs = tuple(self._output(output, *aliases[output]) for output in program.outputs)
        return Schedule(
            slots=tuple(self.slots),
            steps=tuple(renumbered(step) for step in self.steps),
            outputs=outputs,
            status=self.status,
            checks=tuple(self.checks),
            choices=tuple(self.choices),
        )

    def _with_packing(self, bases: Sequence[int]) -> dict[int, int]:
        """Only a map can write elements that share words: it packs the results of other kernels."""
        nodes, specs = list(self.program.nodes), list(self.program.specs)
        packed: dict[int, int] = {}
        for base in dict.fromkeys(bases):
            op, spec = nodes[base].op, specs[base]
            apart = op.has_own_kernels or isinstance(op, Reduce | Contract)
            # A concatenation of more parts than one kernel can bind is written piece by piece.
            apart = apart or (isinstance(op, Concatenate) and len(nodes[base].inputs) > self.target.bindings - 3)
            if is_narrow(spec.dtype, self.target) and spec.size and apart:
                packed[base] = len(nodes)
                nodes.append(Node(Cast(spec.dtype), (base,)))
                specs.append(spec)
        if packed:
            lines = (*self.program.lines, *(None for _ in packed))
            self.program = Program.trusted(tuple(nodes), self.program.outputs, tuple(specs), lines)
            self.names = buffer_names(self.program)
        return packed

    # -- memory

    def _alias(self, output: int) -> tuple[int, int]:
        """The value that an output is a view of, and its first element there: a reshape needs no kernel."""
        node, offset = output, 0
        while True:
            op, inputs = self.program.nodes[node]
            if isinstance(op, Reshape):
                node = inputs[0]
            elif isinstance(op, Slice) and self._is_run(node) and self._leads_to_input(inputs[0]):
                shape = self.program.specs[inputs[0]].shape
                step = 1
                for start, length in zip(reversed(op.starts), reversed(shape), strict=True):
                    offset += start * step
                    step *= length
                node = inputs[0]
            else:
                return node, offset

    def _leads_to_input(self, node: int) -> bool:
        """Whether a value is an input, or a run of its elements in order.

        Such a result is a part of the input's memory, and needs no kernel.
        """
        op, inputs = self.program.nodes[node]
        if isinstance(op, Reshape):
            return self._leads_to_input(inputs[0])
        if isinstance(op, Slice):
            return self._is_run(node) and self._leads_to_input(inputs[0])
        return isinstance(op, Input)

    def _is_run(self, node: int) -> bool:
        """Whether a slice takes elements that lie one after the other."""
        op, inputs = self.program.nodes[node]
        if not isinstance(op, Slice) or self.program.specs[node].size == 0:
            return False
        shape, taken = self.program.specs[inputs[0]].shape, self.program.specs[node].shape
        several = [axis for axis in range(len(shape)) if taken[axis] > 1]
        if not several:
            return True
        return op.steps[several[0]] == 1 and taken[several[0] + 1 :] == shape[several[0] + 1 :]

    def _declare(self, node: int, spec: Spec, role: str, *, data: bytes | None = None, offset: bool = False) -> None:
        """Give a value its slot and its buffer.

        Narrow temporaries are stored as words: elements never share one then.
        """
        dtype, size = spec_of_parts(spec)
        if role == "temporary" and is_narrow(dtype, self.target):
            dtype = WIDE[dtype]
        slot = self.new_slot(size * ITEMSIZE[dtype], role, data)
        name = self.names[node]
        self.slot_of[node] = slot
        self.stored[node] = Stored(name, dtype)
        self.buffers[name] = Buffer(name, slot, dtype, size, has_offset=offset)

    def new_slot(self, nbytes: int, role: str = "temporary", data: bytes | None = None) -> int:
        self.slots.append(Slot(nbytes, role, data))  # type: ignore[arg-type]
        return len(self.slots) - 1

    def _new_temporary(self, nbytes: int, data: bytes | None) -> int:
        return self.new_slot(nbytes, "temporary" if data is None else "constant", data)

    def _output(self, output: int, base: int, offset: int) -> Output:
        spec = self.program.specs[output]
        return Output(self.slot_of[base], spec, offset * ITEMSIZE[spec.dtype])

    # -- rules that values can break

    def _plan_checks(self) -> None:
        """Number the rules that values can break, and give each its word in the status buffer.

        Indices that are surely in range, and exponents that are surely not negative, need none.
        """
        program = self.program
        for position, (op, inputs) in enumerate(program.nodes):
            if isinstance(op, Gather | Scatter) and not self.in_range(position) and program.specs[inputs[1]].size:
                self._add_check(position, Check(len(self.checks), "index", program.specs[inputs[0]].shape[op.axis]))
            elif self._may_be_a_negative_power(position):
                self._add_check(position, Check(len(self.checks), "negative_power"))

    def _may_be_a_negative_power(self, position: int) -> bool:
        """Whether a node raises signed integers to exponents that may be negative."""
        op, inputs = self.program.nodes[position]
        if not isinstance(op, Binary) or op.fn != "power":
            return False
        signed = KIND[self.program.specs[position].dtype] == "signed"
        return signed and not surely_not_negative(self.program, inputs[1])

    def _add_check(self, node: int, check: Check) -> None:
        """Add a check for a node, and a word for it in the status buffer, which is made with the first one."""
        self.rules[node] = check.number
        self.checks.append(check)
        if self.status is None:
            self.status = self.new_slot(0, "status")
        self.slots[self.status] = Slot(4 * len(self.checks), "status")
        self.buffers["status"] = Buffer("status", self.status, "uint32", len(self.checks), access="read_write")

    # -- kernels

    def _make_all(self, program: Program, roots: Sequence[int], parts: Mapping[int, int]) -> None:
        """Values that turn out not to be where their kernel wanted them get a kernel of their own."""
        alone: set[int] = set()
        given = set(self.stored) - set(roots)
        slots, buffers = list(self.slots), dict(self.buffers)
        found = self.convolutions = convolutions_in(program, self.target, roots, {*given, *roots})
        while True:
            builder = KernelBuilder(program, self.target, self.stored, self.buffers, self.rules.get)
            groups = grouped(
                program, self.target, roots, given=given, parts_of=parts, alone=alone, convolutions=set(found)
            )
            read = {each for group in groups for each in group.reads}
            builder.needed = frozenset({*program.outputs, *read})
            for node, (op, _) in enumerate(program.nodes):
                if isinstance(op, Search):
                    builder.searches[node] = f"find_{node}"
                    builder.search_functions[f"find_{node}"] = partial(search_function, builder, node, op)
            for group in groups:
                try:
                    self._make(builder, group)
                except NotInKernel:
                    if len(group.members) == 1:
                        raise
                    alone.update(group.members[1:])
                    break
            else:
                return
            self.steps.clear()
            self.choices.clear()
            self.made.clear()
            self.slots, self.buffers = list(slots), dict(buffers)

    def _make(self, builder: KernelBuilder, group: Group) -> None:
        """Make the kernels of a group by its kind, and note the choices among which tuning may measure."""
        first = group.members[-1]
        op = self.program.nodes[first].op
        name = f"{identifier(op.name)}_{first}"
        before = len(self.steps)
        candidates: Sequence[msgspec.Struct] = ()
        match group.kind:
            case "map":
                candidates = map_shapes(self.target)
                shape = self._pick(name, candidates, GroupShape)
                self.steps.append(map_kernel(builder, group.members, shape, name))
            case "pieces":
                self.steps += piece_kernels(builder, first, GroupShape(), name)
            case "rows":
                candidates = rows_shapes(self.program, self.target, group)
                shape = self._pick(name, candidates, GroupShape)
                if group.parts == 1:
                    self.steps.append(rows_kernel(builder, group, shape, name))
                else:
                    last = last_shape(self.target, group)
                    buffers = part_buffers(builder, group, self.new_slot)
                    self.steps += two_stage_kernels(builder, group, shape, last, name, buffers)
            case "contract":
                convolved = self.convolutions.get(group.members[0])
                candidates = contract_tilings(builder, group, convolved)
                if convolved is not None and isinstance(picked := self.chosen.get(name, candidates[0]), Direct):
                    self.steps.append(convolution_kernel(builder, group, convolved, picked, name))
                else:
                    tiling = self._pick(name, candidates, Tiling)
                    self.steps += product_kernels(builder, group, tiling, name, self.new_slot)
            case _ if isinstance(op, Custom):
                self._launch(first)
            case _ if isinstance(op, Attend):
                candidates = tilings_of(self.program, self.target, first)
                self.steps.append(attention_kernel(builder, first, self._pick(name, candidates, Attending), name))
            case _:
                inputs = self.program.nodes[first].inputs
                distinct = isinstance(op, Scatter) and self.distinct(inputs[1])
                self.steps += operation_kernels(builder, first, self._new_temporary, distinct=distinct)
        if len(candidates) > 1:
            self.choices.append(KernelChoice(name, tuple(candidates), tuple(range(before, len(self.steps)))))

    def _launch(self, node: int) -> None:
        """A user's own kernel, once for all of its results."""
        if node not in self.made:
            launch = self.launches[node]
            self.made.update(launch.nodes.values())
            self.steps.append(
                launch_kernel(launch, self.program, self.target, slot_of=self.slot_of, new_slot=self.new_slot)
            )

    def _pick(self, name: str, candidates: Sequence[msgspec.Struct], kind: type[TunedSizes]) -> TunedSizes:
        """The sizes that tuning chose for a kernel, or the first candidate."""
        picked = self.chosen.get(name, candidates[0])
        if not isinstance(picked, kind):
            raise TypeError(f"{name} takes a {kind.__name__}, not {picked!r}")
        return picked


# -- sizes to begin with; tuning may find better ones

#: Invocations that keep any device busy.
_ENOUGH = 65536
#: Rows that are neighbours: each invocation has a vector of them.
_STRETCHES = GroupShape(group=64, lanes=1, elements=4, vector=4)


def parts_for(program: Program, target: Target, root: int) -> int:
    """Into how many parts the rows of a reduction are cut."""
    rows, length = row_sizes(program, root)
    if not _is_inner(program, root):
        return _parts_of_columns(target, rows, length)
    # Enough parts to keep all invocations busy, each long enough to pay for the second stage.
    parts = min(-(-256 // rows), length // 2048) if rows < 256 and length >= 2 * 2048 else 1
    lanes = min(256, target.group_limit)
    return max(parts, -(-length // (target.loop_limit // 4 * lanes)), 1)


def _parts_of_columns(target: Target, rows: int, length: int) -> int:
    """Rows are neighbours here, and an invocation has a stretch of them: parts are runs of 64 elements or more."""
    parts = 1
    if rows // 4 < _ENOUGH and length >= 128:
        parts = min(-(-_ENOUGH // max(rows // 4, 1)), length // 64)
    return max(parts, -(-length // (target.loop_limit // 2)))


def _is_inner(program: Program, root: int) -> bool:
    """Whether the elements of a row are neighbours in memory, as far as shapes tell; of products, the order of axes."""
    source, axes, batch = _summed(program, root)
    shape = program.specs[source].shape
    others = [axis for axis in (*batch, *free_axes(shape, axes, batch)) if shape[axis] > 1]
    if not others or not isinstance(program.nodes[root].op, Contract):
        return not others or last_long_axis(shape) in axes
    inner, neighbours = last_long_axis(shape) in axes, others[-1]
    while isinstance(op := program.nodes[source].op, Permute) and source not in program.outputs:
        source = program.nodes[source].inputs[0]
        axes, neighbours = tuple(op.axes[axis] for axis in axes), op.axes[neighbours]
    last = last_long_axis(program.specs[source].shape)
    # Rows that lie side by side in another order than they are counted in are no stretches.
    return last in axes or (inner and last != neighbours)


def _summed(program: Program, root: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """The operand of a reduction, or the matrix of a product with a vector; the axes it is summed along; batch axes."""
    op, inputs = program.nodes[root]
    if isinstance(op, Contract):
        left, right = (program.specs[each].shape for each in inputs)
        rows, columns = matrix_sizes(op, left, right)
        if rows == 1 and columns > 1:
            return inputs[1], op.right, op.right_batch
        return inputs[0], op.left, op.left_batch
    return inputs[0], op.axes if isinstance(op, Reduce) else (), ()


def map_shape(target: Target) -> GroupShape:
    """The likely best group shape of a map."""
    return GroupShape(group=min(128, target.group_limit), elements=16 if target.emulated else 4, vector=4)


def map_shapes(target: Target) -> list[GroupShape]:
    """Candidates, the best guess first."""
    first, replace = map_shape(target), msgspec.structs.replace
    others = [replace(first, group=group) for group in (64, 256) if group <= target.group_limit]
    others.append(replace(first, elements=16, group=min(64, target.group_limit)))
    others.append(replace(first, elements=4))
    return list(dict.fromkeys([first, *others]))


def rows_shapes(program: Program, target: Target, group: Group) -> list[GroupShape]:
    """Group shapes for a reduction of rows that tuning may choose from, the likely best first.

    Other numbers of lanes and rows are left out where a loop would be longer than the target's limit.
    """
    first, replace = rows_shape(program, target, group), msgspec.structs.replace
    others: list[GroupShape] = []
    if first.lanes == 1:
        others = [replace(first, group=size) for size in (1, 8, 64)]
    else:
        # All loops of a lane together stay within the limit.
        longest = part_size(group.length, group.parts) * (len(group.reductions) + 1)
        if longest <= target.loop_limit:
            others.append(GroupShape(group=64, lanes=1, vector=4))
        counts = (target.subgroup_size or 8, 32, 64, 128, 256)
        others += [
            replace(first, group=lanes, lanes=lanes)
            for lanes in counts
            if lanes <= target.group_limit and longest <= target.loop_limit * lanes
        ]
        others += [replace(first, rows=rows) for rows in (1, 4, 16) if rows != first.rows and first.rows > 1]
    return list(dict.fromkeys([first, *others]))


def rows_shape(program: Program, target: Target, group: Group) -> GroupShape:
    """The likely best group shape for a reduction of rows: lanes for each row, and rows for each group."""
    length, jobs = part_size(group.length, group.parts), group.rows * group.parts
    if not _is_inner(program, group.reductions[0]):
        return _STRETCHES
    if length < 32:
        return GroupShape(group=64, lanes=1, vector=4)
    lanes = _lanes_for(target, jobs, length)
    # Rows of one group share loads that are the same for all, as long as there are enough groups.
    enough = _enough(target.subgroup_size or 32)
    rows = next((each for each in (16, 8, 4, 2) if jobs % each == 0 and 2 * jobs * lanes >= each * enough), 1)
    return GroupShape(group=lanes, lanes=lanes, rows=rows if length <= 128 * lanes else 1, vector=4)


def _enough(width: int) -> int:
    """Invocations that fill a device with subgroups of a width: processors have narrow ones, and fewer at once."""
    return width * (512 if width <= 8 else 1024)


def _lanes_for(target: Target, rows: int, length: int) -> int:
    """Invocations that share a row: one subgroup, which needs no barriers; more of them where rows are few and long."""
    width = target.subgroup_size or 32
    lanes, most = width, min(256, target.group_limit)
    while lanes < min(most, 8 * width) and lanes * 16 <= length and rows * lanes < _enough(width) // 2:
        lanes *= 2
    while lanes < most and length > lanes * (target.loop_limit // 4):
        lanes *= 2
    while lanes > 8 and lanes * 4 > length:
        lanes //= 2
    return min(lanes, most)


def last_shape(target: Target, group: Group) -> GroupShape:
    """The group shape of the kernel that combines the parts of rows."""
    if group.rows > 64 or group.parts < 64:
        return _STRETCHES
    lanes = _lanes_for(target, group.rows, group.parts)
    return GroupShape(group=lanes, lanes=lanes, vector=4)
