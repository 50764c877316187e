"""What streams make of images whose pixels have labels."""

import tensorflow as tf

from .. import pipeline
from ..share import WHOLE
from .augmentation import augment


class SegmentationTransform:
    """Casts whole images for evaluation; crops of one size are augmented one by one."""

    of_batches = False
    drops_remainder = True

    def evaluated(self, image, labels):
        """Returns float32 pixels and int32 labels."""
        return tf.cast(image, tf.float32), tf.cast(labels, tf.int32)

    def augmented(self, image, labels, config, key):
        """Returns float32 pixels and int32 labels; `config`: an augmentation config and
        the size of the crops."""
        return self.evaluated(*augment(image, labels, *config, key))


def training_batches(
    split, batch_size, augmentation, crop_size, seed, epochs, share=WHOLE
):
    """Streams the batches of some epochs, see `training.data.pipeline`.

    Args:
        split: the `Split` to draw from.
        batch_size: int. Images a batch; those that are left over are skipped.
        augmentation: a `SegmentationAugmentationConfig`.
        crop_size: `(height, width)`.
        seed: int.
        epochs: a `range` of epochs.
        share: the `Share` of every batch that is made.
    """
    config = (augmentation, crop_size)
    return pipeline.training_batches(
        split, batch_size, config, seed, epochs, share=share
    )
