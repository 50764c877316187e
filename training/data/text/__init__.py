"""Texts of language models, their tokenizers, and segments of token ids."""

from .corpus import Corpus, embedded, fetch, from_directory, from_file
from .segments import encode, segments
from .tokenizer import find_tokenizer
from .word_tokenizer import WordTokenizer

__all__ = [
    "Corpus",
    "WordTokenizer",
    "embedded",
    "encode",
    "fetch",
    "find_tokenizer",
    "from_directory",
    "from_file",
    "segments",
]
