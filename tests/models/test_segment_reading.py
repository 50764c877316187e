"""`fit` and `evaluate` of models with a memory: which batches they take."""

import functools

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
    model.compile("sgd")
    return model


def _examples(num_rows):
    ids = np.arange(7 * num_rows).reshape(num_rows, 7) % 256
    return models.NextTokenLossModel.examples(ids[:, :-1], ids[:, 1:])


def test_an_incomplete_last_batch_of_arrays_is_refused():
    words = "Received: 5 rows and batch_size=2, which leaves 1 to the last batch"
    model = _model()
    with pytest.raises(ValueError, match=words):
        model.fit(*_examples(5), batch_size=2, shuffle=False, **QUIET)
    with pytest.raises(ValueError, match=words):
        model.evaluate(*_examples(5), batch_size=2, **QUIET)
    with pytest.raises(ValueError, match=words):
        rows = {"batch_size": 2, "validation_data": _examples(5)}
        model.fit(*_examples(4), shuffle=False, **rows, **QUIET)
    with pytest.raises(ValueError, match="Received: 3 rows and batch_size=2"):
        rows = {"batch_size": 2, "validation_split": 0.4}
        model.fit(*_examples(5), shuffle=False, **rows, **QUIET)


@pytest.mark.slow
def test_an_incomplete_last_batch_of_a_dataset_ends_in_a_sentence():
    data = tf.data.Dataset.from_tensor_slices(_examples(5)).batch(2)
    model = _model()
    for call in (functools.partial(model.fit, shuffle=False), model.evaluate):
        with pytest.raises(ValueError, match="drop_remainder=True") as error:
            call(data, **QUIET)
        assert len(str(error.value)) < 400
        assert error.value.__suppress_context__


def test_shuffled_rows_are_no_segments():
    with pytest.raises(ValueError, match="Pass shuffle=False"):
        _model().fit(*_examples(4), batch_size=2, **QUIET)


def test_without_a_memory_all_batches_are_taken():
    model = _model(memory_length=0)
    model.compile("sgd", run_eagerly=True)
    model.fit(*_examples(5), batch_size=2, **QUIET)
    model.evaluate(*_examples(5), batch_size=2, **QUIET)


def test_the_memory_lasts_for_an_epoch_or_an_evaluation():
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


def test_other_errors_of_a_graph_stay_as_they_are():
    model = _model()

    def fail(data):
        tf.debugging.assert_equal(1, 2, message="Another error.")

    model.train_step = fail
    with pytest.raises(tf.errors.InvalidArgumentError, match="Another error"):
        model.fit(*_examples(2), **QUIET)
