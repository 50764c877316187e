"""Prompts that a tokenizer does not know, and the draws of a sampler."""

import pytest
from keras_hub.tokenizers import ByteTokenizer

from deq_keras import models
from deq_keras.tokenizers import CharacterTokenizer
from training.data.text import WordTokenizer, find_tokenizer
from training.errors import InputError
from training.evaluation.generation import generate

TEXT = "to be, or not to be\n"


def _causal_lm(tokenizer):
    backbone = models.DEQTransformerBackbone(
        tokenizer.vocabulary_size(),
        hidden_dim=8,
        num_heads=2,
        intermediate_dim=16,
        solver={"class_name": "fixed_point_iteration", "max_iter": 2, "tol": None},
    )
    preprocessor = models.DEQTransformerCausalLMPreprocessor(tokenizer)
    return models.DEQTransformerCausalLM(backbone, preprocessor)


@pytest.mark.parametrize(
    ("make", "prompt", "words"),
    [
        (lambda: CharacterTokenizer.learn([TEXT]), "to XéX", "characters.*'X', 'é'"),
        (
            lambda: CharacterTokenizer.learn([TEXT, "xy"], minimum_count=2),
            "to x",
            "characters.*Leave out: 'x'",
        ),
        (
            lambda: WordTokenizer.learn([TEXT], lowercase=True),
            "To see, or not",
            "words.*Leave out: 'see,'. Received",
        ),
        (
            lambda: find_tokenizer("subword", TEXT * 20, vocabulary_size=30)[0],
            "to bé, x",
            "characters.*'é', 'x'",
        ),
        (lambda: CharacterTokenizer.learn([TEXT]), "", "at least one token"),
        (
            lambda: ByteTokenizer(lowercase=False),
            "é" * 5,
            "more than 10, .*max_length=8",
        ),
    ],
    ids=["characters", "rare", "words", "subwords", "empty", "long"],
)
def test_invalid_prompt_raises(make, prompt, words):
    with pytest.raises(InputError, match=words):
        generate(_causal_lm(make()), prompt, 8, 1.0, 5, 0)


@pytest.mark.slow
def test_seed_repeats_a_text():
    causal_lm = _causal_lm(CharacterTokenizer.learn([TEXT]))
    texts = [generate(causal_lm, "to", 30, 5.0, 100, seed) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]
    assert all(len(text) == 30 and text.startswith("to") for text in texts)
    likeliest = {generate(causal_lm, "to", 30, 5.0, 1, seed) for seed in (0, 1)}
    assert len(likeliest) == 1


def test_explicit_network_does_not_generate():
    tokenizer = CharacterTokenizer.learn([TEXT])
    backbone = models.TrellisNetBackbone(
        tokenizer.vocabulary_size(), hidden_dim=4, intermediate_dim=8, num_layers=2
    )
    preprocessor = models.DEQTrellisNetCausalLMPreprocessor(tokenizer)
    causal_lm = models.TrellisNetCausalLM(backbone, preprocessor)
    with pytest.raises(InputError, match="cannot generate text"):
        generate(causal_lm, "to", 8, 1.0, 5, 0)
