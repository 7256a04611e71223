"""Which kernels `subquad compare` measures on a device, and what is printed about them."""

from collections.abc import Mapping, Sequence

from rich.console import Console

from subquad import native
from subquad.compare import roofline
from subquad.compare.plan import Plan
from subquad.errors import SubquadError
from subquad.measure.roofline import DEVICES, Device, device_named
from subquad.ops.linear import gpu
from subquad.report.compare import Measured
from subquad.words import capitalized


def kernels_on(device: str, asked: Sequence[native.Kernels]) -> Sequence[native.Kernels]:
    """Returns the kernels to measure on a device: those asked for, or the usual ones.

    Raises `SubquadError` for kernels that are not there, and for native ones on devices that have none.
    """
    if not asked:
        if device.startswith("cpu"):
            return (native.chosen(),)
        usual: native.Kernels = "native" if gpu.is_chosen() else "torch"
        return ("fla" if native.wanted() == "fla" else usual,) if device.startswith("cuda") else ("torch",)
    reason = _missing(device)
    if "native" in asked and reason is not None:
        raise SubquadError(f"--kernels native: {reason}")
    if "fla" in asked and not device.startswith("cuda"):
        raise SubquadError(f"--kernels fla is for --device cuda, but the device is {device}: use native or torch")
    return asked


def _missing(device: str) -> str | None:
    """Returns a sentence on why a device has no native kernels; None if it has."""
    if device.startswith("cpu"):
        return native.missing()
    if not device.startswith("cuda"):
        return f"there are none for {device}, where PyTorch's operations are used: leave it out, or use torch"
    return None if gpu.is_there() else gpu.MISSING


def tell_kernels(plan: Plan, console: Console) -> None:
    """Prints which kernels ran, and what is missed without native ones."""
    names = dict.fromkeys(_name(setting.kernels, setting.device) for setting in plan.settings)
    devices = dict.fromkeys(setting.device for setting in plan.settings)
    reasons = dict.fromkeys(_missing(device) for device in devices if device.startswith(("cpu", "cuda")))
    missing = "".join(f" {capitalized(reason)}." for reason in reasons if reason is not None)
    console.print(f"Kernels: {' and '.join(names)}.{missing}")


def _name(kernels: native.Kernels, device: str) -> str:
    if kernels == "native":
        return f"native ({native.target()})" if device.startswith("cpu") else "Triton's"
    return "flash-linear-attention's" if kernels == "fla" else "PyTorch's"


def tell_roofline(plan: Plan, measured: Measured, console: Console, devices: Mapping[str, Device] = DEVICES) -> None:
    """Prints the share of the roofline that was reached on GPUs with published figures, and which GPUs have none here."""
    names: dict[str, str] = measured.run.about.get("devices", {})
    reached = roofline.shares(measured.comparison, plan.variants, names, devices)
    for line in roofline.sentences(reached, measured.comparison):
        console.print(line, soft_wrap=True)
    for name in dict.fromkeys(names.values()):
        if device_named(name, devices) is None:
            console.print(f"No published figures of {name} are known here, so that no roofline is shown.", soft_wrap=True)
