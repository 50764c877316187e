"""Dense layers whose kernel is computed once per solve."""

from deq_keras.layers.normalization import WeightNormalizedDense


def solve_kernels(**layers):
    """Returns a dict of the kernels to compute once per solve, by name.

    Only weight-normalized layers have one. Others apply their kernel themselves, so
    that it may be quantized or have a LoRA update.
    """
    return {
        name: layer.normalized_kernel()
        for name, layer in layers.items()
        if isinstance(layer, WeightNormalizedDense)
    }


def apply_dense(layer, inputs, kernel=None):
    """Applies a dense layer, with the kernel that `solve_kernels` returned, if any."""
    return layer(inputs) if kernel is None else layer(inputs, kernel=kernel)
