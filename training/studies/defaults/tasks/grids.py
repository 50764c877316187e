"""Grids of which every pixel, or the whole, has to be known."""

import keras
import numpy as np

from ..cells import ConvolutionalCell
from .regression import explained_variance
from .task import Task, dense, drawn, unseeded

_FIELD_SIDE = 8
_SOURCES = 0.3
# Above 4 the field of a source decays: by about a half from pixel to pixel.
_SCREENING = 4.3
# The standard deviation of the field is then about one.
_SCALE = 4.2
_COUNT_SIDE = 10
_FILLED = 0.25
_FEWEST = 11
_NUM_CLASSES = 10


def _field_examples(generator, size):
    """Draws sources and their fields, `(side, side, 1)` each.

    The field is 4.2 u, where 4.3 u(p) - (sum of u over the neighbors of p) = source(p).
    """
    side = _FIELD_SIDE
    line = np.eye(side, k=1) + np.eye(side, k=-1)
    neighbors = np.kron(line, np.eye(side)) + np.kron(np.eye(side), line)
    shape = (size, side * side)
    sources = generator.normal(size=shape) * (generator.random(shape) < _SOURCES)
    operator = _SCREENING * np.eye(side * side) - neighbors
    fields = _SCALE * np.linalg.solve(operator, sources.T).T
    return tuple(array.reshape(size, side, side, 1) for array in (sources, fields))


def _count_examples(generator, size):
    """Draws grids of filled pixels, `(side, side, 1)`, and how many connected groups
    they form: a class from 11 or fewer groups to 20 or more."""
    filled = generator.random((size, _COUNT_SIDE, _COUNT_SIDE)) < _FILLED
    counts = num_groups(filled) - _FEWEST
    return filled[..., None], np.clip(counts, 0, _NUM_CLASSES - 1)


def num_groups(filled):
    """Returns the number of connected groups of filled pixels of each grid.

    Every pixel takes the smallest index in its neighborhood until nothing changes. The
    groups are then the filled pixels that keep their own index.
    """
    size, height, width = filled.shape
    own = np.arange(height * width).reshape(1, height, width)
    nothing = height * width
    labels = np.where(filled, own, nothing)
    while True:
        padded = np.pad(labels, ((0, 0), (1, 1), (1, 1)), constant_values=nothing)
        around = (
            padded[:, :-2, 1:-1],
            padded[:, 2:, 1:-1],
            padded[:, 1:-1, :-2],
            padded[:, 1:-1, 2:],
        )
        smallest = np.minimum(labels, np.min(around, axis=0))
        smallest = np.where(filled, smallest, nothing)
        if np.array_equal(smallest, labels):
            return np.sum(filled & (labels == own), axis=(1, 2))
        labels = smallest


def _pooled(state):
    state = keras.layers.GlobalAveragePooling2D(name="head_pooling")(state)
    return keras.layers.Dense(_NUM_CLASSES, name="logits")(state)


_CELL = unseeded(ConvolutionalCell, rank=2)
FIELD = Task(
    drawn(_field_examples),
    _CELL,
    dense(1),
    loss=keras.losses.MeanSquaredError,
    score=explained_variance,
)
GROUPS = Task(drawn(_count_examples), _CELL, _pooled)
