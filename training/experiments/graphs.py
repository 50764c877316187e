"""Classes of the nodes of one graph: implicit graph networks, a GCN and an MLP."""

import codecs
import collections
import pickle
import types
from pathlib import Path
from typing import Literal

import keras
import numpy as np
import tensorflow as tf
from keras import ops

import deq_keras

from ..config import keys
from ..config.fields import Components, Config, EvaluationConfig, VariantsConfig
from ..errors import InputError, config_errors, reading
from ..files.input_file import check_file, check_folder
from ..registry import ACCURACY, Experiment
from ..runs.feed import ArrayFeed
from ..runs.job import ArrayJob
from ..runs.phases import equilibrium
from .world.graphs import neighbor_sum

_IGNORED = -1  # Label of nodes that neither train nor count.
_REMEDY = "Copy the repository again."
_NUM_CHAINS, _NUM_CLASSES, _NUM_FEATURES = 20, 2, 100


class DataConfig(Config):
    """A graph with features and classes of its nodes. Some nodes train, others test.

    Args:
        graph: Name of the graph.

            - `chains`: 20 directed chains of each of two classes, told at their first
              nodes alone (Gu et al., 2020). 5 % of the nodes train, 10 % are left for
              validation.
            - `cornell`, `texas`, `wisconsin`: pages of a university, their words and
              links (WebKB). The seed of the run, from 0 to 9, is the number of the
              split of Pei et al. (2020): 48 % of the nodes train, 32 % are left for
              validation.
            - `cora`: papers of machine learning, their words and citations, split in
              the same way.
        directory: Path. A copy of the repository graphdml-uiuc-jlu/geom-gcn, with its
            folders `data`, `new_data` and `splits`. Null for `chains`.
        chain_length: Positive integer. Nodes of a chain.
        updates_per_epoch: Positive integer. Training steps of an epoch, of the whole
            graph each.
        part: `test` or `validation`, the nodes whose accuracy is measured.
    """

    graph: Literal["chains", "cornell", "texas", "wisconsin", "cora"]
    directory: keys.Text | None = None
    chain_length: keys.integer(ge=2, le=10_000) = 10
    updates_per_epoch: keys.Count = 10
    part: Literal["test", "validation"] = "test"


class ModelConfig(Components):
    """A network of the nodes.

    Args:
        network: `equilibrium`, a `GraphCell`; `gcn`, two graph convolutions with a
            self-loop at every node (Kipf and Welling, 2017); or `mlp`, two dense
            layers, which see no edges.
        units: Positive integer. Hidden features of a node.
        contraction: Positive float. Bound of the norm of the cell's W.
        activation: Activation of the cell.
        dropout: Float in [0, 1). Dropout rate of the features and of the hidden ones.
        l2: Non-negative float. Weight of the squares of the kernels in the loss.
    """

    network: Literal["equilibrium", "gcn", "mlp"] = "equilibrium"
    units: keys.Width = 64
    contraction: keys.Positive = 0.9
    activation: keys.Text = "relu"
    dropout: keys.Rate = 0.5
    l2: keys.NonNegative = 0.0


class GraphsEvaluationConfig(EvaluationConfig):
    """The measurements of a trained model; see `EvaluationConfig`."""

    budgets: keys.Distinct[keys.Budget] = [1, 2, 4, 8, 16, 100]
    num_samples: keys.Batch = 1
    max_iter: keys.Budget = 100


class GraphsConfig(VariantsConfig):
    """Networks of the nodes of a graph; see `VariantsConfig`."""

    experiment: Literal["graphs"]
    model: ModelConfig
    data: DataConfig
    evaluation: GraphsEvaluationConfig = GraphsEvaluationConfig()


def chains(length, seed):
    """Draws the split of chains.

    Returns:
        Features `(nodes, 100)`, edges `(edges, 2)`, labels `(nodes,)`, and the numbers
        of the training, validation and test nodes.
    """
    count = _NUM_CLASSES * _NUM_CHAINS
    nodes = np.arange(count * length).reshape(count, length)
    labels = np.arange(count) // _NUM_CHAINS
    features = np.zeros((nodes.size, _NUM_FEATURES), "float32")
    features[nodes[:, 0], labels] = 1
    edges = np.stack([nodes[:, :-1], nodes[:, 1:]], axis=-1).reshape(-1, 2)
    order = np.random.default_rng(seed).permutation(nodes.size)
    parts = np.split(order, [nodes.size // 20, nodes.size * 3 // 20])
    return features, edges, np.repeat(labels, length), *parts


def split_graph(name, directory, split):
    """Reads a graph and one of its splits; see `chains`. Edges have both directions."""
    if directory is None:
        raise InputError(
            f"The graph {name} needs `data.directory`, a copy of the repository "
            "graphdml-uiuc-jlu/geom-gcn. Received: directory=None."
        )
    if split > 9:
        raise InputError(
            f"The graph {name} has the splits 0 to 9, one for each seed. Received: "
            f"seed={split}."
        )
    root = Path(directory)
    check_folder(root)
    path = root / "splits" / f"{name}_split_0.6_0.2_{split}.npz"
    check_file(path)
    read = _read_papers if name == "cora" else _read_pages
    features, edges, labels = read(root, name)
    with reading(path, _REMEDY), np.load(path) as file:
        masks = [file[f"{part}_mask"] for part in ("train", "val", "test")]
        is_mask = all(mask.shape == labels.shape and mask.any() for mask in masks)
        _expect(is_mask, f"three masks of {len(labels)} nodes")
    edges = np.concatenate([edges, edges[:, ::-1]])
    edges = np.unique(edges[edges[:, 0] != edges[:, 1]], axis=0)
    return features, edges, labels, *map(np.flatnonzero, masks)


def _read_pages(root, name):
    """Returns features, edges and labels of a graph in two tables."""
    paths = [
        root / "new_data" / name / f"out1_{part}.txt"
        for part in ("node_feature_label", "graph_edges")
    ]
    for path in paths:
        check_file(path)
    with reading(paths[0], _REMEDY):
        rows = [line.split("\t") for line in paths[0].read_text().splitlines()[1:]]
        rows.sort(key=lambda row: int(row[0]))
        _expect(
            [int(row[0]) for row in rows] == list(range(len(rows))), "one row a node"
        )
        features = np.array([row[1].split(",") for row in rows], "float32")
        labels = np.array([row[2] for row in rows], "int64")
        _expect(np.isfinite(features).all() and labels.min() >= 0, "numbers")
    with reading(paths[1], _REMEDY):
        lines = paths[1].read_text().splitlines()[1:]
        edges = _check_edges([line.split() for line in lines], len(labels))
    return features, edges, labels


def _read_papers(root, name):
    """Returns features, edges and labels of a graph in Planetoid's format.

    Of the pickled parts, `allx` and `ally` are the nodes but the last ones, `tx` and
    `ty` the last ones in an order that `test.index` lists, and `graph` the neighbors.
    """
    parts = ("allx", "ally", "tx", "ty", "graph", "test.index")
    paths = {part: root / "data" / f"ind.{name}.{part}" for part in parts}
    for path in paths.values():
        check_file(path)
    read = {}
    for part, path in paths.items():
        with reading(path, _REMEDY), path.open("rb") as file:
            if part == "test.index":
                read[part] = np.array(file.read().split(), int)
            else:
                read[part] = _ArrayUnpickler(file, encoding="latin1").load()
    with reading(root / "data", _REMEDY):
        first, last = _dense(read["allx"]), _dense(read["tx"])
        order = read["test.index"]
        size = len(first) + len(last)
        is_order = np.array_equal(np.sort(order), np.arange(len(first), size))
        _expect(is_order, f"the nodes {len(first)} to {size - 1} in test.index")
        order = np.argsort(order)
        features = np.concatenate([first, last[order]])
        labels = np.concatenate([read["ally"], read["ty"][order]]).argmax(axis=-1)
        _expect(len(labels) == size, f"{size} labels")
        graph = read["graph"].items()
        edges = [(node, neighbor) for node, others in graph for neighbor in others]
        edges = _check_edges(edges, size)
    return features, edges, labels


class _ArrayUnpickler(pickle.Unpickler):
    """Reads pickled arrays, dictionaries and sparse matrices, and no other class."""

    _CLASSES = {
        "_reconstruct": np.empty(0).__reduce__()[0],
        "ndarray": np.ndarray,
        "dtype": np.dtype,
        "encode": codecs.encode,  # Python 3 pickles bytes by it.
        "list": list,
        "defaultdict": collections.defaultdict,
        "csr_matrix": types.SimpleNamespace,  # Has the attributes of scipy's.
    }

    def find_class(self, module, name):
        _expect(name in self._CLASSES, f"arrays instead of {module}.{name}")
        return self._CLASSES[name]


def _dense(rows):
    """Returns the array `(nodes, features)` of a matrix of compressed rows."""
    values = np.zeros(rows._shape, "float32")
    nodes = np.repeat(np.arange(len(values)), np.diff(rows.indptr))
    values[nodes, rows.indices] = rows.data
    return values


def _check_edges(pairs, num_nodes):
    """Returns pairs of nodes as an array `(edges, 2)`."""
    edges = np.array(pairs, int)
    is_node = (edges >= 0) & (edges < num_nodes)
    is_pair = edges.shape == (len(pairs), 2) and is_node.all()
    _expect(is_pair, f"pairs of {num_nodes} nodes")
    return edges


def _expect(condition, expected):
    if not condition:
        raise ValueError(f"Expected {expected}.")


class GraphsFeed(ArrayFeed):
    """The whole graph in every step."""

    @property
    def steps_per_epoch(self):
        return self.config.data.updates_per_epoch

    def fit_arguments(self, steps):
        graph = tf.data.Dataset.from_tensors(self.training).repeat()
        return {"x": graph, "steps_per_epoch": self.steps_per_epoch}


class GraphsJob(ArrayJob):
    """One network of the nodes of a graph."""

    feed_class = GraphsFeed

    @staticmethod
    def draw(config, seed):
        if config.graph == "chains":
            if config.directory is not None:
                raise InputError(
                    "Chains are drawn and take no `data.directory`. Received: "
                    f"directory={config.directory}."
                )
            graph = chains(config.chain_length, seed)
        else:
            graph = split_graph(config.graph, config.directory, seed)
        features, edges, labels, *parts = graph
        inputs = {"features": features[None], "edges": edges[None].astype("int32")}

        def pair(part):
            targets = np.full((1, len(labels)), _IGNORED)
            targets[0, part] = labels[part]
            return inputs, targets

        measured = {"validation": 1, "test": 2}[config.part]
        return pair(parts[0]), pair(parts[measured]), int(labels.max()) + 1

    def build_model(self):
        config = self.config.model
        training, _, num_classes = self.data(self.config.seed)
        size = training[0]["features"].shape[-1]
        features = keras.Input((None, size), name="features")
        edges = keras.Input((None, 2), dtype="int32", name="edges")

        hidden = keras.layers.Dropout(config.dropout)(features)
        if config.network == "equilibrium":
            with config_errors("model"):
                cell = deq_keras.layers.GraphCell(
                    config.units, config.contraction, config.activation
                )
                layer = equilibrium(cell, config)
            hidden = layer({"features": hidden, "edges": edges})
        elif config.network == "gcn":
            hidden = GraphConvolution(config.units)(hidden, edges)
            hidden = keras.layers.ReLU()(hidden)
        else:
            hidden = keras.layers.Dense(config.units, "relu")(hidden)
        hidden = keras.layers.Dropout(config.dropout)(hidden)
        if config.network == "gcn":
            logits = GraphConvolution(num_classes)(hidden, edges)
        else:
            logits = keras.layers.Dense(num_classes)(hidden)
        model = keras.Model({"features": features, "edges": edges}, logits)
        for weight in model.trainable_weights:
            if weight.name == "kernel":
                weight.regularizer = keras.regularizers.L2(config.l2)
        return model

    def loss(self):
        return keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, ignore_class=_IGNORED
        )

    def score(self, predictions, targets):
        is_right = np.argmax(predictions, axis=-1) == targets
        return float(np.mean(is_right[targets != _IGNORED]))


@keras.saving.register_keras_serializable(package="deq_keras_training")
class GraphConvolution(keras.layers.Dense):
    """A dense layer, then the sum over neighbors and the node itself, scaled as by
    Kipf and Welling (2017), of one graph with directed edges."""

    def call(self, inputs, edges):
        values = super().call(inputs)
        graph = {"edges": edges, "weights": ops.ones_like(edges[..., 0], values.dtype)}
        ones = ops.ones_like(values[..., :1])
        received = 1 + neighbor_sum(ones, graph)
        sent = 1 + neighbor_sum(ones, {**graph, "edges": ops.flip(edges, axis=-1)})
        values = values / ops.sqrt(sent)
        return (values + neighbor_sum(values, graph)) / ops.sqrt(received)


EXPERIMENT = Experiment(GraphsConfig, GraphsJob, ACCURACY)
