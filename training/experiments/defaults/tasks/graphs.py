"""A task on random graphs, which are a part of the inputs."""

import numpy as np

from ..cells import GraphCell
from .task import Task, cell_of, dense, drawn

_NODES = 20
# With about two edges per node, graphs have long paths and some unconnected nodes.
_EDGE_SHARE = 0.1
# The class of this distance and all larger ones.
_FARTHEST = 6
_NO_PATH = _FARTHEST + 1


def _distances(generator, size):
    """Draws graphs with one marked node, `(nodes, nodes + 1)`.

    The inputs of a node are its row of the adjacency matrix, and whether it is marked.
    The target is its distance from the marked node, at most 6, or 7 without a path.
    """
    shape = (size, _NODES, _NODES)
    upper = np.triu(generator.random(shape) < _EDGE_SHARE, 1)
    adjacency = upper | upper.swapaxes(1, 2)
    marked = np.eye(_NODES, dtype=bool)[generator.integers(_NODES, size=size)]
    targets = np.where(marked, 0, _NO_PATH)
    reached = marked
    for distance in range(1, _NODES):
        grown = reached | np.any(adjacency & reached[:, None], axis=-1)
        targets[grown & ~reached] = min(distance, _FARTHEST)
        reached = grown
    return np.concatenate([adjacency, marked[..., None]], axis=-1), targets


def _graph(inputs, units):
    del units
    return {"adjacency": inputs[..., :_NODES], "nodes": inputs[..., _NODES:]}


TASKS = {
    "distances": Task(
        drawn(_distances), cell_of(GraphCell), dense(_NO_PATH + 1), _graph
    )
}
