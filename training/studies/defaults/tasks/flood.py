"""Grids in which a flood from one pixel is to be followed."""

import functools

import numpy as np

from ..cells import ConvolutionalCell
from .task import IGNORED, Task, cross_entropy, dense, drawn, unseeded

SIDE = 8
# Near the share at which clusters begin to span the grid, paths are the longest.
_FREE_SHARE = 0.6


def _examples(generator, size):
    """Draws grids of free and blocked pixels, one of the free ones the source.

    The inputs are whether a pixel is free and whether it is the source, `(side, side,
    2)`. The target is 1 where a path of free pixels, side by side, leads to the source,
    0 at the other free pixels, and `IGNORED` at blocked ones: the score is the accuracy
    at free pixels.
    """
    source = np.eye(SIDE**2, dtype=bool)[generator.integers(SIDE**2, size=size)]
    source = source.reshape(size, SIDE, SIDE)
    free = (generator.random(source.shape) < _FREE_SHARE) | source
    targets = np.where(free, _reached(free, source), IGNORED)
    return np.stack([free, source], axis=-1), targets


def _reached(free, source):
    reached, grown = source, _with_neighbors(source) & free
    while np.any(grown != reached):
        reached, grown = grown, _with_neighbors(grown) & free
    return reached


def _with_neighbors(pixels):
    grown = pixels.copy()
    grown[:, 1:] |= pixels[:, :-1]
    grown[:, :-1] |= pixels[:, 1:]
    grown[:, :, 1:] |= pixels[:, :, :-1]
    grown[:, :, :-1] |= pixels[:, :, 1:]
    return grown


FLOOD = Task(
    drawn(_examples),
    unseeded(ConvolutionalCell, rank=2),
    dense(2),
    loss=functools.partial(cross_entropy, IGNORED),
)
