"""Files of images as what is sent to a model."""

import tensorflow as tf

from deq_keras.checks import check_choice, check_counts


class EncodedImages:
    """Decodes and resizes images in the graph: a `preprocessor` of exports.

    What cannot be decoded becomes an image that is not finite. An equilibrium layer
    sets such a sample aside, so that it spoils no other of the request: its `status` is
    2, and `ClassNames` gives it no name.

    Args:
        size: Tuple of two positive integers, height and width of the images. Bilinear,
            without regard to their proportions.
        channels: `1` or `3`. Defaults to `3`.
        converter: Optional function of float32 images `(batch, height, width,
            channels)` of pixels from 0 to 255, such as an `MDEQImageConverter`.
            Defaults to `None`.

    Call arguments:
        encoded: String tensor `(batch,)`: contents of JPEG, PNG, GIF (the first frame)
            and BMP files.

    Returns:
        Float32 tensor `(batch, height, width, channels)`.

    Example:

    >>> file = tf.io.encode_png(np.full((4, 4, 3), 7, "uint8"))
    >>> images = EncodedImages((2, 2))(tf.stack([file, "no image"]))
    >>> images[:, 0, 0, 0].numpy()
    array([ 7., nan], dtype=float32)
    """

    input_signature = tf.TensorSpec((None,), tf.string, name="inputs")

    def __init__(self, size, channels=3, converter=None):
        self.size = check_counts("size", size)
        if len(self.size) != 2:
            raise ValueError(
                f"`size` must be (height, width). Received: size={size!r}."
            )
        self.channels = int(check_choice("channels", str(channels), ("1", "3")))
        self.converter = converter

    def __call__(self, encoded):
        shape = (*self.size, self.channels)
        images = tf.map_fn(
            self._decoded_or_nan,
            encoded,
            fn_output_signature=tf.TensorSpec(shape, tf.float32),
        )
        return images if self.converter is None else self.converter(images)

    def _decoded_or_nan(self, encoded):
        """Nothing but a dataset goes on after an error."""
        shape = (*self.size, self.channels)
        image = tf.data.Dataset.from_tensors(encoded).map(self._decoded).ignore_errors()
        otherwise = tf.data.Dataset.from_tensors(tf.fill(shape, float("nan")))
        return image.concatenate(otherwise).take(1).get_single_element()

    def _decoded(self, encoded):
        image = tf.io.decode_image(encoded, self.channels, expand_animations=False)
        image.set_shape((None, None, self.channels))
        resized = tf.image.resize(image, self.size)
        return tf.ensure_shape(resized, (*self.size, self.channels))
