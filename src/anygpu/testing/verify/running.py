"""Tries a device within a time: every check gets its share, and what one leaves over goes to those after it.

`DeviceTrial` runs the checks and makes findings small; `verify_device` opens the device, has it tried, and puts the
record together. Whatever a device raises is a finding, and an interruption keeps what was found so far.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import metadata
from itertools import islice
from typing import Protocol

from anygpu.base.disturbance import conditions, read_processors
from anygpu.base.version import __version__
from anygpu.engines.catalogue import entry_of
from anygpu.errors import AllocationError, DeviceHung, DeviceLost, DevicePoisoned, DeviceUnavailable, PoisonTask
from anygpu.hardware import host
from anygpu.hardware.device import Device
from anygpu.testing.verify import (
    CASE_SECONDS,
    CallTiming,
    CheckEnd,
    CheckRecord,
    FindingKind,
    Owner,
    ProgramCase,
    Subject,
    Suspect,
    Tried,
    VerifiedDevice,
    VerifiedMachine,
    VerifyCase,
    VerifyCheck,
    VerifyRecord,
    WrongCase,
    differing,
    operations,
    reduced,
    skipped_for_memory,
    this_owner,
    without_personal_data,
)
from anygpu.workers.device_arrays.registry import DeviceRegistry, registry

#: Findings of one check that are kept and made small. More of them tell little.
MOST_FINDINGS = 5
#: Seconds in which a finding is made small, and all findings of a device.
REDUCING_SECONDS = 10.0
ALL_REDUCING_SECONDS = 60.0
#: After so many crashes and hangs the device is left alone.
MOST_DEATHS = 4
#: Characters of a message that are kept.
_MOST_TEXT = 600

_DEATHS = (DeviceLost, DevicePoisoned, PoisonTask)


class Watcher(Protocol):
    """An observer of a verification, who is told how far it is; `cli.verify.Screen` is one."""

    def begun(self, check: VerifyCheck, cases: int) -> None: ...

    def advanced(self, check: VerifyCheck, tried: int) -> None: ...

    def found(self, finding: WrongCase) -> None: ...

    def ended(self, record: CheckRecord) -> None: ...


class _Attempt:
    """One check, as far as it was tried: its cases that are left, and the counts of those that were tried.

    With a `number`, only the case of that number is tried.
    """

    def __init__(self, check: VerifyCheck, subject: Subject, number: int | None) -> None:
        self.check = check
        self.number = number
        self.count = 1 if number is not None else check.count(subject)
        every = check.cases(subject)
        self.cases = every if number is None else islice((case for case in every if case.number == number), 1)
        self.is_begun = False
        self.ended: CheckEnd | None = None
        self.tried = self.wrong = self.hosted = self.skipped = 0
        self.reasons: Counter[str] = Counter()
        self.seconds = 0.0
        self.latest = Tried()

    def add(self, result: Tried) -> None:
        self.latest = result
        self.tried += 1
        self.wrong += bool(result.wrong)
        self.hosted += result.hosted
        self.skipped += bool(result.skipped)
        self.reasons.update([result.skipped] if result.skipped else [])

    def record(self) -> CheckRecord:
        """The counts as a record; a check that did not end was interrupted."""
        return CheckRecord(
            name=self.check.name,
            proves=self.check.proves,
            cases=self.count,
            tried=self.tried,
            wrong=self.wrong,
            hosted=self.hosted,
            skipped=self.skipped,
            reasons=dict(self.reasons),
            seconds=round(self.seconds, 3),
            ended=self.ended or "interrupted",
        )


class TrialOutcome:
    """The findings and timings so far, so that an interruption loses nothing."""

    def __init__(self) -> None:
        self.attempts: list[_Attempt] = []
        self.findings: list[WrongCase] = []
        self.timings: list[CallTiming] = []

    @property
    def checks(self) -> tuple[CheckRecord, ...]:
        return tuple(attempt.record() for attempt in self.attempts)


class DeviceTrial:
    """The checks of one device, within so many `seconds` together.

    After `MOST_DEATHS` crashes and hangs the device is left alone.
    """

    def __init__(
        self,
        subject: Subject,
        watcher: Watcher,
        *,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        owner: Owner | None = None,
    ) -> None:
        self.outcome = TrialOutcome()
        self._subject = subject
        self._watcher = watcher
        self._clock = clock
        self._end = clock() + seconds
        self._owner = owner or this_owner()
        self._deaths = 0
        self._reducing_left = ALL_REDUCING_SECONDS

    def run(self, checks: Sequence[VerifyCheck], *, number: int | None = None) -> TrialOutcome:
        """Try everything, or of each check the case of one number. Ctrl-C ends it with what there is."""
        with contextlib.suppress(KeyboardInterrupt):  # one that comes between two checks
            self._run(checks, number)
        return self.outcome

    def _run(self, checks: Sequence[VerifyCheck], number: int | None) -> None:
        """Each check for its share of the time; then those that did not end, for what is left."""
        attempts = [_Attempt(check, self._subject, number) for check in checks]
        self.outcome.attempts = attempts
        for unfinished in (attempts, attempts):
            waiting = [attempt for attempt in unfinished if attempt.ended is None]
            for position, attempt in enumerate(waiting):
                left = max(self._end - self._clock(), 0.0)
                share = attempt.check.share / sum(each.check.share for each in waiting[position:])
                self._try_check(attempt, self._clock() + left * share)
                if attempt.ended is not None:
                    self._watcher.ended(attempt.record())
                if attempt.ended in ("interrupted", "given up"):
                    for other in attempts:
                        other.ended = other.ended or attempt.ended
                    return
        for attempt in attempts:
            if attempt.ended is None:
                attempt.ended = "time"
                self._watcher.ended(attempt.record())

    def _try_check(self, attempt: _Attempt, until: float) -> None:
        """Until the time, or until there are no more cases."""
        begin = self._clock()
        if not attempt.is_begun:
            attempt.is_begun = True
            self._watcher.begun(attempt.check, attempt.count)
        try:
            while self._clock() < until or attempt.number is not None:
                case = next(attempt.cases, None)
                if case is None:
                    attempt.ended = "complete"
                    break
                attempt.add(self._try_case(attempt.check, case, keep=attempt.wrong < MOST_FINDINGS))
                self.outcome.timings.extend(attempt.latest.timings)
                self._watcher.advanced(attempt.check, attempt.tried)
                if self._deaths >= MOST_DEATHS:
                    attempt.ended = "given up"
                    break
        except KeyboardInterrupt:
            attempt.ended = "interrupted"
        attempt.seconds += self._clock() - begin

    def _try_case(self, check: VerifyCheck, case: VerifyCase, *, keep: bool) -> Tried:
        """Tries one case. An exception of the device is a finding; too little memory only skips the case.

        With `keep` a wrong case is reduced and recorded.
        """
        kind: FindingKind = "differs"
        error: Exception | None = None
        try:
            result = case.attempt(self._subject)
        except AllocationError as refusal:
            return skipped_for_memory(refusal)
        except Exception as raised:  # noqa: BLE001 - whatever a device raises is a finding
            error, kind = raised, kind_of(raised)
            suspect = Suspect(case.program, case.inputs) if isinstance(case, ProgramCase) else None
            result = Tried(f"it raised {type(raised).__name__}: {raised}", suspect=suspect)
        if kind in ("crashes", "hangs"):
            self._deaths += 1
        if result.wrong and keep:
            self._note(check, case, kind, result, error)
        return result

    def _note(
        self, check: VerifyCheck, case: VerifyCase, kind: FindingKind, result: Tried, error: Exception | None
    ) -> None:
        """Records a wrong case with its reduced program and the command that repeats it; a hang is not reduced."""
        suspect = result.suspect
        before = len(suspect.program) if suspect is not None else None
        if suspect is not None and kind != "hangs":
            suspect = self._reduced(suspect, error)
        device = self._subject.device
        finding = WrongCase(
            check=check.name,
            case=case.name,
            seed=case.number,
            kind=kind,
            sentence=self._cleaned(result.wrong),
            driver=driver_of(device),
            operations=operations(suspect.program) if suspect is not None else (),
            program=self._cleaned(str(suspect.program), 4000) if suspect is not None else None,
            nodes=len(suspect.program) if suspect is not None else None,
            nodes_before=before,
            command=f"anygpu verify {device.id} --only {check.name} --seed {case.number}",
        )
        self.outcome.findings.append(finding)
        self._watcher.found(finding)

    def _reduced(self, suspect: Suspect, error: Exception | None) -> Suspect:
        """The smallest program that is wrong in the same way, found within the time for reducing.

        An error has to be of the same class; a difference has to be one without doubt.
        """
        begin = self._clock()
        until = begin + min(REDUCING_SECONDS, self._reducing_left)

        def is_wrong(smaller: Suspect) -> bool:
            try:
                results = self._subject.run(smaller.program, smaller.inputs).results
            except Exception as raised:  # noqa: BLE001 - compared with what it raised before
                return error is not None and type(raised) is type(error)
            return error is None and differing(smaller, results)

        try:
            return reduced(suspect, is_wrong, has_time=lambda: self._clock() < until)
        except Exception:  # noqa: BLE001 - the whole program is good enough when NumPy cannot compute a part of it
            return suspect
        finally:
            self._reducing_left -= self._clock() - begin

    def _cleaned(self, text: str, most: int = _MOST_TEXT) -> str:
        """The text without personal data, cut to so many characters."""
        text = without_personal_data(text, self._owner)
        return text if len(text) <= most else f"{text[:most]} …"


def kind_of(error: Exception) -> FindingKind:
    """Whether an error of a device is a hang, a crash or an ordinary exception."""
    if isinstance(error, DeviceHung):
        return "hangs"
    return "crashes" if isinstance(error, (*_DEATHS, DeviceUnavailable)) else "raises"


def driver_of(device: Device) -> str:
    """What the driver calls itself, or why there is no name."""
    return device.driver or f"none: {device.unknown.get('driver', 'it was not asked for')}"


# -- one device from beginning to end: its checks, and the record of them


def verify_device(
    device: Device,
    checks: Sequence[VerifyCheck],
    watcher: Watcher,
    *,
    seconds: float,
    number: int | None = None,
    places: DeviceRegistry = registry,
    timeout: float = CASE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> VerifyRecord:
    """Tries the checks on the device; with a `number`, only the case of that number in each.

    The device is opened first, and the time begins then. Raises `DeviceUnavailable` if it cannot be opened.
    """
    subject = Subject(device, places=places, timeout=timeout)
    # Before the time begins: loading a library takes as long as hundreds of cases.
    _ = subject.worker
    begin, before = clock(), read_processors()
    trial = DeviceTrial(subject, watcher, seconds=seconds, clock=clock)
    outcome = trial.run(checks, number=number)
    return VerifyRecord(
        anygpu=__version__,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        device=facts_of(device),
        machine=this_machine(device),
        seconds=round(clock() - begin, 1),
        budget=seconds,
        disturbed=conditions(before, read_processors()).disturbed,
        checks=outcome.checks,
        findings=tuple(outcome.findings),
        timings=tuple(outcome.timings),
    )


def facts_of(device: Device) -> VerifiedDevice:
    """The facts of a device for the record. Its identity and its place on the bus stay behind."""
    owner = this_owner()
    return VerifiedDevice(
        id=device.id,
        engine=device.engine,
        kind=device.kind,
        form=device.form,
        name=without_personal_data(device.name, owner),
        vendor=device.vendor,
        api=device.api,
        driver=driver_of(device),
        memory=device.memory_total,
        model=device.model,
        features=device.features,
        limits=device.limits,
    )


def this_machine(device: Device) -> VerifiedMachine:
    """The facts of this machine for the record, with the versions of NumPy and of the engine's libraries."""
    libraries = {}
    for name in dict.fromkeys(("numpy", *entry_of(device.id).versions)):
        with contextlib.suppress(metadata.PackageNotFoundError):
            libraries[name] = metadata.version(name)
    return VerifiedMachine(
        system=_system(),
        processor=host.processor_name(),
        cores=os.cpu_count(),
        memory=host.memory_total(),
        python=platform.python_version(),
        libraries=libraries,
    )


def _system() -> str:
    """The name and version of the system, without the name of a kernel that somebody built."""
    name = platform.system()
    with contextlib.suppress(OSError):
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    numbers = ".".join(platform.release().split("-")[0].split(".")[:2])
    return f"{name}, {platform.system()} {numbers}, {platform.machine()}"
