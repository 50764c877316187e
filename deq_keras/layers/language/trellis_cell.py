"""The cell of the DEQ-TrellisNet."""

from typing import Any

import keras
from keras import ops

from deq_keras.core.checks import (
    check_boolean,
    check_count,
    check_integer,
    check_optional_count,
    check_rate,
    check_seed,
)
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.layers.kernel_initializer import FAN_IN_UNIFORM, fresh
from deq_keras.layers.language.segment_memory import SegmentCell
from deq_keras.layers.normalization import WeightNormalizedConv1D
from deq_keras.layers.variational_dropout import VariationalDropout


@keras.saving.register_keras_serializable(package="deq_keras")
class TrellisCell(SegmentCell):
    """Causal convolution with the gates of an LSTM: the cell of the DEQ-TrellisNet.

    The state is a hidden sequence h and a cell sequence c. With k taps at a distance of
    the dilation d, the inputs x and the dropout mask m,

    ```
    i, o, g, f = split(sum_j V_j x_(t - j) + b + sum_j W_j (m * h)_(t - j d)),
                                                                   j = 0 ... k - 1
    c'_t = sigmoid(f) * c_(t - s) + sigmoid(i) * tanh(g)
    h'_t = sigmoid(o) * tanh(c'_t)
    ```

    Before the start of a sequence, h and c are read from the memory or zero, and x is
    zero. The cell is causal, so an equilibrium converges from the first position to the
    last. The Jacobian is block triangular: its eigenvalues are the eigenvalues of its
    diagonal blocks, one per position, which depend only on the present tap `W_0`.

    Args:
        units: Positive integer. Number of channels of h, and of c.
        output_dim: Positive integer, at most `units`. Number of features for the layers
            after the equilibrium: the last `output_dim` channels of h. Defaults to
            `None`, all channels.
        kernel_size: Integer, at least 2. Number of taps k. Defaults to `2`.
        dilation_rate: Positive integer. Distance d between the taps of h. Defaults to
            `1`.
        cell_shift: Positive integer. Distance s to the cell state in the forget gate's
            term. Defaults to `1` for any dilation, as in the reference, the authors'
            PyTorch code (locuslab/deq). The published TrellisNet uses the dilation.
        dropout_rate: Float in `[0, 1)`. Rate at which channels of h are dropped at the
            input of the convolution. Defaults to `0.0`.
        weight_dropout_rate: Float in `[0, 1)`. Rate at which weights of all taps except
            the present one are dropped. Defaults to `0.0`.
        weight_normalization: Boolean. Whether both kernels are weight normalized.
            Defaults to `True`.
        kernel_initializer: Initializer of the kernel W. Defaults to `None`, a normal
            distribution with standard deviation 0.01, as in the reference.
        injection_initializer: Initializer of the kernel V. Defaults to `None`, a
            uniform distribution on `(-1, 1) / sqrt(fan_in)`, as in the reference.
        seed: Integer. Seed of the dropout. Defaults to `None`, a random seed.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        state: Dict of `"hidden"` and `"cell"`, tensors `(batch, length, units)`.
        injection: Dict. Result of `inject` for this solve.

    Input shape:
        `(batch, length, features)` or a dict; see `inject`.

    Output shape:
        Dict of `"hidden"` and `"cell"`, `(batch, length, units)`.

    Raises:
        ValueError: If an argument is out of range, or a sequence without a memory is
            shorter than the reach of the taps.

    Example:

    >>> equilibrium = deq_keras.layers.DEQ(TrellisCell(units=16))
    >>> state = equilibrium(keras.random.normal((2, 5, 8)))
    >>> tuple(state["hidden"].shape), tuple(state["cell"].shape)
    ((2, 5, 16), (2, 5, 16))

    Reference:
        [Bai, Kolter and Koltun, 2019a](https://arxiv.org/abs/1810.06682), TrellisNet.
        [Bai, Kolter and Koltun, 2019b](https://arxiv.org/abs/1909.01377), section 4.
    """

    def __init__(
        self,
        units: int,
        output_dim: int | None = None,
        kernel_size: int = 2,
        dilation_rate: int = 1,
        cell_shift: int = 1,
        dropout_rate: float = 0.0,
        weight_dropout_rate: float = 0.0,
        weight_normalization: bool = True,
        kernel_initializer: Any = None,
        injection_initializer: Any = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units = check_count("units", units)
        self._output_dim = check_optional_count("output_dim", output_dim)
        if self.output_dim > self.units:
            raise ValueError(
                "`output_dim` must be at most the number of units. Received: "
                f"output_dim={output_dim}, units={units}."
            )
        self.kernel_size = check_integer("kernel_size", kernel_size, minimum=2)
        self.dilation_rate = check_count("dilation_rate", dilation_rate)
        self.cell_shift = check_count("cell_shift", cell_shift)
        self.dropout_rate = check_rate("dropout_rate", dropout_rate)
        self.weight_dropout_rate = check_rate(
            "weight_dropout_rate", weight_dropout_rate
        )
        self.weight_normalization = check_boolean(
            "weight_normalization", weight_normalization
        )
        self.kernel_initializer = keras.initializers.get(
            kernel_initializer or keras.initializers.RandomNormal(stddev=0.01)
        )
        self.injection_initializer = keras.initializers.get(
            injection_initializer or FAN_IN_UNIFORM
        )
        self.seed = check_seed("seed", seed)
        self.convolution = self._convolution("convolution", self.kernel_initializer)
        self.injection_convolution = self._convolution(
            "injection_convolution", self.injection_initializer
        )
        self.dropout = VariationalDropout(
            self.dropout_rate,
            noise_shape=(None, 1, None),
            seed=self.seed,
            name="dropout",
            dtype=self.dtype_policy,
        )
        self.weight_dropout = VariationalDropout(
            self.weight_dropout_rate,
            # Uses another seed: the same one would draw the same numbers.
            seed=None if self.seed is None else self.seed + 1,
            name="weight_dropout",
            dtype=self.dtype_policy,
        )

    def _convolution(self, name: str, initializer: Any) -> Any:
        """Returns a layer that only holds weights; `_convolve` applies them."""
        plain = keras.layers.Conv1D
        cls = WeightNormalizedConv1D if self.weight_normalization else plain
        return cls(
            4 * self.units,  # Channels of the gates i, o, g and f.
            self.kernel_size,
            kernel_initializer=fresh(initializer),
            name=name,
            dtype=self.dtype_policy,
        )

    def build(self, inputs_shape: Any) -> None:
        if isinstance(inputs_shape, dict):
            inputs_shape = inputs_shape["inputs"]
        if len(inputs_shape) != 3 or inputs_shape[-1] is None:
            raise ValueError(
                f"Cell '{self.name}' expects inputs of shape (batch, length, features) "
                "with a static number of features. Received: inputs of shape "
                f"{tuple(inputs_shape)}."
            )
        self.num_features = inputs_shape[-1]
        self.injection_convolution.build((None, None, self.num_features))
        self.convolution.build((None, None, self.units))

    @property
    def output_dim(self) -> int:
        return self.units if self._output_dim is None else self._output_dim

    @property
    def memory_sizes(self) -> dict[str, int]:
        return {"hidden": self.units, "cell": self.units}

    def extract_memory(self, inputs: Any, state: Any) -> dict[str, Any]:
        del inputs
        return dict(state)

    def features(self, state: Any) -> Any:
        return state["hidden"][..., self.units - self.output_dim :]

    def constants(self, training: bool = False) -> dict[str, Any]:
        """Computes the kernels, which depend on neither inputs nor state.

        `inject` calls this method in each solve. For many solves with the same weights,
        call it once and pass the result to `inject`.

        Args:
            training: Boolean. Whether to drop weights.

        Returns:
            Dict of tensors.
        """
        return {
            "kernel": self._kernel(self.convolution, self.units, training),
            "injection_kernel": self._kernel(
                self.injection_convolution, self.num_features, training
            ),
        }

    def sample_mask(self, inputs: Any, training: bool = False) -> Any:
        """Samples the mask of the hidden state, `(batch, 1, units)`.

        Args:
            inputs: Tensor `(batch, length, features)`.
            training: Boolean. If false, or with a rate of zero, returns `None`.
        """
        if not training or self.dropout_rate == 0:
            return None
        return self.dropout.sample_mask((ops.shape(inputs)[0], 1, self.units), True)

    def _kernel(self, layer: Any, num_channels: int, training: bool) -> Any:
        mask = None
        if training and self.weight_dropout_rate > 0:
            shape = (self.kernel_size, num_channels, 4 * self.units)
            past = self.weight_dropout.sample_mask((shape[0] - 1, *shape[1:]), True)
            # Scales in the dtype of the weights: half precision would round the scale.
            past = ops.cast(past > 0, self.variable_dtype)
            past = past * (1 / (1 - self.weight_dropout_rate))
            present = ops.ones((1, *shape[1:]), past.dtype)
            mask = ops.concatenate([past, present], axis=0)
        if self.weight_normalization:
            return layer.normalized_kernel(mask)
        kernel = ops.convert_to_tensor(layer.kernel)
        if mask is not None:
            kernel = kernel * ops.cast(mask, kernel.dtype)
        return ops.cast(kernel, self.compute_dtype)

    def inject(self, inputs: Any, training: bool = False) -> dict[str, Any]:
        """Convolves the inputs, and fixes history, kernel and mask.

        Args:
            inputs: Tensor `(batch, length, features)`; or a dict with this tensor as
                `"inputs"`, the optional `"memory"` of previous positions and the
                optional `"constants"` of the cell. The memory is a dict of `"hidden"`
                and `"cell"`, `(batch, memory_length, units)`. Taps that reach further
                back see copies of its first position, or zeros if it is empty. It may
                also have the previous `"inputs"`, which default to zeros.
            training: Boolean. Whether to apply dropout.

        Returns:
            Dict of tensors.
        """
        given = inputs if isinstance(inputs, dict) else {"inputs": inputs}
        if not self.built:
            self.build(tuple(given["inputs"].shape))
        given = {
            "inputs": given["inputs"],
            "memory": given.get("memory"),
            "constants": given.get("constants") or self.constants(training),
            "mask": self.sample_mask(given["inputs"], training),
        }
        return self.inject_dilated(given, self.dilation_rate, 1, self.cell_shift)

    def inject_dilated(
        self,
        given: Any,
        dilation_rate: int,
        input_dilation_rate: int,
        cell_shift: int,
    ) -> Any:
        """Computes the injection like `inject`, but for the given distances.

        Args:
            given: Dict of `"inputs"`, `"memory"` (which may be `None`), `"constants"`,
                and `"mask"`, the result of `sample_mask`.
            dilation_rate: Positive integer. Distance between the taps of h.
            input_dilation_rate: Positive integer. Distance between the taps of x.
            cell_shift: Positive integer. Distance to the cell state of the forget gate.

        Returns:
            Dict of tensors.
        """
        # The cell reads positions before the sequence in each evaluation. They are the
        # same in all of them, so the injection holds them, already masked.
        inputs, mask = given["inputs"], given["mask"]
        self._check(inputs, given["memory"], dilation_rate)
        sizes = {**self.memory_sizes, "inputs": inputs.shape[-1]}
        empty = {
            name: ops.zeros((ops.shape(inputs)[0], 0, size), self.compute_dtype)
            for name, size in sizes.items()
        }
        memory = {**empty, **(given["memory"] or {})}
        reach = self.kernel_size - 1
        history = _pad_history(memory["inputs"], reach * input_dilation_rate)
        kernel = given["constants"]["injection_kernel"]
        bias = self.injection_convolution.bias + self.convolution.bias
        injection = {
            "inputs": _convolve(history, inputs, kernel) + ops.cast(bias, kernel.dtype),
            "kernel": given["constants"]["kernel"],
            "hidden": _repeat_history(memory["hidden"], reach * dilation_rate),
            "cell": _repeat_history(memory["cell"], cell_shift),
        }
        if mask is not None:
            injection["mask"] = mask
            injection["hidden"] = injection["hidden"] * mask
        return injection

    def _check(self, inputs: Any, memory: Any, dilation_rate: int) -> None:
        length = inputs.shape[1]
        reach = (self.kernel_size - 1) * dilation_rate
        if memory is None and length is not None and length <= reach:
            raise ValueError(
                f"Cell '{self.name}' sees {reach} positions back, and needs sequences "
                "of more than that, or a memory. Use longer sequences, a smaller "
                "kernel_size or a smaller dilation_rate. Received: inputs of shape "
                f"{tuple(inputs.shape)}, kernel_size={self.kernel_size}, "
                f"dilation_rate={dilation_rate}."
            )
        for name, value in (memory or {}).items():
            sizes = {inputs.shape[0], value.shape[0]}
            if len(sizes) > 1 and None not in sizes:
                raise ValueError(
                    f"The memory must be of the {inputs.shape[0]} samples of the "
                    "inputs. Begin with an empty memory where other texts begin. "
                    f"Received: memory['{name}'] of shape {tuple(value.shape)}."
                )

    def initial_state(self, injection: Any) -> dict[str, Any]:
        """Returns a state of zeros."""
        zeros = ops.zeros_like(injection["inputs"][..., : self.units])
        return {"hidden": zeros, "cell": zeros}

    def call(self, state: Any, injection: Any) -> Any:
        hidden, length = state["hidden"], ops.shape(state["hidden"])[1]
        if "mask" in injection:
            hidden = hidden * injection["mask"]
        convolved = _convolve(injection["hidden"], hidden, injection["kernel"])
        i, o, g, f = ops.split(injection["inputs"] + convolved, 4, axis=-1)
        # The cell state of `cell_shift` positions earlier.
        before = ops.concatenate([injection["cell"], state["cell"]], axis=1)[:, :length]
        cell = ops.sigmoid(f) * before + ops.sigmoid(i) * ops.tanh(g)
        return {"hidden": ops.sigmoid(o) * ops.tanh(cell), "cell": cell}

    def get_config(self) -> Config:
        config = {**super().get_config(), **arguments_of(self, TrellisCell)}
        return {**config, "output_dim": self._output_dim}


def _repeat_history(memory: Any, num_positions: int) -> Any:
    """Returns the last positions of a memory, padded with copies of its first position.

    Args:
        memory: Tensor `(batch, memory_length, channels)`. If empty, the result is zero.
        num_positions: Positive integer. Number of positions to return.

    Returns:
        Tensor `(batch, num_positions, channels)`.
    """
    length = ops.shape(memory)[1]
    # Prepends a zero position, which represents an empty memory.
    padded = ops.pad(memory, ((0, 0), (1, 0), (0, 0)))
    indices = ops.arange(num_positions) + (length - num_positions)
    indices = ops.minimum(ops.maximum(indices, 0) + 1, length)
    return ops.take(padded, indices, axis=1)


def _pad_history(memory: Any, num_positions: int) -> Any:
    """Returns the last positions of a memory, padded with zeros in front.

    See `_repeat_history` for the arguments.
    """
    padded = ops.pad(memory, ((0, 0), (num_positions, 0), (0, 0)))
    return ops.take(padded, ops.arange(num_positions) + ops.shape(memory)[1], axis=1)


def _convolve(history: Any, sequence: Any, kernel: Any) -> Any:
    """Convolves a sequence and its history, as far back as the taps reach.

    The length of the history determines the distance of the taps. Unlike convolutions,
    a single matrix product has derivatives of any order on all devices.

    Args:
        history: Tensor `(batch, (num_taps - 1) * distance, channels)`.
        sequence: Tensor `(batch, length, channels)`.
        kernel: Tensor `(num_taps, channels, filters)`.

    Returns:
        Tensor `(batch, length, filters)`.
    """
    num_taps, length = kernel.shape[0], ops.shape(sequence)[1]
    distance = history.shape[1] // (num_taps - 1)
    padded = ops.concatenate([history, sequence], axis=1)
    starts = [tap * distance for tap in range(num_taps)]
    seen = ops.concatenate(
        [padded[:, start : start + length] for start in starts], axis=-1
    )  # (B, L, k * channels)
    return ops.matmul(seen, ops.reshape(kernel, (-1, kernel.shape[-1])))
