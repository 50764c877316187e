"""The cells of the tasks, as a user would write them from Keras layers."""

import keras
import numpy as np
from keras import ops

import deq_keras


class _UnitsCell(deq_keras.layers.EquilibriumCell):
    """Base of the cells whose state has `units` features, and whose input is projected.

    Args:
        units: Positive integer. Size of the state, or of the state at a position.
        **kwargs: Arguments of `keras.layers.Layer`.
    """

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.injection_layer = _dense(self, units, "injection")

    def inject(self, inputs, training=False):
        """Returns x U + b of the inputs x, `(batch, ..., units)`."""
        del training
        return self.injection_layer(inputs)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@keras.saving.register_keras_serializable("deq_keras_training")
class LeakyCell(_UnitsCell):
    """Cell of a leaky layer, for vectors. It converges slowly at any weights.

        f(z, x) = (1 - rate) z + rate tanh(z W + x U + b)

    Args:
        units: Positive integer. Size of the state.
        rate: Float in (0, 1]. Defaults to `0.15`.
        **kwargs: Arguments of `keras.layers.Layer`.

    Input shape:
        Of `inject`: `(batch, features)`.

    Output shape:
        `(batch, units)`.

    Example:

    >>> equilibrium = deq_keras.layers.DEQ(LeakyCell(8))
    >>> equilibrium(keras.ops.ones((3, 2))).shape
    TensorShape([3, 8])
    """

    def __init__(self, units, rate=0.15, **kwargs):
        super().__init__(units, **kwargs)
        self.rate = rate
        self.recurrence = _dense(self, units, "recurrence", use_bias=False)

    def call(self, state, injection):
        new = ops.tanh(self.recurrence(state) + injection)
        return (1.0 - self.rate) * state + self.rate * new

    def get_config(self):
        return {**super().get_config(), "rate": self.rate}


@keras.saving.register_keras_serializable("deq_keras_training")
class NormalizedCell(_UnitsCell):
    """Cell of a residual block with layer normalization, for vectors.

        f(z, x) = norm(z + relu(z W + x U + b) V + c)

    Args:
        units: Positive integer. Size of the state.
        **kwargs: Arguments of `keras.layers.Layer`.

    Input shape:
        Of `inject`: `(batch, features)`.

    Output shape:
        `(batch, units)`.

    Example:

    >>> equilibrium = deq_keras.layers.DEQ(NormalizedCell(8))
    >>> equilibrium(keras.ops.ones((3, 2))).shape
    TensorShape([3, 8])
    """

    def __init__(self, units, **kwargs):
        super().__init__(units, **kwargs)
        self.dense1 = _dense(self, units, "dense1", use_bias=False)
        self.dense2 = _dense(self, units, "dense2")
        self.norm = keras.layers.LayerNormalization(
            name="norm", dtype=self.dtype_policy
        )

    def call(self, state, injection):
        hidden = ops.relu(self.dense1(state) + injection)
        return self.norm(state + self.dense2(hidden))


@keras.saving.register_keras_serializable("deq_keras_training")
class GatedCell(deq_keras.layers.EquilibriumCell):
    """Cell of one gated layer, for vectors.

        g       = sigmoid(z W_g + x U_g + b_g)
        f(z, x) = g tanh(z W + x U + b) + (1 - g) retention z

    Args:
        units: Positive integer. Size of the state.
        retention: Float in [0, 1]. With `1.0`, the gate determines how fast the cell
            converges, as in a GRU. Defaults to `0.5`.
        **kwargs: Arguments of `keras.layers.Layer`.

    Input shape:
        Of `inject`: `(batch, features)`.

    Output shape:
        `(batch, units)`.

    Example:

    >>> equilibrium = deq_keras.layers.DEQ(GatedCell(8))
    >>> equilibrium(keras.ops.ones((3, 2))).shape
    TensorShape([3, 8])
    """

    def __init__(self, units, retention=0.5, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.retention = retention
        self.gate = _dense(self, units, "gate")
        self.candidate = _dense(self, units, "candidate")
        self.gate_injection = _dense(self, units, "gate_injection")
        self.candidate_injection = _dense(self, units, "candidate_injection")

    def inject(self, inputs, training=False):
        """Returns a dict of x U_g as `"gate"` and x U as `"candidate"`."""
        del training
        return {
            "gate": self.gate_injection(inputs),
            "candidate": self.candidate_injection(inputs),
        }

    def initial_state(self, injection):
        """Returns z = 0."""
        return ops.zeros_like(injection["gate"])

    def call(self, state, injection):
        gate = ops.sigmoid(self.gate(state) + injection["gate"])
        candidate = ops.tanh(self.candidate(state) + injection["candidate"])
        return gate * candidate + (1.0 - gate) * self.retention * state

    def get_config(self):
        config = {"units": self.units, "retention": self.retention}
        return {**super().get_config(), **config}


@keras.saving.register_keras_serializable("deq_keras_training")
class MessagePassingCell(_UnitsCell):
    """Cell in which every node of a graph receives the mean of its neighbors.

        f(z, x) = tanh(M z W + x U + b)

    with M the adjacency matrix, each row divided by its sum.

    Args:
        units: Positive integer. Size of the state at a node.
        adjacency: Nested list or array `(nodes, nodes)` of non-negative numbers, the
            weights of the edges.
        **kwargs: Arguments of `keras.layers.Layer`.

    Input shape:
        Of `inject`: `(batch, nodes, features)`.

    Output shape:
        `(batch, nodes, units)`.

    Raises:
        ValueError: If `adjacency` is not square.

    Example:

    >>> equilibrium = deq_keras.layers.DEQ(MessagePassingCell(8, [[0, 1], [1, 0]]))
    >>> equilibrium(keras.ops.ones((3, 2, 5))).shape
    TensorShape([3, 2, 8])
    """

    def __init__(self, units, adjacency, **kwargs):
        adjacency = np.asarray(adjacency, "float32")
        if adjacency.ndim != 2 or adjacency.shape[0] != adjacency.shape[1]:
            raise ValueError(
                "`adjacency` must be a square matrix. Received: adjacency of shape "
                f"{adjacency.shape}."
            )
        super().__init__(units, **kwargs)
        self.adjacency = adjacency
        sums = adjacency.sum(axis=1, keepdims=True)
        # A node without neighbors receives zeros.
        self._mixing = adjacency / np.where(sums > 0, sums, 1)
        self.message = _dense(self, units, "message", use_bias=False)

    def call(self, state, injection):
        messages = self.message(state)
        mixing = ops.cast(self._mixing, messages.dtype)
        received = ops.einsum("nm,bmu->bnu", mixing, messages)
        return ops.tanh(received + injection)

    def get_config(self):
        return {**super().get_config(), "adjacency": self.adjacency.tolist()}


@keras.saving.register_keras_serializable("deq_keras_training")
class GraphCell(_UnitsCell):
    """Cell of a graph layer whose graph is an input and differs between samples.

        f(z, x) = norm(z + relu(z S + M z W + x U + b) V + c)

    with M the adjacency matrix, each row divided by its sum.

    Args:
        units: Positive integer. Size of the state at a node.
        **kwargs: Arguments of `keras.layers.Layer`.

    Input shape:
        Of `inject`: a dict of `"adjacency"`, `(batch, nodes, nodes)` with non-negative
        weights of the edges, and `"nodes"`, `(batch, nodes, features)`.

    Output shape:
        `(batch, nodes, units)`.

    Example:

    >>> equilibrium = deq_keras.layers.DEQ(GraphCell(8))
    >>> nodes = keras.ops.ones((3, 2, 5))
    >>> equilibrium({"adjacency": keras.ops.ones((3, 2, 2)), "nodes": nodes}).shape
    TensorShape([3, 2, 8])
    """

    def __init__(self, units, **kwargs):
        super().__init__(units, **kwargs)
        self.own = _dense(self, units, "own", use_bias=False)
        self.message = _dense(self, units, "message", use_bias=False)
        self.update = _dense(self, units, "update")
        self.norm = keras.layers.LayerNormalization(
            name="norm", dtype=self.dtype_policy
        )

    def inject(self, inputs, training=False):
        """Returns a dict of M as `"mixing"` and x U + b as `"nodes"`."""
        del training
        adjacency = inputs["adjacency"]
        sums = ops.sum(adjacency, axis=-1, keepdims=True)
        # A node without neighbors receives zeros.
        mixing = adjacency / ops.where(sums > 0, sums, ops.ones_like(sums))
        return {"mixing": mixing, "nodes": self.injection_layer(inputs["nodes"])}

    def initial_state(self, injection):
        """Returns z = 0."""
        return ops.zeros_like(injection["nodes"])

    def call(self, state, injection):
        received = ops.matmul(injection["mixing"], self.message(state))
        hidden = ops.relu(self.own(state) + received + injection["nodes"])
        return self.norm(state + self.update(hidden))  # (B, nodes, units)


@keras.saving.register_keras_serializable("deq_keras_training")
class ConvolutionalCell(deq_keras.layers.EquilibriumCell):
    """Cell of one residual block of two convolutions, for sequences or images.

        f(z, x) = norm(relu(z + W2 * relu(W1 * z + U * x + b1) + b2))

    All windows have three positions a side, so that information travels by at most two
    positions in an evaluation. The norm is a group norm over all positions.

    Args:
        filters: Positive integer, a multiple of `groups`. Channels of the state.
        rank: Integer, 1 for sequences or 2 for images. Defaults to `1`.
        groups: Positive integer. Groups of channels of the norm. Defaults to `4`.
        **kwargs: Arguments of `keras.layers.Layer`.

    Input shape:
        Of `inject`: `(batch, length, channels)` or `(batch, height, width, channels)`.

    Output shape:
        `(batch, length, filters)` or `(batch, height, width, filters)`.

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    >>> equilibrium = deq_keras.layers.DEQ(ConvolutionalCell(8))
    >>> equilibrium(keras.ops.ones((3, 5, 2))).shape
    TensorShape([3, 5, 8])
    """

    def __init__(self, filters, rank=1, groups=4, **kwargs):
        super().__init__(**kwargs)
        if filters < 1 or groups < 1 or filters % groups or rank not in (1, 2):
            raise ValueError(
                "`filters` must be a positive multiple of `groups`, and `rank` 1 or 2. "
                f"Received: filters={filters}, groups={groups}, rank={rank}."
            )
        self.filters = filters
        self.rank = rank
        self.groups = groups
        self.injection_layer = self._convolution("injection")
        self.convolution1 = self._convolution("convolution1")
        self.convolution2 = self._convolution("convolution2")
        self.norm = deq_keras.layers.GroupNormalization(
            groups, name="norm", dtype=self.dtype_policy
        )

    def inject(self, inputs, training=False):
        """Returns U * x + b1 of the inputs x."""
        del training
        return self.injection_layer(inputs)

    def call(self, state, injection):
        hidden = ops.relu(self.convolution1(state) + injection)
        return self.norm(ops.relu(state + self.convolution2(hidden)))

    def get_config(self):
        config = {"filters": self.filters, "rank": self.rank, "groups": self.groups}
        return {**super().get_config(), **config}

    def _convolution(self, name):
        cls = keras.layers.Conv1D if self.rank == 1 else keras.layers.Conv2D
        return cls(self.filters, 3, padding="same", name=name, dtype=self.dtype_policy)


@keras.saving.register_keras_serializable("deq_keras_training")
class AttentionCell(_UnitsCell):
    """Cell of one transformer layer without mask, normalized after each branch.

        h       = norm1(z + attention(z) + x U + b)
        f(z, x) = norm2(h + W2 relu(W1 h + b1) + b2)

    The norms are root-mean-square norms of each position.

    Args:
        units: Positive integer, a multiple of `num_heads`. Size of the state at a
            position.
        num_heads: Positive integer. Attention heads. Defaults to `4`.
        **kwargs: Arguments of `keras.layers.Layer`.

    Input shape:
        Of `inject`: `(batch, length, features)`.

    Output shape:
        `(batch, length, units)`.

    Raises:
        ValueError: If `units` is not a multiple of `num_heads`.

    Example:

    >>> equilibrium = deq_keras.layers.DEQ(AttentionCell(8))
    >>> equilibrium(keras.ops.ones((3, 5, 2))).shape
    TensorShape([3, 5, 8])

    Reference:

    - Vaswani et al. (2017), "Attention Is All You Need".
    """

    def __init__(self, units, num_heads=4, **kwargs):
        if units < 1 or num_heads < 1 or units % num_heads:
            raise ValueError(
                "`units` must be a positive multiple of `num_heads`. Received: "
                f"units={units}, num_heads={num_heads}."
            )
        super().__init__(units, **kwargs)
        self.num_heads = num_heads
        self.query_key_value = _dense(self, 3 * units, "query_key_value")
        self.attention_output = _dense(self, units, "attention_output")
        self.expansion = _dense(self, 2 * units, "expansion")
        self.contraction = _dense(self, units, "contraction")
        # Keras' LayerNormalization has a wrong second-order gradient on TensorFlow, but
        # a regularizer of the Jacobian needs the correct gradient.
        self.norm1, self.norm2 = (
            keras.layers.RMSNormalization(name=name, dtype=self.dtype_policy)
            for name in ("norm1", "norm2")
        )

    def call(self, state, injection):
        hidden = self.norm1(state + self._attend(state) + injection)
        branch = self.contraction(ops.relu(self.expansion(hidden)))
        return self.norm2(hidden + branch)  # (B, L, units)

    def get_config(self):
        return {**super().get_config(), "num_heads": self.num_heads}

    def _attend(self, state):
        length, size = state.shape[1], self.units // self.num_heads
        heads = ops.reshape(
            self.query_key_value(state), (-1, length, 3, self.num_heads, size)
        )  # (B, L, 3, heads, size)
        query, key, value = ops.unstack(heads, 3, axis=2)
        scores = ops.einsum("bqhs,bkhs->bhqk", query, key) * size**-0.5
        weights = ops.softmax(scores)  # (B, heads, L, L)
        mixed = ops.einsum("bhqk,bkhs->bqhs", weights, value)
        mixed = ops.reshape(mixed, (-1, length, self.units))  # (B, L, units)
        return self.attention_output(mixed)


def _dense(cell, units, name, **arguments):
    return keras.layers.Dense(units, name=name, dtype=cell.dtype_policy, **arguments)
