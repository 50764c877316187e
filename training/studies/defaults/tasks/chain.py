"""Chains of nodes whose far end says the class of all."""

import functools

from ....data.reasoning import Chains, chain_adjacency, draw_chains
from ..cells import MessagePassingCell
from .task import Task, dense, drawn, unseeded

LENGTH = 8
CHAINS = 3
_examples = functools.partial(draw_chains, chains=CHAINS, length=LENGTH)
_adjacency = chain_adjacency(CHAINS, LENGTH)
_CELL = unseeded(MessagePassingCell, adjacency=_adjacency)
CHAIN = Task(drawn(_examples), _CELL, dense(Chains.num_classes))
