"""Synthetic images to try segmentation on: discs, rectangles and triangles.

Colors overlap and are noisy, so they only hint at the class.
"""

import numpy as np

from ..splits import MemorySplit
from .transforms import IGNORED, Classes, SegmentationTransform

CLASSES = Classes(
    ("background", "rectangle", "disc", "triangle"),
    ((70, 70, 70), (220, 20, 60), (250, 170, 30), (0, 130, 180)),
)
IMAGE_SIZE = (64, 128)
NUM_EXAMPLES = {"train": 256, "test": 64}
MEAN = (128.0, 128.0, 128.0)
STANDARD_DEVIATION = (36.0, 36.0, 36.0)

_SEEDS = {"train": 0, "test": 1}
_COLORS = {1: (165, 115, 100), 2: (100, 165, 115), 3: (115, 100, 165)}
_COLOR_DEVIATION = 20
_NOISE_DEVIATION = 15


def load(image_size, train_examples=None, test_examples=None):
    """Returns the training and the test `MemorySplit`.

    Args:
        image_size: `(height, width)`.
        train_examples: Number of training images. `None` takes 256.
        test_examples: Number of test images. `None` takes 64.
    """
    counts = {"train": train_examples, "test": test_examples}
    splits = []
    for split, count in counts.items():
        numbers = range(count or NUM_EXAMPLES[split])
        examples = [example(split, number, image_size) for number in numbers]
        arrays = map(np.stack, zip(*examples, strict=True))
        splits.append(MemorySplit(*arrays, SegmentationTransform()))
    return tuple(splits)


def example(split, index, image_size):
    """Returns one image and its labels, which depend on the arguments only.

    Args:
        split: `"train"` or `"test"`.
        index: Non-negative integer.
        image_size: `(height, width)`.

    Returns:
        uint8 arrays `(height, width, 3)` and `(height, width)`. Pixels at the edge of
        a shape are ignored: their label is 255.
    """
    generator = np.random.default_rng([_SEEDS[split], index])
    rows, columns = np.mgrid[: image_size[0], : image_size[1]]
    image = _texture(generator, rows, columns)
    labels = np.zeros(image_size, "uint8")
    for _ in range(generator.integers(2, 6)):
        kind = int(generator.integers(1, len(CLASSES)))
        inside = _mask(kind, generator, rows, columns)
        image[inside] = generator.normal(_COLORS[kind], _COLOR_DEVIATION)
        labels[inside] = kind
    image += generator.normal(0, _NOISE_DEVIATION, image.shape)
    labels[_is_edge(labels)] = IGNORED
    return np.clip(np.rint(image), 0, 255).astype("uint8"), labels


def _texture(generator, rows, columns):
    """Three plane waves of random colors around a gray."""
    image = np.full((*rows.shape, 3), generator.uniform(90, 165))
    for _ in range(3):
        frequency = generator.normal(0, 6, 2) / rows.shape[0]
        phase = generator.uniform(0, 2 * np.pi)
        wave = np.sin(
            2 * np.pi * (frequency[0] * rows + frequency[1] * columns) + phase
        )
        image += wave[..., None] * generator.normal(0, 15, 3)
    return image


def _mask(kind, generator, rows, columns):
    height, width = rows.shape
    center = generator.uniform((0, 0), (height, width))
    # Half the height and width of the shape.
    sizes = generator.uniform(0.12, 0.35, 2) * height
    down, right = rows - center[0], columns - center[1]
    if kind == 1:
        return (abs(down) <= sizes[0]) & (abs(right) <= sizes[1])
    if kind == 2:
        return down**2 + right**2 <= sizes[0] ** 2
    sizes *= 1.4  # About as many pixels as a rectangle has.
    is_between = abs(down) <= sizes[0]
    return is_between & (2 * abs(right) <= sizes[1] * (1 + down / sizes[0]))


def _is_edge(labels):
    """Returns which pixels have a neighbor with another label."""
    is_edge = np.zeros(labels.shape, bool)
    below = labels[1:] != labels[:-1]
    beside = labels[:, 1:] != labels[:, :-1]
    is_edge[1:] |= below
    is_edge[:-1] |= below
    is_edge[:, 1:] |= beside
    is_edge[:, :-1] |= beside
    return is_edge
