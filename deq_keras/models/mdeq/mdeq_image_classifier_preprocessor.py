"""Images to the inputs of an image classifier."""

import keras
from keras_hub.models import ImageClassifierPreprocessor

from deq_keras.models.mdeq.mdeq_backbone import MDEQBackbone
from deq_keras.models.mdeq.mdeq_image_converter import MDEQImageConverter


@keras.saving.register_keras_serializable(package="deq_keras")
class MDEQImageClassifierPreprocessor(ImageClassifierPreprocessor):
    """Resizes and normalises images for `MDEQImageClassifier`.

    See `keras_hub.models.ImageClassifierPreprocessor` for the arguments.

    Example:

    >>> converter = MDEQImageConverter.for_dataset("imagenet", image_size=(32, 64))
    >>> preprocessor = MDEQImageClassifierPreprocessor(converter)
    >>> tuple(preprocessor(np.zeros((2, 50, 100, 3), "uint8")).shape)
    (2, 32, 64, 3)
    """

    backbone_cls = MDEQBackbone
    image_converter_cls = MDEQImageConverter
