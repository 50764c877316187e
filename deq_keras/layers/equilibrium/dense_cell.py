"""A cell of one dense layer."""

from typing import Any

import keras
from keras import ops

from deq_keras.core.checks import check_boolean, check_count, check_seed
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.layers.equilibrium import lipschitz
from deq_keras.layers.equilibrium.cell import EquilibriumCell
from deq_keras.layers.normalization import LayerNormalization, WeightNormalizedDense

# Cells with at most as many units train W itself.
_UNSCALED_UNITS = 128


@keras.saving.register_keras_serializable(package="deq_keras")
class DenseCell(EquilibriumCell):
    """Cell of one dense layer: the smallest useful equilibrium model.

    ```
    f(z, x) = norm(activation(z W + x U + b)), W = min(1, 128 / units) V
    ```

    Inputs of rank 3 or more have one vector per position, as in `keras.layers.Dense`:
    all positions share the weights, and they do not interact.

    `x U + b` is computed once per solve. The initial W is uniform on `(-1, 1) /
    sqrt(units)` and has a spectral radius of about 0.58. With a non-expansive
    activation, the iteration converges at initialization. V is the trained variable:
    an update of Adam changes all entries by about the learning rate, so that its
    spectral norm grows with the width, and would expand the map of a wide cell.

    Args:
        units: Positive integer. Size of the state.
        activation: Name or function. A bounded or non-expansive activation helps the
            solver to converge. Defaults to `"tanh"`.
        weight_normalization: Boolean. Whether W is weight normalized. Defaults to
            `False`.
        layer_normalization: Boolean. Whether the result is normalized over its
            units, with scale and offset. Defaults to `False`.
        kernel_initializer: Initializer of W. Defaults to `None`, the uniform
            distribution above.
        seed: Integer. Seed of U, and of W if `kernel_initializer` is `None`.
            Defaults to `None`, a random seed.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        state: Tensor of shape `(batch, ..., units)`.
        injection: Result of `inject` for this solve.

    Input shape:
        Of `inject`: `(batch, ..., features)`.

    Output shape:
        `(batch, ..., units)`.

    Example:

    >>> cell = DenseCell(32)
    >>> injection = cell.inject(keras.random.normal((4, 10)))
    >>> tuple(cell(cell.initial_state(injection), injection).shape)
    (4, 32)

    Reference:
        [Bai, Kolter and Koltun, 2019](https://arxiv.org/abs/1909.01377);
        [Yang et al., 2022](https://arxiv.org/abs/2203.03466) for the scale of W.
    """

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        weight_normalization: bool = False,
        layer_normalization: bool = False,
        kernel_initializer: Any = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units = check_count("units", units)
        self.activation = keras.activations.get(activation)
        self.weight_normalization = check_boolean(
            "weight_normalization", weight_normalization
        )
        self.layer_normalization = check_boolean(
            "layer_normalization", layer_normalization
        )
        self.seed = check_seed("seed", seed)
        self.kernel_initializer = keras.initializers.get(
            kernel_initializer or _uniform_by_fan_in(self.seed)
        )
        self._scale = min(1.0, _UNSCALED_UNITS / self.units)
        self._create_layers()

    def _create_layers(self) -> None:
        initializer = self.kernel_initializer
        if self._scale < 1.0:
            initializer = self._initial_kernel
        cls = WeightNormalizedDense if self.weight_normalization else keras.layers.Dense
        self.recurrent = cls(
            self.units,
            use_bias=False,
            kernel_initializer=initializer,
            name="recurrent",
            dtype=self.dtype_policy,
        )
        self.projection = keras.layers.Dense(
            self.units,
            kernel_initializer=_uniform_by_fan_in(
                None if self.seed is None else self.seed + 1
            ),
            name="projection",
            dtype=self.dtype_policy,
        )
        self.norm = None
        if self.layer_normalization:
            self.norm = LayerNormalization(name="norm", dtype=self.dtype_policy)

    def _initial_kernel(self, shape: Any, dtype: Any = None) -> Any:
        """Returns the initial V, so that `kernel_initializer` draws W."""
        return self.kernel_initializer(shape, dtype) / self._scale

    def build(self, input_shape: Any) -> None:
        if len(input_shape) < 2 or input_shape[-1] is None:
            raise ValueError(
                f"Cell '{self.name}' expects inputs of shape (batch, ..., features) "
                "with a static number of features. Received: inputs of shape "
                f"{tuple(input_shape)}."
            )
        state_shape = (*input_shape[:-1], self.units)
        self.projection.build(input_shape)
        self.recurrent.build(state_shape)
        if self.norm is not None:
            self.norm.build(state_shape)

    def inject(self, inputs: Any, training: bool = False) -> dict[str, Any]:
        """Projects the inputs, and fixes the kernel for a solve.

        Args:
            inputs: Tensor of shape `(batch, ..., features)`.
            training: Boolean. Ignored.

        Returns:
            Dict of the tensors `"inputs"`, `(batch, ..., units)`, and, with weight
            normalization, `"kernel"`, `(units, units)`.
        """
        del training
        if not self.built:
            self.build(tuple(inputs.shape))
        injection = {"inputs": self.projection(inputs)}
        if self.weight_normalization:
            injection["kernel"] = self.recurrent.normalized_kernel()
        return injection

    def initial_state(self, injection: Any) -> Any:
        """Returns a state of zeros."""
        return ops.zeros_like(injection["inputs"])

    def call(self, state: Any, injection: Any) -> Any:
        if self.weight_normalization:
            recurrent = self.recurrent(state, kernel=injection["kernel"])
        else:
            recurrent = self.recurrent(state)
        if self._scale < 1.0:
            # Quantized and low-rank kernels can only be scaled by their product.
            recurrent = recurrent * self._scale
        outputs = self.activation(recurrent + injection["inputs"])
        return outputs if self.norm is None else self.norm(outputs)

    def lipschitz_constant(self, injection: Any) -> Any:
        """Returns |W| times the largest slope of the activation.

        Returns `None` with `layer_normalization`, an integer kernel or an activation of
        unknown slope. See `EquilibriumCell.lipschitz_constant`.
        """
        if self.norm is not None:
            return None
        constant = lipschitz.of_dense(
            self.recurrent, self.activation, kernel=injection.get("kernel")
        )
        return None if constant is None else self._scale * constant

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, DenseCell)}


def _uniform_by_fan_in(seed: int | None) -> Any:
    return keras.initializers.VarianceScaling(
        scale=1 / 3, mode="fan_in", distribution="uniform", seed=seed
    )
