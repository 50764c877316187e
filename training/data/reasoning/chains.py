"""Chains of nodes whose far end says the class of all."""

import numpy as np

from .task import Levels, ReasoningTask, of_sequences

NUM_CLASSES = 2
_NOISE_FEATURES = 4
_NOISE = 0.3


def draw(generator, count, chains, length):
    """Draws graphs of several chains, each with a class of its own.

    Args:
        generator: NumPy's `Generator`.
        count: int. How many graphs.
        chains: int. Chains of a graph.
        length: int. Nodes of a chain.

    Returns:
        The features, `(count, chains * length, 6)`: the class, one-hot at the first
        node of a chain and zero at the others, beside noise. And the class of its chain
        for every node, `(count, chains * length)`.
    """
    classes = generator.integers(NUM_CLASSES, size=(count, chains))
    nodes = count, chains, length
    ends = np.zeros((*nodes, NUM_CLASSES))
    ends[:, :, 0] = np.eye(NUM_CLASSES)[classes]
    noise = generator.normal(0.0, _NOISE, (*nodes, _NOISE_FEATURES))
    features = np.concatenate([ends, noise], axis=-1)
    return features.reshape(count, chains * length, -1), np.repeat(classes, length, 1)


def adjacency(chains, length):
    """Returns the matrix `(nodes, nodes)` of edges within each chain."""
    steps = np.eye(length, k=1)
    return np.kron(np.eye(chains), steps + steps.T)


class Chains(ReasoningTask):
    """The class of a chain at all of its nodes, told at its first node only.

    A graph has three chains, whose nodes stand one after another: a cell that passes
    messages takes `adjacency(3, length)`; to one that sees neighbouring positions the
    node with a class shows where a chain begins. Information travels `length - 1`
    nodes. Difficulty is the length of a chain.

    Example:

    >>> graphs = Chains().examples(np.random.default_rng(0), 2, 8)
    >>> graphs.inputs.shape, graphs.targets.shape
    ((2, 24, 6), (2, 24))

    Reference:

    - Gu et al. (2020), "Implicit Graph Neural Networks", section 5 (there one graph of
      40 chains)
    """

    name = "chains"
    num_chains = 3
    num_classes = NUM_CLASSES
    channels = NUM_CLASSES + _NOISE_FEATURES
    levels = Levels("the number of nodes of a chain", 1, 2**12)

    def positions(self, level):
        return (self.num_chains * level,)

    def _draw(self, generator, count, level, held_out):
        del held_out
        features, classes = draw(generator, count, self.num_chains, level)
        graphs = of_sequences(features.astype("float32"), classes, level - 1)
        return graphs._replace(difficulty=np.full(count, level, "int32"))
