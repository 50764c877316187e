"""Dropout for cells, with the same mask at all evaluations of a solve."""

from typing import Any

import keras
from keras import ops

from deq_keras.core.checks import check_rate, check_seed, check_sizes
from deq_keras.core.random import SavesRandomState, next_seed, uniform
from deq_keras.core.serialization import Config, arguments_of


@keras.saving.register_keras_serializable(package="deq_keras")
class VariationalDropout(SavesRandomState, keras.layers.Layer):
    """Inverted dropout whose mask can be fixed during a solve.

    Ordinary dropout draws a new mask at every call, so an equilibrium does not exist. A
    cell therefore samples the mask once per solve, with `sample_mask` in `inject`, and
    passes it to `call` as part of the injection. The solver, the adjoint solve and the
    Jacobian regularizer all see the same mask.

    ```
    mask = bernoulli(1 - rate) / (1 - rate)
    outputs = inputs * mask
    ```

    A call of the layer samples a mask and multiplies by it. Call the layer only in the
    stem and the head of a model, never inside the iteration.

    Args:
        rate: Float in `[0, 1)`. Rate at which entries of the mask are zero.
        noise_shape: Tuple with one entry per axis of the inputs, or `None`. An entry of
            1 shares the mask along this axis, and `None` uses the size of the inputs.
            `(None, 1, None)` drops channels of a sequence `(batch, length, channels)`
            for all of its positions, and `(None, 1, 1, None)` drops whole feature maps.
            Defaults to `None`, independent dropout of every entry.
        seed: Integer. Seed of the masks. Defaults to `None`, a random seed.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        inputs: Tensor of any shape.
        training: Boolean. If false, the inputs are returned unchanged.

    Input shape:
        Any, batch first.

    Output shape:
        Same as the input shape.

    Raises:
        ValueError: If `rate` is not in `[0, 1)`, or `noise_shape` does not have
            one entry for each axis of the inputs.

    Example:

    >>> dropout = VariationalDropout(0.25, noise_shape=(None, 1, 1, None), seed=1)
    >>> mask = dropout.sample_mask((16, 8, 8, 24), training=True)
    >>> tuple(mask.shape)
    (16, 1, 1, 24)

    Reference:
        [Gal and Ghahramani, 2016](https://arxiv.org/abs/1512.05287).
    """

    def __init__(
        self,
        rate: float,
        noise_shape: tuple[int | None, ...] | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.rate = check_rate("rate", rate)
        self.noise_shape = None
        if noise_shape is not None:
            self.noise_shape = check_sizes("noise_shape", noise_shape)
        self.seed = check_seed("seed", seed)
        if self.rate > 0:
            with keras.name_scope(self.name):
                self.seed_generator = keras.random.SeedGenerator(
                    self.seed, name="seed_generator"
                )
        self.supports_masking = True
        self.built = True

    def sample_mask(self, inputs_or_shape: Any, training: bool = False) -> Any:
        """Samples the mask of one solve.

        Args:
            inputs_or_shape: The tensor to mask, or its shape as a tuple of integers and
                scalar tensors.
            training: Boolean. If false, the mask is one.

        Returns:
            Tensor of zeros and `1 / (1 - rate)` in the compute dtype, with the shape
            `noise_shape`. Outside training, and for a rate of zero, a tensor of ones
            with the static shape `(1, ..., 1)`, which broadcasts.
        """
        shape = inputs_or_shape
        if not isinstance(shape, (list, tuple)):
            shape = ops.shape(shape)
        if not training or self.rate == 0:
            return ops.ones((1,) * len(shape), dtype=self.compute_dtype)
        # bfloat16 is too coarse for a uniform draw: a rate of 0.05 would become 7/128.
        drawn = uniform(self._mask_shape(shape), next_seed(self.seed_generator))
        keep = ops.cast(drawn >= self.rate, self.compute_dtype)
        return keep * (1 / (1 - self.rate))

    def _mask_shape(self, shape: Any) -> Any:
        if self.noise_shape is None:
            return shape
        if len(self.noise_shape) != len(shape):
            raise ValueError(
                "`noise_shape` must have one entry for each axis of the inputs. "
                f"Received: noise_shape={self.noise_shape}, inputs of shape {shape}."
            )
        return tuple(
            size if fixed is None else fixed
            for fixed, size in zip(self.noise_shape, shape)
        )

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training or self.rate == 0:
            return inputs
        return inputs * self.sample_mask(inputs, training=True)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, VariationalDropout)}
