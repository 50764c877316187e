"""The sphere on which a position's features are held."""

from keras import ops

_EPSILON = 1e-5


def on_sphere(tensor):
    """Returns each vector of the last axis scaled to a root mean square of one.

    Vectors that are much shorter than `sqrt(1e-5)` stay short, and zero stays zero.
    """
    return ops.rms_normalization(tensor, axis=-1, epsilon=_EPSILON)
