"""Images and their labels to the examples of a segmenter."""

import keras
from keras_hub.models import ImageSegmenterPreprocessor

from deq_keras.models.mdeq.mdeq_backbone import MDEQBackbone
from deq_keras.models.mdeq.mdeq_image_converter import MDEQImageConverter


@keras.saving.register_keras_serializable(package="deq_keras")
class MDEQImageSegmenterPreprocessor(ImageSegmenterPreprocessor):
    """Resizes and normalises images for `MDEQImageSegmenter`.

    See `keras_hub.models.ImageSegmenterPreprocessor` for the arguments.

    Example:

    >>> converter = MDEQImageConverter.for_dataset("imagenet", image_size=(32, 64))
    >>> preprocessor = MDEQImageSegmenterPreprocessor(converter)
    >>> tuple(preprocessor(np.zeros((2, 50, 100, 3), "uint8")).shape)
    (2, 32, 64, 3)
    """

    backbone_cls = MDEQBackbone
    image_converter_cls = MDEQImageConverter
