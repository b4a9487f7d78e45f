"""Why is my GPU not used? Causes and fixes, from what the probes found and what the machine says of itself. Pure.

Each rule is one function that looks for one cause. It yields nothing, or a `Finding` with the commands that mend it.
What no rule explains is still passed on in the probe's own words: nothing that was found is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from anygpu.hardware import remedies
from anygpu.hardware.cards import Card
from anygpu.hardware.device import Device, Unavailable
from anygpu.hardware.evidence import Evidence
from anygpu.hardware.inventory import Inventory
from anygpu.hardware.sysfs import PciDevice

SCHEMA = "anygpu.doctor/1"

#: problem  a GPU that is there cannot be used, or a device misbehaves
#: advice   everything works, and something would work better
#: note     good to know; nothing to do
Severity = Literal["problem", "advice", "note"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause, and what mends it."""

    #: Stable, for programs: "torch_without_gpu", "no_vulkan_driver", …
    code: str
    severity: Severity
    #: What is the matter, in one sentence.
    title: str
    #: Why that is so, for someone who knows nothing about GPUs.
    cause: str
    #: What to type or do, in order.
    fix: tuple[str, ...] = ()
    #: The device, card or engine it is about.
    about: str = ""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The doctor's report; `to_json` gives the documented schema for bug reports."""

    schema: str = SCHEMA
    #: The answer in one sentence.
    verdict: str
    findings: tuple[Finding, ...]
    inventory: Inventory
    evidence: Evidence

    @property
    def problems(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "problem")

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


class Case(msgspec.Struct, frozen=True):
    """What a rule looks at."""

    inventory: Inventory
    evidence: Evidence

    def unavailable(self, engine: str, *causes: str) -> list[Unavailable]:
        return [item for item in self.inventory.unavailable if item.engine == engine and item.cause in causes]

    def cards(self, vendor: str) -> list[Card]:
        return [card for card in self.inventory.cards if card.vendor == vendor and card.id != "cpu"]

    def pci(self, vendor: str | None = None) -> list[PciDevice]:
        return [each for each in self.evidence.pci if vendor in (None, each.vendor)]

    @property
    def hardware(self) -> list[str]:
        """The real GPUs that anybody knows of, by name, once each."""
        cards = [card for card in self.inventory.cards if card.id != "cpu"]
        known = {card.pci for card in cards} | {device.pci for device in self.inventory.gpus}
        others = [each for each in self.evidence.pci if each.pci not in known]
        return [card.name for card in cards] + [each.name or f"{each.vendor} {each.model}" for each in others]

    @property
    def vendors(self) -> list[str]:
        found = [card.vendor for card in self.inventory.cards if card.id != "cpu"]
        return list(dict.fromkeys(found + [each.vendor for each in self.evidence.pci]))

    @property
    def has_working_gpu(self) -> bool:
        return any(device.verified for device in self.inventory.gpus)

    @property
    def severity_of_a_missing_way(self) -> Severity:
        """A way to a GPU that is missing matters where there is a GPU and no other way to it."""
        if self.has_working_gpu:
            return "advice"
        # Only Linux lets us look at the bus, so elsewhere an empty list means nothing.
        return "problem" if self.hardware or self.evidence.system != "Linux" else "note"


Rule = Callable[[Case], Iterator[Finding]]


def diagnose(inventory: Inventory, evidence: Evidence) -> Diagnosis:
    case = Case(inventory, evidence)
    findings = [finding for rule in RULES for finding in rule(case)]
    explained = {finding.about for finding in findings}
    findings += [_as_reported(item) for item in inventory.unavailable if item.id not in explained and _matters(item)]
    findings.sort(key=lambda finding: ("problem", "advice", "note").index(finding.severity))
    return Diagnosis(verdict=_verdict(case), findings=tuple(findings), inventory=inventory, evidence=evidence)


def torch_without_gpu(case: Case) -> Iterator[Finding]:
    for item in case.unavailable("torch", "cpu_only_build"):
        for vendor in ("NVIDIA", "AMD"):
            if vendor not in case.vendors:
                continue
            yield Finding(
                code="torch_without_gpu",
                severity=case.severity_of_a_missing_way,
                title=f"PyTorch cannot use your {vendor} card: the installed build has no GPU support.",
                cause=f"{item.detail} is the CPU-only build. The card is fine; this copy of PyTorch cannot talk to it.",
                fix=(remedies.gpu_torch(case.evidence, vendor),),
                about=item.id,
            )


def jax_without_gpu(case: Case) -> Iterator[Finding]:
    for item in case.unavailable("jax", "cpu_only_build"):
        if "NVIDIA" not in case.vendors:
            continue
        apis = [card.driver_api for card in case.cards("NVIDIA") if card.driver_api]
        yield Finding(
            code="jax_without_gpu",
            severity=case.severity_of_a_missing_way,
            title="JAX cannot use your NVIDIA card: it is installed without its CUDA plug-in.",
            cause=f"{item.detail} came without GPU support. The card is fine; JAX needs one more package to use it.",
            fix=(remedies.gpu_jax(apis[0] if apis else None),),
            about=item.id,
        )


def driver_too_old(case: Case) -> Iterator[Finding]:
    for item in case.inventory.unavailable:
        built_for = item.facts.get("built_for_cuda")
        for card in case.cards("NVIDIA"):
            if built_for is None or card.driver_api is None or _major(card.driver_api) >= _major(built_for):
                continue
            yield Finding(
                code="driver_too_old",
                severity=case.severity_of_a_missing_way,
                title=f"The NVIDIA driver is too old for the installed {item.engine}.",
                cause=f"Driver {card.driver or '(unknown)'} serves CUDA up to {card.driver_api}; "
                f"{item.engine} is built for CUDA {built_for}.",
                fix=(remedies.install(case.evidence, "nvidia"), "Restart the machine afterwards."),
                about=item.id,
            )
            break


def vulkan_loader_missing(case: Case) -> Iterator[Finding]:
    for item in case.unavailable("webgpu", "no_loader"):
        yield Finding(
            code="no_vulkan_loader",
            severity=case.severity_of_a_missing_way,
            title="WebGPU cannot look for a GPU: the Vulkan loader is not installed.",
            cause="WebGPU reaches GPUs through Vulkan. The small system library that finds Vulkan drivers is missing.",
            fix=(remedies.install(case.evidence, "vulkan-loader"), _vulkan_driver(case)),
            about=item.id,
        )


def no_vulkan_driver(case: Case) -> Iterator[Finding]:
    for item in case.unavailable("webgpu", "no_driver", "no_device"):
        if (override := _vulkan_override(case)) is not None:
            yield override
            continue
        drivers = [manifest.path for manifest in case.evidence.vulkan_drivers]
        yield Finding(
            code="no_vulkan_driver",
            severity=case.severity_of_a_missing_way,
            title="WebGPU finds no GPU: no working Vulkan driver is installed.",
            cause="WebGPU reaches GPUs through Vulkan. Its loader is there, but "
            + (
                f"none of its drivers works here ({', '.join(drivers)})."
                if drivers
                else "no driver is registered with it."
            ),
            fix=(_vulkan_driver(case),),
            about=item.id,
        )


def _vulkan_override(case: Case) -> Finding | None:
    for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        if value := case.evidence.variables.get(name):
            return Finding(
                code="vulkan_driver_overridden",
                severity="problem",
                title=f"WebGPU finds no GPU: the variable {name} leaves Vulkan without a working driver.",
                cause=f"{name} is set to {value}, so Vulkan looks at nothing else.",
                fix=(f"unset {name}",),
                about="webgpu",
            )
    return None


def container_without_graphics(case: Case) -> Iterator[Finding]:
    """CUDA programs work there, WebGPU does not: the container was given the card for computing only."""
    if case.evidence.container is None or not case.cards("NVIDIA") or _seen_by_webgpu(case, "NVIDIA"):
        return
    given = case.evidence.variables.get("NVIDIA_DRIVER_CAPABILITIES", "")
    if {"graphics", "all"} & set(given.split(",")):
        return
    yield Finding(
        code="container_without_graphics",
        severity=case.severity_of_a_missing_way,
        title=f"This container may compute on {case.cards('NVIDIA')[0].name}, but WebGPU cannot see it.",
        cause="The container was started without the driver's graphics capability, and Vulkan is a part of that. "
        f"NVIDIA_DRIVER_CAPABILITIES is {given or 'not set'}.",
        fix=(remedies.open_container(case.evidence, graphics=True),),
        about="webgpu",
    )


def only_software(case: Case) -> Iterator[Finding]:
    adapters = [device for device in case.inventory.devices if device.engine == "webgpu"]
    if not adapters or not all(device.software for device in adapters):
        return
    names = ", ".join(device.name for device in adapters)
    if not case.hardware:
        return
    if next(container_without_graphics(case), None) or next(no_permission(case), None):
        return  # those say why, and what to do
    yield Finding(
        code="only_software_adapter",
        severity=case.severity_of_a_missing_way,
        title=f"WebGPU only finds a software adapter, not your {case.hardware[0]}.",
        cause=f"{names} imitates a GPU on the CPU: right answers, no speed. The driver of the real card is missing.",
        fix=(_vulkan_driver(case),),
        about=adapters[0].id,
    )


def no_permission(case: Case) -> Iterator[Finding]:
    for node in case.evidence.nodes:
        if node.openable:
            continue
        group = node.group if node.group not in (None, "root") else "render"
        yield Finding(
            code="no_permission",
            severity=case.severity_of_a_missing_way,
            title=f"You may not open {node.path}, so its GPU cannot be used.",
            cause=f"The node belongs to the group {node.group or '(unknown)'}, and the user {case.evidence.user} "
            "is not a member of it.",
            fix=(remedies.join_group(case.evidence, str(group)),),
            about=node.path,
        )


def gpu_without_driver(case: Case) -> Iterator[Finding]:
    """The NVIDIA card is on the bus, and NVIDIA's own software does not know it."""
    if case.cards("NVIDIA") or any(item.engine == "nvidia" for item in case.inventory.unavailable):
        return
    for each in case.pci("NVIDIA"):
        if each.kernel_driver == "nvidia":
            continue
        name = each.name or f"the NVIDIA card {each.model}"
        open_driver = each.kernel_driver in ("nouveau", "nova")
        yield Finding(
            code="gpu_without_driver",
            severity=case.severity_of_a_missing_way,
            title=f"{name} has no NVIDIA driver.",
            cause=f"It is on the bus at {each.pci}, "
            + (
                f"driven by {each.kernel_driver}, which CUDA cannot use."
                if open_driver
                else "and no driver is loaded for it."
            ),
            fix=(remedies.install(case.evidence, "nvidia"), "Restart the machine afterwards."),
            about=each.pci,
        )


def hidden_by_variable(case: Case) -> Iterator[Finding]:
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        value = case.evidence.variables.get(name)
        if value is not None and value.strip() in ("", "-1", "NoDevFiles"):
            yield Finding(
                code="hidden_by_variable",
                severity="problem" if case.hardware and not case.has_working_gpu else "note",
                title=f"The variable {name} hides every card from CUDA and ROCm.",
                cause=f'It is set to "{value}".',
                fix=(f"unset {name}",),
                about=name,
            )


def no_opencl_driver(case: Case) -> Iterator[Finding]:
    for item in case.unavailable("opencl", "no_driver"):
        wanted = [f"opencl-{vendor.lower()}" for vendor in case.vendors]
        yield Finding(
            code="no_opencl_driver",
            severity=case.severity_of_a_missing_way,
            title="OpenCL finds nothing: no OpenCL driver is installed.",
            cause="The part that looks for OpenCL drivers works, and no driver is registered with it "
            "(on Linux they are listed in /etc/OpenCL/vendors).",
            fix=(remedies.install(case.evidence, *wanted, "opencl-cpu"),),
            about=item.id,
        )


def extra_not_installed(case: Case) -> Iterator[Finding]:
    for item in case.inventory.unavailable:
        if item.cause == "not_installed":
            yield Finding(
                code="extra_not_installed",
                severity="note",
                title=f"The {item.engine} engine is not installed.",
                cause=f"It is optional: anygpu works without it, and uses it when it is there. {item.reason}",
                fix=(item.fix,) if item.fix else (),
                about=item.id,
            )


def no_gpu_at_all(case: Case) -> Iterator[Finding]:
    if case.hardware or case.has_working_gpu:
        return
    fixes: tuple[str, ...] = ()
    where = "this machine"
    if case.evidence.container is not None:
        where = f"this {case.evidence.container} container"
        fixes = (remedies.open_container(case.evidence, graphics=True) + "   (only if the host has an NVIDIA card)",)
        if case.evidence.container != "kubernetes":
            fixes += ("docker run --device /dev/dri …   (only if the host has an Intel or AMD GPU)",)
    yield Finding(
        code="no_gpu",
        severity="note",
        title=f"No GPU was found in {where}.",
        cause="Neither the bus nor any driver lists one. Your code runs on the CPU, and nothing is broken.",
        fix=fixes,
        about="gpu",
    )


def unmatched_cards(case: Case) -> Iterator[Finding]:
    for card in case.inventory.cards:
        if card.note is not None:
            yield Finding(
                code="card_not_matched",
                severity="note",
                title=f"It is not certain which card {card.name} is.",
                cause=card.note,
                about=card.id,
            )


#: In the order in which they are asked; the first that explains something keeps it.
RULES: tuple[Rule, ...] = (
    hidden_by_variable,
    gpu_without_driver,
    torch_without_gpu,
    jax_without_gpu,
    driver_too_old,
    vulkan_loader_missing,
    no_vulkan_driver,
    container_without_graphics,
    no_permission,
    only_software,
    no_opencl_driver,
    extra_not_installed,
    unmatched_cards,
    no_gpu_at_all,
)


def _as_reported(item: Unavailable) -> Finding:
    """A cause that needs no combining: what the probe itself said."""
    return Finding(
        code=item.cause,
        severity="problem",
        title=item.reason,
        cause=item.detail or "The probe gave no further detail.",
        fix=(item.fix,) if item.fix else (),
        about=item.id,
    )


def _matters(item: Unavailable) -> bool:
    # A CPU-only build or a missing accelerator is a problem only beside a card, and then a rule has said so.
    return item.cause not in ("cpu_only_build", "no_device", "not_installed")


def _vulkan_driver(case: Case) -> str:
    wanted = [f"vulkan-{vendor.lower()}" for vendor in case.vendors]
    if "NVIDIA" in case.vendors:
        wanted.append("nvidia")
    return remedies.install(case.evidence, *wanted, "vulkan-mesa")


def _seen_by_webgpu(case: Case, vendor: str) -> bool:
    return any(device.engine == "webgpu" and device.vendor == vendor for device in case.inventory.devices)


def _major(version: str) -> int:
    return int(version.split(".")[0])


def _verdict(case: Case) -> str:
    working: dict[str, list[str]] = {}
    for device in case.inventory.gpus:
        if device.verified:
            working.setdefault(_card_name(case, device), []).append(device.id)
    if working:
        ways = "; ".join(f"{name} through {' and '.join(ids)}" for name, ids in working.items())
        return f"Your GPU works: {ways}."
    if case.hardware:
        return f"There is a GPU ({', '.join(case.hardware)}), but nothing here can use it yet."
    return "There is no GPU here; your code runs on the CPU."


def _card_name(case: Case, device: Device) -> str:
    return next((card.name for card in case.inventory.cards if card.id == device.card), device.name)
