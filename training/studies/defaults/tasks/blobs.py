"""Images of square blobs that are to be counted."""

import keras
import numpy as np

from ..cells import ConvolutionalCell
from .task import Task, drawn, unseeded

_LARGEST_COUNT = 4
# Blobs lie in different tiles of an image, at least a pixel apart.
_TILES = 4
_TILE = 4
_NOISE = 0.1


def _examples(generator, size):
    """Draws noisy images `(16, 16, 1)` and how many blobs are in them, `()`."""
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


def _stem(inputs, units):
    return keras.layers.Conv2D(
        units, 3, padding="same", activation="relu", name="stem_convolution"
    )(inputs)


def _pooled(state):
    state = keras.layers.GlobalAveragePooling2D(name="head_pooling")(state)
    return keras.layers.Dense(_LARGEST_COUNT + 1, name="logits")(state)


BLOBS = Task(drawn(_examples), unseeded(ConvolutionalCell, rank=2), _pooled, _stem)
