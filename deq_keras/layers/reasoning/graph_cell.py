"""A cell of graphs: nodes that learn from their neighbors."""

from typing import Any

import keras
import numpy as np
from keras import ops, tree

from deq_keras.core.checks import check_count, check_positive, check_seed
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.core.structure import wide_dtype
from deq_keras.layers.equilibrium import EquilibriumCell, lipschitz
from deq_keras.layers.normalization import SpectrallyNormalizedDense

# Columns of a list of edges.
_SENDER, _RECEIVER = 0, 1


@keras.saving.register_keras_serializable(package="deq_keras")
class GraphCell(EquilibriumCell):
    """Cell of one graph convolution: an implicit graph network.

    ```
    f(z, x) = activation(S z W + x U + b),    S = D_in^(-1/2) A D_out^(-1/2)
    ```

    A is the matrix of the edges, and D its degrees. S has a norm of at most one and W,
    which is spectrally normalized, of at most `contraction`. With `contraction` below
    one and an activation that does not expand, there is exactly one equilibrium for all
    weights and graphs. Each node of it depends on all nodes from which a path leads to
    it, however long.

    Graphs are lists of edges, so that memory is proportional to their number. Graphs of
    a batch are padded: nodes with any finite features and a `mask`, edges with -1. A
    node that does not exist makes the states of its graph NaN. ONNX files need at least
    one edge, which can be padding.

    Args:
        units: Positive integer. Features of the state of a node.
        contraction: Positive float. Bound of the norm of W. Below one, f contracts.
            Close to one, information travels further, and solves need more evaluations.
            Defaults to `0.9`.
        activation: Name or function. Defaults to `"relu"`.
        seed: Integer. Seed of W and U. Defaults to `None`, a random seed.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        state: Tensor of shape `(batch, nodes, units)`.
        injection: Dict. Result of `inject` for this solve.

    Input shape:
        Of `inject`, a dict: `"features"`, `(batch, nodes, features)`, and `"edges"`,
        integers `(batch, edges, 2)`. An edge is the pair of the node that sends and the
        node that receives. An undirected edge is two pairs.

    Output shape:
        `(batch, nodes, units)`.

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    >>> chain = {"features": np.eye(3)[None], "edges": np.array([[[0, 1], [1, 2]]])}
    >>> layer = deq_keras.layers.DEQ(deq_keras.layers.GraphCell(8))
    >>> layer(chain).shape
    TensorShape([1, 3, 8])

    Reference:

    - [Gu et al., 2020](https://arxiv.org/abs/2009.06211), "Implicit graph neural
      networks", which bounds another norm of W.
    - [Liu et al., 2021](https://arxiv.org/abs/2202.10720), "EIGNN: efficient
      infinite-depth graph neural networks", whose W is symmetric, without activation.
    """

    # f contracts, so that every gradient and solver suits it.
    default_gradient = "implicit"
    default_regularizer = None
    default_solver = "anderson"

    def __init__(
        self,
        units: int,
        contraction: float = 0.9,
        activation: Any = "relu",
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units = check_count("units", units)
        self.contraction = check_positive("contraction", contraction)
        self.activation = keras.activations.get(activation)
        self.seed = check_seed("seed", seed)
        self.recurrent = SpectrallyNormalizedDense(
            self.units,
            max_norm=self.contraction,
            use_bias=False,
            kernel_initializer=keras.initializers.GlorotUniform(self.seed),
            name="recurrent",
            dtype=self.dtype_policy,
        )
        self.projection = keras.layers.Dense(
            self.units,
            kernel_initializer=keras.initializers.GlorotUniform(
                None if self.seed is None else self.seed + 1
            ),
            name="projection",
            dtype=self.dtype_policy,
        )

    def build(self, input_shape: Any) -> None:
        shape = input_shape["features"]
        self.projection.build(shape)
        self.recurrent.build((*shape[:-1], self.units))

    def inject(self, inputs: Any, training: bool = False) -> dict[str, Any]:
        """Projects the features, scales the edges, and fixes W for a solve.

        Args:
            inputs: Dict of the `"features"` and `"edges"` of graphs.
            training: Boolean. Whether the norm of W is estimated as in training.

        Returns:
            Dict of tensors: `"inputs"`, `(batch, nodes, units)`; `"edges"`, `(batch,
            edges, 2)`; `"weights"`, the entries of S, `(batch, edges, 1)`; and
            `"kernel"`, `(units, units)`.
        """
        features, edges = _features_and_edges(inputs)
        if not self.built:
            self.build({name: tuple(leaf.shape) for name, leaf in inputs.items()})
        num_nodes = ops.shape(features)[1]
        edges, last = ops.cast(edges, "int64"), ops.cast(num_nodes, "int64") - 1
        is_edge = ops.all(edges >= 0, axis=-1, keepdims=True)
        is_broken = ops.any(edges > last, axis=(1, 2), keepdims=True)
        edges = ops.cast(ops.clip(edges, 0, last), "int32")
        # Sums of 256 ones and more are wrong in bfloat16.
        ones = ops.cast(is_edge, wide_dtype(self.compute_dtype))
        product = ops.ones_like(ones)
        for end in (_SENDER, _RECEIVER):
            degrees = _sums_at_nodes(ones, edges, end, num_nodes)
            product = product * _at_ends_of_edges(degrees, edges, end)
        weights = ops.where(is_edge, ops.rsqrt(ops.maximum(product, 1.0)), 0.0)
        return {
            "inputs": ops.where(is_broken, np.nan, self.projection(features)),
            "edges": edges,
            "weights": ops.cast(weights, self.compute_dtype),
            "kernel": self.recurrent.normalized_kernel(training),
        }

    def initial_state(self, injection: Any) -> Any:
        """Returns a state of zeros."""
        return ops.zeros_like(injection["inputs"])

    def call(self, state: Any, injection: Any) -> Any:
        edges, wide = injection["edges"], wide_dtype(self.compute_dtype)
        products = self.recurrent(state, kernel=injection["kernel"])
        # The gradient of `take` is a sum over edges, which needs float32, too.
        messages = _at_ends_of_edges(ops.cast(products, wide), edges, _SENDER)
        messages = ops.cast(injection["weights"], wide) * messages
        sums = _sums_at_nodes(messages, edges, _RECEIVER, ops.shape(state)[1])
        return self.activation(ops.cast(sums, self.compute_dtype) + injection["inputs"])

    def lipschitz_constant(self, injection: Any) -> Any:
        """Returns |W| times the largest slope of the activation.

        Returns `None` with an integer kernel or an activation of unknown slope. See
        `EquilibriumCell.lipschitz_constant`.
        """
        return lipschitz.of_dense(
            self.recurrent, self.activation, kernel=injection["kernel"]
        )

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, GraphCell)}


def _features_and_edges(inputs: Any) -> tuple[Any, Any]:
    """Returns the two inputs of a cell.

    Raises:
        ValueError: If there are others.
    """
    received = tree.map_structure(lambda x: (tuple(x.shape), str(x.dtype)), inputs)
    if isinstance(inputs, dict) and sorted(inputs) == ["edges", "features"]:
        features, edges = inputs["features"], inputs["edges"]
        is_integer = "int" in keras.backend.standardize_dtype(edges.dtype)
        if len(features.shape) == len(edges.shape) == 3 and is_integer:
            if edges.shape[-1] == 2 and features.shape[-1] is not None:
                return features, edges
    raise ValueError(
        "A GraphCell expects a dict of 'features', (batch, nodes, features), with a "
        "static number of features, and of integers 'edges', (batch, edges, 2). Pass "
        '`dtype="int32"` to the `keras.Input` of edges, and call the layer instead of '
        f"`build`, which knows no dtypes. Received: {received}."
    )


def _flat(edges: Any, end: int, num_nodes: Any) -> Any:
    """Returns the nodes at one end of all edges, as rows of all nodes of the batch.

    `inject` cannot compute them: a solver may remove finished samples from the batch.
    """
    first = num_nodes * ops.arange(ops.shape(edges)[0], dtype=edges.dtype)
    return ops.reshape(edges[..., end] + first[:, None], (-1,))


def _at_ends_of_edges(values: Any, edges: Any, end: int) -> Any:
    """Returns values of nodes, `(batch, nodes, n)`, for edges, `(batch, edges, n)`."""
    rows = ops.reshape(values, (-1, values.shape[-1]))
    taken = ops.take(rows, _flat(edges, end, ops.shape(values)[1]), axis=0)
    return ops.reshape(taken, (-1, ops.shape(edges)[1], values.shape[-1]))


def _sums_at_nodes(values: Any, edges: Any, end: int, num_nodes: Any) -> Any:
    """Returns the sums of values of edges, `(batch, edges, n)`, at nodes."""
    rows = ops.reshape(values, (-1, values.shape[-1]))
    total = num_nodes * ops.shape(edges)[0]
    sums = ops.segment_sum(rows, _flat(edges, end, num_nodes), total)
    return ops.reshape(sums, (-1, num_nodes, values.shape[-1]))
