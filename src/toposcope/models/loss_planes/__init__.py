"""Planes of the loss around a checkpoint: the directions that span them, where they are sampled, the losses there."""

from toposcope.models.loss_planes.directions import (
    Axes,
    Sample,
    can_move,
    eigenvector_directions,
    grid_sample,
    hessian_directions,
    path_directions,
    points_on_disk,
    random_directions,
    scattered_sample,
)
from toposcope.models.loss_planes.landscape import (
    Estimate,
    Plane,
    between_planes,
    estimates,
    is_differentiable,
    measure_plane,
)
from toposcope.models.loss_planes.shape import Shape, shape_of
from toposcope.models.loss_planes.surface import Surface, evaluate

__all__ = [
    "Axes",
    "Estimate",
    "Plane",
    "Sample",
    "Shape",
    "Surface",
    "between_planes",
    "can_move",
    "eigenvector_directions",
    "estimates",
    "evaluate",
    "grid_sample",
    "hessian_directions",
    "is_differentiable",
    "measure_plane",
    "path_directions",
    "points_on_disk",
    "random_directions",
    "scattered_sample",
    "shape_of",
]
