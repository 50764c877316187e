import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import initial_states, layers, metrics, models, serving, solvers

# KerasHub makes a data set of the arrays, which Keras then says it cannot shuffle.
QUIET = {"verbose": 0, "shuffle": False}
RANDOM = np.random.default_rng(0)
STRINGS = RANDOM.normal(size=(4, 5, 1)).astype("float32")
BOARDS = RANDOM.integers(0, 4, (4, 2, 3)).astype("int32")
SOLVER = {"class_name": "fixed_point_iteration", "max_iter": 6, "damping": 0.5}
ONE_STEP = {"class_name": "phantom", "num_steps": 1}
# Parameters of the whole model and of f.
SIZES = {
    "reasoner_recall_prefix_sums": (34_802, 34_704),
    "reasoner_recall_mazes": (47_010, 46_944),
    "reasoner_automaton_mazes": (31_346, 31_248),
    "reasoner_board_sudoku_6x6": (38_918, 36_928),
    "reasoner_mixer_sudoku_4x4": (53_572, 52_224),
    "reasoner_mixer_sudoku_6x6": (129_126, 126_144),
    "reasoner_attention_sudoku_4x4": (83_268, 81_920),
    "reasoner_attention_sudoku_6x6": (83_910, 81_920),
}


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


FAMILIES = pytest.mark.parametrize(
    "make, problems",
    [(_strings, STRINGS), pytest.param(_boards, BOARDS, marks=pytest.mark.slow)],
    ids=["strings", "boards"],
)


@pytest.mark.parametrize(
    "preset",
    [
        name if "mazes" in name else pytest.param(name, marks=pytest.mark.slow)
        for name in SIZES
    ],
)
def test_presets(preset):
    untrained = {k for k, v in models.ReasonerTagger.presets.items() if "backbone" in v}
    assert untrained == set(SIZES)
    model = models.ReasonerTagger.from_preset(preset, load_weights=False)
    cell = model.backbone.deq.cell
    assert (model.count_params(), cell.count_params()) == SIZES[preset]
    for cls in (models.ReasonerTagger, models.ReasonerBackbone):
        message = f"'{preset}' is an architecture without weights.*load_weights=False"
        with pytest.raises(ValueError, match=message):
            cls.from_preset(preset)


def test_arguments_of_a_preset_may_be_others():
    backbone = models.ReasonerBackbone.from_preset(
        "reasoner_mixer_sudoku_4x4",
        load_weights=False,
        dtype="bfloat16",
        initial_state="zeros",
    )
    for layer in (backbone.deq, backbone.deq.cell, backbone.encoder):
        assert layer.compute_dtype == "bfloat16"
    assert isinstance(backbone.deq.initial_state, initial_states.Zeros)


@FAMILIES
def test_config_round_trip(make, problems):
    backbone = make(
        dtype="mixed_bfloat16",
        regularizer="residual",
        max_iter_jitter=np.int64(2),
        initial_state="normal",
    )
    config = json.loads(json.dumps(backbone.get_config()))
    copy = models.ReasonerBackbone.from_config(config)
    assert json.loads(json.dumps(copy.get_config())) == config
    assert copy.deq.compute_dtype == copy.deq.cell.compute_dtype == "bfloat16"
    assert copy(problems).shape == backbone(problems).shape


def test_the_recipe_is_that_of_reasoners():
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


@pytest.mark.slow
def test_learns_the_parities_of_prefixes():
    backbone = models.ReasonerBackbone(layers.RecallCell(24, rank=1), (None, 1))
    model = models.ReasonerTagger(backbone, 2)
    optimizer = keras.optimizers.Adam(3e-3, global_clipnorm=1.0)
    model.compile(optimizer, weighted_metrics=[metrics.ExactMatch()])

    def drawn(size, length):
        bits = np.random.default_rng(length).integers(0, 2, (size, length))
        return (bits[..., None] - 0.5).astype("float32"), np.cumsum(bits, axis=1) % 2

    model.fit(*drawn(25_600, 8), batch_size=64, **QUIET)
    longer = drawn(100, 20)
    assert model.evaluate(*longer, verbose=0, return_dict=True)["exact_match"] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("make, problems", [(_strings, STRINGS), (_boards, BOARDS)])
def test_preset_folders(make, problems, tmp_path):
    model = models.ReasonerTagger(make(), 3)
    model.save_to_preset(tmp_path / "preset")
    path = str(tmp_path / "preset")
    copy = models.ReasonerTagger.from_preset(path)
    np.testing.assert_array_equal(copy(problems), model(problems))
    backbone = models.ReasonerBackbone.from_preset(path)
    np.testing.assert_array_equal(backbone(problems), model.backbone(problems))
    half = models.ReasonerTagger.from_preset(path, dtype="mixed_bfloat16")
    assert half.backbone.deq.cell.compute_dtype == "bfloat16"
    np.testing.assert_allclose(half(problems), model(problems), atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("cell_class", [layers.MixerCell, layers.AttentionCell])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_boards_in_mixed_precision(cell_class, jit_compile):
    backbone = _boards("mixed_bfloat16", cell_class, gradient=None)
    model = models.ReasonerTagger(backbone, 4)
    assert model(BOARDS).dtype == "float32"
    assert {weight.dtype for weight in model.trainable_weights} == {"float32"}
    model.compile(keras.optimizers.Adam(1e-2), jit_compile=jit_compile)
    history = model.fit(BOARDS, BOARDS, epochs=20, **QUIET).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]


def test_padding_does_not_change_an_answer(model):
    padded = np.pad(STRINGS, [(0, 0), (0, 3), (0, 0)], constant_values=9.0)
    mask = np.arange(8)[None] < np.full((4, 1), 5)
    inputs = {"inputs": padded, "padding_mask": mask}
    logits = model(inputs)
    np.testing.assert_allclose(logits[:, :5], model(STRINGS), atol=1e-5)
    assert np.abs(model(padded)[:, 4] - logits[:, 4]).max() > 1e-3


@pytest.mark.slow
def test_padded_problems_train_and_predict():
    model = models.ReasonerTagger(_strings(), 2)
    labels = (STRINGS[..., 0] > 0).astype("int32")
    mask = np.arange(5)[None] < np.array([[5], [4], [3], [2]])
    inputs, weight = {"inputs": STRINGS, "padding_mask": mask}, mask.astype("float32")
    model.fit(inputs, labels, sample_weight=weight, epochs=2, **QUIET)
    np.testing.assert_allclose(
        model.predict(inputs, verbose=0), model(inputs), atol=1e-5
    )


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


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"input_size": 3}, "`input_size` must be a tuple of positive integers and"),
        ({"input_size": (0, 1)}, r"`input_size\[0\]` must be a positive"),
        ({"input_size": (4, 4, 1)}, "rank=1 expects inputs of shape"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        models.ReasonerBackbone(layers.RecallCell(4, rank=1), **arguments)


def test_bad_problems_are_refused(model):
    strings, boards = model.backbone, _boards()
    with pytest.raises(ValueError, match="problems of integers.*float32"):
        boards(BOARDS.astype("float32"))
    with pytest.raises(ValueError, match=r"\(batch, \*positions\) = \(4, 5\)"):
        strings({"inputs": STRINGS, "padding_mask": np.ones((4, 4), bool)})
    with pytest.raises(ValueError, match="as `inputs`.*'mask'"):
        strings({"inputs": STRINGS, "mask": np.ones((4, 5), bool)})
    with pytest.raises(ValueError, match="`num_classes` must be a positive"):
        models.ReasonerTagger(strings, 0)
