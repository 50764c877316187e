"""Text to model: corpora, vocabularies, and the segments that training reads."""

from .batches import segments
from .byte_vocabulary import ByteVocabulary
from .character_vocabulary import CharacterVocabulary
from .corpus import (
    Corpus,
    embedded,
    from_directory,
    from_file,
    from_tfds,
)
from .download import fetch
from .subword_vocabulary import SubwordVocabulary
from .vocabulary import find_vocabulary, load_vocabulary
from .word_vocabulary import WordVocabulary

__all__ = [
    "ByteVocabulary",
    "CharacterVocabulary",
    "Corpus",
    "SubwordVocabulary",
    "WordVocabulary",
    "embedded",
    "fetch",
    "find_vocabulary",
    "from_directory",
    "from_file",
    "from_tfds",
    "load_vocabulary",
    "segments",
]
