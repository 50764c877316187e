"""Chains of nodes whose far end says the class of all."""

import numpy as np

from ..cells import MessagePassingCell
from .task import Task, dense, drawn, unseeded

LENGTH = 8
CHAINS = 3
_CLASSES = 2
_NOISE_FEATURES = 4
_NOISE = 0.3


def _examples(generator, size):
    """Draws graphs of several chains, each with a class of its own.

    The inputs are the class, one-hot at the first node of a chain and zero at the
    others, beside noise, `(nodes, features)`. The target at every node is the class of
    its chain.
    """
    classes = generator.integers(_CLASSES, size=(size, CHAINS))
    nodes = size, CHAINS, LENGTH
    ends = np.zeros((*nodes, _CLASSES))
    ends[:, :, 0] = np.eye(_CLASSES)[classes]
    noise = generator.normal(0.0, _NOISE, (*nodes, _NOISE_FEATURES))
    inputs = np.concatenate([ends, noise], axis=-1)
    targets = np.repeat(classes, LENGTH, axis=1)
    return inputs.reshape(size, CHAINS * LENGTH, -1), targets


def _adjacency():
    """Returns the matrix `(nodes, nodes)` of edges within each chain."""
    steps = np.eye(LENGTH, k=1)
    return np.kron(np.eye(CHAINS), steps + steps.T)


_CELL = unseeded(MessagePassingCell, adjacency=_adjacency())
CHAIN = Task(drawn(_examples), _CELL, dense(_CLASSES))
