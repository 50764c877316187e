"""The config of a multiscale DEQ for segmentation, with all defaults."""

import math
from typing import Literal

from ...config import keys
from ...config.fields import Config, EvaluationConfig, VariantsConfig
from ...errors import InputError
from ..classification.schema import MDEQBackboneConfig

# Limit of the dataset `shapes`, which is held in memory.
_MOST_PIXELS = 2**28


class SegmentationAugmentationConfig(Config):
    """Random changes of the training images in addition to the crop.

    Args:
        random_scale: Boolean. Whether to resize images by 0.5, 0.6 ... 2.1 before
            cropping.
        horizontal_flip: Boolean. Whether to mirror half of the images.
    """

    random_scale: bool = False
    horizontal_flip: bool = False


class SegmentationDataConfig(Config):
    """The images and the labels of their pixels.

    Args:
        name: `shapes` (generated on the fly) or `cityscapes` (streamed from disk).
        directory: Path of the `data_dir` of TensorFlow Datasets. Null uses its default.
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
    directory: keys.Text | None = None
    image_size: keys.Pair[keys.Side] | None = None
    crop_size: keys.Pair[keys.Side] | None = None
    batch_size: keys.Batch = 8
    steps_per_epoch: keys.Count | None = None
    evaluation_batch_size: keys.Batch = 8
    train_examples: keys.Count | None = None
    validation_examples: keys.Count | None = None
    test_examples: keys.Count | None = None
    augmentation: SegmentationAugmentationConfig = SegmentationAugmentationConfig()

    def model_post_init(self, context):
        size = self.image_size or (64, 128)
        num_examples = (self.train_examples or 256) + (self.test_examples or 64)
        if self.name == "shapes" and num_examples * math.prod(size) > _MOST_PIXELS:
            raise InputError(
                "`data` must have smaller or fewer images: the shapes are held in "
                f"memory, at most {_MOST_PIXELS} pixels. Received: {num_examples} "
                f"images of image_size={list(size)}."
            )


class MDEQSegmenterConfig(MDEQBackboneConfig):
    """Arguments of `MDEQBackbone` and `MDEQImageSegmenter`; see there.

    Args:
        kernel_size: Positive odd integer. Kernel size of the head's last convolution.
        batch_norm_momentum: Float. Momentum of batch normalization in stem and head.
    """

    kernel_size: keys.Window = 1
    batch_norm_momentum: keys.number(ge=0, le=0.9999) = 0.99


class HardExamplesConfig(Config):
    """Online hard example mining: only the hardest pixels of a batch count.

    Args:
        threshold: Float in (0, 1]. Pixels whose class has a lower probability count.
        keep: Non-negative integer. Number of hardest pixels that always count.
    """

    threshold: keys.number(gt=0, le=1) = 0.9
    keep: keys.Natural = 131072


class SegmentationEvaluationConfig(EvaluationConfig):
    """The measurements of a trained model; see `EvaluationConfig`.

    Args:
        num_overlays: Non-negative integer. Number of test images to write with overlays
            of predicted and true classes, at the largest budget.
    """

    num_overlays: keys.Natural = 4


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
    class_weights: keys.Some[keys.Positive] | None = None
    ohem: HardExamplesConfig | None = None
    evaluation: SegmentationEvaluationConfig = SegmentationEvaluationConfig()
