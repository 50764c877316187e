"""The config of a classification experiment, with all defaults."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from ...config import keys
from ...config.fields import Components, Config, EvaluationConfig, VariantsConfig


class AugmentationConfig(Config):
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

    crop_padding: keys.integer(ge=0, le=256) = 0
    resized_crop: bool = False
    horizontal_flip: bool = False


class DataConfig(Config):
    """The images.

    Args:
        name: `digits` (embedded), `cifar10`, `imagenet2012`, `imagenette`, `folder`
            (image files in `directory`) or `tfds` (the TFDS dataset `dataset`).
        directory: Path. For `folder`, a folder with one subfolder per class, or with
            the subfolders train, validation and test that contain them. For `cifar10`,
            a folder with `cifar10.npz`; null uses TensorFlow Datasets. Otherwise, the
            `data_dir` of TensorFlow Datasets; null uses its default.
        dataset: String. For `tfds`, the name of an image classification dataset.
        image_size: Positive integer or null. Side in pixels to which images of any size
            are resized. Null uses 224. In training, images that have this size are
            decoded once and kept in memory, up to 256 MiB.
        color_mode: `rgb` or `grayscale`, for `folder` and `tfds`.
        mean: List of numbers in [0, 1], one per channel, where 1 is the value 255 of
            a pixel. Together with `standard_deviation`, it normalizes the images. Null
            uses the published mean of `cifar10` and ImageNet, and for `folder` and
            `tfds` the mean of up to 1024 training images. A checkpoint needs the
            values with which it was trained.
        standard_deviation: List of positive numbers up to 1, one per channel. See
            `mean`.
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
    directory: keys.Text | None = None
    dataset: keys.Text | None = None
    image_size: keys.Side | None = None
    color_mode: Literal["rgb", "grayscale"] = "rgb"
    mean: keys.Some[keys.Fraction] | None = None
    standard_deviation: keys.Some[keys.number(gt=0, le=1)] | None = None
    validation_split: keys.HeldOut = 0.2
    split_seed: keys.Seed = 0
    batch_size: keys.Batch = 64
    steps_per_epoch: keys.Count | None = None
    evaluation_batch_size: keys.Batch = 256
    validation_examples: keys.Natural = 0
    train_examples: keys.Count | None = None
    test_examples: keys.Count | None = None
    augmentation: AugmentationConfig = AugmentationConfig()

    @property
    def is_measured(self):
        """Returns whether the training images determine the normalization."""
        return self.name in ("folder", "tfds") and self.mean is None

    @property
    def normalization(self):
        """Returns a sentence for reports."""
        source = f"the published statistics of {self.name}"
        if self.mean is not None:
            source = f"mean {self.mean} and deviation {self.standard_deviation}"
        elif self.is_measured:
            source = "the mean and deviation of the training images"
        return f"Images are normalized with {source}."


class StemConfig(Config):
    """Convolution, batch normalization and ReLU before the equilibrium layer.

    Args:
        filters: Positive integer. Filters of the convolution.
        kernel_size: Positive integer. Side of its window in pixels.
        strides: Positive integer. Its stride in pixels.
    """

    filters: keys.Filters = 24
    kernel_size: keys.Window = 3
    strides: keys.Side = 1


class HeadConfig(Config):
    """Pooling, dropout and a dense layer after the equilibrium layer.

    Args:
        pool_size: Positive integer or null. Side of the average pooling windows before
            flattening. Null pools over all positions.
        dropout_rate: Float in [0, 1). Dropout rate of the pooled features.
    """

    pool_size: keys.Side | None = 2
    dropout_rate: keys.Rate = 0.0


class SingleScaleConfig(Components):
    """Stem, `DEQ(cell)` and head.

    Args:
        cell: `residual_block_cell` or a registered cell, with its arguments.
    """

    cell: keys.Component
    name: Literal["single_scale"] = "single_scale"
    stem: StemConfig = StemConfig()
    head: HeadConfig = HeadConfig()


class ExplicitNetworkConfig(Config):
    """An explicit network, as a baseline.

    Args:
        network: Name of the network: `resnet_8` of He et al. (2016), for small images,
            or a network of KerasHub.
        upsampling: Positive integer. Factor by which the images are enlarged first.
            KerasHub's networks shrink images by 4 before their first block. With 4, the
            first block sees images of 32 pixels at full size, as in CIFAR-10 networks.
        filters: Positive integer or null. Filters of the first stage of `resnet_8`, or
            filters that a layer of a DenseNet adds. Null uses 16 or 32, as published;
            other networks need null.
    """

    network: Literal["resnet_8", "resnet_18", "resnet_101", "densenet_121"]
    upsampling: keys.integer(le=32) = 1
    filters: keys.Filters | None = None


class MDEQBackboneConfig(Components):
    """Arguments of `MDEQBackbone`; see there.

    Args:
        initial_weights: Path of a `.keras` file of an MDEQ whose backbone provides the
            initial weights. Null uses random weights.
    """

    gradient: keys.Component = "neumann"
    regularizer: keys.Component | None = "contraction"
    filters: Annotated[keys.Some[keys.Filters], Field(max_length=8)]
    expansion: keys.number(gt=0, le=1000) = 5
    groups: keys.Filters = 8
    num_downsamplings: keys.integer(ge=0, le=16) = 2
    dropout: keys.Rate = 0.0
    weight_normalization: bool = True
    block_affine: bool = True
    fuse_affine: bool = True
    post_affine: bool = True
    initial_weights: keys.Text | None = None


class MDEQConfig(MDEQBackboneConfig):
    """Arguments of `MDEQBackbone` and `MDEQImageClassifier`; see there.

    Args:
        head_filters: List of positive integers. Filters of the classification head per
            scale.
        final_filters: Positive integer. Filters of the last layer of the head.
        explicit: An explicit network to train instead. Null uses a multiscale DEQ.
    """

    name: Literal["mdeq"] = "mdeq"
    head_filters: keys.Several[keys.Filters] = []
    final_filters: keys.Filters = 200
    explicit: ExplicitNetworkConfig | None = None


class MonotoneConfig(Components):
    """Arguments of `MonotoneClassifier`; see there.

    Winston and Kolter (2020), "Monotone operator equilibrium networks", section 6.
    """

    solver: keys.Component = "peaceman_rachford"
    cell: keys.Component
    name: Literal["monotone"] = "monotone"


def _with_name(model):
    """Returns the keys of a model with the name of the default kind."""
    return {"name": "single_scale", **model} if isinstance(model, dict) else model


_Model = Annotated[
    SingleScaleConfig | MDEQConfig | MonotoneConfig,
    Field(discriminator="name"),
    BeforeValidator(_with_name),
]


class ClassificationConfig(VariantsConfig):
    """An image classifier; see `VariantsConfig`.

    Args:
        model: The model. `name` selects its kind, which determines its other keys:
            `single_scale` (a stem, `DEQ(cell)` and a head; the default), `mdeq` (a
            multiscale DEQ) or `monotone` (a monotone operator network).
    """

    experiment: Literal["classification"]
    model: _Model
    data: DataConfig = DataConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
