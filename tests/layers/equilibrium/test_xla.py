"""Compiled by XLA, models answer, train and evaluate as in graph mode."""

import itertools

import keras
import numpy as np
import pytest

from deq_keras import gradients, models, solvers
from deq_keras.layers import DEQ, DenseCell, MonotoneDenseCell, SolveScope

SOLVERS = {
    "picard": solvers.FixedPointIteration(max_iter=8),
    "picard, fixed budget": solvers.FixedPointIteration(max_iter=8, tol=None),
    "anderson": solvers.Anderson(max_iter=8),
    "broyden": solvers.Broyden(max_iter=8),
    "aitken": solvers.Aitken(max_iter=8),
}
GRADIENTS = {
    "implicit": gradients.ImplicitGradient(),
    "implicit, gmres": gradients.ImplicitGradient(solver=solvers.GMRES(max_iter=8)),
    "implicit, bicgstab": gradients.ImplicitGradient(
        solver=solvers.BiCGStab(max_iter=8)
    ),
    "neumann": gradients.NeumannGradient(4),
    "phantom": gradients.PhantomGradient(3),
    "unrolled": gradients.UnrolledGradient(),
    "unrolled, checkpoints": gradients.UnrolledGradient(checkpoints=2),
    "truncated": gradients.TruncatedGradient(num_steps=4, num_free_steps=0),
    "truncated, remat": gradients.TruncatedGradient(
        num_steps=4, num_free_steps=0, remat=True
    ),
}
REGULARIZERS = (None, "residual", "jacobian", "contraction")
POLICIES = ("float32", "mixed_bfloat16")
JITTERS = (0, 3)


def _rows():
    """Returns combinations of components in which every pair of them occurs."""
    return [
        (
            solver,
            gradient,
            REGULARIZERS[(i + j) % len(REGULARIZERS)],
            POLICIES[(i // 2 + j) % 2],
            JITTERS[(i // 3 + j // 2) % 2],
        )
        for i, solver in enumerate(SOLVERS)
        for j, gradient in enumerate(GRADIENTS)
    ]


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


def test_every_pair_of_components_is_compiled():
    values = (SOLVERS, GRADIENTS, REGULARIZERS, POLICIES, JITTERS)
    for i, j in itertools.combinations(range(len(values)), 2):
        pairs = {(row[i], row[j]) for row in _rows()}
        assert pairs == set(itertools.product(values[i], values[j]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "gradient", "regularizer", "policy", "jitter"), _rows()
)
def test_equals_graph_mode(solver, gradient, regularizer, policy, jitter):
    # XLA omits roundings to bfloat16, of 2^-8 each, in all evaluations of three steps.
    _check(
        1e-5 if policy == "float32" else 0.05,
        solver=SOLVERS[solver],
        gradient=GRADIENTS[gradient],
        regularizer=regularizer,
        policy=policy,
        max_iter_jitter=jitter,
    )


@pytest.mark.slow
@pytest.mark.parametrize("cls", [solvers.PeacemanRachford, solvers.ForwardBackward])
def test_splittings_equal_graph_mode(cls):
    _check(1e-5, cell_class=MonotoneDenseCell, solver=cls(max_iter=20))


@pytest.mark.slow
def test_reversible_steps_equal_graph_mode():
    solver = solvers.FixedPointIteration(max_iter=9, damping=0.8)
    _check(1e-5, solver=solver, gradient="reversible", regularizer=None)


@pytest.mark.slow
@pytest.mark.parametrize("initial_state", ["normal", "mixed"])
def test_draws_of_a_layer_equal_graph_mode(initial_state):
    solver = solvers.FixedPointIteration(max_iter=8, tol=None, noise=0.01)
    _check(1e-5, solver=solver, max_iter_jitter=3, initial_state=initial_state)


@pytest.mark.slow
def test_the_default_equals_graph_mode():
    _check(1e-5)


def _language_model(policy, gradient, optimizer, jit_compile, solver="anderson"):
    """Returns a compiled model, and a batch of tokens and their successors."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        backbone = models.DEQTransformerBackbone(
            20, 16, 2, 32, gradient=gradient, solver=solver
        )
        model = models.DEQTransformerCausalLM(backbone)
    finally:
        keras.config.set_dtype_policy(before)
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit_compile,
    )
    tokens = np.random.default_rng(0).integers(0, 20, (8, 13))
    return model, tokens[:, :-1], tokens[:, 1:]


TRAINABLE = pytest.mark.parametrize(
    "gradient", ["implicit", "neumann", "unrolled", "truncated"]
)


@pytest.mark.slow
@TRAINABLE
def test_trains_a_language_model_in_half_precision(gradient):
    optimizer = keras.optimizers.Adam(1e-2)
    model, x, y = _language_model("mixed_bfloat16", gradient, optimizer, True)
    losses = model.fit(x, y, epochs=6, shuffle=False, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert np.isfinite(model.evaluate(x, y, verbose=0)[0])


@pytest.mark.slow
@TRAINABLE
def test_a_step_of_a_language_model_equals_graph_mode(gradient):
    # With the default, Anderson, most samples do not converge here, and the regimes
    # differ by percents.
    solver = solvers.FixedPointIteration(max_iter=6, tol=None)

    def step(jit_compile):
        keras.utils.set_random_seed(0)
        optimizer = keras.optimizers.SGD(1.0)
        model, x, y = _language_model(
            "float32", gradient, optimizer, jit_compile, solver
        )
        before = [weight.numpy() for weight in model.trainable_weights]
        losses = model.fit(x, y, shuffle=False, verbose=0).history["loss"]
        changes = [
            weight.numpy() - old
            for weight, old in zip(model.trainable_weights, before, strict=True)
        ]
        return losses, np.concatenate([change.ravel() for change in changes])

    (expected, changes), received = step(False), step(True)
    assert np.abs(changes).max() > 1e-2
    np.testing.assert_allclose(received[0], expected, atol=1e-5)
    np.testing.assert_allclose(received[1], changes, atol=1e-5)
