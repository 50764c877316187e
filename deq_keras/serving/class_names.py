"""Names of classes as what is sent back."""

import tensorflow as tf


class ClassNames:
    """Names the class of the largest output: a `postprocessor` of exports.

    Args:
        names: List of strings, one for each class.
        unknown: String, for samples that failed, such as those with an input that is
            not finite. Defaults to `""`.

    Call arguments:
        outputs: Float tensor `(batch, classes)`.
        inputs: Ignored.
        failed: Boolean tensor `(batch,)`, or `None`.

    Returns:
        String tensor `(batch,)`.

    Example:

    >>> outputs = tf.constant([[0.1, 0.9], [0.8, 0.2]])
    >>> names = ClassNames(["cat", "dog"])
    >>> names(outputs, failed=tf.constant([False, True])).numpy().tolist()
    [b'dog', b'']
    """

    def __init__(self, names, unknown=""):
        self.names = list(names)
        self.unknown = unknown
        if not self.names or not all(isinstance(name, str) for name in self.names):
            raise ValueError(f"`names` must be strings. Received: names={names!r}.")

    def __call__(self, outputs, inputs=None, failed=None):
        if outputs.shape[1:] != (len(self.names),):
            raise ValueError(
                f"Expected outputs of shape (batch, {len(self.names)}), for as many "
                f"names. Received: shape {outputs.shape}."
            )
        names = tf.gather(tf.constant(self.names), tf.argmax(outputs, axis=-1))
        return names if failed is None else tf.where(failed, self.unknown, names)
