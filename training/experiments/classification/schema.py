"""The config of a classification experiment, with all defaults."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ...config.bounds import BATCH, COUNT, FILTERS, NATURAL, RATE, SEED, SIDE, WINDOW
from ...config.component_fields import (
    cell_field,
    gradient_field,
    initial_state_field,
    monotone_cell_field,
    regularizer_field,
    solver_field,
)
from ...config.fields import EvaluationConfig, VariantsConfig

_SCALES = {"max_items": 8, **FILTERS}


@dataclass(frozen=True)
class AugmentationConfig:
    """Random changes of the training images.

    Args:
        crop_padding: pixels of zeros around the image from which a random crop of the
            original size is cut; for images of one size.
        resized_crop: whether a random window, of 8 % to 100 % of the image's area and a
            ratio of sides of 3/4 to 4/3, is resized to `image_size`; for images of many
            sizes, of which otherwise the center is taken as in evaluation.
        horizontal_flip: whether half of the images are mirrored.
    """

    crop_padding: int = field(default=0, metadata={"minimum": 0, "maximum": 256})
    resized_crop: bool = False
    horizontal_flip: bool = False


@dataclass(frozen=True)
class DataConfig:
    """The images.

    Args:
        name: `digits` (embedded), `cifar10`, `imagenet2012`, `imagenette`, `folder`
            (image files in `directory`) or `tfds` (the TFDS dataset `dataset`).
        directory: of `folder`, the folder with one subfolder for each class, or with
            the subfolders train, validation and test of such folders. Of `tfds`, the
            `data_dir` of TensorFlow Datasets. Otherwise the folder of TFRecord shards
            `<name>-train-*.tfrecord.gz` and `<name>-test-*.tfrecord.gz`; null takes
            TensorFlow Datasets.
        dataset: of `tfds`, the name of an image classification dataset.
        image_size: side in pixels of the squares that are made of images of any size;
            null takes 224.
        color_mode: `rgb` or `grayscale`, of `folder` and `tfds`.
        validation_split: of `folder` and `tfds` without validation and test images, the
            fraction of the images that is not trained on.
        split_seed: of `folder`, draws these images.
        batch_size: of a training step. The last, partial batch is kept.
        evaluation_batch_size: of evaluation.
        validation_examples: training images held out for the validation of each epoch,
            the last ones. With 0, the validation images of `folder` and `tfds` serve
            for it, or otherwise the test images: the best epoch is then chosen on test
            data. Tables always use the last epoch.
        train_examples: only the first so many training images; null takes all.
        test_examples: only the first so many test images; null takes all.
        augmentation: random changes of the training images.
    """

    name: Literal[
        "digits", "cifar10", "imagenet2012", "imagenette", "folder", "tfds"
    ] = "digits"
    directory: str | None = None
    dataset: str | None = None
    image_size: int | None = field(default=None, metadata=SIDE)
    color_mode: Literal["rgb", "grayscale"] = "rgb"
    validation_split: float = field(
        default=0.2, metadata={"above": 0.0, "maximum": 0.9}
    )
    split_seed: int = field(default=0, metadata=SEED)
    batch_size: int = field(default=64, metadata=BATCH)
    evaluation_batch_size: int = field(default=256, metadata=BATCH)
    validation_examples: int = field(default=0, metadata=NATURAL)
    train_examples: int | None = field(default=None, metadata=COUNT)
    test_examples: int | None = field(default=None, metadata=COUNT)
    augmentation: AugmentationConfig = AugmentationConfig()


@dataclass(frozen=True)
class StemConfig:
    """Convolution, batch normalization and ReLU before the equilibrium layer."""

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
class SingleScaleConfig:
    """Stem, `DEQ(cell)` and head.

    A phase may replace solver, gradient, regularizer and initial state. Each of them is
    a name of `deq_keras`, alone or with arguments:
    `{class_name: anderson, max_iter: 12}`.
    """

    cell: Any = cell_field()
    name: Literal["single_scale"] = "single_scale"
    stem: StemConfig = StemConfig()
    solver: Any = solver_field("anderson")
    gradient: Any = gradient_field("implicit")
    regularizer: Any = regularizer_field(None)
    initial_state: Any = initial_state_field("cell")
    head: HeadConfig = HeadConfig()


@dataclass(frozen=True)
class ExplicitNetworkConfig:
    """An explicit network of KerasHub, for comparison.

    Args:
        network: the network.
        upsampling: factor by which the images are enlarged first. These networks shrink
            images by 4 before their first block; with 4, the first block of images of
            32 pixels sees 32, as in the networks that are made for CIFAR-10.
    """

    network: Literal["resnet_18", "resnet_101", "densenet_121"]
    upsampling: int = field(default=1, metadata={"minimum": 1, "maximum": 32})


@dataclass(frozen=True)
class MDEQBackboneConfig:
    """Arguments of `MDEQBackbone`; see there.

    Args:
        initial_weights: a `.keras` file of an MDEQ whose backbone's weights the model
            starts from; null draws random weights.
    """

    filters: list[int] = field(metadata={"non_empty": True, **_SCALES})
    expansion: float = field(default=5, metadata={"above": 0, "maximum": 1000})
    groups: int = field(default=8, metadata=FILTERS)
    num_downsamplings: int = field(default=2, metadata={"minimum": 0, "maximum": 16})
    dropout: float = field(default=0.0, metadata=RATE)
    weight_normalization: bool = True
    block_affine: bool = True
    fuse_affine: bool = True
    post_affine: bool = True
    initial_weights: str | None = None
    solver: Any = solver_field("anderson")
    gradient: Any = gradient_field("neumann")
    regularizer: Any = regularizer_field("contraction")
    initial_state: Any = initial_state_field("cell")


@dataclass(frozen=True)
class MDEQConfig(MDEQBackboneConfig):
    """Arguments of `MDEQBackbone` and `MDEQImageClassifier`; see there.

    Args:
        head_filters: filters of the classification head, one for each scale.
        final_filters: filters of the last layer of the head.
        explicit: an explicit network instead; null for a multiscale DEQ.
    """

    name: Literal["mdeq"] = "mdeq"
    head_filters: list[int] = field(default_factory=list, metadata=_SCALES)
    final_filters: int = field(default=200, metadata=FILTERS)
    explicit: ExplicitNetworkConfig | None = None


@dataclass(frozen=True)
class MonotoneConfig:
    """Arguments of `MonotoneClassifier`; see there.

    Winston and Kolter (2020), "Monotone operator equilibrium networks", section 6.
    """

    cell: Any = monotone_cell_field()
    name: Literal["monotone"] = "monotone"
    solver: Any = solver_field("peaceman_rachford")
    gradient: Any = gradient_field("implicit")
    regularizer: Any = regularizer_field(None)
    initial_state: Any = initial_state_field("cell")


@dataclass(frozen=True)
class ClassificationConfig(VariantsConfig):
    """An image classifier; see `VariantsConfig`.

    Args:
        model: `name` chooses the kind of model and thereby its other keys:
            `single_scale` (a stem, `DEQ(cell)` and a head; the default), `mdeq` (a
            multiscale DEQ) or `monotone` (a monotone operator network).
    """

    experiment: Literal["classification"]
    model: SingleScaleConfig | MDEQConfig | MonotoneConfig
    data: DataConfig = DataConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
