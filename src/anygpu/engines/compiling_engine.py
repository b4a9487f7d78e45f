"""What the engines that compile have in common: what they cannot do, a session for each device, and their methods.

`CompilingEngine` implements the protocol over `Session`: buffers are `DeviceArray`s, and executables
`CompiledProgram`s. An engine adds how its devices are found, verified and opened, by a `Driver`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.engines.codegen.custom.reflected import Reflected
from anygpu.engines.compiling_session import CompiledProgram, DeviceArray, Session
from anygpu.engines.driver import ARRAYS, Bytes, Counters, Driver, ReadsKernels
from anygpu.engines.host_arrays import dtype_name, numpy_dtype
from anygpu.engines.protocol import Lack
from anygpu.errors import AnyGPUError, DeviceLost, InvalidOption, Unsupported
from anygpu.hardware.device import Device
from anygpu.program.graph import Program
from anygpu.program.primitives import Spec

# -- what the engines that compile have in common
#
# For each device a session, and the engine's methods in its terms.


class CompilingEngine:
    """The part of an engine that runs programs. What it is mixed into opens devices and knows their errors."""

    #: The distributions whose versions change what kernels become.
    libraries: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        """Sessions are opened when their devices are first used."""
        self._sessions: dict[str, Session] = {}
        self._opening = threading.Lock()
        #: For each device's id the most bytes of its memory that a session may take; read when the session opens.
        self.budgets: dict[str, int] = {}

    def open(self, device: Device) -> Driver:
        raise NotImplementedError

    def classify(self, error: BaseException, device: Device) -> AnyGPUError | None:
        raise NotImplementedError

    def session(self, device: Device) -> Session:
        """The device, opened when it is first needed."""
        found = self._sessions.get(device.id)
        if found is None:
            with self._opening:
                found = self._sessions.get(device.id)
                if found is None:
                    found = self._sessions[device.id] = Session(
                        self.open(device),
                        device,
                        classify=self.classify,
                        libraries=self.libraries,
                        budget=self.budgets.get(device.id),
                    )
        return found

    def prepare(self, device: Device, *, budget: int | None = None) -> None:
        """Open a device ahead of its first use, with a budget for its memory where one is given."""
        if budget is not None:
            self.budgets[device.id] = budget
        # Reading the target opens the device and, the first time ever, tries its built-in functions.
        _ = self.session(device).target

    def reflected(self, source: str, entry: str | None, title: str, device: Device) -> Reflected:
        """Return what a user's kernel takes, as the driver's compiler says."""
        session = self.session(device)
        if not isinstance(session.driver, ReadsKernels):
            raise Unsupported("reading a kernel's text", device.id)
        with session.lock:
            return session.driver.reflected(source, entry, title)

    def supports(self, program: Program, device: Device) -> list[Lack]:
        return self.session(device).lacks(program)

    def compile(self, program: Program, device: Device) -> CompiledProgram:
        return self.session(device).compiled(program)

    def upload(self, values: HostArray, device: Device) -> DeviceArray:
        session = self.session(device)
        return DeviceArray(session, session.uploaded(_bytes_of(values)), _spec_of(values))

    def download(self, buffer: DeviceArray) -> HostArray:
        return buffer.session.downloaded(buffer)

    def download_into(self, buffer: DeviceArray, target: HostArray) -> None:
        """Like `download`, into an array of the same shape and type whose values lie one after the other."""
        _require_fit(buffer, target)
        buffer.session.downloaded_into(buffer, target.reshape(-1).view(np.uint8))

    def execute(self, executable: CompiledProgram, buffers: Sequence[DeviceArray]) -> list[DeviceArray]:
        return executable.session.run(executable, buffers)

    def can_overlap(self, device: Device) -> bool:
        return self.session(device).apart is not None

    def execute_apart(self, executable: CompiledProgram, buffers: Sequence[DeviceArray]) -> list[DeviceArray]:
        return executable.session.run_apart(executable, buffers)

    def upload_apart(self, values: HostArray, device: Device) -> DeviceArray:
        session = self.session(device)
        return DeviceArray(session, session.uploaded_apart(_bytes_of(values)), _spec_of(values))

    def download_apart(self, buffer: DeviceArray, target: HostArray) -> None:
        _require_fit(buffer, target)
        buffer.session.downloaded_apart(buffer, target.reshape(-1).view(np.uint8))

    def execute_timed(
        self, executable: CompiledProgram, buffers: Sequence[DeviceArray]
    ) -> tuple[list[DeviceArray], float | None]:
        """The results, and the seconds by the device's own clock; `None` where it has none. Waits for the device."""
        session = executable.session
        results = session.run(executable, buffers, timed=True)
        with session.lock:
            return results, session.driver.device_seconds()

    def counters(self, device: Device) -> Counters:
        """What the driver has done for programs so far; what kernels were tried out for is left out."""
        return self.session(device).work()

    def reset_peak(self, device: Device) -> None:
        """Let `peak_bytes` begin anew at what is in use now."""
        self.session(device).memory.reset_peak()

    def bytes_in_use(self, device: Device) -> int:
        """The bytes of arrays, in whole blocks: without constants, and without cached memory."""
        session = self._sessions.get(device.id)
        held = session.memory.snapshot().by_owner.get(ARRAYS) if session is not None else None
        return held.bytes if held is not None else 0

    def bytes_by_owner(self, device: Device) -> dict[str, int]:
        """Of everything that this process has there."""
        session = self._sessions.get(device.id)
        if session is None:
            return {}
        return {owner: held.bytes for owner, held in session.memory.snapshot().by_owner.items()}

    def peak_bytes(self, device: Device) -> int:
        """The most bytes that were in use at once since `reset_peak`."""
        return self.session(device).memory.snapshot().peak_bytes

    def reclaim(self, device: Device) -> int:
        """Give back the memory that is kept for later: how many bytes of the device's."""
        return self.session(device).reclaim()

    def native(self, buffer: DeviceArray) -> HostArray:
        """The library's buffers do not speak DLPack; a copy on the host does."""
        return self.download(buffer)

    def adopt(self, array: Any, device: Device) -> DeviceArray:
        return self.upload(np.from_dlpack(array), device)

    def synchronize(self, device: Device) -> None:
        self.session(device).synchronize()

    def close_sessions(self) -> None:
        """Close the sessions of all devices. A device that is lost has nothing left to close."""
        while self._sessions:
            _, session = self._sessions.popitem()
            try:
                session.close()
            except DeviceLost:
                continue


def _bytes_of(values: HostArray) -> Bytes:
    return np.ascontiguousarray(values, values.dtype.newbyteorder("=")).reshape(-1).view(np.uint8)


def _spec_of(values: HostArray) -> Spec:
    return Spec(values.shape, dtype_name(values.dtype))


def _require_fit(buffer: DeviceArray, target: HostArray) -> None:
    """Raise `InvalidOption` unless an array on the host has the shape and type, in order."""
    if target.shape != buffer.spec.shape or target.dtype != numpy_dtype(buffer.spec.dtype):
        raise InvalidOption(f"{buffer!r} does not fit into {target.dtype} of shape {target.shape}.")
    if not target.flags.c_contiguous:
        raise InvalidOption("values can only be read into a contiguous array.")
