"""The config of a multiscale DEQ for segmentation, with all defaults."""

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
    """Random changes of the training images in addition to the crop.

    Args:
        random_scale: Boolean. Whether to resize images by 0.5, 0.6 ... 2.1 before
            cropping.
        horizontal_flip: Boolean. Whether to mirror half of the images.
    """

    random_scale: bool = False
    horizontal_flip: bool = False


@dataclass(frozen=True)
class SegmentationDataConfig:
    """The images and the labels of their pixels.

    Args:
        name: `shapes` (generated on the fly) or `cityscapes` (streamed from disk).
        directory: Path of the folder of TFRecord shards
            `cityscapes-train-*.tfrecord.gz` and `cityscapes-validation-*.tfrecord.gz`.
            Null uses TensorFlow Datasets.
        image_size: `[height, width]` of the images. Null uses 64 x 128 for shapes and
            1024 x 2048 for Cityscapes.
        crop_size: `[height, width]` of the crops for training. Null uses whole images.
        batch_size: Positive integer. Batch size of training. Epochs drop a smaller last
            batch.
        steps_per_epoch: Positive integer or null. Batches per epoch, after which the
            run is validated and saved. The next epoch continues the pass over the
            images. Null uses all images.
        evaluation_batch_size: Positive integer. Batch size of evaluation.
        train_examples: Positive integer or null. Number of training images, the first
            ones. Null uses all, or 256 shapes.
        validation_examples: Positive integer or null. Number of test images, the first
            ones, for validation after each epoch. Null uses all. The best epoch is
            therefore selected on test data. Tables always use the last epoch.
        test_examples: Positive integer or null. Number of test images, the first ones.
            Null uses all, or 64 shapes. For Cityscapes, they are the validation set.
        augmentation: Random changes of the training images.
    """

    name: Literal["shapes", "cityscapes"] = "shapes"
    directory: str | None = None
    image_size: list[int] | None = field(default=None, metadata=_SIZE)
    crop_size: list[int] | None = field(default=None, metadata=_SIZE)
    batch_size: int = field(default=8, metadata=BATCH)
    steps_per_epoch: int | None = field(default=None, metadata=COUNT)
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
        kernel_size: Positive odd integer. Kernel size of the head's last convolution.
        batch_norm_momentum: Float. Momentum of batch normalization in stem and head.
    """

    kernel_size: int = field(default=1, metadata=WINDOW)
    batch_norm_momentum: float = field(
        default=0.99, metadata={"minimum": 0.0, "maximum": 0.9999}
    )


@dataclass(frozen=True)
class HardExamplesConfig:
    """Online hard example mining: only the hardest pixels of a batch count.

    Args:
        threshold: Float in (0, 1]. Pixels whose class has a lower probability count.
        keep: Non-negative integer. Number of hardest pixels that always count.
    """

    threshold: float = field(default=0.9, metadata={"above": 0.0, "maximum": 1.0})
    keep: int = field(default=131072, metadata=NATURAL)


@dataclass(frozen=True)
class SegmentationEvaluationConfig(EvaluationConfig):
    """The measurements of a trained model; see `EvaluationConfig`.

    Args:
        num_overlays: Non-negative integer. Number of test images to write with overlays
            of predicted and true classes, at the largest budget.
    """

    num_overlays: int = field(default=4, metadata=NATURAL)


@dataclass(frozen=True)
class MDEQSegmentationConfig(VariantsConfig):
    """A multiscale DEQ that segments images; see `VariantsConfig`.

    Args:
        class_weights: List of positive floats or null. Weights of the classes in the
            loss. Null weights all classes equally.
        ohem: Online hard example mining. Null averages over all pixels.
    """

    experiment: Literal["mdeq_segmentation"]
    model: MDEQSegmenterConfig
    data: SegmentationDataConfig = SegmentationDataConfig()
    class_weights: list[float] | None = field(
        default=None, metadata={"above": 0, "non_empty": True}
    )
    ohem: HardExamplesConfig | None = None
    evaluation: SegmentationEvaluationConfig = SegmentationEvaluationConfig()
