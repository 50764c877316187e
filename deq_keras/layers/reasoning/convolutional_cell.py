"""Base class of convolutional reasoning cells."""

import keras
from keras import ops

from deq_keras.core.checks import check_count, check_integer
from deq_keras.layers.equilibrium import EquilibriumCell

_CONVOLUTIONS = {1: keras.layers.Conv1D, 2: keras.layers.Conv2D}


class ConvolutionalCell(EquilibriumCell):
    """A convolution of state and input, followed by two residual blocks.

    The cell uses neither biases nor normalization over positions, so problems can have
    any size, and padding stays zero. Subclasses implement `call` with `blocks`.

    Args:
        filters: Positive integer. Number of channels of the state.
        rank: Integer. `1` for sequences or `2` for images and boards.
        block_window: Positive odd integer. Kernel size of the convolutions in the
            blocks. The first convolution has kernel size 3.
        last_initializer: Initializer of the last convolution's kernel. Defaults to
            `"he_uniform"`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.
    """

    def __init__(
        self, filters, rank, block_window, last_initializer="he_uniform", **kwargs
    ):
        super().__init__(**kwargs)
        self.filters = check_count("filters", filters)
        self.rank = check_integer("rank", rank, 1, 2)
        self.recall = self._convolution("recall", 3)
        self.residual1 = self._convolution("residual1", block_window)
        self.residual2 = self._convolution("residual2", block_window)
        self.residual3 = self._convolution("residual3", block_window)
        self.residual4 = self._convolution("residual4", block_window, last_initializer)

    def _convolution(self, name, size, initializer="he_uniform"):
        return _CONVOLUTIONS[self.rank](
            self.filters,
            size,
            padding="same",
            use_bias=False,
            kernel_initializer=initializer,
            name=name,
            dtype=self.dtype_policy,
        )

    def build(self, input_shape):
        *positions, channels = input_shape
        if len(positions) != self.rank + 1 or channels is None:
            axes = "length" if self.rank == 1 else "height, width"
            raise ValueError(
                f"Cell '{self.name}' of rank={self.rank} expects inputs of shape "
                f"(batch, {axes}, channels) with a static number of channels. "
                f"Received: inputs of shape {tuple(input_shape)}."
            )
        self.recall.build((*positions, self.filters + channels))
        for layer in (
            self.residual1,
            self.residual2,
            self.residual3,
            self.residual4,
        ):
            layer.build((*positions, self.filters))

    def inject(self, inputs, training=False, mask=None):
        """Returns the first convolution of the inputs, and the padding mask.

        Args:
            inputs: Tensor of shape `(batch, *positions, channels)`.
            training: Boolean. Ignored.
            mask: Optional Boolean tensor `(batch, *positions)`, false at padding.

        Returns:
            Dict of the tensors `"recalled"`, `(batch, *positions, filters)`, and
            `"kernel"`, the kernel to convolve the state with. With a mask, also
            `"mask"`, `(batch, *positions, 1)`.
        """
        del training
        if not self.built:
            self.build(tuple(inputs.shape))
        inputs = ops.cast(inputs, self.compute_dtype)
        injection = {}
        if mask is not None:
            injection["mask"] = ops.cast(mask, self.compute_dtype)[..., None]
            inputs = inputs * injection["mask"]
        # Splits the kernel: W0 * [z, x] is W0z * z + W0x * x.
        kernel = ops.cast(self.recall.kernel, self.compute_dtype)
        injection["kernel"] = kernel[..., : self.filters, :]
        of_inputs = kernel[..., self.filters :, :]
        return {**injection, "recalled": _convolved(inputs, of_inputs)}

    def initial_state(self, injection):
        """Returns a state of zeros."""
        return ops.zeros_like(injection["recalled"])

    def blocks(self, state, injection):
        """Returns

            h = relu(W0 * [z, x])
            h = relu(h + W2 * relu(W1 * h))

        and W4 * relu(W3 * h), both `(batch, *positions, filters)`.
        """
        mask = injection.get("mask")
        hidden = _convolved(state, injection["kernel"]) + injection["recalled"]
        hidden = _kept(ops.relu(hidden), mask)
        inner = _kept(ops.relu(self.residual1(hidden)), mask)
        hidden = _kept(ops.relu(hidden + self.residual2(inner)), mask)
        inner = _kept(ops.relu(self.residual3(hidden)), mask)
        return hidden, self.residual4(inner)

    def get_config(self):
        return {**super().get_config(), "filters": self.filters, "rank": self.rank}


def _convolved(tensor, kernel):
    return ops.conv(tensor, kernel, padding="same")


def _kept(hidden, mask):
    # Zeroes padding, so that values cannot travel through it.
    return hidden if mask is None else hidden * mask
