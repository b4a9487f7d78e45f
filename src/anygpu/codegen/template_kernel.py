"""One kernel from a template: its accessors, the buffers that they use, and the text around the template's lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anygpu.codegen.accessors import buffers_of, texts_of
from anygpu.codegen.dialects.printer import Printer
from anygpu.codegen.kernel import Kernel
from anygpu.codegen.kernel_builder import KernelBuilder, body_of
from anygpu.codegen.kernel_ir import Function, names_used

#: More operations than this, and a driver may have to cut the kernel into several dispatches.
_LONG_WORK = 1e9


class TemplateKernel:
    """Binds the buffers of the accessors at once, so that the caller can add vector accessors before it is filled."""

    def __init__(
        self, builder: KernelBuilder, text: Printer, functions: Sequence[Function], written: Sequence[str]
    ) -> None:
        self._builder, self._text, self._functions = builder, text, functions
        statements = [statement for function in functions for statement in body_of(function)]
        self._loads, self._searches = builder.searches_in(names_used(statements))
        self._buffers = buffers_of(builder, [*self._loads, *functions], written)
        text.use(self._buffers, cuttable=False)

    def filled(
        self,
        name: str,
        template: Callable[..., str],
        grid: tuple[int, int],
        *,
        in_vectors: Sequence[str],
        work: float,
        nodes: Sequence[int],
    ) -> Kernel:
        """`template` takes the `Surroundings`, `in_vectors` are vector accessors, and `nodes` are what is computed."""
        text, (groups, group_size) = self._text, grid
        texts = [*texts_of(text, self._loads), *(text.filled(each) for each in self._searches)]
        texts += [*texts_of(text, self._functions), *in_vectors]
        numbers = ["first_group"] if work > _LONG_WORK else []
        numbers += [f"offset_{buffer.name}" for buffer in self._buffers if buffer.has_offset]
        source = template(
            # A total is rounded once for each product that is added, which is also what a BLAS does.
            declarations=text.declarations(numbers).replace("FP_CONTRACT OFF", "FP_CONTRACT ON"),
            functions="\n\n".join(part for part in (text.library_texts(), *texts) if part),
            name=name,
            parameters=text.parameters(numbers),
            pass_=text.handed_on,
            group=text.group_line(groups, numbers),
        )
        return Kernel(
            name=name,
            source=source,
            bindings=text.bindings(),
            groups=groups,
            group_size=group_size,
            numbers=tuple(numbers),
            flops=work,
            bytes_moved=self._builder.work_of(nodes)[1],
        )
