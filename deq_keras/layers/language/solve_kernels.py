"""Dense layers whose kernel is computed once per solve."""

from deq_keras.layers.normalization import WeightNormalizedDense


def solve_kernels(**layers):
    """Returns a dict of the kernels to compute once per solve, by name.

    It contains only weight-normalized layers. Other layers apply their own kernel,
    which may be quantized or have a LoRA update.
    """
    return {
        name: layer.normalized_kernel()
        for name, layer in layers.items()
        if isinstance(layer, WeightNormalizedDense)
    }


def apply_dense(layer, inputs, kernel=None):
    """Applies a dense layer, with the kernel from `solve_kernels` if it has one."""
    return layer(inputs) if kernel is None else layer(inputs, kernel=kernel)
