"""Checkpoints of the reference, the authors' PyTorch code (locuslab/deq and others)."""

from deq_keras.converters.locuslab.deq_transformer import load_deq_transformer
from deq_keras.converters.locuslab.deq_trellisnet import load_deq_trellisnet
from deq_keras.converters.locuslab.mdeq import load_mdeq
from deq_keras.converters.locuslab.monotone_network import load_monotone_network

__all__ = [
    "load_deq_transformer",
    "load_deq_trellisnet",
    "load_mdeq",
    "load_monotone_network",
]
