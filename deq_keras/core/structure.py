"""A nest of `(batch, ...)` tensors as one `(batch, features)` matrix, and back."""

import copy
import math
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf
from keras import tree

# A tensor, or dicts, lists and tuples of tensors.
Nest: TypeAlias = Any

_OTHER_ROWS = (
    "Inputs, masks and initial states must have the same number of rows, one for each "
    "sample."
)


class _Columns(NamedTuple):
    """The columns of one leaf in the matrix of a state.

    Attributes:
        leaf: Tensor `(batch, ...)`, or its `tf.TensorSpec`.
        shape: Int32 tensor. The shape of the leaf.
        size: Integer or int32 scalar tensor. The number of columns.
        static: `tf.TensorShape` of the columns, `(batch, size)`.
        dynamic: Int32 tensor. The shape of the columns.
    """

    leaf: Any
    shape: tf.Tensor
    size: int | tf.Tensor
    static: tf.TensorShape
    dynamic: tf.Tensor


class StateStructure:
    """The shapes, dtypes and nesting of an equilibrium state.

    Solvers see one matrix: every leaf is flattened to `(batch, features)`, cast
    to float32 (float64 if a leaf is float64) and concatenated. A state of one
    float32 leaf is only reshaped.

    Args:
        state: Nest of floating-point tensors of shape `(batch, ...)`.
    """

    def __init__(self, state: Nest) -> None:
        self.template = tree.map_structure(tf.convert_to_tensor, state)
        self.leaves = tree.flatten(self.template)
        if not self.leaves:
            raise ValueError(
                "A state must hold at least one tensor. "
                f"Received an empty structure: state={state!r}."
            )
        self.dtype = tf.float32
        # Loops capture these shapes, so that no iteration computes them.
        self._columns: list[_Columns] = []
        total: int | None = 0  # `None` if a size is not static.
        for leaf in self.leaves:
            if not leaf.shape.rank or not leaf.dtype.is_floating:
                _refuse_leaves(self.template)
            if leaf.dtype == tf.float64:
                self.dtype = tf.float64
            shape = tf.shape(leaf)
            size = _num_entries(leaf.shape[1:], shape, slice(1, None))
            known = size if isinstance(size, int) else None
            static = tf.TensorShape([leaf.shape[0], known])
            dynamic = shape if leaf.shape.rank == 2 else tf.stack([shape[0], size])
            self._columns.append(_Columns(leaf, shape, size, static, dynamic))
            total = None if total is None or known is None else total + known
        if len(self.leaves) > 1:
            check_rows(self.leaves, "leaves of a state")
        # The static shape `(batch, features)`, `None` where it is dynamic.
        self.matrix_shape = tf.TensorShape([self.leaves[0].shape[0], total])

    def resize(self, batch_size: tf.Tensor) -> "StateStructure":
        """Returns the structure of a state like this one for another batch size.

        Args:
            batch_size: Int32 scalar tensor.
        """
        other = copy.copy(self)
        other.template = tree.map_structure(
            lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype),
            self.template,
        )
        other.leaves = tree.flatten(other.template)
        other._columns = []
        for leaf, old in zip(other.leaves, self._columns, strict=True):
            shape, dynamic = (
                tf.concat([[batch_size], one[1:]], axis=0)
                for one in (old.shape, old.dynamic)
            )
            static = tf.TensorShape([None, old.static[1]])
            other._columns.append(_Columns(leaf, shape, old.size, static, dynamic))
        other.matrix_shape = tf.TensorShape([None, self.matrix_shape[1]])
        return other

    @property
    def batch_size(self) -> tf.Tensor:
        """Number of samples, an int32 scalar tensor."""
        return self._columns[0].shape[0]

    def to_matrix(self, state: Nest) -> tf.Tensor:
        """Returns `state` as a `(batch, features)` matrix of `self.dtype`."""
        parts = []
        for leaf, columns in zip(tree.flatten(state), self._columns, strict=True):
            part = tf.cast(leaf, self.dtype)
            parts.append(_reshape(part, columns.static, columns.dynamic))  # (B, D_i)
        return parts[0] if len(parts) == 1 else tf.concat(parts, axis=1)

    def to_state(self, matrix: tf.Tensor) -> Nest:
        """Returns the nest that `to_matrix` would turn into `matrix`."""
        leaves = []
        for part, columns in zip(self._split(matrix), self._columns, strict=True):
            like = columns.leaf
            part = tf.cast(part, like.dtype)
            leaves.append(_reshape(part, like.shape, columns.shape))  # (B, ...)
        return tree.pack_sequence_as(self.template, leaves)

    def largest_norm(self, matrix: tf.Tensor) -> tf.Tensor:
        """Returns the largest norm of a position, for each sample.

        A position, such as a token or a pixel, is one index of the axes of a leaf
        between its batch and feature axes. A leaf `(batch, features)` has one position.

        Args:
            matrix: Tensor `(batch, features)` that `to_matrix` returned.

        Returns:
            Float tensor `(batch,)`.
        """
        # A sample without positions, as of an empty sequence, has the norm 0. The
        # largest of no numbers would be -inf.
        norms = [tf.zeros([self.batch_size, 1], matrix.dtype)]
        for part, columns in zip(self._split(matrix), self._columns, strict=True):
            static, shape = columns.leaf.shape, columns.shape
            positions = _num_entries(static[1:-1], shape, slice(1, -1))
            features = _num_entries(static[1:][-1:], shape[1:], slice(-1, None))
            # (B, positions, features)
            by_position = tf.reshape(part, [self.batch_size, positions, features])
            norms.append(tf.norm(by_position, axis=2))  # (B, positions)
        largest = tf.reduce_max(tf.concat(norms, axis=1), axis=1)
        return tf.ensure_shape(largest, self.matrix_shape[:1])

    def _split(self, matrix: tf.Tensor) -> list[tf.Tensor]:
        if len(self._columns) == 1:
            return [matrix]
        sizes = [columns.size for columns in self._columns]
        return tf.split(matrix, sizes, axis=1)  # (B, D_i) each

    def like(self, state: Nest, source: str) -> Nest:
        """Returns `state`, which raises at run time if its number of rows differs.

        Args:
            state: Nest of `(batch, ...)` tensors.
            source: See `check`.

        Raises:
            ValueError: If `state` statically differs from the template.
        """
        self.check(state, source)
        return tree.map_structure(with_rows_of, self.template, state)

    def check(self, state: Nest, source: str) -> None:
        """Raises `ValueError` if `state` is not like the template.

        Args:
            state: State that a cell or a function returned.
            source: String. Description of the state in the message.
        """
        leaves = tree.flatten(state)
        try:
            tree.assert_same_structure(self.template, state)
            if type(None) in map(type, leaves):
                raise TypeError("`None` is not a tensor.")
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{source} must have the structure of the state. "
                f"Expected: {_describe(self.template)}. "
                f"Received: {_describe(state)}."
            ) from error
        for i, (old, new) in enumerate(zip(self.leaves, leaves, strict=True)):
            new = tf.convert_to_tensor(new)
            if not new.shape.is_compatible_with(old.shape) or new.dtype != old.dtype:
                path, _ = named_leaves(self.template)[i]
                raise ValueError(
                    f"{source} must have the shapes and dtypes of the state, but "
                    f"the leaf {path} differs. Expected: shape={old.shape}, "
                    f"dtype={old.dtype.name}. Received: shape={new.shape}, "
                    f"dtype={new.dtype.name}."
                )


def filled_like(like: tf.Tensor, value: Any) -> tf.Tensor:
    """Returns a tensor of the shape of `like` that repeats a number.

    Args:
        like: Tensor.
        value: Number, in the dtype of `like`; or scalar tensor.
    """
    value = value if tf.is_tensor(value) else tf.constant(value, like.dtype)
    filled = tf.fill(tf.shape(like), value)
    filled.set_shape(like.shape)
    return filled


def with_rows_of(first: tf.Tensor, leaf: tf.Tensor) -> tf.Tensor:
    """Returns a `(batch, ...)` tensor that raises at run time if its number of rows
    differs from `first`. TensorFlow would broadcast a single row.

    Raises:
        ValueError: If the static numbers of rows differ.
    """
    if leaf is first:
        return leaf
    expected, received = first.shape[0], leaf.shape[0]
    if None in (expected, received):
        check = tf.debugging.assert_equal(
            tf.shape(leaf)[:1], tf.shape(first)[:1], message=_OTHER_ROWS
        )
        # XLA, LiteRT and ONNX ignore assertions, but not reshapes. Grappler removes a
        # reshape with a single open axis, unless `abs` hides the origin of its sizes.
        with tf.control_dependencies([check]):
            rows = tf.shape(first)[:1]
        shape = tf.abs(tf.concat([rows, tf.shape(leaf)[1:]], axis=0))
        name = "one_row_for_each_sample"  # It appears in the error.
        result = tf.reshape(leaf, shape, name=name)
        result.set_shape(leaf.shape)
        return result
    if expected != received:
        raise ValueError(f"{_OTHER_ROWS} Received: {expected} and {received} rows.")
    return leaf


def where_rows(mask: tf.Tensor, chosen: Nest, otherwise: Nest) -> Nest:
    """Selects whole samples of a nest.

    Args:
        mask: Boolean tensor of shape `(batch,)`.
        chosen: Nest of `(batch, ...)` tensors, taken where `mask` is true; a scalar is
            broadcast.
        otherwise: Nest of `(batch, ...)` tensors, taken elsewhere.

    Returns:
        A nest with the structure of `otherwise`.
    """
    masks = {1: mask}  # By rank.
    others, leaves = tree.flatten(otherwise), list[Any]()
    if tree.is_nested(chosen):
        tree.assert_same_structure(chosen, otherwise)
    sources = tree.flatten(chosen)
    for i, other in enumerate(others):
        if other is None:  # An absent input.
            leaves.append(other)
            continue
        leaf, rank = sources[i if len(sources) > 1 else 0], other.shape.rank
        if rank not in masks:
            masks[rank] = tf.reshape(mask, [-1] + [1] * (rank - 1))
        leaves.append(tf.where(masks[rank], tf.cast(leaf, other.dtype), other))
    return tree.pack_sequence_as(otherwise, leaves)


def zero_padding(state: Nest, mask: tf.Tensor | None) -> Nest:
    """Returns the state with zeros at positions that are padding.

    Args:
        state: Nest of `(batch, ...)` tensors.
        mask: Boolean tensor `(batch, ...)`, false at padding, or `None`. It applies to
            leaves that have more axes than the mask.
    """
    if mask is None:
        return state

    def select(leaf: tf.Tensor) -> tf.Tensor:
        rank = mask.shape.rank
        missing = leaf.shape.rank - rank
        if missing < 1:
            return leaf
        if not mask.shape.is_compatible_with(leaf.shape[:rank]):
            raise ValueError(
                "A mask must have one entry for each position of the state. Expected: "
                f"shape={leaf.shape[:rank]}. Received: shape={mask.shape}."
            )
        # The shape is taken from the state, so that a mask of another shape fails.
        shape = tf.concat([tf.shape(leaf)[:rank], [1] * missing], axis=0)
        return tf.where(tf.reshape(mask, shape), leaf, tf.zeros((), leaf.dtype))

    return tree.map_structure(select, state)


def wide_dtype(dtype: Any) -> str:
    """Returns the dtype of sums and logits: float64 for float64, else float32."""
    return "float64" if dtype == "float64" else "float32"


def at_least_float32(tensor: Any) -> tf.Tensor:
    """Returns a tensor or variable in `wide_dtype`, the precision of solvers."""
    tensor = tf.convert_to_tensor(tensor)
    return tf.cast(tensor, wide_dtype(tensor.dtype))


def squared_norm(matrix: tf.Tensor) -> tf.Tensor:
    """Returns |row|^2 of every row of a matrix, `(batch, 1)`."""
    return tf.reduce_sum(tf.square(matrix), axis=1, keepdims=True)


def interpolate(state: Nest, target: Nest, fraction: float) -> Nest:
    """Returns state + fraction * (target - state)."""
    return tree.map_structure(
        lambda leaf, other: leaf + fraction * (other - leaf), state, target
    )


def row_norms(matrix: tf.Tensor) -> tf.Tensor:
    """Returns the norm of every row of a matrix, `(batch,)`."""
    return tf.sqrt(tf.squeeze(squared_norm(matrix), 1))


def _reshape(
    tensor: tf.Tensor, static: tf.TensorShape, dynamic: tf.Tensor
) -> tf.Tensor:
    """Returns a tensor of another shape, by an operation only where it is needed.

    With an unknown number of rows, only a reshape at run time finds out whether a
    function returned one row for all samples, which would be broadcast.

    Args:
        tensor: Tensor.
        static: Its new shape, as far as it is known.
        dynamic: Int32 tensor. Its new shape.
    """
    shape = static.as_list()
    is_known = tensor.shape.rank is not None and tensor.shape.as_list() == shape
    if is_known and static.is_fully_defined():
        return tensor
    tensor = tf.reshape(tensor, dynamic)
    if tensor.shape.rank is not None and tensor.shape.as_list() == shape:
        return tensor
    return tf.ensure_shape(tensor, static)


def _num_entries(
    static: tf.TensorShape, shape: tf.Tensor, axes: slice
) -> int | tf.Tensor:
    if static.is_fully_defined():
        return math.prod(static.as_list())
    return tf.reduce_prod(shape[axes])


def check_rows(tensors: list[tf.Tensor], source: str) -> None:
    """Raises `ValueError` if `(batch, ...)` tensors statically differ in their rows.

    Args:
        tensors: List of tensors.
        source: String. Description of the tensors in the message.
    """
    shapes = [tuple(one.shape) for one in tensors if one.shape.rank is not None]
    rows = {shape[:1] for shape in shapes} - {(None,)}
    if len(rows) > 1 or () in rows:  # () is a scalar.
        raise ValueError(
            f"All {source} must have the same number of rows, one for each sample. "
            f"Received: shapes {shapes}."
        )


def _refuse_leaves(state: Nest) -> None:
    """Raises `ValueError`, because a leaf cannot be part of a state."""
    for path, leaf in named_leaves(state):
        if not leaf.shape.rank:
            raise ValueError(
                "Every leaf of a state must have a batch axis, that is a shape "
                f"(batch, ...). Received: {path} of shape {leaf.shape}."
            )
        if not leaf.dtype.is_floating:
            raise ValueError(
                "Every leaf of a state must be floating-point: an equilibrium is found "
                f"by real arithmetic. Received: {path} of dtype {leaf.dtype.name}. "
                "Keep integers in the injection."
            )


def named_leaves(nest: Nest, name: str = "state") -> list[tuple[str, Any]]:
    """Returns pairs of a name for messages, such as `state['hidden']`, and a leaf."""
    return [
        (name + "".join(f"[{key!r}]" for key in path), leaf)
        for path, leaf in tree.flatten_with_path(nest)
    ]


def _describe(state: Nest) -> str:
    def describe(leaf: Any) -> str:
        return f"{leaf.dtype.name}{leaf.shape}" if tf.is_tensor(leaf) else repr(leaf)

    return str(tree.map_structure(describe, state))
