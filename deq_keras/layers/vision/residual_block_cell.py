"""The cell with a single residual block."""

from typing import Any

import keras
from keras import ops

from deq_keras.core.checks import (
    check_boolean,
    check_count,
    check_positive,
    check_rate,
    check_seed,
)
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.layers.equilibrium import EquilibriumCell
from deq_keras.layers.kernel_initializer import FAN_IN_UNIFORM
from deq_keras.layers.normalization import GroupNormalization, WeightNormalizedConv2D
from deq_keras.layers.normalization.normalized_kernel import apply_kernel
from deq_keras.layers.variational_dropout import VariationalDropout
from deq_keras.layers.vision.symmetric_conv import check_sides


@keras.saving.register_keras_serializable(package="deq_keras")
class ResidualBlockCell(EquilibriumCell):
    """Residual block of multiscale deep equilibrium models, at a single scale.

    It is the recommended cell for images. With the injection u of the inputs x and a
    dropout mask m, both fixed during a solve, it maps the state z to

    ```
    h       = relu(norm1(conv1(z)))
    f(z, x) = norm3(relu(z + norm2(m * conv2(h) + u)))
    ```

    (Bai, Koltun and Kolter, 2020, section 3.2). The convolutions are weight normalized
    and do not have a bias. The norms are group norms with scale and offset. Inputs with
    `filters` channels are injected unchanged, and other inputs through a 1x1
    convolution. An injection without inputs, i.e. only the `constants`, omits u.

    Args:
        filters: Positive integer, a multiple of `groups`. Number of channels of the
            state.
        expansion: Positive float. The hidden map has `int(expansion * filters)`
            channels, which must be a multiple of `groups`. Defaults to `5`, as in the
            reference, the authors' PyTorch code (locuslab/mdeq).
        groups: Positive integer. Number of groups of every norm. Defaults to `4`, as in
            the reference, whose published configurations use 8.
        kernel_size: Positive odd integer, or a pair of them. Kernel size of both
            convolutions, or of each. Defaults to `3`.
        dropout_rate: Float in `[0, 1)`. Rate at which channels are dropped, for
            all positions and all evaluations of a solve. Defaults to `0.0`.
        weight_normalization: Boolean. Whether the convolutions are weight
            normalized. Defaults to `True`.
        affine: Boolean. Whether the norms have scale and offset. Defaults to `True`.
        kernel_initializer: Initializer of the kernels. Defaults to `None`, a uniform
            distribution on `(-1, 1) / sqrt(fan_in)`, as in effect in the reference.
        seed: Integer. Seed of the dropout, and of the kernels unless the initializer
            has its own seed. Defaults to `None`, a random seed.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        state: Tensor of shape `(batch, height, width, filters)`.
        injection: Result of `inject` for this solve.

    Input shape:
        Of `inject`: `(batch, height, width, channels)`.

    Output shape:
        `(batch, height, width, filters)`.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> cell = ResidualBlockCell(filters=24, expansion=2)
    >>> injection = cell.inject(keras.random.normal((2, 8, 8, 3)))
    >>> state = cell.initial_state(injection)
    >>> tuple(cell(state, injection).shape)
    (2, 8, 8, 24)

    Reference:
        [Bai, Koltun and Kolter, 2020](https://arxiv.org/abs/2006.08656).
    """

    def __init__(
        self,
        filters: int,
        expansion: float = 5,
        groups: int = 4,
        kernel_size: int | tuple[int, int] = 3,
        dropout_rate: float = 0.0,
        weight_normalization: bool = True,
        affine: bool = True,
        kernel_initializer: Any = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.filters = check_count("filters", filters)
        self.expansion = check_positive("expansion", expansion)
        self.groups = check_count("groups", groups)
        self.kernel_size = check_sides("kernel_size", kernel_size)
        self.dropout_rate = check_rate("dropout_rate", dropout_rate)
        self.weight_normalization = check_boolean(
            "weight_normalization", weight_normalization
        )
        self.affine = check_boolean("affine", affine)
        self.kernel_initializer = keras.initializers.get(
            kernel_initializer or FAN_IN_UNIFORM
        )
        self.seed = check_seed("seed", seed)
        hidden = int(self.expansion * self.filters)
        if not hidden or self.filters % self.groups or hidden % self.groups:
            raise ValueError(
                "`filters` and `int(expansion * filters)` must be positive multiples "
                f"of `groups`. Received: filters={self.filters}, "
                f"expansion={self.expansion}, groups={self.groups}."
            )
        self.projection: Any = None
        cls = (
            WeightNormalizedConv2D if self.weight_normalization else keras.layers.Conv2D
        )
        sides = self.kernel_size
        first, second = (sides, sides) if isinstance(sides, int) else sides
        self.conv1 = self._convolution(cls, hidden, first, 1, "conv1")
        self.conv2 = self._convolution(cls, self.filters, second, 2, "conv2")
        self.norm1, self.norm2, self.norm3 = (
            GroupNormalization(
                self.groups,
                center=self.affine,
                scale=self.affine,
                name=name,
                dtype=self.dtype_policy,
            )
            for name in ("norm1", "norm2", "norm3")
        )
        self.dropout = VariationalDropout(
            self.dropout_rate,
            noise_shape=(None, 1, 1, None),
            seed=self.seed,
            name="dropout",
            dtype=self.dtype_policy,
        )

    def _convolution(
        self, cls: Any, filters: int, kernel_size: int, index: int, name: str
    ) -> Any:
        return cls(
            filters,
            kernel_size,
            padding="same",
            use_bias=False,
            kernel_initializer=self._seeded_initializer(index),
            name=name,
            dtype=self.dtype_policy,
        )

    def _seeded_initializer(self, index: int) -> Any:
        # One initializer object draws the same numbers every time, and the two
        # convolutions have equally many: each layer needs its own seed.
        initializer = self.kernel_initializer
        if not isinstance(initializer, keras.initializers.Initializer):
            return initializer
        config = initializer.get_config()
        seed = config.get("seed")
        seed = self.seed if seed is None else seed
        if "seed" not in config or not isinstance(seed, int | None):
            return initializer
        config["seed"] = None if seed is None else seed + index
        return type(initializer).from_config(config)

    def build(self, input_shape: Any) -> None:
        *spatial, channels = input_shape
        if len(spatial) != 3 or channels is None:
            raise ValueError(
                f"Cell '{self.name}' expects inputs of shape (batch, height, width, "
                "channels) with a static number of channels. Received: inputs of "
                f"shape {tuple(input_shape)}."
            )
        state_shape = (*spatial, self.filters)
        hidden_shape = (*spatial, self.conv1.filters)
        if channels != self.filters:
            self.projection = self._convolution(
                keras.layers.Conv2D, self.filters, 1, 0, "projection"
            )
            self.projection.build(input_shape)
        for layer, shape in (
            (self.conv1, state_shape),
            (self.norm1, hidden_shape),
            (self.conv2, hidden_shape),
            (self.norm2, state_shape),
            (self.norm3, state_shape),
        ):
            layer.build(shape)

    def inject(self, inputs: Any, training: bool = False) -> dict[str, Any]:
        """Projects the inputs, and fixes kernels and dropout mask for a solve.

        Args:
            inputs: Tensor of shape `(batch, height, width, channels)`.
            training: Boolean. Whether to sample a dropout mask.

        Returns:
            Dict of the tensors `"inputs"`, `(batch, height, width, filters)`; with
            weight normalization, `"kernel1"` and `"kernel2"`; and with dropout,
            `"mask"`, `(batch, 1, 1, filters)`.
        """
        if not self.built:
            self.build(tuple(inputs.shape))
        inputs = ops.cast(inputs, self.compute_dtype)
        if self.projection is not None:
            inputs = self.projection(inputs)
        return {"inputs": inputs, **self.constants(ops.shape(inputs)[0], training)}

    def constants(self, batch_size: Any, training: bool = False) -> dict[str, Any]:
        """Fixes kernels and dropout mask for a solve, like `inject` without inputs.

        Args:
            batch_size: Integer or scalar tensor. Number of samples.
            training: Boolean. Whether to sample a dropout mask.
        """
        constants = {}
        if self.weight_normalization:
            constants["kernel1"] = self.conv1.normalized_kernel()
            constants["kernel2"] = self.conv2.normalized_kernel()
        # A mask of ones would cost a pass over the map at every evaluation.
        if training and self.dropout_rate > 0:
            shape = (batch_size, 1, 1, self.filters)
            constants["mask"] = self.dropout.sample_mask(shape, training)
        return constants

    def initial_state(self, injection: Any) -> Any:
        """Returns a state of zeros."""
        return ops.zeros_like(injection["inputs"])

    def call(self, state: Any, injection: Any) -> Any:
        hidden = apply_kernel(self.conv1, state, injection.get("kernel1"))
        hidden = ops.relu(self.norm1(hidden))
        hidden = apply_kernel(self.conv2, hidden, injection.get("kernel2"))
        if "mask" in injection:
            hidden = hidden * injection["mask"]
        if "inputs" in injection:
            hidden = hidden + injection["inputs"]
        return self.norm3(ops.relu(state + self.norm2(hidden)))

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, ResidualBlockCell)}
