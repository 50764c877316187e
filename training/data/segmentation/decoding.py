"""Examples of images and their labels, made of records of image files."""

import tensorflow as tf

from ..records import jpeg, trouble

# What a PNG file begins with, and the bits of a sample, at the byte 24.
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_EIGHT_BITS = b"\x08"


class LabelledImageDecoder:
    """Decodes the features of a record, for a `RecordReader`.

    The example is uint8 pixels `(height, width, 3)` and uint8 labels `(height, width)`.

    Args:
        names: names of the features: the bytes of a JPEG or PNG file, and those of a
            PNG file of label ids.
        image_size: `(height, width)` that all images must have.
        train_ids: int32 array `(256,)`. The label of each label id, -1 for what is no
            label id.
    """

    def __init__(self, names, image_size, train_ids):
        self.image_name, self.labels_name = names
        self.image_size = tuple(image_size)
        self.train_ids = train_ids

    def __call__(self, encoded_image, encoded_labels):
        image = _pixels(_decode_image, encoded_image)
        label_ids = _pixels(_decode_labels, encoded_labels)
        # Labels have one channel, or there is trouble.
        labels = tf.cast(tf.reduce_max(label_ids, axis=-1), tf.int32)
        labels = tf.gather(self.train_ids, labels)
        words = trouble.first(
            *self._checks(image, self.image_name, 3),
            *self._checks(label_ids, self.labels_name, 1),
            (
                _is_png_of_8_bits(encoded_labels),
                f"`{self.labels_name}` must be a PNG file of 8 bits a pixel.",
            ),
            (
                tf.reduce_all(labels >= 0),
                f"Labels in `{self.labels_name}` must be label ids of the data set, "
                "not train ids or colours.",
            ),
        )
        image.set_shape((*self.image_size, 3))
        labels.set_shape(self.image_size)
        return (image, tf.cast(labels, tf.uint8)), words

    def _checks(self, pixels, name, channels):
        expected = (*self.image_size, channels)
        return (
            (
                tf.size(pixels) > 0,
                f"`{name}` is not an image of the right kind, or damaged.",
            ),
            (
                tf.reduce_all(tf.shape(pixels) == expected),
                tf.strings.format(
                    f"`{name}` must have {channels} channels of size "
                    f"{self.image_size}, `data.image_size`. Received: {{}}.",
                    tf.shape(pixels),
                ),
            ),
        )


def _decode_image(encoded):
    return tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: jpeg.decode(encoded),
        lambda: tf.io.decode_png(encoded, channels=3),
    )


def _decode_labels(encoded):
    # Not as one channel: that would turn colours into greys, which look like label ids.
    return tf.io.decode_png(encoded)


def _is_png_of_8_bits(encoded):
    """Other depths would be scaled to 8 bits, and JPEG files smear labels."""
    start = tf.strings.substr(encoded, 0, tf.minimum(tf.strings.length(encoded), 25))
    start = tf.strings.join([start, b"\0" * 25])
    is_png = tf.strings.substr(start, 0, len(_SIGNATURE)) == _SIGNATURE
    return is_png & (tf.strings.substr(start, 24, 1) == _EIGHT_BITS)


def _pixels(decode, encoded):
    """Returns the uint8 `(height, width, channels)` of a file; none where it fails."""
    values = tf.data.Dataset.from_tensors(encoded).map(decode).ignore_errors()
    return values.reduce(tf.zeros((0, 0, 0), tf.uint8), lambda _, value: value)
