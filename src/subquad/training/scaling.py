"""Half precision: autocast, and for float16 a scale of the loss that keeps small gradients from vanishing."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from typing_extensions import TypedDict

from subquad.checking import STRICT, Positive, Whole
from subquad.errors import SubquadError

SMALLEST_SCALE = 2.0**-14
"""Scale of the loss below which training stops: gradients that are infinite even so are not due to float16."""

HALF_TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class ScalerFields(TypedDict):
    """Types of the fields that a checkpoint stores about the scale of the loss."""

    __pydantic_config__ = STRICT  # type: ignore[misc]

    scale: Positive
    growth_factor: Positive
    backoff_factor: Positive
    growth_interval: Whole
    _growth_tracker: Whole


class Scaling:
    """Autocast to a precision and, for float16, the scale of the loss: halved after a step with infinite gradients."""

    def __init__(self, precision: str, device: str) -> None:
        """`device` is the type of the device that the model is on."""
        self.device, self.half = device, HALF_TYPES.get(precision)
        self.scaler = torch.amp.GradScaler(device, enabled=precision == "float16")

    @property
    def is_scaled(self) -> bool:
        """Whether the loss is scaled."""
        return self.scaler.is_enabled()

    @property
    def scale(self) -> float:
        """The factor of the loss."""
        return float(self.scaler.get_scale())

    def autocast(self) -> AbstractContextManager[Any]:
        """The context in which the loss is computed."""
        return torch.autocast(self.device, self.half, enabled=self.half is not None)

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss to be differentiated."""
        scaled: Tensor = self.scaler.scale(loss)
        return scaled

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divides the gradients by the scale, before they are clipped."""
        self.scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Does a step unless gradients are infinite, adapts the scale, and returns whether gradients can still be scaled."""
        self.scaler.step(optimizer)
        self.scaler.update()
        return not self.is_scaled or self.scale >= SMALLEST_SCALE

    def state(self) -> dict[str, Any]:
        """The fields that a checkpoint stores; none if the loss is not scaled."""
        return {"scaler": self.scaler.state_dict()} if self.is_scaled else {}

    def check_state(self, about: Mapping[str, Any]) -> None:
        """Raises `SubquadError` if a checkpoint lacks the scale of the loss."""
        if self.is_scaled and "scaler" not in about:
            raise SubquadError(f"the checkpoint of step {about['step']} lacks the scale of the loss, which float16 needs")

    def restore(self, about: Mapping[str, Any]) -> None:
        """Takes the scale of the loss from a checkpoint."""
        if self.is_scaled:
            self.scaler.load_state_dict(about["scaler"])
