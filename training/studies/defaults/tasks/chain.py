"""Chains of nodes whose far end says the class of all."""

import functools

from ....data.reasoning import chains
from ..cells import MessagePassingCell
from .task import Task, dense, drawn, unseeded

LENGTH = 8
CHAINS = 3
_examples = functools.partial(chains.draw, chains=CHAINS, length=LENGTH)
_adjacency = chains.adjacency(CHAINS, LENGTH)
_CELL = unseeded(MessagePassingCell, adjacency=_adjacency)
CHAIN = Task(drawn(_examples), _CELL, dense(chains.NUM_CLASSES))
