"""The least time that work takes on a GPU: its bytes by the published bandwidth, or its operations by the published peak.

Peaks are those of dense products, without sparsity. float32 is multiplied exactly, as PyTorch does by default, and types of
16 bits by TF32, as the Triton kernels do.
"""

from collections.abc import Mapping
from typing import NamedTuple

A100 = "NVIDIA A100 Tensor Core GPU datasheet, nvidia-a100-datasheet-us-nvidia-1758950-r4"
H100 = "NVIDIA H100 Tensor Core GPU datasheet; tensor peaks there are with sparsity, twice the dense ones"


class Device(NamedTuple):
    """Published figures of a GPU."""

    bytes_per_second: float
    float32_per_second: float
    """Operations of float32 outside of tensor cores, in a second."""
    tf32_per_second: float
    """Operations of TF32 in tensor cores, dense, in a second."""
    source: str


DEVICES: dict[str, Device] = {
    "A100-SXM4-40GB": Device(1.555e12, 19.5e12, 156e12, A100),
    "A100-PCIE-40GB": Device(1.555e12, 19.5e12, 156e12, A100),
    "A100-SXM4-80GB": Device(2.039e12, 19.5e12, 156e12, A100),
    "A100 80GB PCIe": Device(1.935e12, 19.5e12, 156e12, A100),
    "H100 80GB HBM3": Device(3.35e12, 67e12, 494.7e12, H100),
    "H100 PCIe": Device(2.0e12, 51e12, 378e12, H100),
}
"""Figures of GPUs by a part of the name that PyTorch gives them. "H100 80GB HBM3" is the SXM module."""


class Work(NamedTuple):
    """Bytes that must be read or written at least once, and operations (a product and its sum are two)."""

    bytes: float
    operations: float


def device_named(name: str, devices: Mapping[str, Device] = DEVICES) -> Device | None:
    """Returns the published figures of the GPU with this name; None if they are not known here."""
    return next((device for part, device in devices.items() if part in name), None)


def least_seconds(work: Work, device: Device, dtype: str) -> float:
    """The time below which no kernel can do the work: the longer one of moving its bytes and computing its operations."""
    peak = device.tf32_per_second if dtype in ("bfloat16", "float16") else device.float32_per_second
    return max(work.bytes / device.bytes_per_second, work.operations / peak)


def share_reached(work: Work, device: Device, dtype: str, seconds: float) -> float:
    """The share of the roofline that was reached: the least time over the measured one."""
    return least_seconds(work, device, dtype) / seconds
