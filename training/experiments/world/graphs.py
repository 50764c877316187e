"""Classes of the nodes of a graph, from one known node of each class."""

import keras
import numpy as np
from keras import ops

import deq_keras

from . import graph_data
from .task import Task

# Training graphs with fewer nodes are padded.
_MOST_NODES = 32
_KEEP = 0.999  # Below 1, so that f contracts on every graph.
_IGNORED = -1  # Label of known nodes and of padding.


@keras.saving.register_keras_serializable(package="deq_keras_training")
class LabelPropagationCell(deq_keras.layers.EquilibriumCell):
    """Propagates labels over a graph, with learned strengths of its edges.

        z_i = known_i, or 0.999 sum_j w_ij z_j / sum_j w_ij
        w_ij = exp(2 g(length_ij))

    g is a network with values in (-1, 1). The inputs are a dict of `known` `(batch,
    nodes, classes)`, whose rows are not zero at known nodes, and of edges: a matrix
    `lengths` `(batch, nodes, nodes)`, zero without an edge and for padding; or for one
    large graph, a batch of one, a list of nodes from and to, `edges` `(1, edges, 2)`,
    and their `lengths` `(1, edges)`.

    Reference:

    - Zhu, Ghahramani and Lafferty (2003), "Semi-supervised learning using Gaussian
      fields and harmonic functions".
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.strengths = strength_layers(self.dtype_policy)

    def inject(self, inputs, training=False):
        known, graph = inputs["known"], dict(inputs)
        graph["weights"] = edge_weights(inputs["lengths"], self.strengths)
        is_free = 1 - ops.max(known, axis=-1, keepdims=True)
        graph["scale"] = _KEEP * is_free / degrees(graph)
        return graph

    def initial_state(self, graph):
        return graph["known"]

    def call(self, state, graph):
        return graph["known"] + graph["scale"] * neighbor_sum(state, graph)


def strength_layers(dtype=None):
    hidden = keras.layers.Dense(8, "tanh", dtype=dtype)
    # Nearly disconnected parts of a graph would need many evaluations.
    return hidden, keras.layers.Dense(1, "tanh", use_bias=False, dtype=dtype)


def edge_weights(lengths, layers):
    """Returns the strengths of edges from their lengths, relative to the mean one."""
    is_edge = ops.cast(lengths > 0, lengths.dtype)
    axes = tuple(range(1, len(lengths.shape)))
    mean = ops.sum(lengths, axes, True) / (ops.sum(is_edge, axes, True) + 1e-9)
    hidden, strength = layers
    scaled = lengths[..., None] / (mean[..., None] + 1e-9)
    return is_edge * ops.exp(2 * strength(hidden(scaled))[..., 0])


def degrees(graph):
    return neighbor_sum(ops.ones_like(graph["known"][..., :1]), graph) + 1e-9


def neighbor_sum(values, graph):
    """Returns sum_j w_ij values_j for matrices or lists of edges."""
    if "edges" not in graph:
        return graph["weights"] @ values
    sources, targets = graph["edges"][0, :, 0], graph["edges"][0, :, 1]
    messages = graph["weights"][0, :, None] * ops.take(values[0], sources, axis=0)
    return ops.segment_sum(messages, targets, ops.shape(values)[1])[None]


def unpack(packed):
    """Returns the parts of the inputs: two columns of labels, then the lengths."""
    # Keras does not know the size of a slice of an axis of unknown size.
    known = ops.stack([packed[..., 0], packed[..., 1]], axis=-1)
    return {"known": known, "lengths": packed[..., 2:]}


def probability(state):
    """Returns the probability of the second class, `(batch, nodes)`."""
    # Rounding in the solver can leave a state slightly negative.
    logarithms = ops.log(ops.relu(state) + 1e-6)
    ratio = logarithms[..., 1:] - logarithms[..., :1]
    return keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")(ratio)[..., 0]


def graph_convolutions(packed, depth=4, units=32):
    """Explicit graph convolutions, which also learn the strengths of edges."""
    graph = unpack(packed)
    graph["weights"] = edge_weights(graph["lengths"], strength_layers())
    features = keras.layers.Dense(units)(graph["known"])
    for _ in range(depth):
        means = neighbor_sum(features, graph) / degrees(graph)
        joint = ops.concatenate([features, means], axis=-1)
        features = features + keras.layers.Dense(units, "relu")(joint)
    return keras.layers.Dense(1, "sigmoid")(features)[..., 0]


def pack(lengths, labels, known, num_nodes):
    """Returns inputs and targets of a graph, padded to a number of nodes."""
    inputs = np.zeros((num_nodes, 2 + num_nodes), "float32")
    targets = np.full(num_nodes, _IGNORED, "float32")
    inputs[known, labels[known]] = 1
    inputs[: len(labels), 2 : 2 + len(labels)] = lengths
    targets[: len(labels)] = labels
    targets[known] = _IGNORED
    return inputs, targets


def draw(num_train, seed):
    random = np.random.default_rng(seed)

    def graphs(count, smallest, largest):
        pairs = []
        for size in random.integers(smallest, largest + 1, count):
            known = 2 * random.integers(0, size // 2, 2) + (0, 1)
            lengths = graph_data.moons(size, random)[1]
            pairs.append(pack(lengths, np.arange(size) % 2, known, largest))
        return tuple(map(np.stack, zip(*pairs, strict=True)))

    training = graphs(num_train, 20, _MOST_NODES)
    tests = {f"{n} nodes": graphs(64, n, n) for n in (32, 64, 128, 256)}
    friends = np.zeros((34, 34))
    friends[tuple(graph_data.EDGES.T)] = 1
    club = pack(friends + friends.T, graph_data.LABELS, [0, 33], 34)
    return training, {**tests, "karate club": tuple(one[None] for one in club)}


@keras.saving.register_keras_serializable(package="deq_keras_training")
def cross_entropy(targets, predictions):
    is_counted = ops.cast(targets != _IGNORED, predictions.dtype)
    right = ops.where(targets > 0.5, predictions, 1 - predictions)
    losses = -ops.log(ops.clip(right, 1e-6, 1))
    return ops.sum(is_counted * losses) / ops.sum(is_counted)


def wrong_fraction(predictions, targets):
    return np.mean(((predictions > 0.5) != targets)[targets != _IGNORED])


COMMUNITIES = Task(
    draw,
    (None, None),
    LabelPropagationCell,
    graph_convolutions,
    encode=unpack,
    decode=probability,
    loss=cross_entropy,
    error=wrong_fraction,
)
