"""Tokenizers of language models: text to ids, and back."""

from deq_keras.tokenizers.character_tokenizer import CharacterTokenizer
from deq_keras.tokenizers.subword_tokenizer import SubwordTokenizer
from deq_keras.tokenizers.word_tokenizer import WordTokenizer

__all__ = ["CharacterTokenizer", "SubwordTokenizer", "WordTokenizer"]
