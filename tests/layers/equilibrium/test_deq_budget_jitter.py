"""Budgets of training steps that are drawn."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import layers, models, solvers
from tests.layers.cells import TanhCell
from tests.regimes import slow

INPUTS = np.random.RandomState(0).normal(size=(4, 4)).astype("float32")


def _evaluations(
    epochs=12, regime=None, seed=3, solver="fixed_point_iteration", **arguments
):
    """Evaluations of training and validation, one step an epoch."""
    solver = solvers.get({"class_name": solver, "max_iter": 6, "tol": 0.0})
    arguments = {"gradient": "phantom", "regularizer": None, **arguments}
    arguments["max_iter_jitter"] = 3
    deq = layers.DEQ(TanhCell(5), solver, seed=seed, name="deq", **arguments)
    model = keras.Sequential([keras.Input((4,)), deq])
    model.compile(keras.optimizers.SGD(0.0), loss="mse", **(regime or {}))
    targets = np.zeros((4, 5), "float32")
    data = {"x": INPUTS, "y": targets, "validation_data": (INPUTS, targets)}
    history = model.fit(**data, epochs=epochs, verbose=0).history
    return history["deq_evaluations"], history["val_deq_evaluations"]


@pytest.mark.parametrize(
    "gradient, solver, regime",
    [
        ("phantom", "fixed_point_iteration", {}),
        ("neumann", "anderson", {}),
        *(
            slow(*case)
            for case in [
                ("implicit", "broyden", {}),
                ("unrolled", "fixed_point_iteration", {}),
                ("phantom", "fixed_point_iteration", {"run_eagerly": True}),
                ("phantom", "fixed_point_iteration", {"jit_compile": True}),
            ]
        ),
    ],
    ids=str,
)
def test_training_draws_and_evaluation_does_not(gradient, solver, regime):
    training, validation = _evaluations(regime=regime, gradient=gradient, solver=solver)
    assert set(training) <= {3, 4, 5, 6}
    assert len(set(training)) > 2
    assert set(validation) == {6}


def _layer(seed):
    solver = solvers.FixedPointIteration(max_iter=20, tol=0.0)
    return layers.DEQ(
        TanhCell(5), solver, "phantom", None, seed=seed, max_iter_jitter=19
    )


def _draws(deq):
    draws = []
    for _ in range(4):
        deq.metrics[0].reset_state()
        deq(INPUTS, training=True)
        draws.append(float(deq.metrics[0].result()))
    return draws


def test_the_seed_decides_and_draws_go_on_where_a_checkpoint_was_taken():
    one, same, other = (_layer(seed) for seed in (3, 3, 4))
    draws = _draws(one)
    assert draws == _draws(same) != _draws(other)
    other.seed_generator.state.assign(one.seed_generator.state)
    assert _draws(one) == _draws(other)


def test_the_adjoint_has_the_whole_budget():
    solver = solvers.FixedPointIteration(max_iter=6, tol=0.0)
    deq = layers.DEQ(
        TanhCell(5), solver, "implicit", None, name="deq", max_iter_jitter=3
    )
    model = keras.Sequential([keras.Input((4,)), deq])
    model.compile(keras.optimizers.SGD(0.0), loss="mse")
    history = model.fit(INPUTS, np.ones((4, 5)), epochs=6, verbose=0).history
    assert set(history["deq_adjoint_evaluations"]) == {6}


def test_nothing_is_drawn_without_jitter():
    deq = layers.DEQ(TanhCell(5), "anderson", "phantom", None, seed=3)
    deq.build(INPUTS.shape)
    before = deq.seed_generator.state.numpy()
    deq(INPUTS, training=True)
    np.testing.assert_array_equal(deq.seed_generator.state, before)


def test_a_layer_keeps_the_jitter():
    deq = layers.DEQ(TanhCell(5), solvers.Broyden(max_iter=12), max_iter_jitter=2)
    config = keras.saving.serialize_keras_object(deq)
    copy = keras.saving.deserialize_keras_object(config)
    assert copy.max_iter_jitter == 2


@pytest.mark.parametrize("jitter", [-1, 1.5, 12, True])
def test_a_jitter_leaves_something_of_the_budget(jitter):
    deq = layers.DEQ(TanhCell(5), solvers.Broyden(max_iter=12))
    with pytest.raises(ValueError, match="`max_iter_jitter` must be.* from 0 to 11"):
        deq.max_iter_jitter = jitter
    with pytest.raises(ValueError, match=f"Received: max_iter_jitter={jitter}"):
        layers.DEQ(TanhCell(5), deq.solver, max_iter_jitter=jitter)


def test_all_budgets_are_equally_likely():
    solver = solvers.FixedPointIteration(max_iter=6, tol=0.0)
    deq = layers.DEQ(TanhCell(5), solver, "phantom", None, seed=5, max_iter_jitter=3)
    deq.build(INPUTS.shape)

    @tf.function
    def budget():
        deq.metrics[0].reset_state()
        deq(INPUTS, training=True)
        return deq.metrics[0].result()

    counts = np.bincount([int(budget()) for _ in range(200)], minlength=7)
    assert counts[:3].sum() == 0
    # Binomial(200, 1/4): five standard deviations.
    np.testing.assert_allclose(counts[3:], 50, atol=31)


@pytest.mark.parametrize(
    "make",
    [
        slow(lambda: models.MDEQBackbone((8, 16), groups=4, num_downsamplings=0)),
        lambda: models.DEQTransformerBackbone(10, 8, 2, 16),
    ],
    ids=["mdeq", "transformer"],
)
def test_a_backbone_keeps_what_a_phase_has_set(make):
    backbone = make()
    backbone.deq.max_iter_jitter = 3
    assert type(backbone).from_config(backbone.get_config()).deq.max_iter_jitter == 3


@pytest.mark.parametrize("gradient", ["implicit", "truncated", "unrolled"])
def test_a_jitter_is_limited_to_the_budget_of_a_call(gradient):
    solver = solvers.FixedPointIteration(max_iter=24)
    deq = layers.DEQ(
        TanhCell(5), solver, gradient, seed=0, max_iter_jitter=20, name="deq"
    )
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(1)(deq(inputs, max_iter=3)))
    model.compile("sgd", "mse")
    history = model.fit(INPUTS, INPUTS[:, :1], verbose=0).history
    assert history["deq_evaluations"][0] >= 1
    deq.solver = solvers.FixedPointIteration(max_iter=2)
    deq(INPUTS, training=True)
