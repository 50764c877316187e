"""Normalization of the features of a position to a sphere."""

from keras import ops

_EPSILON = 1e-5


def on_sphere(tensor):
    """Scales each vector of the last axis to a root mean square of one.

    Vectors with a root mean square far below `sqrt(1e-5)` stay short, and zero stays
    zero.
    """
    return ops.rms_normalization(tensor, axis=-1, epsilon=_EPSILON)
