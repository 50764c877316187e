"""Splits of labelled images, in memory or in the shards of a folder."""

from .memory_split import MemorySplit
from .sharded_split import ShardedSplit
from .split import Split, first

__all__ = ["MemorySplit", "ShardedSplit", "Split", "first"]
