import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import layers, models

ARCHITECTURE = {"hidden_dim": 8, "num_heads": 2, "intermediate_dim": 16}


def backbone(**arguments):
    keras.utils.set_random_seed(0)
    arguments = {"num_layers": 3, **ARCHITECTURE, **arguments}
    return models.ExplicitTransformerBackbone(11, **arguments)


def token_ids(batch=2, length=6, seed=0):
    return np.random.default_rng(seed).integers(0, 11, (batch, length))


def gradients(model, inputs, targets):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model({"token_ids": inputs, "targets": targets}))
    return tape.gradient(loss, model.trainable_variables)


def test_tied_layers_are_the_unrolled_equilibrium():
    tied = backbone(weight_tied=True)
    unrolled = models.DEQTransformerBackbone(
        11,
        **ARCHITECTURE,
        solver={
            "class_name": "FixedPointIteration",
            "config": {"max_iter": 3, "tol": None},
        },
        gradient="unrolled",
        regularizer=None,
    )
    unrolled.set_weights(tied.get_weights())
    ids = token_ids()
    np.testing.assert_allclose(tied(ids), unrolled(ids), atol=1e-6)


def test_untied_layers_have_weights_of_their_own():
    tied, untied = backbone(weight_tied=True), backbone()
    cell = layers.TransformerCell(8, num_heads=2, intermediate_dim=16)
    cell.build((None, None, 8))
    size = cell.count_params()
    assert untied.count_params() - tied.count_params() == 2 * size


@pytest.mark.parametrize(
    "weight_tied", [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_recomputation_changes_no_gradient(weight_tied):
    ids, targets = token_ids(), token_ids(seed=1)
    results = []
    for recompute in (False, True):
        model = models.NextTokenLossModel(
            models.ExplicitTransformerCausalLM(
                backbone(weight_tied=weight_tied, recompute=recompute)
            )
        )
        compute = tf.function(gradients, autograph=False)
        results.append(compute(model, ids, targets))
    for kept, recomputed in zip(*results, strict=True):
        np.testing.assert_allclose(kept, recomputed, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("normalize_first", [False, True])
def test_two_segments_are_one_text(normalize_first):
    """With a memory as long as the text, each layer sees what it sees in one piece."""
    whole = backbone(normalize_first=normalize_first, dtype="float64")
    segmented = backbone(
        normalize_first=normalize_first, memory_length=6, dtype="float64"
    )
    segmented.set_weights(whole.get_weights())
    ids = token_ids(length=12)
    with segmented.reading_segments():
        received = [segmented(ids[:, :6]), segmented(ids[:, 6:])]
    np.testing.assert_allclose(np.concatenate(received, 1), whole(ids), atol=1e-10)
    np.testing.assert_allclose(segmented(ids[:, :6]), received[0])


def test_memory_of_another_batch_is_refused():
    model = backbone(memory_length=4)
    with model.reading_segments():
        model(token_ids(batch=2))
        with pytest.raises(tf.errors.InvalidArgumentError, match="reset_memory"):
            model(token_ids(batch=3))


@pytest.mark.slow
def test_learns_and_survives_saving(tmp_path):
    model = models.NextTokenLossModel(
        models.ExplicitTransformerCausalLM(
            backbone(weight_tied=True, memory_length=4, recompute=True)
        )
    )
    model.compile(keras.optimizers.Adam(0.02))
    text = np.tile([1, 2, 3, 4], 40).reshape(2, 80)
    examples = models.NextTokenLossModel.examples(text[:, :-1], text[:, 1:])
    data = tf.data.Dataset.from_tensors(examples).repeat(60)
    model.fit(data, epochs=3, verbose=0, shuffle=False)
    loss = model.evaluate(*examples, verbose=0)[0]
    assert loss < 0.5 * np.log(11)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.evaluate(*examples, verbose=0)[0] == pytest.approx(loss, rel=1e-5)
    assert loaded.causal_lm.backbone.recompute


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"num_layers": 0}, "`num_layers` must be a positive integer"),
        ({"memory_length": -1}, "`memory_length` must be an integer >= 0"),
        ({"solver": "anderson"}, "solver"),
    ],
)
def test_bad_arguments_are_refused(arguments, words):
    with pytest.raises((TypeError, ValueError), match=words):
        backbone(**arguments)


def test_other_numbers_of_cells_are_refused():
    cells = [layers.TransformerCell(8, 2, 16) for _ in range(2)]
    with pytest.raises(ValueError, match="1 or num_layers=3 cells. Received: 2 cells"):
        layers.TransformerStack(cells, num_layers=3)
