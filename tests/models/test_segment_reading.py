"""`fit` and `evaluate` of models with a memory: which batches they take."""

import functools

import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import models

QUIET = {"verbose": 0}


def _causal_lm(memory_length, preprocessor=None):
    backbone = models.ExplicitTransformerBackbone(
        vocabulary_size=256,
        hidden_dim=8,
        num_heads=2,
        intermediate_dim=16,
        num_layers=1,
        memory_length=memory_length,
    )
    return models.ExplicitTransformerCausalLM(backbone, preprocessor)


def _model(memory_length=4):
    model = models.NextTokenLossModel(_causal_lm(memory_length))
    model.compile("sgd", run_eagerly=True)
    return model


def _examples(num_rows):
    ids = np.arange(7 * num_rows).reshape(num_rows, 7) % 256
    return models.NextTokenLossModel.examples(ids[:, :-1], ids[:, 1:])


def test_incomplete_last_batch_of_arrays_raises():
    words = "Received.*batch_size=2"
    model = _model()
    with pytest.raises(ValueError, match=words):
        model.fit(*_examples(5), batch_size=2, shuffle=False, **QUIET)
    with pytest.raises(ValueError, match=words):
        model.evaluate(*_examples(5), batch_size=2, **QUIET)
    with pytest.raises(ValueError, match=words):
        rows = {"batch_size": 2, "validation_data": _examples(5)}
        model.fit(*_examples(4), shuffle=False, **rows, **QUIET)


@pytest.mark.slow
def test_incomplete_last_batch_of_a_dataset_raises():
    data = tf.data.Dataset.from_tensor_slices(_examples(5)).batch(2)
    model = _model()
    for call in (functools.partial(model.fit, shuffle=False), model.evaluate):
        with pytest.raises(ValueError, match="drop_remainder=True"):
            call(data, **QUIET)


def test_shuffled_rows_raise():
    with pytest.raises(ValueError, match="shuffle"):
        _model().fit(*_examples(4), batch_size=2, **QUIET)


def test_without_a_memory_all_batches_are_taken():
    model = _model(memory_length=0)
    model.fit(*_examples(5), batch_size=2, **QUIET)
    model.evaluate(*_examples(5), batch_size=2, **QUIET)


def test_memory_lasts_for_an_epoch():
    """With a learning rate of 0, equal losses show equal memories."""
    model = _model()
    model.optimizer.learning_rate = 0.0
    data = tf.data.Dataset.from_tensor_slices(_examples(4)).batch(2)
    losses = model.fit(data, epochs=2, shuffle=False, **QUIET).history["loss"]
    assert losses[0] == losses[1]
    whole = model.evaluate(data, **QUIET)[0]
    assert model.evaluate(data, **QUIET)[0] == whole
    parts = [model.evaluate(data.skip(i).take(1), **QUIET)[0] for i in range(2)]
    assert abs(np.mean(parts) - whole) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["list", "dataset"])
def test_separate_texts_warn(kind):
    preprocessor = models.DEQTransformerCausalLMPreprocessor(
        keras_hub.tokenizers.ByteTokenizer(lowercase=False), sequence_length=8
    )
    texts = ["to be", "or not", "to be", "or that"]
    data = tf.data.Dataset.from_tensor_slices(texts).batch(2)
    model = _causal_lm(4, preprocessor)
    fit = functools.partial(model.fit, shuffle=False, **QUIET)
    with pytest.warns(UserWarning, match="separate text"):
        fit(data) if kind == "dataset" else fit(texts, batch_size=2)
    # A single batch continues nothing. Warnings are errors here.
    fit(data.take(1)) if kind == "dataset" else fit(texts, batch_size=4)


def test_positional_arguments_are_those_of_keras():
    model, (x, y) = _model(memory_length=0), _examples(4)
    assert len(model.fit(x, y, 4, 2, 0).epoch) == 2
    none = np.zeros((4, 1))  # A weight for each row.
    nothing = model.evaluate(x, y, 4, 0, none, return_dict=True)["loss"]
    assert nothing == 0.0
    with pytest.raises(ValueError, match="batch_size=2"):
        _model().fit(*_examples(4), 2, 1, 0, None, 0.0, _examples(5), False)
