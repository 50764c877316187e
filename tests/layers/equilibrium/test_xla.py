"""Compiled by XLA, models answer, train and evaluate as in graph mode."""

import keras
import numpy as np
import pytest

from deq_keras import gradients, models, solvers
from deq_keras.layers import DEQ, DenseCell, SolveScope

SOLVERS = {
    "picard": solvers.FixedPointIteration(max_iter=8),
    "picard, fixed budget": solvers.FixedPointIteration(max_iter=8, tol=None),
    "picard, rounds": solvers.FixedPointIteration(max_iter=8, check_every=3),
    "anderson": solvers.Anderson(max_iter=8),
    "broyden": solvers.Broyden(max_iter=8),
    "aitken": solvers.Aitken(max_iter=8),
}
GRADIENTS = {
    "implicit": gradients.ImplicitGradient(),
    "implicit, gmres": gradients.ImplicitGradient(solver=solvers.GMRES(max_iter=8)),
    "neumann": gradients.NeumannGradient(4),
    "phantom": gradients.PhantomGradient(3),
    "unrolled": gradients.UnrolledGradient(),
    "unrolled, checkpoints": gradients.UnrolledGradient(checkpoints=2),
    "truncated": gradients.TruncatedGradient(num_steps=4, num_free_steps=0),
    "truncated, remat": gradients.TruncatedGradient(
        num_steps=4, num_free_steps=0, remat=True
    ),
}
MATRIX = (
    [("anderson", gradient, None) for gradient in GRADIENTS]
    + [(solver, "implicit", None) for solver in SOLVERS]
    + [("broyden", "unrolled", "residual"), ("aitken", "truncated", "residual")]
)


def _data():
    random = np.random.default_rng(0)
    x = random.normal(size=(24, 5)).astype("float32")
    return x, random.normal(size=(24, 2)).astype("float32")


def _results(jit_compile, **components):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((5,)),
            DEQ(DenseCell(16), seed=1, **components),
            keras.layers.Dense(2, dtype="float32"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=jit_compile)
    x, y = _data()
    history = model.fit(x, y, batch_size=8, shuffle=False, verbose=0).history
    with SolveScope(max_iter=5):
        cheap = model.predict(x, verbose=0)
    return {
        "history": [history[name][0] for name in sorted(history)],
        "weights": np.concatenate([weight.ravel() for weight in model.get_weights()]),
        "scope": cheap,
        "predict": model.predict(x, verbose=0),
        "evaluate": model.evaluate(x, y, verbose=0),
    }


def _check(atol, **components):
    expected = _results(False, **components)
    received = _results(True, **components)
    for name, value in expected.items():
        np.testing.assert_allclose(received[name], value, atol=atol, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(("solver", "gradient", "regularizer"), MATRIX)
def test_equals_graph_mode(solver, gradient, regularizer):
    _check(
        1e-5,
        solver=SOLVERS[solver],
        gradient=GRADIENTS[gradient],
        regularizer=regularizer,
    )


@pytest.mark.slow
def test_reversible_steps_equal_graph_mode():
    solver = solvers.FixedPointIteration(max_iter=9, damping=0.8)
    _check(1e-5, solver=solver, gradient="reversible", regularizer=None)


@pytest.mark.slow
@pytest.mark.parametrize("regularizer", ["jacobian", "contraction"])
@pytest.mark.parametrize("gradient", ["implicit", "truncated", "unrolled"])
def test_random_penalties_equal_graph_mode(gradient, regularizer):
    _check(1e-5, gradient=gradient, regularizer=regularizer)


@pytest.mark.slow
@pytest.mark.parametrize("initial_state", ["normal", "mixed"])
def test_draws_of_a_layer_equal_graph_mode(initial_state):
    solver = solvers.FixedPointIteration(max_iter=8, tol=None, noise=0.01)
    _check(1e-5, solver=solver, max_iter_jitter=3, initial_state=initial_state)


@pytest.mark.slow
def test_the_default_equals_graph_mode():
    _check(1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("gradient", ["implicit", "neumann", "unrolled", "truncated"])
def test_trains_a_language_model(policy, gradient):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        backbone = models.DEQTransformerBackbone(20, 16, 2, 32, gradient=gradient)
        model = models.DEQTransformerCausalLM(backbone)
    finally:
        keras.config.set_dtype_policy(before)
    model.compile(
        keras.optimizers.Adam(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=True,
    )
    tokens = np.random.default_rng(0).integers(0, 20, (8, 13))
    x, y = tokens[:, :-1], tokens[:, 1:]
    losses = model.fit(x, y, epochs=6, shuffle=False, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert np.isfinite(model.evaluate(x, y, verbose=0)[0])
