"""Operations of several stages: scans, sorts, scatters and Fourier transforms, from their templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from anygpu.engines.codegen.dialects.printer import Filled
from anygpu.engines.codegen.elementwise import converted, narrowed
from anygpu.engines.codegen.index import Index, flat, unflat
from anygpu.engines.codegen.kernel import Kernel
from anygpu.engines.codegen.kernel_builder import (
    KernelBuilder,
    body_of,
    buffers_of,
    load_function,
    printer,
    store_function,
    texts_of,
)
from anygpu.engines.codegen.kernel_ir import (
    Apply,
    Buffer,
    Expr,
    Function,
    Literal,
    Name,
    Report,
    Statement,
    Store,
    names_used,
)
from anygpu.engines.codegen.lower import Lowering, Value
from anygpu.engines.codegen.target import NARROWED, STORED, ComputeType, components, compute_type
from anygpu.engines.codegen.templates import fourier, scatter, sort
from anygpu.engines.codegen.templates.stages import Stage, Stages, Temporary, fill
from anygpu.program.dtypes import ITEMSIZE, DType
from anygpu.program.primitives import Argsort, Fourier, Scan, Scatter, Search, Sort, product

#: Makes a slot of a number of bytes, with its contents when it is a constant.
NewSlot = Callable[[int, bytes | None], int]


def operation_kernels(builder: KernelBuilder, node: int, new_slot: NewSlot, *, distinct: bool) -> list[Kernel]:
    """The kernels of a scan, sort, scatter or transform. `new_slot` makes memory for what its stages hand on.

    With `distinct` no two updates of a scatter go to the same element. Raises `NotImplementedError` for other
    operations.
    """
    op = builder.program.nodes[node].op
    match op:
        case Scan():
            described, ends = _scan(builder, node, op)
        case Sort() | Argsort():
            described, ends = _sort(builder, node, op)
        case Scatter():
            described, ends = _scatter(builder, node, op, distinct)
        case Fourier():
            described, ends = _fourier(builder, node, op)
        case _:
            raise NotImplementedError(f"no kernels for {op}")
    return _kernels(builder, node, described, ends, new_slot)


class Ends(msgspec.Struct, frozen=True):
    """The accessors of an operation, by the end that stages name: "in", "out", and so on."""

    functions: dict[str, list[Function]]


def carried(dtype: DType) -> tuple[ComputeType, ...]:
    """The components that templates see: a truth value is a number there."""
    type = compute_type(dtype)
    return ("u32" if type == "bool" else type,) * components(dtype)


def _as_number(value: Value) -> Value:
    return tuple(converted(each, "u32") if each.type == "bool" else each for each in value)


# -- one value for each place along an axis


def _along(shape: Sequence[int], axis: int) -> Callable[[Mapping[str, Index]], tuple[Index, ...]]:
    """Positions of a row and a place in it."""
    others = [number for number in range(len(shape)) if number != axis]

    def positions(at: Mapping[str, Index]) -> tuple[Index, ...]:
        along = dict(zip(others, unflat(at["row"], [shape[number] for number in others]), strict=True))
        along[axis] = at["i"]
        return tuple(along[number] for number in range(len(shape)))

    return positions


def _row_ends(
    builder: KernelBuilder,
    node: int,
    source: int,
    axis: int,
    types: Sequence[ComputeType],
    result: Sequence[ComputeType],
) -> Ends:
    """The functions that load rows along an axis and store them, a function for each component.

    `types` are the components that are loaded, `result` those that are stored.
    """
    shape, made = builder.program.specs[source].shape, builder.program.specs[node].shape
    positions, placed = _along(shape, axis), _along(made, axis)
    lengths = {"row": product(shape) // shape[axis], "i": shape[axis]}
    places = {"row": lengths["row"], "i": made[axis]}

    def at(lowering: Lowering, where: Mapping[str, Index]) -> Value:
        return _as_number(lowering.value(source, positions(where)))

    loads = [load_function(builder, f"load_{part}", lengths, part, at, without=[node]) for part in range(len(types))]
    stores = [
        _store_part(builder, node, part, len(result), type, places, lambda where: flat(placed(where), made))
        for part, type in enumerate(result)
    ]
    return Ends({"in": loads, "out": stores})


def _store_part(
    builder: KernelBuilder,
    node: int,
    part: int,
    parts: int,
    type: ComputeType,
    lengths: Mapping[str, int],
    place: Callable[[Mapping[str, Index]], Index],
) -> Function:
    """One component of the result, in its own type."""
    dtype = builder.program.specs[node].dtype

    def put(lowering: Lowering, where: Mapping[str, Index], value: Value) -> None:
        stored = builder.stored[node]
        wanted = compute_type(dtype)
        result: Expr = value[0]
        if wanted != "bool":
            result = narrowed(converted(result, wanted), dtype) if parts == 1 else result
        elif stored.dtype == "bool":
            result = Apply("not_equal", (result, Literal(0, "u32")), "bool")
        lowering.add(Store(stored.buffer, place(where) * parts + part, result))

    return store_function(builder, f"store_{part}", lengths, [type], put, without=[node])


def _scan(builder: KernelBuilder, node: int, op: Scan) -> tuple[Stages, Ends]:
    """The stages of a running reduction, and the functions that load and store its rows.

    float16 and bfloat16 are rounded after each step, as NumPy's running sums are.
    """
    (source,) = builder.program.nodes[node].inputs
    spec = builder.program.specs[source]
    types = carried(spec.dtype)
    rows, length = spec.size // spec.shape[op.axis], spec.shape[op.axis]
    # A partial result that overflows a narrow type stays infinite, as in NumPy.
    narrow = NARROWED.get(spec.dtype) if spec.dtype in ("float16", "bfloat16") else None
    described = sort.scan_stages(builder.target, rows, length, op.fn, types, name=f"scan_{node}", narrowed=narrow)
    return described, _row_ends(builder, node, source, op.axis, types, types)


def _sort(builder: KernelBuilder, node: int, op: Sort | Argsort) -> tuple[Stages, Ends]:
    """The stages of a sort, and the functions at its ends; `Argsort` stores positions in place of values."""
    (source,) = builder.program.nodes[node].inputs
    spec = builder.program.specs[source]
    types = carried(spec.dtype)
    rows, length = spec.size // spec.shape[op.axis], spec.shape[op.axis]
    positions = isinstance(op, Argsort)
    described = sort.sort_stages(builder.target, rows, length, types, positions=positions, name=f"sort_{node}")
    result: Sequence[ComputeType] = ("i32",) if positions else types
    return described, _row_ends(builder, node, source, op.axis, types, result)


def _fourier(builder: KernelBuilder, node: int, op: Fourier) -> tuple[Stages, Ends]:
    """The stages of a Fourier transform, and the functions at its ends."""
    (source,) = builder.program.nodes[node].inputs
    spec, made = builder.program.specs[source], builder.program.specs[node]
    type = compute_type(spec.dtype)
    rows = spec.size // spec.shape[op.axis]
    described = fourier.stages(builder.target, rows, op.length, op.fn, type, name=f"fourier_{node}")
    return described, _row_ends(builder, node, source, op.axis, carried(spec.dtype), carried(made.dtype))


# -- scatters


#: Truth values are added as numbers are compared.
_OF_TRUTH = {"add": "maximum", "multiply": "minimum"}


def _scatter(builder: KernelBuilder, node: int, op: Scatter, distinct: bool) -> tuple[Stages, Ends]:
    """The stages of a scatter, and the functions at its ends. For bools maxima are "or", and minima "and"."""
    program = builder.program
    array, indices, updates = program.nodes[node].inputs
    shape, index_spec = program.specs[array].shape, program.specs[indices]
    layout = scatter.ScatterLayout(
        batch=product(shape[: op.batch]),
        before=product(shape[op.batch : op.axis]),
        axis=shape[op.axis],
        after=product(shape[op.axis + 1 :]),
        positions=product(index_spec.shape[op.batch :]),
    )
    types = carried(program.specs[array].dtype)
    fn = _OF_TRUTH.get(op.fn, op.fn) if program.specs[array].dtype == "bool" else op.fn
    index_type = compute_type(index_spec.dtype)
    described = scatter.stages(
        builder.target, fn, layout, types, index_type, distinct=distinct and layout.batch == 1, name=f"scatter_{node}"
    )
    row_length, update_length = layout.axis * layout.after, layout.positions * layout.after
    whole = {"row": layout.rows, "i": row_length}
    functions: dict[str, list[Function]] = {"x": [], "out": [], "updates": [], "indices": [], "status": []}

    def reads(source: int, length: int, name: str = "row") -> Callable[[Lowering, Mapping[str, Index]], Value]:
        def at(lowering: Lowering, where: Mapping[str, Index]) -> Value:
            place = where[name] * length + where["i"]
            return _as_number(lowering.value(source, unflat(place, program.specs[source].shape)))

        return at

    for part, type in enumerate(types):
        functions["x"].append(
            load_function(builder, f"load_{part}", whole, part, reads(array, row_length), without=[node])
        )
        functions["out"].append(
            _store_part(builder, node, part, len(types), type, whole, lambda at: at["row"] * row_length + at["i"])
        )
        functions["updates"].append(
            load_function(
                builder,
                f"load_update_{part}",
                {"row": layout.rows, "i": update_length},
                part,
                reads(updates, update_length),
                without=[node],
            )
        )
    functions["indices"].append(
        load_function(
            builder,
            "load_index",
            {"row": layout.batch, "i": layout.positions},
            0,
            reads(indices, layout.positions),
            without=[node],
        )
    )
    functions["status"].append(_report_function(builder, node, index_type))
    return described, Ends(functions)


def _report_function(builder: KernelBuilder, node: int, type: ComputeType) -> Function:
    """The function that a template calls with an index out of range; it does nothing where that cannot happen."""
    rule = builder.rule_of(node)
    value = Name("value", type)
    body: tuple[Statement, ...] = ()
    if rule is not None:
        body = (Report(rule, Literal(True, "bool"), converted(value, "i32")),)
    return Function("report", (value,), body)


# -- searches


def search_function(builder: KernelBuilder, node: int, op: Search) -> tuple[list[Function], Filled]:
    """The functions that a call of `find_<node>` needs: the accessors of the line, and the search itself."""
    line = builder.program.nodes[node].inputs[0]
    spec = builder.program.specs[line]
    types = carried(spec.dtype)

    def at(lowering: Lowering, where: Mapping[str, Index]) -> Value:
        return _as_number(lowering.value(line, (where["i"],)))

    loads = [
        load_function(builder, f"load_line_{node}_{part}", {"i": spec.shape[0]}, part, at) for part in range(len(types))
    ]
    text, calls = sort.search_text(
        builder.target, f"find_{node}", types, spec.shape[0], op.side, line=f"load_line_{node}"
    )
    return loads, Filled(text, calls)


# -- stages become kernels


def _kernels(builder: KernelBuilder, node: int, described: Stages, ends: Ends, new_slot: NewSlot) -> list[Kernel]:
    """The kernels of all stages, with slots for the temporaries between them."""
    temporaries, stages = described
    slots: dict[str, Buffer] = {}
    for each in temporaries:
        dtype = STORED[each.type]
        slot = new_slot(each.size * ITEMSIZE[dtype], each.data)
        slots[each.name] = Buffer(each.name, slot, dtype, each.size)
    return [_kernel(builder, node, stage, temporaries, slots, ends) for stage in stages]


def _kernel(
    builder: KernelBuilder,
    node: int,
    stage: Stage,
    temporaries: Sequence[Temporary],
    slots: Mapping[str, Buffer],
    ends: Ends,
) -> Kernel:
    """The kernel of one stage: its template filled with declarations, accessors and the library's functions.

    Only the buffers that the stage names are bound, and only those that it writes may be written.
    """
    named = dict.fromkeys((*stage.reads, *stage.writes))
    functions = [function for end in named if end in ends.functions for function in ends.functions[end]]
    called = names_used([statement for function in functions for statement in body_of(function)])
    loads, templates = builder.searches_in(called)
    written = [builder.stored[node].buffer]
    buffers = buffers_of(builder, [*loads, *functions], written)
    for each in temporaries:
        if each.name not in named:
            continue
        access = "read_write" if each.name in stage.writes or each.name in stage.atomics else "read"
        buffers.append(
            msgspec.structs.replace(
                slots[each.name],
                name=stage.names.get(each.name, each.name),
                access=access,
                atomic=each.name in stage.atomics,
            )
        )
    text = printer(builder.target)
    text.use(buffers, cuttable=False)
    accessor_texts = [*texts_of(text, loads), *(text.filled(each) for each in templates), *texts_of(text, functions)]
    calls = {name: text.library_name(fn, type) for name, (fn, type) in stage.calls.items()}
    numbers = [f"offset_{buffer.name}" for buffer in buffers if buffer.has_offset]
    source = fill(
        builder.target.dialect,
        stage,
        {
            "declarations": text.declarations(numbers),
            "functions": "\n\n".join(part for part in (text.library_texts(), *accessor_texts) if part),
            "name": stage.name,
            "parameters": text.parameters(numbers),
            "group": text.group_line(stage.groups, numbers),
            "pass": text.handed_on,
            "taken": "".join(f"{each}, " for each in text.taken),
            **calls,
        },
    )
    work, moved = builder.work_of([node])
    return Kernel(
        name=stage.name,
        source=source,
        bindings=text.bindings(),
        groups=stage.groups,
        group_size=stage.group_size,
        numbers=tuple(numbers),
        flops=work,
        bytes_moved=moved,
    )
