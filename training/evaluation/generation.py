"""Generation of text by a trained language model, for the command line."""

import keras_hub
import tensorflow as tf

from deq_keras.tokenizers import VocabularyTokenizer

from ..config.errors import received_text, shorten
from ..data.text import WordTokenizer
from ..errors import InputError

_MOST_SHOWN = 20


def generate(causal_lm, prompt, max_length, temperature, top_k, seed):
    """Returns a prompt with the text that a model generates after it.

    Args:
        causal_lm: `LanguageCausalLM` with a preprocessor.
        prompt: String. Beginning of the text.
        max_length: Positive integer. Number of tokens of the prompt and the generated
            text together.
        temperature: Positive float. Divides the logits before the softmax.
        top_k: Positive integer. Each token is drawn from the `top_k` most likely
            tokens, or from the whole vocabulary if it has fewer.
        seed: Integer. Seed of the draws. The same seed repeats a text.

    Raises:
        InputError: If the prompt is empty, has a part that is not in the vocabulary, or
            leaves no room for generated text; or if the network does not generate.
    """
    tokenizer = causal_lm.preprocessor.tokenizer
    _check_vocabulary(tokenizer, prompt)
    num_tokens = len(tokenizer(prompt))
    if not num_tokens:
        raise InputError(
            f"--prompt must hold at least one token. {received_text('prompt', prompt)}"
        )
    if num_tokens >= max_length:
        raise InputError(
            f"--max-length must be more than {num_tokens}, the tokens of the prompt. "
            f"Received: max_length={max_length}."
        )
    top_k = min(top_k, tokenizer.vocabulary_size())
    sampler = keras_hub.samplers.TopKSampler(top_k, seed, temperature=temperature)
    causal_lm.compile(sampler=sampler)
    try:
        return causal_lm.generate(prompt, max_length)
    except NotImplementedError as error:
        raise InputError(f"This network cannot generate text: {error}") from error


def _check_vocabulary(tokenizer, prompt):
    """Raises `InputError` if parts of a prompt are not in the vocabulary.

    Tokenizers replace these parts by their unknown token, if they have one.
    """
    kind = "words" if isinstance(tokenizer, WordTokenizer) else "characters"
    unknown = _unknown_parts(tokenizer, prompt)
    if unknown:
        shown = ", ".join(map(shorten, unknown[:_MOST_SHOWN]))
        if len(unknown) > _MOST_SHOWN:
            shown += f" and {len(unknown) - _MOST_SHOWN} more"
        raise InputError(
            f"--prompt must consist of {kind} of the model's vocabulary, which has "
            f"{tokenizer.vocabulary_size()} tokens. Leave out: {shown}. "
            f"{received_text('prompt', prompt)}"
        )


def _unknown_parts(tokenizer, prompt):
    """Returns the characters or words of a prompt that are not in a vocabulary."""
    if isinstance(tokenizer, keras_hub.tokenizers.WordPieceTokenizer):
        unknown_id = tokenizer.token_to_id(tokenizer.oov_token)
        characters = dict.fromkeys(prompt)
        return [part for part in characters if unknown_id in tokenizer(part)]
    if not isinstance(tokenizer, VocabularyTokenizer):
        return []  # Bytes can encode every text.
    text = prompt.lower() if tokenizer.lowercase else prompt
    parts = [part.decode() for part in tokenizer.split(tf.constant(text)).numpy()]
    known = set(tokenizer.get_vocabulary())
    return [part for part in dict.fromkeys(parts) if part not in known]
