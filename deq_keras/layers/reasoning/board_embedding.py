"""Embeds the tokens of a board and the positions of its squares."""

from typing import Any

import keras
from keras import ops

from deq_keras.core.checks import check_count, check_counts
from deq_keras.core.serialization import Config, arguments_of


@keras.saving.register_keras_serializable(package="deq_keras")
class BoardEmbedding(keras.layers.Layer):
    """Embeds tokens of a board and adds learned vectors for rows, columns and boxes.

    ```
    y[r, c] = sqrt(units) (T[token] + R[r] + C[c] + B[box of (r, c)])
    ```

    Initially, y has entries of variance one. With the factor, the optimizer updates the
    tables as fast as a kernel (Jolicoeur-Martineau, 2025).

    Args:
        vocabulary_size: Positive integer. Number of tokens.
        units: Positive integer. Size of the embedding.
        board_shape: Tuple `(rows, columns)` of positive integers. Shape of the board.
        box_shape: Tuple `(rows, columns)` of positive integers or `None`. Shape of a
            box, whose sides must divide the sides of the board. Defaults to `None`, no
            boxes.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        inputs: Integer tensor of token ids in `[0, vocabulary_size)`.

    Input shape:
        `(batch, rows, columns)`.

    Output shape:
        `(batch, rows, columns, units)`.

    Raises:
        ValueError: If an argument is out of range, or boards have another shape.

    Example:

    >>> embedding = BoardEmbedding(7, 8, board_shape=(6, 6), box_shape=(2, 3))
    >>> tuple(embedding(np.zeros((2, 6, 6), "int32")).shape)
    (2, 6, 6, 8)

    Reference:

    - Jolicoeur-Martineau (2025), "Less is More: Recursive Reasoning with Tiny
      Networks".
    """

    def __init__(
        self,
        vocabulary_size: int,
        units: int,
        board_shape: tuple[int, int],
        box_shape: tuple[int, int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.vocabulary_size = check_count("vocabulary_size", vocabulary_size)
        self.units = check_count("units", units)
        self.board_shape = check_board_sides("board_shape", board_shape)
        self.box_shape = None
        if box_shape is not None:
            self.box_shape = check_board_sides("box_shape", box_shape)
            pairs = zip(self.board_shape, self.box_shape, strict=True)
            if any(side % part for side, part in pairs):
                raise ValueError(
                    "The sides of a box must divide those of the board. Received: "
                    f"board_shape={self.board_shape}, box_shape={self.box_shape}."
                )

    def build(self, input_shape: Any) -> None:
        if tuple(input_shape[1:]) != self.board_shape:
            raise ValueError(
                f"'{self.name}' expects boards of shape (batch, "
                f"{self.board_shape[0]}, {self.board_shape[1]}). Received: boards of "
                f"shape {tuple(input_shape)}."
            )
        rows, columns = self.board_shape
        tables = {"tokens": self.vocabulary_size, "rows": rows, "columns": columns}
        if self.box_shape:
            tables["boxes"] = rows * columns // (self.box_shape[0] * self.box_shape[1])
        stddev = (len(tables) * self.units) ** -0.5
        self.tables = [
            self.add_weight(
                (size, self.units),
                keras.initializers.RandomNormal(stddev=stddev),
                name=name,
            )
            for name, size in tables.items()
        ]

    def call(self, inputs: Any) -> Any:
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        if "int" not in dtype:
            raise ValueError(
                f"'{self.name}' expects boards of integers, the ids of tokens. "
                f"Received: dtype={dtype}."
            )
        tokens, rows, columns, *boxes = self.tables
        embedded = ops.take(tokens, inputs, axis=0)
        embedded = embedded + rows[:, None] + columns
        if self.box_shape is not None:
            (num_rows, num_columns), (height, width) = self.board_shape, self.box_shape
            across = num_columns // width
            box_of_square = [
                [r // height * across + c // width for c in range(num_columns)]
                for r in range(num_rows)
            ]
            embedded = embedded + ops.take(boxes[0], box_of_square, axis=0)
        return self.units**0.5 * embedded

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (*input_shape, self.units)

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, BoardEmbedding)}


def check_board_sides(name: str, shape: Any) -> tuple[int, ...]:
    """Returns `shape` as a tuple `(rows, columns)` of positive integers."""
    shape = check_counts(name, shape)
    if len(shape) != 2:
        raise ValueError(
            f"`{name}` must be a tuple (rows, columns). Received: {name}={shape!r}."
        )
    return shape
