"""Converts images and labels to inputs of multiscale equilibrium models."""

from typing import Any

import keras
from keras_hub.layers import ImageConverter
from keras_hub.models import ImageClassifierPreprocessor, ImageSegmenterPreprocessor

from deq_keras.core.checks import check_choice
from deq_keras.models.kerashub import PackagedPreprocessor
from deq_keras.models.mdeq.mdeq_backbone import MDEQBackbone


@keras.saving.register_keras_serializable(package="deq_keras")
class MDEQImageConverter(PackagedPreprocessor, ImageConverter):
    """Resizes and normalizes images for `MDEQBackbone`.

    See `keras_hub.layers.ImageConverter` for the arguments.

    Example:

    >>> converter = MDEQImageConverter.for_dataset("cifar10")
    >>> black = converter(np.zeros((1, 32, 32, 3), "uint8"))
    >>> round(float(black[0, 0, 0, 0]), 3)
    -2.429
    """

    backbone_cls = MDEQBackbone
    # Means and standard deviations of pixels from 0 to 1, as in the reference. For
    # CIFAR-10, it averages the standard deviation within each image.
    statistics = {
        "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    }

    @classmethod
    def for_dataset(cls, name: str, **kwargs: Any) -> Any:
        """Returns the converter of pixels from 0 to 255 of a published data set.

        Args:
            name: String. `"cifar10"` or `"imagenet"` (also for Cityscapes).
            **kwargs: Other arguments of the converter, such as `image_size`.

        Raises:
            ValueError: For any other data set.
        """
        means, deviations = cls.statistics[check_choice("name", name, cls.statistics)]
        return cls(
            scale=[1 / (255 * deviation) for deviation in deviations],
            offset=[-mean / deviation for mean, deviation in zip(means, deviations)],
            **kwargs,
        )


@keras.saving.register_keras_serializable(package="deq_keras")
class MDEQImageClassifierPreprocessor(
    PackagedPreprocessor, ImageClassifierPreprocessor
):
    """Resizes and normalizes images for `MDEQImageClassifier`.

    See `keras_hub.models.ImageClassifierPreprocessor` for the arguments.

    Example:

    >>> converter = MDEQImageConverter.for_dataset("imagenet", image_size=(32, 64))
    >>> preprocessor = MDEQImageClassifierPreprocessor(converter)
    >>> tuple(preprocessor(np.zeros((2, 50, 100, 3), "uint8")).shape)
    (2, 32, 64, 3)
    """

    backbone_cls = MDEQBackbone
    image_converter_cls = MDEQImageConverter


@keras.saving.register_keras_serializable(package="deq_keras")
class MDEQImageSegmenterPreprocessor(PackagedPreprocessor, ImageSegmenterPreprocessor):
    """Resizes and normalizes images for `MDEQImageSegmenter`.

    See `keras_hub.models.ImageSegmenterPreprocessor` for the arguments.

    Example:

    >>> converter = MDEQImageConverter.for_dataset("imagenet", image_size=(32, 64))
    >>> preprocessor = MDEQImageSegmenterPreprocessor(converter)
    >>> tuple(preprocessor(np.zeros((2, 50, 100, 3), "uint8")).shape)
    (2, 32, 64, 3)
    """

    backbone_cls = MDEQBackbone
    image_converter_cls = MDEQImageConverter
