"""The roofline: the longer one of moving bytes and computing, with published figures of GPUs found by name."""

import pytest

from subquad.measure.roofline import DEVICES, Device, Work, device_named, least_seconds, share_reached

GPU = Device(bytes_per_second=100.0, float32_per_second=1000.0, tf32_per_second=8000.0, source="made up")


def test_the_slower_one_decides() -> None:
    assert least_seconds(Work(bytes=200, operations=1000), GPU, "float32") == 2.0
    assert least_seconds(Work(bytes=200, operations=4000), GPU, "float32") == 4.0
    assert least_seconds(Work(bytes=200, operations=4000), GPU, "bfloat16") == 2.0
    assert share_reached(Work(bytes=200, operations=0), GPU, "float16", seconds=8.0) == 0.25


@pytest.mark.parametrize(
    ("name", "terabytes"),
    [
        ("NVIDIA A100-SXM4-80GB", 2.039),
        ("NVIDIA A100 80GB PCIe", 1.935),
        ("NVIDIA A100-PCIE-40GB", 1.555),
        ("NVIDIA H100 80GB HBM3", 3.35),
        ("NVIDIA H100 PCIe", 2.0),
    ],
)
def test_gpus_are_found_by_the_name_that_pytorch_gives(name: str, terabytes: float) -> None:
    device = device_named(name)
    assert device is not None
    assert device.bytes_per_second == pytest.approx(terabytes * 1e12)


def test_other_gpus_have_no_figures() -> None:
    assert device_named("NVIDIA GeForce GTX 1060") is None
    assert all("NVIDIA" in device.source for device in DEVICES.values())
