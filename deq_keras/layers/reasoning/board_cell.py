"""The reasoning cell with means over rows, columns and boxes of a board."""

from typing import Any

import keras
from keras import ops

from deq_keras.core.checks import check_count, check_positive
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.layers.equilibrium import EquilibriumCell
from deq_keras.layers.reasoning.board_embedding import check_board_sides


@keras.saving.register_keras_serializable(package="deq_keras")
class BoardCell(EquilibriumCell):
    """A relational network: each square sees itself and the means of its groups.

    Suited to boards with rules for rows, columns and boxes, such as Sudoku. With the
    input x and the state z of each square, and the means r, c and b of z over its row,
    its column and its box,

    ```
    h = relu(W0 * [z, r, c, b, x] + w0)
    h = relu(h + W2 * relu(W1 * h))
    f(z, x) = tanh(z + step * W4 * relu(W3 * h))
    ```

    All squares share the weights, for any size of the board, so a rule learned for one
    row holds for all rows. (Palm et al., 2018, sum messages between pairs of squares
    instead of using means.)

    Args:
        units: Positive integer. Features of each square.
        box_shape: Tuple `(rows, columns)` of positive integers or `None`. Shape of a
            box, whose sides must divide the sides of the board. Defaults to `None`, no
            boxes.
        step: Positive float. Step size of the updates. Defaults to `0.2`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        state: Tensor of shape `(batch, rows, columns, units)`.
        injection: Dict. Result of `inject` for this solve.

    Input shape:
        `(batch, rows, columns, channels)`, for `inject`, such as the outputs of a
        `BoardEmbedding`. Rows and columns must be static.

    Output shape:
        `(batch, rows, columns, units)`, with values in [-1, 1].

    Raises:
        ValueError: If an argument is out of range, or inputs are not boards that
            the boxes divide.

    Example:

    >>> equilibrium = deq_keras.layers.DEQ(BoardCell(8, box_shape=(2, 3)))
    >>> equilibrium(keras.ops.ones((3, 6, 6, 8))).shape
    TensorShape([3, 6, 6, 8])

    Reference:

    - Palm et al. (2018), "Recurrent Relational Networks".
    """

    def __init__(
        self,
        units: int,
        box_shape: tuple[int, int] | None = None,
        step: float = 0.2,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units = check_count("units", units)
        self.box_shape = None
        if box_shape is not None:
            self.box_shape = check_board_sides("box_shape", box_shape)
        self.step = check_positive("step", step)
        groups = ("squares", "rows", "columns", "boxes")
        self.of_groups = [self._dense(name) for name in groups[: 4 if box_shape else 3]]
        self.of_inputs = self._dense("inputs", use_bias=True)
        self.residual1 = self._dense("residual1")
        self.residual2 = self._dense("residual2")
        self.residual3 = self._dense("residual3")
        self.residual4 = self._dense("residual4")

    def build(self, input_shape: Any) -> None:
        batch, *board, channels = input_shape
        is_valid = len(board) == 2 and None not in (*board, channels)
        if is_valid and self.box_shape is not None:
            pairs = zip(board, self.box_shape, strict=True)
            is_valid = not any(side % part for side, part in pairs)
        if not is_valid:
            boxes = f" that boxes of {self.box_shape} divide" if self.box_shape else ""
            raise ValueError(
                f"Cell '{self.name}' expects inputs of shape (batch, rows, columns, "
                f"channels) with static boards{boxes}. Received: inputs of shape "
                f"{tuple(input_shape)}."
            )
        self.of_inputs.build(tuple(input_shape))
        residuals = self.residual1, self.residual2, self.residual3, self.residual4
        for layer in (*self.of_groups, *residuals):
            layer.build((batch, *board, self.units))

    def inject(self, inputs: Any, training: bool = False, mask: Any = None) -> Any:
        """Returns the first layer's projection of the inputs, and the padding mask.

        Args:
            inputs: Tensor of shape `(batch, rows, columns, channels)`.
            training: Boolean. Ignored.
            mask: Optional Boolean tensor `(batch, rows, columns)`, false at padding.

        Returns:
            Dict of the tensor `"inputs"`, `(batch, rows, columns, units)`, and, with a
            mask, `"mask"`, `(batch, rows, columns, 1)`, and `"shares"`, a list of the
            means of the mask over the groups.
        """
        del training
        if not self.built:
            self.build(tuple(inputs.shape))
        injection = {"inputs": self.of_inputs(inputs)}
        if mask is not None:
            injection["mask"] = ops.cast(mask, self.compute_dtype)[..., None]
            # Avoids division by zero: groups of only padding have zero means.
            shares = self._means(injection["mask"])
            injection["shares"] = [ops.maximum(share, 1e-3) for share in shares]
        return injection

    def initial_state(self, injection: Any) -> Any:
        """Returns a state of zeros."""
        return ops.zeros_like(injection["inputs"])

    def call(self, state: Any, injection: Any) -> Any:
        mask, means = injection.get("mask"), self._means(state)
        if mask is not None:
            pairs = zip(means, injection["shares"], strict=True)
            means = [mean / share for mean, share in pairs]
        heard = [layer(mean) for layer, mean in zip(self.of_groups, means, strict=True)]
        if self.box_shape is not None:
            height, width = self.box_shape
            heard[-1] = ops.repeat(ops.repeat(heard[-1], height, 1), width, 2)
        hidden = ops.relu(injection["inputs"] + sum(heard))
        hidden = ops.relu(hidden + self.residual2(ops.relu(self.residual1(hidden))))
        change = self.residual4(ops.relu(self.residual3(hidden)))
        after = ops.tanh(state + self.step * change)
        return after if mask is None else after * mask

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, BoardCell)}

    def _dense(self, name: str, use_bias: bool = False) -> Any:
        return keras.layers.Dense(
            self.units,
            use_bias=use_bias,
            kernel_initializer="he_uniform",
            name=name,
            dtype=self.dtype_policy,
        )

    def _means(self, tensor: Any) -> Any:
        """Returns a list of a tensor and its means over rows, columns and boxes."""
        rows, columns = (ops.mean(tensor, axis, keepdims=True) for axis in (2, 1))
        if self.box_shape is None:
            return [tensor, rows, columns]
        (_, *board, units), (height, width) = tensor.shape, self.box_shape
        boxes = (board[0] // height, height, board[1] // width, width)
        boxes = ops.mean(ops.reshape(tensor, (-1, *boxes, units)), (2, 4))
        return [tensor, rows, columns, boxes]
