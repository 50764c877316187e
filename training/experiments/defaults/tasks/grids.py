"""Tasks on digits and drawn grids: a label for every pixel, or one for all."""

import functools

import keras
import numpy as np

from deq_keras.layers import DenseCell, ResidualBlockCell

from ....data.images import digits
from ...classification.build import head, stem
from ...classification.schema import HeadConfig, StemConfig
from .task import (
    IGNORED,
    Examples,
    Task,
    cell_of,
    convolution_cell,
    cross_entropy,
    dense,
    draw_with,
)

_LARGEST_COUNT = 4
# Every blob has its own tile of the image, so that blobs are a pixel apart.
_TILES = 4
_TILE = 4
_NOISE = 0.1

_FLOOD_SIDE = 8
# Paths are longest near the fraction at which clusters begin to span the grid.
_FREE_SHARE = 0.6


def _blob_examples(generator, size):
    """Draws noisy images `(16, 16, 1)` and their numbers of blobs, `()`."""
    counts = generator.integers(_LARGEST_COUNT + 1, size=size)
    ranks = generator.random((size, _TILES**2)).argsort(axis=1)
    sides = generator.integers(1, _TILE, size=ranks.shape)
    sides = np.where(ranks < counts[:, None], sides, 0)
    is_inside = np.arange(_TILE) < sides[..., None]  # (B, tiles, tile)
    blobs = is_inside[..., :, None] & is_inside[..., None, :]
    blobs = blobs.reshape(size, _TILES, _TILES, _TILE, _TILE)
    side = _TILES * _TILE
    images = blobs.swapaxes(2, 3).reshape(size, side, side, 1)
    return images + generator.normal(0.0, _NOISE, images.shape), counts


def _flood_examples(generator, size):
    """Draws grids of free and blocked pixels, with one free pixel as the source.

    The inputs are whether a pixel is free and whether it is the source, `(side, side,
    2)`. The target is 1 where a path of adjacent free pixels leads to the source, 0 at
    the other free pixels, and `IGNORED` at blocked pixels: the score is the accuracy at
    free pixels.
    """
    side = _FLOOD_SIDE
    source = np.eye(side**2, dtype=bool)[generator.integers(side**2, size=size)]
    source = source.reshape(size, side, side)
    free = (generator.random(source.shape) < _FREE_SHARE) | source
    targets = np.where(free, _flood(free, source), IGNORED)
    return np.stack([free, source], axis=-1), targets


def _flood(free, source):
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


def _stem(inputs, units):
    return keras.layers.Conv2D(
        units, 3, padding="same", activation="relu", name="stem_convolution"
    )(inputs)


def _digits(config, seed):
    """Returns normalized images `(8, 8, 1)` and labels; the same for every seed."""
    del seed
    sizes = config.train_examples, config.test_examples
    return tuple(
        Examples(
            ((split.images[:size] - digits.MEAN) / digits.STANDARD_DEVIATION).astype(
                "float32"
            ),
            split.labels[:size],
        )
        for split, size in zip(digits.load(), sizes, strict=True)
    )


def _normalized_stem(inputs, units):
    return stem(inputs, StemConfig(filters=units))


def _flatten(inputs, units):
    del units
    return keras.layers.Flatten(name="flattening")(inputs)


def _pooling(num_classes, pool_size=None):
    """Returns a `decode` for images: a dense layer on means over all pixels, or over
    windows."""
    return functools.partial(
        head, config=HeadConfig(pool_size=pool_size), num_classes=num_classes
    )


_BLOCK = cell_of(ResidualBlockCell, expansion=2, groups=4)
_DIGITS = digits.NUM_CLASSES
TASKS = {
    "blobs": Task(
        draw_with(_blob_examples),
        convolution_cell(rank=2),
        _pooling(_LARGEST_COUNT + 1),
        _stem,
    ),
    "digits_dense": Task(_digits, cell_of(DenseCell), dense(_DIGITS), _flatten),
    "digits_pooled": Task(_digits, _BLOCK, _pooling(_DIGITS), _normalized_stem),
    "digits_positions": Task(_digits, _BLOCK, _pooling(_DIGITS, 2), _normalized_stem),
    "flood": Task(
        draw_with(_flood_examples),
        convolution_cell(2, rank=2),
        dense(2),
        loss=functools.partial(cross_entropy, IGNORED),
    ),
}
