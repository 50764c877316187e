"""Reasoner models: training, files, padding and exports."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import initial_states, layers, models, serving, solvers

# KerasHub makes a data set of the arrays, which Keras then says it cannot shuffle.
QUIET = {"verbose": 0, "shuffle": False}
RANDOM = np.random.default_rng(0)
STRINGS = RANDOM.normal(size=(4, 5, 1)).astype("float32")
BOARDS = RANDOM.integers(0, 4, (4, 2, 3)).astype("int32")
SOLVER = {"class_name": "fixed_point_iteration", "max_iter": 6, "damping": 0.5}
ONE_STEP = {"class_name": "phantom", "num_steps": 1}


def _strings(dtype="float32", **kwargs):
    cell = layers.RecallCell(6, rank=1, dtype=dtype)
    return models.ReasonerBackbone(
        cell, (None, 1), **{"solver": SOLVER, "gradient": ONE_STEP, **kwargs}
    )


def _boards(dtype="float32", cell_class=layers.MixerCell, **kwargs):
    cell = cell_class(8, num_blocks=1, dtype=dtype)
    encoder = layers.BoardEmbedding(4, 8, (2, 3), dtype=dtype)
    return models.ReasonerBackbone(
        cell,
        (2, 3),
        encoder,
        problem_dtype="int32",
        **{"solver": SOLVER, "gradient": ONE_STEP, **kwargs},
    )


@pytest.fixture(scope="module")
def model():
    return models.ReasonerTagger(_strings(), 3)


def test_config_round_trip():
    backbone = _boards(
        dtype="mixed_bfloat16",
        regularizer="residual",
        max_iter_jitter=np.int64(2),
        initial_state="normal",
    )
    config = json.loads(json.dumps(backbone.get_config()))
    copy = models.ReasonerBackbone.from_config(config)
    assert json.loads(json.dumps(copy.get_config())) == config
    assert copy.deq.compute_dtype == copy.deq.cell.compute_dtype == "bfloat16"
    assert copy(BOARDS).shape == backbone(BOARDS).shape


def test_default_recipe():
    deq = models.ReasonerBackbone(layers.RecallCell(4, rank=1), (None, 1)).deq
    assert isinstance(deq.solver, solvers.FixedPointIteration)
    assert (deq.solver.damping, deq.solver.stop_mode) == (1.0, "rel_max")
    gradient = deq.gradient.get_config()
    assert gradient["num_steps"] == gradient["num_free_steps"] == "uniform"
    assert (gradient["free_fraction"], gradient["max_steps"]) == (1.0, 16)
    assert isinstance(deq.initial_state, initial_states.Mixed)
    assert deq.regularizer is None


def test_trains_and_comes_back_as_it_was(tmp_path):
    model = models.ReasonerTagger(_strings(), 2)
    model.run_eagerly = True
    labels = (STRINGS[..., 0] > 0).astype("int32")
    weights = np.ones(labels.shape, "float32")
    arguments = {"sample_weight": weights, "batch_size": 4, **QUIET}
    before = [weight.numpy() for weight in model.trainable_weights]
    history = model.fit(STRINGS, labels, epochs=1, **arguments).history
    assert np.all(np.isfinite(history["loss"]))
    assert {"exact_match", "deq_evaluations"} <= set(history)
    for weight, old in zip(model.trainable_weights, before, strict=True):
        assert np.any(weight.numpy() != old), weight.path
    model.save(tmp_path / "model.keras")
    copy = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(copy(STRINGS), model(STRINGS))
    assert copy.optimizer.global_clipnorm == 1.0 and int(copy.optimizer.iterations) == 1


def test_padding_does_not_change_an_answer(model):
    padded = np.pad(STRINGS, [(0, 0), (0, 3), (0, 0)], constant_values=9.0)
    mask = np.arange(8)[None] < np.full((4, 1), 5)
    inputs = {"inputs": padded, "padding_mask": mask}
    logits = model(inputs)
    np.testing.assert_allclose(logits[:, :5], model(STRINGS), atol=1e-5)
    assert np.abs(model(padded)[:, 4] - logits[:, 4]).max() > 1e-3


@pytest.mark.slow
def test_a_checked_export_answers_as_the_model_does(tmp_path):
    """The export is checked as it is made, for batches and lengths of any size."""
    model = models.ReasonerTagger(_strings(), 2)
    path = tmp_path / "saved"
    assert serving.export_saved_model(model, path, samples=STRINGS) < 1e-4
    served = tf.saved_model.load(path)
    longer = RANDOM.normal(size=(2, 9, 1)).astype("float32")
    answer = served.serve_with_statistics(longer, 3, 0.0)
    expected = model.head(
        model.backbone.deq.solve(
            longer, solvers.SolveRequest(max_iter=3, tol=0.0)
        ).value
    )
    np.testing.assert_allclose(answer["outputs"], expected, atol=1e-5)


def test_other_problems_raise(model):
    strings, boards = model.backbone, _boards()
    with pytest.raises(ValueError, match="Received.*float32"):
        boards(BOARDS.astype("float32"))
    for name, shape in (("padding_mask", (4, 4)), ("mask", (4, 5))):
        with pytest.raises(ValueError, match="Received"):
            strings({"inputs": STRINGS, name: np.ones(shape, bool)})
    with pytest.raises(ValueError, match="`num_classes`.*Received"):
        models.ReasonerTagger(strings, 0)
