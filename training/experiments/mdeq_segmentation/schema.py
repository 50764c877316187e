"""What the config of a multiscale DEQ for segmentation may say, with all defaults."""

import math
from dataclasses import dataclass, field
from typing import Literal

from ...config.bounds import BATCH, COUNT, NATURAL, SIDE, WINDOW
from ...config.fields import EvaluationConfig, VariantsConfig
from ...errors import InputError
from ..classification.schema import MDEQBackboneConfig

_SIZE = {"num_items": 2, **SIDE}

# Limit of the dataset `shapes`, which is held in memory.
_MOST_PIXELS = 2**28


@dataclass(frozen=True)
class SegmentationAugmentationConfig:
    """Random changes of the training images, besides the crop.

    Args:
        random_scale: whether images are resized by 0.5, 0.6 ... 2.1 before they are
            cropped.
        horizontal_flip: whether half of the images are mirrored.
    """

    random_scale: bool = False
    horizontal_flip: bool = False


@dataclass(frozen=True)
class SegmentationDataConfig:
    """The images and the labels of their pixels.

    Args:
        name: `shapes` (made up on the fly) or `cityscapes` (streamed from disk).
        directory: folder of the TFRecord shards `cityscapes-train-*.tfrecord.gz` and
            `cityscapes-validation-*.tfrecord.gz`; null takes TensorFlow Datasets.
        image_size: `[height, width]` of the images; null takes 64 x 128 for shapes and
            1024 x 2048 for Cityscapes.
        crop_size: `[height, width]` of the crops for training; null takes the whole
            images.
        batch_size: of a training step. Images that do not fill a batch are left out of
            the epoch.
        evaluation_batch_size: of evaluation, which takes whole images.
        train_examples: only the first so many training images; null takes all, of the
            shapes 256.
        validation_examples: only the first so many test images in the validation after
            each epoch; null takes all. The best epoch is thus chosen by looking at
            them; tables always use the last epoch.
        test_examples: only the first so many test images; null takes all, of the shapes
            64. Of Cityscapes they are the validation set.
        augmentation: random changes of the training images.
    """

    name: Literal["shapes", "cityscapes"] = "shapes"
    directory: str | None = None
    image_size: list[int] | None = field(default=None, metadata=_SIZE)
    crop_size: list[int] | None = field(default=None, metadata=_SIZE)
    batch_size: int = field(default=8, metadata=BATCH)
    evaluation_batch_size: int = field(default=8, metadata=BATCH)
    train_examples: int | None = field(default=None, metadata=COUNT)
    validation_examples: int | None = field(default=None, metadata=COUNT)
    test_examples: int | None = field(default=None, metadata=COUNT)
    augmentation: SegmentationAugmentationConfig = SegmentationAugmentationConfig()

    def __post_init__(self):
        size = self.image_size or (64, 128)
        num_examples = (self.train_examples or 256) + (self.test_examples or 64)
        if self.name == "shapes" and num_examples * math.prod(size) > _MOST_PIXELS:
            raise InputError(
                "`data` must have smaller or fewer images: the shapes are held in "
                f"memory, at most {_MOST_PIXELS} pixels. Received: {num_examples} "
                f"images of image_size={list(size)}."
            )


@dataclass(frozen=True)
class MDEQSegmenterConfig(MDEQBackboneConfig):
    """Arguments of `MDEQBackbone` and `MDEQImageSegmenter`; see there.

    Args:
        kernel_size: side of the window of the head's last convolution, odd.
        batch_norm_momentum: of stem and head.
    """

    kernel_size: int = field(default=1, metadata=WINDOW)
    batch_norm_momentum: float = field(
        default=0.99, metadata={"minimum": 0.0, "maximum": 0.9999}
    )


@dataclass(frozen=True)
class HardExamplesConfig:
    """Online hard example mining: only the worst pixels of a batch count.

    Args:
        threshold: pixels count whose class has a lower probability.
        keep: so many of the worst pixels count in any case.
    """

    threshold: float = field(default=0.9, metadata={"above": 0.0, "maximum": 1.0})
    keep: int = field(default=131072, metadata=NATURAL)


@dataclass(frozen=True)
class SegmentationEvaluationConfig(EvaluationConfig):
    """What is measured of a trained model; see `EvaluationConfig`.

    Args:
        window: `[height, width]` of windows in which an image is evaluated one after
            the other, with the mean of their logits where they overlap; null takes the
            whole image.
        stride: `[down, right]`, from one window to the next; null takes the windows
            side by side.
        num_overlays: so many test images are written with the predicted and the right
            classes in color, at the largest of the budgets.
    """

    window: list[int] | None = field(default=None, metadata=_SIZE)
    stride: list[int] | None = field(default=None, metadata=_SIZE)
    num_overlays: int = field(default=4, metadata=NATURAL)


@dataclass(frozen=True)
class MDEQSegmentationConfig(VariantsConfig):
    """A multiscale DEQ that segments images; see `VariantsConfig`.

    Args:
        class_weights: of the loss, one for each class; null weighs all alike.
        ohem: online hard example mining; null for the mean over all pixels.
    """

    experiment: Literal["mdeq_segmentation"]
    model: MDEQSegmenterConfig
    data: SegmentationDataConfig = SegmentationDataConfig()
    class_weights: list[float] | None = field(
        default=None, metadata={"above": 0, "non_empty": True}
    )
    ohem: HardExamplesConfig | None = None
    evaluation: SegmentationEvaluationConfig = SegmentationEvaluationConfig()
