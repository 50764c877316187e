"""The cheapest solver that keeps the predictions of a model."""

import hashlib
import json
import math

import keras
import numpy as np
import pytest

from deq_keras import layers, solvers
from deq_keras.tuning import Promise, Tuning, describe, tune, upper_bound
from deq_keras.tuning.recording import Recorder, Recording

RATE, FLIP = 0.8, 0.03
# A prediction is right as soon as RATE**n <= FLIP.
EVALUATIONS = math.ceil(math.log(FLIP) / math.log(RATE))


@keras.saving.register_keras_serializable("deq_keras_tests.tuning")
class ScalarCell(layers.EquilibriumCell):
    """f(z, u) = a z + (1 - a) u, whose equilibrium is u."""

    def build(self, state_shape, injection_shape):
        self.built = True

    def call(self, state, injection):
        return RATE * state + (1 - RATE) * injection


def _model(solver=None):
    """A model whose prediction is whether the state is close to 1."""
    solver = solver or solvers.FixedPointIteration(60, tol=1e-4)
    inputs = keras.Input((1,))
    layer = layers.DEQ(ScalarCell(dtype="float64"), solver, "phantom", name="deq")
    outputs = keras.layers.Rescaling(1.0, FLIP - 1, dtype="float64")(layer(inputs))
    return keras.Model(inputs, outputs)


@pytest.fixture(scope="module")
def known():
    """A model of a known rate, its tuning, and the progress that was reported."""
    model, solves = _model(), []
    data = np.ones((120, 1))
    tuning = _tuned(model, data, progress=lambda *counts: solves.append(counts))
    return model, tuning, solves


def _tuned(model, data, promise=0.05, **arguments):
    defaults = {
        "predict": lambda outputs: outputs >= 0,
        "candidates": [solvers.FixedPointIteration(40)],
        "batch_size": 30,
    }
    return tune(model, data, promise, **{**defaults, **arguments})


def test_evaluations_of_a_known_rate(known):
    model, tuning, solves = known
    assert tuning.selection == (0, 60, upper_bound(0, 60), EVALUATIONS)
    assert tuning.confirmation == tuning.selection
    assert tuning.is_confirmed
    assert tuning.solver.max_iter == EVALUATIONS
    assert tuning.num_without_reference == 0
    assert solves == [(i + 1, 10) for i in range(10)]
    # The relative residual after n evaluations is (1 - a) a^(n-1) / (1 - a^n).
    is_done = [
        (1 - RATE) * RATE ** (n - 1) / (1 - RATE**n) <= 1e-4 for n in range(1, 61)
    ]
    assert tuning.previous[-1] == 1 + is_done.index(True)
    changes = [one.outcome.num_changed for one in tuning.settings]
    assert changes == [0, 60]
    assert tuning.settings[1].outcome.evaluations == 1

    text = repr(tuning)
    assert describe(tuning.solver) in text
    assert "confirms the promise" in text
    record = tuning.as_dict()
    assert solvers.deserialize(record["solver"]).max_iter == EVALUATIONS
    assert record["confirmation"]["num_changed"] == 0
    digest = hashlib.sha256(b"<f8 (120, 1)" + np.ones((120, 1)).tobytes())
    assert record["data_hash"] == digest.hexdigest()

    model.get_layer("deq").max_iter_jitter = 50
    tuning.apply(model)
    copy = keras.Model.from_config(model.get_config())
    assert copy.get_layer("deq").solver.get_config() == tuning.solver.get_config()
    assert copy.get_layer("deq").max_iter_jitter == EVALUATIONS - 1


def test_result_round_trip(known):
    model, tuning, _ = known
    record = json.loads(json.dumps(tuning.as_dict()))
    assert record == tuning.as_dict()
    read = Tuning.from_dict(record)
    assert read.as_dict() == record
    read.apply(model)
    assert model.get_layer("deq").solver.max_iter == EVALUATIONS
    for name in ("solver", "promise", "date", "confirmation"):
        incomplete = {key: value for key, value in record.items() if key != name}
        with pytest.raises(ValueError, match=f"`record` must be.*{name}"):
            Tuning.from_dict(incomplete)
    with pytest.raises(ValueError, match="`record` must be"):
        Tuning.from_dict("tune.json")


def test_setting_equals_a_solve_with_it():
    """Settings are read off a recording, and must be what a solve really does."""
    data = np.random.RandomState(0).normal(1.0, 0.03, (200, 1))
    candidates = [solvers.Anderson(12), solvers.Aitken(12)]
    model = _model()
    promise = Promise(0.1, 0.9)
    tuning = _tuned(model, data, promise, candidates=candidates, batch_size=60)
    reference = data >= 1 - FLIP
    for solver, found in tuning.settings:
        model.get_layer("deq").solver = solver
        with layers.SolveScope(model) as scope:
            changed = (model(data[:100]).numpy() >= 0) != reference[:100]
        evaluations = scope.solutions["deq"].num_evaluations
        assert changed.sum() == found.num_changed
        assert np.mean(evaluations) == pytest.approx(found.evaluations)
    assert len({type(one.solver) for one in tuning.settings}) == 2


@keras.saving.register_keras_serializable("deq_keras_tests.tuning")
class Drifting(layers.EquilibriumCell):
    """f(z, u) = z + u, whose relative residual falls as 1 / n without an end."""

    def call(self, state, injection):
        return state + injection


@pytest.mark.parametrize("stop_mode", ["rel", "rel_max"])
def test_a_drift_does_not_converge(stop_mode):
    """A replay that compares residuals with the tolerance would stop it."""
    solver = solvers.FixedPointIteration(20, stop_mode=stop_mode)
    layer = layers.DEQ(Drifting(), solver)
    layer(np.ones((2, 3), "float32"))
    recorder = Recorder(lambda x: x, layer, lambda z: z > 0, 4)
    (found,), _ = recorder.record(np.ones((4, 3), "float32"), [solver], lambda: None)
    for budget, evaluations, _ in found.read(tol=0.1):
        np.testing.assert_array_equal(evaluations, budget)


def test_a_budget_returns_the_best_iterate_so_far():
    """By brute force, from residuals that rise and fall."""
    random = np.random.RandomState(0)
    residual = random.uniform(0.2, 1.0, (12, 5)).astype("float32")
    residual[7, 3] = np.nan
    norms = np.stack([np.ones_like(residual), residual], axis=-1)
    agrees = random.uniform(size=residual.shape) < 0.5
    recording = Recording(norms, agrees, is_relative=False)
    for budget, evaluations, is_changed in recording.read(tol=0.0):
        failed = np.isnan(residual[:budget]).any(axis=0)
        np.testing.assert_array_equal(evaluations[~failed], budget)
        best = np.nanargmin(residual[:budget], axis=0)
        expected = ~agrees[best, range(5)]
        np.testing.assert_array_equal(is_changed[:3], expected[:3])
        np.testing.assert_array_equal(is_changed[4:], expected[4:])
        stop = min(budget, 7)  # The sample that failed keeps its best iterate.
        assert is_changed[3] == ~agrees[np.argmin(residual[:stop, 3]), 3]


def test_the_candidates():
    data = np.random.RandomState(0).normal(1.0, 0.03, (120, 1))
    solver = solvers.FixedPointIteration(60, compact=True, stop_mode="abs")
    tuning = _tuned(_model(solver), data, candidates=None, batch_size=60)
    found = {describe(one.solver).split("(")[0] for one in tuning.settings}
    assert found == {"FixedPointIteration", "Aitken", "Anderson", "Broyden"}
    assert all(one.solver.compact for one in tuning.settings)
    # A secant of an affine f finds the equilibrium.
    assert isinstance(tuning.solver, solvers.Aitken)
    assert tuning.selection.evaluations <= 3


@pytest.mark.usefixtures("full_float32")
def test_the_solver_of_a_monotone_layer():
    cell = layers.MonotoneDenseCell(4, m=1.0)
    layer = layers.DEQ(cell)
    data = np.random.RandomState(0).normal(size=(120, 3)).astype("float32")
    layer(data)
    arguments = {"candidates": [layer.solver], "predict": lambda state: state > 0.1}
    tuning = _tuned(layer, data, batch_size=60, **arguments)
    assert isinstance(tuning.solver, solvers.PeacemanRachford)
    assert tuning.selection.evaluations <= tuning.previous.evaluations
    solution = layer.solve(data[60:])
    expected = np.mean(solution.num_evaluations)
    assert tuning.previous.evaluations == pytest.approx(expected)


def test_changed_second_half_is_reported():
    # Slower or at the edge: its predictions flip later.
    data = np.concatenate([np.full((200, 1), 1.0), np.full((200, 1), 1 - FLIP / 2)])
    data[:3] = np.nan
    model = _model()
    tuning = _tuned(model, data, batch_size=200)
    # A few samples without a reference count as changed.
    assert tuning.num_without_reference == 3
    assert tuning.selection[:2] == (3, 200)
    assert tuning.confirmation[:2] == (200, 200)
    assert not tuning.is_confirmed
    assert tuning.verdict == "VIOLATED: 100 % change on the second half."
    assert tuning.verdict in repr(tuning)
    assert tuning.as_dict()["is_confirmed"] is False
    with pytest.warns(UserWarning, match="VIOLATED") as found:
        tuning.apply(model)
    assert found[0].filename == __file__


@keras.saving.register_keras_serializable("deq_keras_tests.tuning")
class HalfChaotic(layers.EquilibriumCell):
    """Contracts if u <= 0. Otherwise no solver converges."""

    def call(self, state, injection):
        chaotic = keras.ops.sin(
            40.0 * keras.ops.roll(state, 1, axis=1) + 17 * injection
        )
        contracting = 0.3 * keras.ops.tanh(state) + injection
        return keras.ops.where(injection[:, :1] > 0, chaotic, contracting)


def _chaotic_data(num_second):
    """Two halves of 100 samples, some of the second one without a reference."""
    data = np.random.default_rng(0).normal(size=(200, 6)).astype("float32")
    data[:, 0] = -np.abs(data[:, 0]) - 0.1
    data[100 : 100 + num_second, 0] *= -1
    return data


def test_samples_without_a_reference_break_the_promise():
    """In a nested model, whose output is a distribution over classes."""
    layer = layers.DEQ(HalfChaotic(), solvers.FixedPointIteration(30), name="deq")
    inner = keras.Sequential([keras.Input((6,)), layer])
    # The call of another model, and a model that ends in the layer.
    keras.Sequential([keras.Input((6,)), keras.layers.ReLU(), inner])
    model = keras.Sequential([keras.Input((6,)), inner, keras.layers.Dense(2)])
    candidates = [solvers.FixedPointIteration(20)]
    data = _chaotic_data(num_second=50)
    tuning = tune(model, data, 0.05, batch_size=40, candidates=candidates)
    assert tuning.num_without_reference == 50
    assert tuning.confirmation[:2] == (50, 100)
    assert not tuning.is_confirmed


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("data", np.ones((117, 1))),
        ("data", {"a": np.ones((9, 1)), "b": np.ones((8, 1))}),
        ("data", np.full((120, 1), np.nan)),
        ("candidates", [solvers.FixedPointIteration(3)]),
        ("candidates", []),
        ("promise", 5),
        ("predict", None),
        ("predict", lambda outputs: outputs),
        ("model", keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)])),
        ("model", layers.DEQ(ScalarCell())),
    ],
)
def test_bad_values_raise(name, value):
    with pytest.raises(ValueError):
        _tuned(**{"model": _model(), "data": np.ones((120, 1)), name: value})


class Short(solvers.FixedPointIteration):
    def __init__(self, **arguments):
        super().__init__(**arguments)


def test_a_solver_with_open_arguments_is_described():
    assert describe(Short(max_iter=5)).startswith("Short(max_iter=5, tol=0.001")
