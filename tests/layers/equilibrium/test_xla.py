"""Compiled by XLA, models predict, train and evaluate as in graph mode."""

import keras
import numpy as np
import pytest

from deq_keras import gradients, solvers
from deq_keras.layers import DEQ, DenseCell, MonotoneDenseCell, SolveScope

pytestmark = pytest.mark.usefixtures("full_float32")

# Each gradient, with other components in turn.
COMPONENTS = {
    "implicit": (
        gradients.ImplicitGradient(),
        {"solver": solvers.Anderson(max_iter=8), "regularizer": "contraction"},
    ),
    "implicit, gmres": (
        gradients.ImplicitGradient(solver=solvers.GMRES(max_iter=8)),
        {"solver": solvers.Broyden(max_iter=8), "regularizer": "jacobian"},
    ),
    "neumann": (
        gradients.NeumannGradient(4),
        {"solver": solvers.Aitken(max_iter=8), "max_iter_jitter": 3},
    ),
    "phantom": (
        gradients.PhantomGradient(3),
        {"solver": solvers.Broyden(max_iter=8), "policy": "mixed_bfloat16"},
    ),
    "unrolled": (
        gradients.UnrolledGradient(),
        {"solver": solvers.FixedPointIteration(max_iter=8), "max_iter_jitter": 3},
    ),
    "truncated": (
        gradients.TruncatedGradient(num_steps=4, num_free_steps=0),
        {"solver": solvers.Anderson(max_iter=8), "policy": "mixed_bfloat16"},
    ),
    "truncated, checkpoints": (
        gradients.TruncatedGradient(num_steps=4, num_free_steps=0, checkpoints=4),
        {"solver": solvers.FixedPointIteration(max_iter=8), "regularizer": "jacobian"},
    ),
    "reversible": (
        gradients.ReversibleGradient(),
        {"solver": solvers.FixedPointIteration(9, damping=0.8), "regularizer": None},
    ),
    "peaceman_rachford": (
        "auto",
        {
            "cell_class": MonotoneDenseCell,
            "solver": solvers.PeacemanRachford(max_iter=20),
        },
    ),
}


def _data():
    random = np.random.default_rng(0)
    x = random.normal(size=(24, 5)).astype("float32")
    return x, random.normal(size=(24, 2)).astype("float32")


def _results(jit_compile, cell_class=DenseCell, policy="float32", **components):
    keras.utils.set_random_seed(0)
    deq = DEQ(cell_class(16, dtype=policy), seed=1, **components)
    model = keras.Sequential(
        [keras.Input((5,)), deq, keras.layers.Dense(2, dtype="float32")]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=jit_compile)
    x, y = _data()
    history = model.fit(x, y, batch_size=8, shuffle=False, verbose=0).history
    with SolveScope(model, max_iter=5):
        cheap = model.predict(x, verbose=0)
    evaluation = model.evaluate(x, y, verbose=0, return_dict=True)
    results = {
        "weights": np.concatenate([weight.ravel() for weight in model.get_weights()]),
        "scope": cheap,
        "predict": model.predict(x, verbose=0),
        "losses": [history["loss"][0], evaluation["loss"]],
    }
    if policy == "float32":
        # In half precision, a sample may stop one evaluation earlier or later.
        results["history"] = [history[name][0] for name in sorted(history)]
        results["evaluation"] = [evaluation[name] for name in sorted(evaluation)]
    return results


def _check(atol, **components):
    expected = _results(False, **components)
    received = _results(True, **components)
    for name, value in expected.items():
        np.testing.assert_allclose(received[name], value, atol=atol, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("gradient, components", COMPONENTS.values(), ids=COMPONENTS)
def test_equals_graph_mode(gradient, components):
    # XLA omits roundings to bfloat16, of 2^-8 each, in all evaluations of three steps.
    tolerance = 0.05 if "policy" in components else 1e-5
    _check(tolerance, gradient=gradient, **components)


@pytest.mark.slow
@pytest.mark.parametrize("initial_state", ["normal", "mixed"])
def test_random_draws_equal_graph_mode(initial_state):
    solver = solvers.FixedPointIteration(max_iter=8, tol=None, noise=0.01)
    _check(1e-5, solver=solver, max_iter_jitter=3, initial_state=initial_state)


@pytest.mark.slow
def test_default_equals_graph_mode():
    _check(1e-5)
