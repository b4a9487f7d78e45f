"""Commands written down as the library wants them: as few passes as possible, and timestamps around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import wgpu

from anygpu.engines.driver import Clear, Command, Dispatch, Move
from anygpu.engines.webgpu.bind_groups import BindGroups, Numbers, buffer_of, round_up
from anygpu.engines.webgpu.pace import GridPart, Stopwatch
from anygpu.engines.webgpu.pipelines import BuiltKernel, grid_of
from anygpu.engines.webgpu.submission import (
    Gate,
    NativeCalls,
    NativeClear,
    NativeCopy,
    NativeLaunch,
    NativeStep,
    Replay,
)

BLOCK_USAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST

#: A command, and which of its groups; `None` for all of it.
CommandStep = tuple[Command, GridPart | None]


class Encoder:
    """Turns commands into submissions: one for each call of `submit`, more only when the numbers' table is full."""

    def __init__(
        self,
        device: Any,
        groups: BindGroups,
        numbers: Numbers,
        stopwatch: Stopwatch | None,
        fold: int,
        gate: Gate,
    ) -> None:
        self._device = device
        self._groups = groups
        self._numbers = numbers
        self._stopwatch = stopwatch
        self._fold = fold
        self._gate = gate
        self._encoder: Any = None
        #: The open pass and its pipeline. Consecutive launches share a pass, in which the device keeps their order.
        self._pass: Any = None
        self._pipeline: Any = None

    def submit(self, steps: Sequence[CommandStep], *, begins: bool = False, ends: bool = False) -> int:
        """Send the steps and return the number of dispatches. `begins` and `ends` say what the stopwatch marks here."""
        self._encoder = self._device.create_command_encoder()
        self._pass = None
        # An end mark belongs to the pass after the last copy; without such a pass, to an empty one.
        last_copy = max((place for place, step in enumerate(steps) if type(step[0]) is not Dispatch), default=-1)
        dispatches = 0
        for place, (command, part) in enumerate(steps):
            if isinstance(command, Dispatch):
                closing = ends and place > last_copy
                opened = self._launch(command, part, begins=begins, ends=closing)
                dispatches += opened
                begins = begins and not opened
                continue
            if begins:
                self._empty_pass(begins=True)
                begins = False
            self._end_pass()
            self._copy_or_clear(command)
        marked = self._pass is not None
        self._end_pass()
        if ends and self._stopwatch is not None:
            if not marked:
                self._empty_pass(begins=begins, ends=True)
            self._stopwatch.resolve(self._encoder)
        self._numbers.flush()
        self._gate.send(self._encoder)
        self._encoder = None
        return dispatches

    def replay_of(self, commands: Sequence[Command], native: NativeCalls) -> Replay | None:
        """The submission that `submit` sends for these, to repeat it; `None` where it makes something new each time."""
        steps: list[NativeStep] = []
        keep: list[Any] = []
        for command in commands:
            if not isinstance(command, Dispatch):
                step = _native_copy(command)
                if step is None:
                    return None
                steps.append(step)
                continue
            built: BuiltKernel = command.built
            if not all(built.grid):
                continue
            group = self._groups.get(built.layout, command.extents)
            place = self._numbers.place(command.numbers) if command.numbers else None
            if place is None and command.numbers:
                return None
            steps.append(native.launch(built.pipeline, group, place, built.grid))
            keep += (built.pipeline, group)
        self._numbers.flush()
        return Replay(steps, sum(isinstance(step, NativeLaunch) for step in steps), keep)

    def _launch(self, launch: Dispatch, part: GridPart | None, *, begins: bool, ends: bool) -> bool:
        """Whether there was anything to dispatch."""
        built: BuiltKernel = launch.built
        numbers: tuple[int, ...] = launch.numbers
        grid: tuple[int, ...] = built.grid
        if part is not None and part.groups != built.kernel.groups:
            numbers = built.starting_at(part.first_group, numbers)
            grid = grid_of(part.groups, self._fold)
        if not all(grid):
            return False
        group = self._groups.get(built.layout, launch.extents)
        place = self._place(numbers) if numbers else None
        if self._pass is None:
            self._begin_pass(begins=begins, ends=ends)
        if built.pipeline is not self._pipeline:
            self._pass.set_pipeline(built.pipeline)
            self._pipeline = built.pipeline
        if place is None:
            self._pass.set_bind_group(0, group)
        else:
            self._pass.set_bind_group(0, group, (place,))
        self._pass.dispatch_workgroups(*grid)
        return True

    def _place(self, numbers: tuple[int, ...]) -> int:
        place = self._numbers.place(numbers)
        if place is None:
            # The places in use are free only after what uses them: send that, and begin again.
            self._end_pass()
            self._numbers.flush()
            self._gate.send(self._encoder)
            self._numbers.clear()
            self._encoder = self._device.create_command_encoder()
            place = self._numbers.place(numbers)
        if place is None:
            raise ValueError(f"a kernel cannot take {len(numbers)} numbers.")
        return place

    def _begin_pass(self, *, begins: bool, ends: bool) -> None:
        marks = {}
        if self._stopwatch is not None and (begins or ends):
            marks = self._stopwatch.marks(begins=begins, ends=ends)
        self._pass = self._encoder.begin_compute_pass(**marks)
        self._pipeline = None

    def _end_pass(self) -> None:
        if self._pass is not None:
            self._pass.end()
            self._pass = None

    def _empty_pass(self, *, begins: bool = False, ends: bool = False) -> None:
        self._begin_pass(begins=begins, ends=ends)
        self._end_pass()

    def _copy_or_clear(self, command: Move | Clear) -> None:
        target = command.target if isinstance(command, Move) else command.extent
        buffer = buffer_of(target)
        nbytes = round_up(target.nbytes, 4)
        if not nbytes:
            return
        if isinstance(command, Clear):
            self._encoder.clear_buffer(buffer, target.offset, nbytes)
            return
        if command.source.nbytes != target.nbytes:
            raise ValueError(f"{command.source.nbytes} bytes cannot be moved to {target.nbytes}.")
        source, offset = buffer_of(command.source), command.source.offset
        if source is buffer:
            # WebGPU copies only between different buffers. The library frees this one after the copy.
            between = self._device.create_buffer(size=nbytes, usage=BLOCK_USAGE)
            self._encoder.copy_buffer_to_buffer(source, offset, between, 0, nbytes)
            source, offset = between, 0
        self._encoder.copy_buffer_to_buffer(source, offset, buffer, target.offset, nbytes)


def _native_copy(command: Move | Clear) -> NativeStep | None:
    """As `_copy_or_clear` does it."""
    target = command.target if isinstance(command, Move) else command.extent
    buffer, nbytes = buffer_of(target), round_up(target.nbytes, 4)
    if not nbytes:
        return None
    if isinstance(command, Clear):
        return NativeClear(buffer._internal, target.offset, nbytes)
    source = buffer_of(command.source)
    if source is buffer or command.source.nbytes != target.nbytes:
        return None
    return NativeCopy(source._internal, command.source.offset, buffer._internal, target.offset, nbytes)
