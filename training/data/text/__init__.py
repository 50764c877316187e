"""Text to model: corpora, their tokenizers, and the segments that training reads."""

from .batches import segments
from .corpus import Corpus, embedded, from_directory, from_file, from_tfds
from .download import fetch
from .encoding import encode
from .tokenizer import find_tokenizer, load_tokenizer

__all__ = [
    "Corpus",
    "embedded",
    "encode",
    "fetch",
    "find_tokenizer",
    "from_directory",
    "from_file",
    "from_tfds",
    "load_tokenizer",
    "segments",
]
