"""Whether XLA compiles the steps of a phase."""

import keras
import tensorflow as tf

from deq_keras.layers import DEQ

from .distribution import OneDevice

# Compiling takes seconds, and saves a fraction of a millisecond to some milliseconds in
# each step; see docs/results/costs.md.
_FEWEST_STEPS = 5000


def choose(job, model, span):
    """Returns the `jit_compile` of a phase: `True`, `False` or `"auto"`.

    The config decides, and by `"auto"` Keras, but on a CPU: Keras never compiles there,
    and XLA makes an equilibrium of small products faster. It compiles phases of many
    steps without convolutions.

    Args:
        job: A `Job`.
        model: The model, with the components of the phase.
        span: `PhaseSpan`.
    """
    chosen = job.config.jit_compile
    if (
        chosen != "auto"
        or len(span.steps) < _FEWEST_STEPS
        or type(job.distribution) is not OneDevice
        or tf.config.list_logical_devices("GPU")
    ):
        return chosen
    layers = list(model._flatten_layers())
    # XLA is slow in convolutions on a CPU. Their kernels have at least four axes, or
    # three along one axis, as kernels of attention.
    is_suitable = any(isinstance(layer, DEQ) for layer in layers)
    is_suitable &= not any(isinstance(layer, keras.layers.Conv1D) for layer in layers)
    is_suitable &= all(layer.supports_jit for layer in layers)
    is_suitable &= all(len(weight.shape) < 4 for weight in model.weights)
    return True if is_suitable else chosen
