"""Texts of language models, their tokenizers, and segments of token ids."""

from .corpus import Corpus, embedded, fetch, from_directory, from_file, from_tfds
from .segments import encode, segments
from .tokenizer import find_tokenizer

__all__ = [
    "Corpus",
    "embedded",
    "encode",
    "fetch",
    "find_tokenizer",
    "from_directory",
    "from_file",
    "from_tfds",
    "segments",
]
