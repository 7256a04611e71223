"""Images, pixel by pixel: predict each value from those before it, finish pictures and draw new ones."""

from subquad.tasks.images.task import Images, ImagesTask

__all__ = ["Images", "ImagesTask"]
