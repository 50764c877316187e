"""How much the arithmetic of a dtype rounds, on the devices of this process."""

import contextlib
from collections.abc import Iterable, Iterator

import tensorflow as tf

# The distance from 1 to the next number. Rounding is at most half of it.
EPSILON = {
    tf.bfloat16: 2.0**-7,
    tf.float16: 2.0**-10,
    tf.float32: 2.0**-23,
    tf.float64: 2.0**-52,
}
# TensorFloat-32 rounds the factors of products of float32 to ten bits.
TENSOR_FLOAT_32 = 2.0**-10
# The first GPUs that have it.
_AMPERE = (8, 0)


def has_tensor_float_32(dtypes: Iterable[tf.DType]) -> bool:
    """Returns whether products of one of the dtypes are computed in TensorFloat-32.

    Does not initialize the devices, whose settings the user may still change.
    """
    if not tf.config.experimental.tensor_float_32_execution_enabled():
        return False
    details = tf.config.experimental.get_device_details
    gpus = tf.config.list_physical_devices("GPU") if tf.float32 in dtypes else []
    capabilities = [details(gpu).get("compute_capability", _AMPERE) for gpu in gpus]
    return any(capability >= _AMPERE for capability in capabilities)


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    """Scope in which GPUs multiply float32 in float32, not in TensorFloat-32.

    For measurements of the function that a model defines. Also decorates functions.
    All operations read the setting when they run, so the scope has no effect in a
    function that is being traced.
    """
    if not tf.executing_eagerly():
        yield
        return
    tensor_float_32 = tf.config.experimental
    was_enabled = tensor_float_32.tensor_float_32_execution_enabled()
    tensor_float_32.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tensor_float_32.enable_tensor_float_32_execution(was_enabled)


def product_epsilon(dtypes: Iterable[tf.DType]) -> float:
    """Returns the epsilon of products of the coarsest dtype."""
    dtypes = list(dtypes)
    coarsest = max(EPSILON[dtype] for dtype in dtypes)
    if has_tensor_float_32(dtypes):
        coarsest = max(coarsest, TENSOR_FLOAT_32)
    return coarsest
