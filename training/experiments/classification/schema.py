"""What the config of a classification experiment may say, with all defaults."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ...config.bounds import BATCH, COUNT, FILTERS, NATURAL, RATE, SIDE, WINDOW
from ...config.component_fields import (
    cell_field,
    gradient_field,
    regularizer_field,
    solver_field,
    start_field,
)
from ...config.fields import EvaluationConfig, VariantsConfig


@dataclass(frozen=True)
class AugmentationConfig:
    """Random changes of the training images.

    Args:
        crop_padding: pixels of zeros around the image from which a random crop of the
            original size is cut; for images of one size.
        resized_crop: whether a random window, of 8 % to 100 % of the image's area and a
            ratio of sides of 3/4 to 4/3, is resized to `image_size`; for images of many
            sizes, of which otherwise the centre is taken as in evaluation.
        horizontal_flip: whether half of the images are mirrored.
    """

    crop_padding: int = field(default=0, metadata={"minimum": 0, "maximum": 256})
    resized_crop: bool = False
    horizontal_flip: bool = False


@dataclass(frozen=True)
class DataConfig:
    """The images.

    Args:
        name: `digits` (embedded), `cifar10`, or, streamed from disk, `imagenet2012` or
            `imagenette`.
        directory: folder of the TFRecord shards `<name>-train-*.tfrecord.gz` and
            `<name>-test-*.tfrecord.gz`; null takes TensorFlow Datasets.
        image_size: side in pixels of the squares that are made of streamed images; null
            takes 224.
        batch_size: of a training step. The last, partial batch is kept.
        evaluation_batch_size: of evaluation.
        validation_examples: training images held out for the validation of each epoch,
            the last ones. With 0 the test images serve for it as well, and the best
            epoch is then chosen by looking at them; tables always use the last epoch.
        train_examples: only the first so many training images; null takes all.
        test_examples: only the first so many test images; null takes all.
        augmentation: random changes of the training images.
    """

    name: Literal["digits", "cifar10", "imagenet2012", "imagenette"] = "digits"
    directory: str | None = None
    image_size: int | None = field(default=None, metadata=SIDE)
    batch_size: int = field(default=64, metadata=BATCH)
    evaluation_batch_size: int = field(default=256, metadata=BATCH)
    validation_examples: int = field(default=0, metadata=NATURAL)
    train_examples: int | None = field(default=None, metadata=COUNT)
    test_examples: int | None = field(default=None, metadata=COUNT)
    augmentation: AugmentationConfig = AugmentationConfig()


@dataclass(frozen=True)
class StemConfig:
    """Convolution, batch normalisation and ReLU before the equilibrium layer."""

    filters: int = field(default=24, metadata=FILTERS)
    kernel_size: int = field(default=3, metadata=WINDOW)
    strides: int = field(default=1, metadata=SIDE)


@dataclass(frozen=True)
class HeadConfig:
    """Pooling, dropout and a dense layer after the equilibrium layer.

    Args:
        pool_size: side of the average pooling windows before flattening; null pools
            over all positions.
        dropout_rate: of the pooled features.
    """

    pool_size: int | None = field(default=2, metadata=SIDE)
    dropout_rate: float = field(default=0.0, metadata=RATE)


@dataclass(frozen=True)
class ModelConfig:
    """Stem, `DEQ(cell)` and head.

    A phase may replace solver, gradient, regulariser and start. Each of them is a name
    of `deq_keras`, alone or with arguments:
    `{class_name: anderson, max_iter: 12}`.
    """

    cell: Any = cell_field()
    stem: StemConfig = StemConfig()
    solver: Any = solver_field("anderson")
    gradient: Any = gradient_field("implicit")
    regularizer: Any = regularizer_field(None)
    start: Any = start_field("cell")
    head: HeadConfig = HeadConfig()


@dataclass(frozen=True)
class ClassificationConfig(VariantsConfig):
    """An image classifier; see `VariantsConfig`."""

    experiment: Literal["classification"]
    model: ModelConfig
    data: DataConfig = DataConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
