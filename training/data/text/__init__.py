"""Texts of language models, their tokenizers, and segments of token ids."""

from .corpus import Corpus, from_directory, from_file, load_embedded
from .segments import encode, segments
from .tokenizer import find_tokenizer
from .word_tokenizer import WordTokenizer

__all__ = [
    "Corpus",
    "WordTokenizer",
    "load_embedded",
    "encode",
    "find_tokenizer",
    "from_directory",
    "from_file",
    "segments",
]
