"""The preprocessor of `DEQTransformer` tasks turns text into ids and back."""

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import models, solvers, tokenizers
from tests.regimes import slow

TEXT = "to be or not to be\n"
# Graphs of plain iterations are traced faster than graphs of Anderson's.
FAST = solvers.FixedPointIteration(max_iter=2, tol=None)
TOKENIZERS = {
    "character": lambda: tokenizers.CharacterTokenizer(sorted(set(TEXT))),
    "byte": lambda: keras_hub.tokenizers.ByteTokenizer(lowercase=False),
    "word_piece": lambda: keras_hub.tokenizers.WordPieceTokenizer(
        ["[UNK]", "to", "be", "or", "not"]
    ),
}


class MarkedTokenizer(keras_hub.tokenizers.ByteTokenizer):
    """Bytes with the special tokens of KerasHub's tokenizers of published models."""

    def __init__(self, **kwargs):
        for name, token in (("start", "<"), ("end", ">"), ("pad", "_")):
            self._add_special_token(token, f"{name}_token")
        super().__init__(**kwargs)


def _model(preprocessor, solver=FAST):
    keras.utils.set_random_seed(0)
    backbone = models.DEQTransformerBackbone(
        preprocessor.tokenizer.vocabulary_size(), 16, 2, 32, solver=solver
    )
    model = models.DEQTransformerCausalLM(backbone, preprocessor=preprocessor)
    # The initial weights of the embedding are so small that all tokens look alike.
    for seed, weight in enumerate(backbone.token_embedding.weights):
        weight.assign(keras.random.normal(weight.shape, stddev=0.5, seed=seed))
    model.compile(sampler="greedy", run_eagerly=True)
    return model


def _preprocessor(level, **kwargs):
    return models.DEQTransformerCausalLMPreprocessor(TOKENIZERS[level](), **kwargs)


@pytest.fixture(scope="module", params=["word_piece", slow("byte")])
def model(request):
    return _model(_preprocessor(request.param, sequence_length=12))


@pytest.fixture(scope="module")
def character_model():
    return _model(_preprocessor("character", sequence_length=12))


def test_prompts_are_padded(model):
    preprocessor = model.preprocessor
    inputs = preprocessor.generate_preprocess(["to be", "to"])
    lengths = [len(row) for row in preprocessor.tokenizer(["to be", "to"])]
    expected = np.arange(12) < np.array(lengths)[:, None]
    np.testing.assert_array_equal(inputs["padding_mask"], expected)
    for row, length in enumerate(lengths):
        ids = preprocessor.tokenizer(["to be", "to"][row])
        np.testing.assert_array_equal(inputs["token_ids"][row, :length], ids)
        np.testing.assert_array_equal(inputs["token_ids"][row, length:], 0)
    assert preprocessor.generate_postprocess(inputs) == ["to be", "to"]
    alone = preprocessor.generate_preprocess("to be")
    for name, values in alone.items():
        np.testing.assert_array_equal(values, inputs[name][0], err_msg=name)
    assert preprocessor.generate_postprocess(alone) == "to be"
    short = preprocessor.generate_preprocess("to be", sequence_length=9)
    np.testing.assert_array_equal(short["token_ids"], alone["token_ids"][:9])


def test_generates_text_as_ids_are_generated(model):
    texts = ["to be", "to"]
    generated = model.generate(texts, max_length=7)
    inputs = model.preprocessor.generate_preprocess(texts, sequence_length=7)
    outputs = model.generate_function(inputs, stop_token_ids=None)
    assert generated == model.preprocessor.generate_postprocess(outputs)
    for text, prompt in zip(generated, texts, strict=True):
        assert text.startswith(prompt)
        assert len(text) > len(prompt)
    dataset = tf.data.Dataset.from_tensor_slices(texts).batch(2)
    assert model.generate(dataset, max_length=7) == generated
    assert model.generate("to", max_length=7) == generated[1]


def test_files_and_presets_hold_the_tokenizer(model, tmp_path):
    expected = model.generate("to be", max_length=6)
    model.save(tmp_path / "model.keras")
    model.save_to_preset(str(tmp_path / "preset"))
    models.NextTokenLossModel(model).save(tmp_path / "loss.keras")
    restored = (
        keras.saving.load_model(tmp_path / "model.keras"),
        models.DEQTransformerCausalLM.from_preset(str(tmp_path / "preset")),
    )
    restored[1].compile(sampler="greedy")
    for copy in restored:
        copy.run_eagerly = True
        assert copy.generate("to be", max_length=6) == expected
    causal_lm = keras.saving.load_model(tmp_path / "loss.keras").causal_lm
    for copy in (*restored, causal_lm):
        assert isinstance(copy.preprocessor, models.DEQTransformerCausalLMPreprocessor)
        tokenizer = copy.preprocessor.tokenizer
        assert tokenizer.get_config() == model.preprocessor.tokenizer.get_config()
    preprocessor = keras_hub.models.CausalLMPreprocessor.from_preset(
        str(tmp_path / "preset"), sequence_length=7
    )
    assert preprocessor.sequence_length == 7
    assert preprocessor.tokenizer.detokenize(preprocessor.tokenizer("to")) == "to"


@pytest.mark.slow
def test_learns_from_text():
    model = _model(_preprocessor("word_piece", sequence_length=8), solver="anderson")
    # The default penalty keeps two of the five words alike for hundreds of steps.
    model.backbone.deq.regularizer = None
    model.compile(keras.optimizers.Adam(2e-2), sampler="greedy")
    texts = tf.data.Dataset.from_tensor_slices(["to be or not to be"] * 16).batch(8)
    model.fit(texts, epochs=10, shuffle=False, verbose=0)
    assert model.generate("to be", max_length=6) == "to be or not to be"


def test_examples_to_train_on():
    preprocessor = _preprocessor("word_piece", sequence_length=4)
    x, y, sample_weight = preprocessor(["to be", "to be or not to be"])
    np.testing.assert_array_equal(x["token_ids"], [[1, 2, 0, 0], [1, 2, 3, 4]])
    np.testing.assert_array_equal(x["padding_mask"], [[1, 1, 0, 0], [1, 1, 1, 1]])
    np.testing.assert_array_equal(y, [[2, 0, 0, 0], [2, 3, 4, 1]])
    np.testing.assert_array_equal(sample_weight, [[1, 0, 0, 0], [1, 1, 1, 1]])


@pytest.mark.parametrize("add_start_token", [True, False])
def test_special_tokens(add_start_token):
    preprocessor = models.DEQTransformerCausalLMPreprocessor(
        MarkedTokenizer(), sequence_length=6, add_start_token=add_start_token
    )
    start, text = ("<", "ab") if add_start_token else ("", "ab")
    x, y, _ = preprocessor(text)
    expected = f"{start}{text}>".ljust(7, "_")
    assert "".join(map(chr, x["token_ids"].numpy())) == expected[:-1]
    assert "".join(map(chr, y.numpy())) == expected[1:]
    inputs = preprocessor.generate_preprocess([text])
    prompt = f"{start}{text}".ljust(6, "_")
    assert "".join(map(chr, inputs["token_ids"].numpy()[0])) == prompt
    assert preprocessor.generate_postprocess(inputs) == ["ab"]
    assert preprocessor.generate_postprocess(x) == "ab"


@pytest.mark.slow
def test_generation_stops_at_a_stop_token(character_model, monkeypatch):
    generate = character_model.generate
    tokenizer = character_model.preprocessor.tokenizer
    free = generate("to b")
    assert generate("to b", strip_prompt=True) == free[4:]
    stop = tokenizer.token_to_id(free[5])
    stopped = free[: free.index(free[5], 4) + 1]
    assert generate("to b", stop_token_ids=(stop,)) == stopped
    monkeypatch.setattr(tokenizer, "end_token_id", stop, raising=False)
    assert generate("to b") == stopped
    assert generate("to b", stop_token_ids=None) == free


def test_start_token_counts():
    preprocessor = models.DEQTransformerCausalLMPreprocessor(MarkedTokenizer())
    with pytest.raises(ValueError, match="prompt"):
        preprocessor.generate_preprocess(["ab"], sequence_length=3)
    inputs = preprocessor.generate_preprocess(["", "a"], sequence_length=3)
    np.testing.assert_array_equal(inputs["padding_mask"], [[1, 0, 0], [1, 1, 0]])


@pytest.mark.parametrize(
    "prompts, max_length",
    [
        ("", None),
        (["to", ""], None),
        (3, None),
        ([[1, 2]], None),
        ("to", 0),
        (["to", "to be or not to be"], 18),
    ],
)
def test_other_prompts_raise(character_model, prompts, max_length):
    with pytest.raises(ValueError, match="(?i)prompt|sequence_length"):
        character_model.generate(prompts, max_length=max_length)


def test_other_uses_raise(character_model):
    dataset = tf.data.Dataset.from_tensors(["to"])
    with pytest.raises(ValueError, match="graph"):
        dataset.map(character_model.preprocessor.generate_preprocess)
    tokenizer = keras_hub.tokenizers.ByteTokenizer(sequence_length=8)
    with pytest.raises(ValueError, match="sequence_length=8"):
        models.DEQTransformerCausalLMPreprocessor(tokenizer)


@pytest.mark.parametrize("mask", [[[1, 1, 1, 1]], [[1, 0, 0, 0], [1, 1, 1, 1]]])
def test_ids_without_a_free_position_raise(character_model, mask):
    model = models.DEQTransformerCausalLM(character_model.backbone)
    inputs = {"token_ids": np.zeros_like(mask), "padding_mask": np.array(mask)}
    with pytest.raises(ValueError, match="position"):
        model.generate(inputs, stop_token_ids=None)
