"""Why is my GPU not used? Causes and fixes, from what the probes found and what the machine says of itself. Pure.

What no cause explains is still passed on in the probe's own words: nothing that was found is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from anygpu.base.events import drawn
from anygpu.base.printable import encode_json
from anygpu.hardware import fixes
from anygpu.hardware.device import CPU, Card, Unavailable
from anygpu.hardware.evidence import Evidence
from anygpu.hardware.inventory import DiagnosisContext, Finding, Gpu, Inventory, together

# -- the doctor's rules. Each is one pure function that yields nothing, or a finding with its fix


#: Which device nodes a container needs to reach the cards of a vendor.
_NODES = {"NVIDIA": "/dev/nvidia", "AMD": "/dev/dri/render", "Intel": "/dev/dri/render"}

#: Whose cards these variables hide.
_HIDING = {
    "CUDA_VISIBLE_DEVICES": ("NVIDIA", "AMD"),
    "HIP_VISIBLE_DEVICES": ("AMD",),
    "ROCR_VISIBLE_DEVICES": ("AMD",),
}

DiagnosisRule = Callable[[DiagnosisContext], Iterator[Finding]]


def engines_left_out(case: DiagnosisContext) -> Iterator[Finding]:
    """The variable ANYGPU_ENGINES leaves engines out of this report."""
    name = "ANYGPU_ENGINES"
    if chosen := case.evidence.variables.get(name):
        yield Finding(
            code="engines_left_out",
            severity="note",
            title=f"Only some engines were looked at: {chosen}.",
            cause=f"The variable {name} says so. What the others would find is not in this report.",
            fix=(fixes.unset(case.evidence, name),),
            about=name,
        )


def hidden_by_variable(case: DiagnosisContext) -> Iterator[Finding]:
    """A variable hides all cards of a vendor: a problem if one of them is unused, else a note."""
    for name in _hiding_variables(case):
        vendors = _HIDING[name]
        unused = any(not gpu.ways for gpu in case.gpus if gpu.vendor in vendors)
        yield Finding(
            code="hidden_by_variable",
            severity="problem" if unused else "note",
            title=f"The variable {name} hides every card from {'CUDA and ROCm' if 'NVIDIA' in vendors else 'ROCm'}.",
            cause=f'It is set to "{case.evidence.variables[name]}", which means none.',
            fix=(fixes.unset(case.evidence, name),),
            about=name,
        )


def _hiding_variables(case: DiagnosisContext) -> list[str]:
    nothing = ("", "-1", "NoDevFiles")
    return [name for name in _HIDING if case.evidence.variables.get(name, "0").strip() in nothing]


def container_without_card(case: DiagnosisContext) -> Iterator[Finding]:
    """The bus of the host can be seen from inside a container, with cards on it that the container was not given."""
    for vendor in _not_given(case):
        names = together(gpu.name for gpu in case.gpus if gpu.vendor == vendor)
        yield Finding(
            code="container_without_card",
            severity=case.severity_of_a_missing_way(vendor),
            title=f"This container was not given {names}.",
            cause=f"The host has such a card, and the container was started without its nodes ({_NODES[vendor]}…).",
            fix=(fixes.open_container(case.evidence, vendor),),
            about=_NODES[vendor],
        )


def _not_given(case: DiagnosisContext) -> list[str]:
    """Returns the vendors whose cards are on the bus, and of which this container has no device node."""
    if case.evidence.container is None:
        return []
    paths = [node.path for node in case.evidence.nodes]
    # NVIDIA's card is known only to who was given it; Intel's and AMD's are read from the bus.
    vendors = [vendor for vendor in _NODES if vendor in case.vendors and (vendor != "NVIDIA" or not case.cards(vendor))]
    return [vendor for vendor in vendors if not any(path.startswith(_NODES[vendor]) for path in paths)]


def gpu_without_driver(case: DiagnosisContext) -> Iterator[Finding]:
    """The NVIDIA card is on the bus, and NVIDIA's own software does not know it."""
    reported = {item.cause for item in case.inventory.unavailable if item.engine == "nvidia"}
    if reported - {"no_device"} or "NVIDIA" in _not_given(case):
        return  # that says why, and what to do
    cards = case.only_on_the_bus("NVIDIA")
    if reported:
        cards = [each for each in cards if each.kernel_driver != "nvidia"]
    for driver in dict.fromkeys(each.kernel_driver for each in cards):
        alike = [each for each in cards if each.kernel_driver == driver]
        it, is_at, has = ("it", "It is", "has") if len(alike) == 1 else ("them", "They are", "have")
        fix = fixes.newest_driver(case.evidence)
        if driver is None:
            why = f"and no driver is loaded for {it}."
        elif driver == "nvidia":
            why = "and the kernel's part of the driver is loaded, but NVIDIA's libraries are not installed."
        elif driver.startswith("vfio"):
            why = f"set aside for a virtual machine by the Linux driver {driver}."
            fix = (f"Use {it} inside that virtual machine, or give {it} back to the driver nvidia.",)
        else:
            why = f"driven by {driver}, which CUDA cannot use."
        yield Finding(
            code="gpu_without_driver",
            severity=case.severity_of_a_missing_way("NVIDIA"),
            title=f"{together(each.name or f'NVIDIA {each.model}' for each in alike)} {has} no NVIDIA driver.",
            cause=f"{is_at} on the bus at {together(each.pci for each in alike)}, {why}",
            fix=fix,
            about=alike[0].pci,
        )


def torch_without_gpu(case: DiagnosisContext) -> Iterator[Finding]:
    """PyTorch was installed without support for the card that is here."""
    for item in case.unavailable("torch", "cpu_only_build"):
        for vendor in ("NVIDIA", "AMD"):
            if vendor not in case.vendors:
                continue
            card = next(iter(case.cards(vendor)), None)
            yield Finding(
                code="torch_without_gpu",
                severity=case.severity_of_a_missing_way(vendor),
                title=f"PyTorch cannot use your {vendor} card: the installed build has no GPU support.",
                cause=f"{item.detail or 'torch'} is the CPU-only build. The card is fine; this copy of PyTorch cannot "
                f"talk to it.{_outdated(card)}",
                fix=fixes.gpu_torch(case.evidence, vendor, card),
                about=item.id,
            )


def jax_without_gpu(case: DiagnosisContext) -> Iterator[Finding]:
    """JAX was installed without CUDA, and there is an NVIDIA card."""
    for item in case.unavailable("jax", "cpu_only_build"):
        if "NVIDIA" not in case.vendors:
            continue
        card = next(iter(case.cards("NVIDIA")), None)
        yield Finding(
            code="jax_without_gpu",
            severity=case.severity_of_a_missing_way("NVIDIA"),
            title="JAX cannot use your NVIDIA card: it is installed without its CUDA plug-in.",
            cause=f"{item.detail or 'jax'} came without GPU support. The card is fine; JAX needs one more package to "
            f"use it.{_outdated(card)}",
            fix=fixes.gpu_jax(case.evidence, card),
            about=item.id,
        )


def _outdated(card: Card | None) -> str:
    if card is None or not fixes.is_outdated(card):
        return ""
    return f" But its driver serves CUDA up to {card.driver_api} only, which is too old for any build of today."


def driver_too_old(case: DiagnosisContext) -> Iterator[Finding]:
    """NVIDIA's driver is older than the CUDA that a library was built for."""
    for item in case.inventory.unavailable:
        built_for = fixes.version(item.facts.get("built_for_cuda"))
        for card in case.cards("NVIDIA"):
            serves = fixes.version(card.driver_api)
            if not built_for or not serves or serves[0] >= built_for[0]:
                continue
            yield Finding(
                code="driver_too_old",
                severity=case.severity_of_a_missing_way("NVIDIA"),
                title=f"The NVIDIA driver is too old for the installed {item.engine}.",
                cause=f"Driver {card.driver or '(unknown)'} serves CUDA up to {card.driver_api}; "
                f"{item.engine} is built for CUDA {item.facts['built_for_cuda']}.",
                fix=fixes.newest_driver(case.evidence) + fixes.without_new_driver(case.evidence, item.engine, card),
                about=item.id,
            )
            break


def engine_finds_no_card(case: DiagnosisContext) -> Iterator[Finding]:
    """The library is built for the card, its driver answers, and still the library finds nothing."""
    explained = {finding.about for finding in driver_too_old(case)}
    hidden = {vendor for name in _hiding_variables(case) for vendor in _HIDING[name]}
    for item in case.unavailable("torch", "no_device") + case.unavailable("jax", "no_device"):
        vendor = "AMD" if "rocm" in item.id else "NVIDIA"
        if item.id in explained or vendor in hidden or not case.cards(vendor) or _is_explained(case):
            continue
        yield Finding(
            code="engine_finds_no_card",
            severity=case.severity_of_a_missing_way(vendor),
            title=item.reason,
            cause=item.detail or f"The driver of {together(card.name for card in case.cards(vendor))} answers.",
            fix=("Restart the machine; in a container, restart the container first.",),
            about=item.id,
        )


def vulkan_loader_missing(case: DiagnosisContext) -> Iterator[Finding]:
    """WebGPU finds no Vulkan loader; a container without graphics is told of that instead of drivers."""
    for item in case.unavailable("webgpu", "no_loader"):
        # Installing a driver in there would not help a container that was not given one.
        drivers = () if _applies(container_without_graphics, case) else _vulkan_drivers(case, case.vendors)
        yield Finding(
            code="no_vulkan_loader",
            severity=case.severity_of_a_missing_way(),
            title="WebGPU cannot look for a GPU: the Vulkan loader is not installed.",
            cause="WebGPU reaches GPUs through Vulkan. The small system library that finds Vulkan drivers is missing.",
            fix=_once(fixes.install(case.evidence, "vulkan-loader"), *drivers),
            about=item.id,
        )


def no_vulkan_driver(case: DiagnosisContext) -> Iterator[Finding]:
    """WebGPU finds no Vulkan driver, or one that cannot be used."""
    if _applies(container_without_graphics, case):
        return  # that says why, and what to do
    for item in case.unavailable("webgpu", "no_driver", "no_device"):
        if case.evidence.system == "Darwin":
            yield as_reported(case, item)
            continue
        if (variable := _vulkan_override(case)) is not None:
            yield _overridden(case, variable, "leaves Vulkan without a working driver", item.id)
            continue
        if item.cause == "no_device" and _is_explained(case):
            continue
        drivers = [manifest.path for manifest in case.evidence.vulkan_drivers]
        yield Finding(
            code="no_vulkan_driver",
            severity=case.severity_of_a_missing_way(),
            title="WebGPU finds no GPU: no working Vulkan driver is installed.",
            cause="WebGPU reaches GPUs through Vulkan. Its loader is there, but "
            + (
                f"none of its drivers works here ({', '.join(drivers)})."
                if drivers
                else "no driver is registered with it."
            ),
            fix=_vulkan_drivers(case, case.vendors),
            about=item.id,
        )


def container_without_graphics(case: DiagnosisContext) -> Iterator[Finding]:
    """CUDA programs work there, WebGPU does not: the container was given the card for computing only."""
    if case.evidence.container is None or not case.cards("NVIDIA") or not _missed_by_webgpu(case, "NVIDIA"):
        return
    given = case.evidence.variables.get("NVIDIA_DRIVER_CAPABILITIES", "")
    if {"graphics", "all"} & set(given.split(",")):
        return
    yield Finding(
        code="container_without_graphics",
        severity=case.severity_of_a_missing_way("NVIDIA"),
        title=f"This container may compute on {together(card.name for card in case.cards('NVIDIA'))}, "
        f"but WebGPU cannot see {'it' if len(case.cards('NVIDIA')) == 1 else 'them'}.",
        cause="The container was started without the driver's graphics capability, and Vulkan is a part of that. "
        f"NVIDIA_DRIVER_CAPABILITIES is {given or 'not set'}.",
        fix=(fixes.open_container(case.evidence),),
        about="webgpu",
    )


def no_permission(case: DiagnosisContext) -> Iterator[Finding]:
    """Device nodes that this user may not open, and the group that may."""
    closed = [node for node in case.evidence.nodes if not node.openable]
    for group in dict.fromkeys(node.group for node in closed):
        paths = [node.path for node in closed if node.group == group]
        whose, belong = ("its GPU", "node belongs") if len(paths) == 1 else ("their GPUs", "nodes belong")
        yield Finding(
            code="no_permission",
            severity=case.severity_of_a_missing_way(),
            title=f"You may not open {together(paths)}, so {whose} cannot be used.",
            cause=f"The {belong} to the group {group or '(unknown)'}, and the user {case.evidence.user or '(unknown)'} "
            "is not a member of it.",
            fix=fixes.open_nodes(case.evidence, paths, group),
            about=paths[0],
        )


def only_software(case: DiagnosisContext) -> Iterator[Finding]:
    """There is a GPU, and WebGPU finds only a software renderer."""
    adapters = [device for device in case.inventory.devices if device.engine == "webgpu"]
    missed = [gpu for gpu in case.gpus if gpu.vendor not in _unserved(case)]
    if not adapters or not missed or not all(device.software for device in adapters):
        return
    if _applies(container_without_graphics, case) or _applies(no_permission, case):
        return  # those say why, and what to do
    names = together(gpu.name for gpu in missed)
    if (variable := _vulkan_override(case)) is not None:
        yield _overridden(case, variable, f"hides the driver of your {names}", adapters[0].id)
        return
    imitate = "imitates" if len(adapters) == 1 else "imitate"
    yield Finding(
        code="only_software_adapter",
        severity=case.severity_of_a_missing_way(*(gpu.vendor for gpu in missed)),
        title=f"WebGPU only finds a software adapter, not your {names}.",
        cause=f"{together(device.name for device in adapters)} {imitate} a GPU on the CPU: right answers, no speed. "
        "The Vulkan driver of the real card is missing.",
        fix=_vulkan_drivers(case, [gpu.vendor for gpu in missed]),
        about=adapters[0].id,
    )


def _vulkan_override(case: DiagnosisContext) -> str | None:
    names = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
    return next((name for name in names if case.evidence.variables.get(name)), None)


def _overridden(case: DiagnosisContext, variable: str, effect: str, about: str) -> Finding:
    """Returns the finding for a variable that makes Vulkan look at other drivers."""
    return Finding(
        code="vulkan_driver_overridden",
        severity=case.severity_of_a_missing_way(),
        title=f"WebGPU finds no GPU: the variable {variable} {effect}.",
        cause=f"{variable} is set to {case.evidence.variables[variable]}, so Vulkan looks at nothing else.",
        fix=(fixes.unset(case.evidence, variable),),
        about=about,
    )


def _vulkan_drivers(case: DiagnosisContext, vendors: Iterable[str]) -> tuple[str, ...]:
    return _drivers(case, "vulkan", vendors, otherwise="vulkan-mesa")


def no_opencl_driver(case: DiagnosisContext) -> Iterator[Finding]:
    """OpenCL's loader works, and no driver is registered with it."""
    for item in case.unavailable("opencl", "no_driver"):
        yield Finding(
            code="no_opencl_driver",
            severity=case.severity_of_a_missing_way(),
            title="OpenCL finds nothing: no OpenCL driver is installed.",
            cause="The part that looks for OpenCL drivers works, and no driver is registered with it "
            "(on Linux they are listed in /etc/OpenCL/vendors).",
            fix=_drivers(case, "opencl", case.vendors, otherwise="opencl-cpu"),
            about=item.id,
        )


def no_compiler(case: DiagnosisContext) -> Iterator[Finding]:
    """It comes with anygpu, where there is a wheel for the system."""
    for item in case.inventory.unavailable:
        if item.cause == "not_installed" and item.engine == CPU:
            yield Finding(
                code="no_compiler",
                severity="note",
                title="Nothing is compiled for the processor.",
                cause=f'{item.reason} Without it on="cpu" is NumPy, which is slower.',
                fix=(item.fix,) if item.fix else (),
                about=item.id,
            )


def extra_not_installed(case: DiagnosisContext) -> Iterator[Finding]:
    """Engines whose libraries are not installed, as one note for all."""
    missing = [item for item in case.inventory.unavailable if item.cause == "not_installed" and item.engine != CPU]
    if missing:
        yield Finding(
            code="extra_not_installed",
            severity="note",
            title=f"Not installed: {together(item.engine for item in missing)}.",
            cause="They are optional: anygpu works without them, and uses each one that is there.",
            fix=tuple(item.fix for item in missing if item.fix),
            about=missing[0].id,
        )


def no_gpu_at_all(case: DiagnosisContext) -> Iterator[Finding]:
    """There is no GPU on this machine, or in this container."""
    if case.gpus or case.seems_to_have_a_gpu:
        return
    steps: tuple[str, ...] = ()
    where = "this machine"
    if case.evidence.container is not None:
        where = f"this {case.evidence.container} container".replace("container container", "container")
        steps = (f"{fixes.open_container(case.evidence)}   (only if the host has an NVIDIA card)",)
        if case.evidence.container != "kubernetes":
            command = fixes.open_container(case.evidence, "Intel")
            steps += (f"{command}   (only if the host has an Intel or AMD GPU)",)
    searched = "Neither the bus nor any driver" if case.evidence.system == "Linux" else "No driver"
    healthy = not any(item.state in ("present", "hung") for item in case.inventory.unavailable)
    yield Finding(
        code="no_gpu",
        severity="note",
        title=f"No GPU was found in {where}.",
        cause=f"{searched} lists one. Your code runs on the CPU{', and nothing is broken' if healthy else ''}.",
        fix=steps,
        about="gpu",
    )


def unmatched_cards(case: DiagnosisContext) -> Iterator[Finding]:
    """Cards that could not be told apart with certainty."""
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
RULES: tuple[DiagnosisRule, ...] = (
    no_gpu_at_all,
    hidden_by_variable,
    container_without_card,
    gpu_without_driver,
    torch_without_gpu,
    jax_without_gpu,
    driver_too_old,
    engine_finds_no_card,
    vulkan_loader_missing,
    no_vulkan_driver,
    container_without_graphics,
    no_permission,
    only_software,
    no_opencl_driver,
    unmatched_cards,
    no_compiler,
    extra_not_installed,
    engines_left_out,
)


def as_reported(case: DiagnosisContext, item: Unavailable) -> Finding:
    """A cause that needs no combining: what the probe itself said."""
    return Finding(
        code=item.cause,
        severity=case.severity_of_a_missing_way() if item.cause == "no_device" else "problem",
        title=item.reason,
        cause=item.detail or "The probe gave no further detail.",
        fix=(item.fix,) if item.fix else (),
        about=item.id,
    )


def _drivers(case: DiagnosisContext, interface: str, vendors: Iterable[str], *, otherwise: str) -> tuple[str, ...]:
    """One command a vendor; where there is no GPU, the driver that computes on the CPU."""
    wanted = [[f"{interface}-{vendor.lower()}"] for vendor in vendors] or [[]]
    for names in wanted:
        # NVIDIA's driver as a whole brings both interfaces along.
        names += ["nvidia", otherwise] if names == [f"{interface}-nvidia"] else [otherwise]
    return _once(*(fixes.install(case.evidence, *names) for names in wanted))


def _applies(rule: DiagnosisRule, case: DiagnosisContext) -> bool:
    return next(rule(case), None) is not None


def _unserved(case: DiagnosisContext) -> set[str]:
    """Vendors that no driver serves here, so that no engine can find their cards: one cause for all missing ways."""
    served = {card.vendor for vendor in case.vendors for card in case.cards(vendor)}
    return {each.vendor for each in case.only_on_the_bus()} - served | set(_not_given(case))


def _is_explained(case: DiagnosisContext) -> bool:
    """Another rule says why the drivers that are there find no GPU."""
    unserved = bool(case.vendors) and set(case.vendors) <= _unserved(case)
    return unserved or _applies(no_permission, case)


def _missed_by_webgpu(case: DiagnosisContext, vendor: str) -> bool:
    """WebGPU has looked, and it did not see the vendor's cards."""
    adapters = [device for device in case.inventory.devices if device.engine == "webgpu"]
    looked = adapters or case.unavailable("webgpu", "no_loader", "no_driver", "no_device")
    return bool(looked) and all(device.vendor != vendor for device in adapters)


def _once(*steps: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(steps))


SCHEMA = "anygpu.doctor/1"


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
        return msgspec.json.format(encode_json(self), indent=2)

    def _repr_html_(self) -> str | None:
        return drawn(self)


def diagnose(inventory: Inventory, evidence: Evidence) -> Diagnosis:
    """Applies all rules, adds what probes reported and no rule explains, and sorts by severity. Pure."""
    case = DiagnosisContext(inventory, evidence)
    findings = [finding for rule in RULES for finding in rule(case)]
    explained = {finding.about for finding in findings}
    findings += [
        as_reported(case, item) for item in inventory.unavailable if item.id not in explained and _matters(item)
    ]
    findings.sort(key=lambda finding: ("problem", "advice", "note").index(finding.severity))
    return Diagnosis(verdict=_verdict(case), findings=tuple(findings), inventory=inventory, evidence=evidence)


def _matters(item: Unavailable) -> bool:
    # A CPU-only build or a missing accelerator is a problem only beside a card, and then a rule has said so. But who
    # installed NVIDIA's driver expects a card.
    return item.engine == "nvidia" or item.cause not in ("cpu_only_build", "no_device", "not_installed")


def _verdict(case: DiagnosisContext) -> str:
    """The diagnosis in one sentence: which GPUs work and through what, or that none does."""
    working = [gpu for gpu in case.gpus if gpu.ways]
    idle = [gpu for gpu in case.gpus if not gpu.ways]
    if working:
        names = dict.fromkeys(gpu.name for gpu in working)
        ways = "; ".join(_how_it_works([gpu for gpu in working if gpu.name == name]) for name in names)
        verdict = f"Your {'GPU works' if len(working) == 1 else f'{len(working)} GPUs work'}: {ways}."
        return verdict + (f" Nothing here can use {together(gpu.name for gpu in idle)} yet." if idle else "")
    if idle:
        there, them = ("is a GPU", "it") if len(idle) == 1 else (f"are {len(idle)} GPUs", "them")
        return f"There {there} ({together(gpu.name for gpu in idle)}), but nothing here can use {them} yet."
    if case.seems_to_have_a_gpu:
        return "There seems to be a GPU, but nothing here can use it yet."
    return "There is no GPU here; your code runs on the CPU."


def _how_it_works(alike: list[Gpu]) -> str:
    """Through which devices; of many equal cards only through which engines."""
    ways = [device for gpu in alike for device in gpu.ways]
    through = dict.fromkeys(device.id if len(alike) == 1 else device.engine for device in ways)
    return f"{together(gpu.name for gpu in alike)} through {together(through)}"
