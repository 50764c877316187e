"""The config of a classification experiment, with all defaults."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ...config.bounds import BATCH, COUNT, FILTERS, NATURAL, RATE, SEED, SIDE, WINDOW
from ...config.component_fields import CELL, MONOTONE_CELL, components
from ...config.fields import EvaluationConfig, VariantsConfig

_SCALES = {"max_items": 8, **FILTERS}


@dataclass(frozen=True)
class AugmentationConfig:
    """Random changes of the training images.

    Args:
        crop_padding: Non-negative integer. Width of the zero padding around an image,
            from which a random crop of the original size is taken. For images of equal
            size.
        resized_crop: Boolean. Whether to resize a random window, with 8 % to 100 % of
            the image's area and a side ratio of 3/4 to 4/3, to `image_size`. For images
            of different sizes. If false, uses the center, as in evaluation.
        horizontal_flip: Boolean. Whether to mirror half of the images.
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
        directory: Path. For `folder`, a folder with one subfolder per class, or with
            the subfolders train, validation and test that contain them. For `tfds`, the
            `data_dir` of TensorFlow Datasets. Otherwise, the folder of TFRecord shards
            `<name>-train-*.tfrecord.gz` and `<name>-test-*.tfrecord.gz`. Null uses
            TensorFlow Datasets.
        dataset: String. For `tfds`, the name of an image classification dataset.
        image_size: Positive integer or null. Side in pixels to which images of any size
            are resized. Null uses 224.
        color_mode: `rgb` or `grayscale`, for `folder` and `tfds`.
        validation_split: Float. Fraction of images that are held out from training, for
            `folder` and `tfds` without validation and test images.
        split_seed: Integer. For `folder`, seed of the held-out images.
        batch_size: Positive integer. Batch size of training. The last, smaller batch is
            kept.
        steps_per_epoch: Positive integer or null. Batches per epoch, after which the
            run is validated and saved. The next epoch continues the pass over the
            images. Null uses all images.
        evaluation_batch_size: Positive integer. Batch size of evaluation.
        validation_examples: Non-negative integer. Number of training images, the last
            ones, that are held out for validation after each epoch. With 0, the
            validation images of `folder` and `tfds` are used or, without any, the test
            images. The best epoch is then selected on test data. Tables always use the
            last epoch.
        train_examples: Positive integer or null. Number of training images, the first
            ones. Null uses all.
        test_examples: Positive integer or null. Number of test images, the first ones.
            Null uses all.
        augmentation: Random changes of the training images.
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
    steps_per_epoch: int | None = field(default=None, metadata=COUNT)
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
        pool_size: Positive integer or null. Side of the average pooling windows before
            flattening. Null pools over all positions.
        dropout_rate: Float in [0, 1). Dropout rate of the pooled features.
    """

    pool_size: int | None = field(default=2, metadata=SIDE)
    dropout_rate: float = field(default=0.0, metadata=RATE)


@dataclass(frozen=True)
class SingleScaleConfig(components()):
    """Stem, `DEQ(cell)` and head.

    A phase can replace solver, gradient, regularizer and initial state. Each is a name
    in `deq_keras`, alone or with arguments: `{class_name: anderson, max_iter: 12}`.
    """

    cell: Any = field(metadata=CELL)
    name: Literal["single_scale"] = "single_scale"
    stem: StemConfig = StemConfig()
    head: HeadConfig = HeadConfig()


@dataclass(frozen=True)
class ExplicitNetworkConfig:
    """An explicit network of KerasHub, as a baseline.

    Args:
        network: Name of the network.
        upsampling: Positive integer. Factor by which the images are enlarged first.
            These networks shrink images by 4 before their first block. With 4, the
            first block sees images of 32 pixels at full size, as in CIFAR-10 networks.
        growth_rate: Positive integer or null. Filters that a layer of a DenseNet adds.
            Null uses 32.
    """

    network: Literal["resnet_18", "resnet_101", "densenet_121"]
    upsampling: int = field(default=1, metadata={"minimum": 1, "maximum": 32})
    growth_rate: int | None = field(default=None, metadata=FILTERS)


@dataclass(frozen=True)
class MDEQBackboneConfig(components(gradient="neumann", regularizer="contraction")):
    """Arguments of `MDEQBackbone`; see there.

    Args:
        initial_weights: Path of a `.keras` file of an MDEQ whose backbone provides the
            initial weights. Null uses random weights.
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


@dataclass(frozen=True)
class MDEQConfig(MDEQBackboneConfig):
    """Arguments of `MDEQBackbone` and `MDEQImageClassifier`; see there.

    Args:
        head_filters: List of positive integers. Filters of the classification head per
            scale.
        final_filters: Positive integer. Filters of the last layer of the head.
        explicit: An explicit network to train instead. Null uses a multiscale DEQ.
    """

    name: Literal["mdeq"] = "mdeq"
    head_filters: list[int] = field(default_factory=list, metadata=_SCALES)
    final_filters: int = field(default=200, metadata=FILTERS)
    explicit: ExplicitNetworkConfig | None = None


@dataclass(frozen=True)
class MonotoneConfig(components(solver="peaceman_rachford")):
    """Arguments of `MonotoneClassifier`; see there.

    Winston and Kolter (2020), "Monotone operator equilibrium networks", section 6.
    """

    cell: Any = field(metadata=MONOTONE_CELL)
    name: Literal["monotone"] = "monotone"


@dataclass(frozen=True)
class ClassificationConfig(VariantsConfig):
    """An image classifier; see `VariantsConfig`.

    Args:
        model: The model. `name` selects its kind, which determines its other keys:
            `single_scale` (a stem, `DEQ(cell)` and a head; the default), `mdeq` (a
            multiscale DEQ) or `monotone` (a monotone operator network).
    """

    experiment: Literal["classification"]
    model: SingleScaleConfig | MDEQConfig | MonotoneConfig
    data: DataConfig = DataConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
