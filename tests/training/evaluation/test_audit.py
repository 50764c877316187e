"""Verdicts of an audit on closed forms."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras.diagnostics import WeightTiedModel
from deq_keras.solvers import FixedPointIteration
from tests.regimes import slow
from training.errors import InputError
from training.evaluation.audit import Group, audit

VECTORS = np.array([[1, 1], [1, -1], [-1, -1], [-1, 1]], "float32")
BUDGETS = (2, 4, 20, 40)

pytestmark = pytest.mark.usefixtures("no_graphs")


def _signs(state):
    """Scores of the classes "not positive" and "positive" of every entry."""
    return tf.stack([-state, state], axis=-1)


def _group(label="vectors", **changes):
    whole = {"inputs": VECTORS, "targets": (VECTORS > 0).astype("int32")}
    return Group(label, **{**whole, **changes})


def _audit(cell, groups=None, head=_signs, **kwargs):
    model = WeightTiedModel(cell, head=head, **kwargs)
    return audit(model, groups or [_group()], BUDGETS)


def contraction(state, injection):
    return 0.5 * state + injection


def _missed(found):
    return [criterion.name for criterion in found.criteria if not criterion.passed]


def test_contraction_is_unique():
    hard = _group("<hard>", difficulty=[1, 2, 2, 3], floor=2)
    found = _audit(contraction, [_group(), hard])
    assert found.is_passed and found.kind == "unique"
    assert found.verdict.startswith("an equilibrium, unique: alignment 1.0000 (at")
    names = ["alignment", "agreement", "converged", "lost"]
    assert [one.name for one in found.criteria] == names
    easy, hard = found.groups
    assert easy.exact == [1.0] * 4 and easy.overthinking == 0.0
    assert easy.converged == easy.agreement == 1.0
    assert [one.start for one in easy.starts] == ["other", "zeros", "normal"]
    # z_k is (2 - 2^(1 - k)) u, the relative residual 1 / (2^(k + 1) - 2).
    expected = 1 / (2.0 ** (np.arange(1, 9)) - 1)
    np.testing.assert_allclose(easy.residuals[:8], expected, rtol=1e-3)
    assert hard.evaluations == [10] * 4 and hard.correlation is None
    assert easy.difficulty is None and (easy.floor, hard.floor) == (None, 2)


def test_two_attractors():
    found = _audit(lambda z, u: tf.tanh(3.0 * z), initial_state=lambda u: u)
    assert _missed(found) == ["alignment", "agreement"]
    assert found.kind == "not_unique"
    assert found.verdict.startswith("an equilibrium, not unique: alignment -")
    assert "at least 0.99; vectors, from " in found.verdict
    (group,) = found.groups
    assert group.converged == 1.0 and group.starts[0].agreement == 0.0


def test_rotation_does_not_converge():
    def rotated(state, injection):
        return tf.stack([-state[:, 1], state[:, 0]], axis=1)

    found = _audit(rotated, initial_state=lambda u: u)
    assert "converged" in _missed(found)
    assert found.kind == "none" and found.verdict == (
        "no equilibrium: after 40 evaluations of vectors from the model's own "
        "start, 0.0% of the problems converge and the residuals of 0.0% still "
        "fall (median residual: 1.4)"
    )


def test_slow_convergence():
    """At 0.97 a step, 40 evaluations reach a residual of 0.01."""
    found = _audit(lambda z, u: 0.97 * z + 0.03 * u)
    assert found.kind == "slow" and found.groups[0].falling == 1.0
    assert found.verdict.startswith("slow convergence: after 40 evaluations")
    assert found.verdict.endswith("(median residual: 0.013); use larger budgets")


def test_start_that_does_not_converge():
    """States from 0 go to 1, and negative ones swing around -1.5."""
    found = _audit(lambda z, u: tf.where(z < 0, -3 - z, 0.5 * z + 0.5) + 0 * u)
    assert found.kind == "not_unique" and found.groups[0].converged == 1.0
    assert found.verdict.startswith(
        "an equilibrium, not unique: after 40 evaluations of vectors from normal, "
    )


def test_non_finite_states():
    found = _audit(lambda z, u: np.nan * z + u)
    assert found.kind == "none"
    assert found.verdict.endswith("(median residual: not finite)")


@pytest.mark.parametrize(
    ("sign", "exact", "lost", "words"),
    [
        (-1, [1, 1, 0, 0], 1.0, "; going on loses answers: lost 1.0000 (at most 0.01"),
        slow(1, [0, 0, 1, 1], None, "20: ten times this budget was not measured"),
    ],
    ids=["known", "unknown"],
)
def test_overthinking_is_lost(sign, exact, lost, words):
    """Right up to four evaluations, or from five on; all starts end at one state."""
    found = _audit(
        lambda z, u: 0.5 * z + 1.0,
        [_group(targets=np.ones((4, 2), "int32"))],
        head=lambda state: _signs(sign * (state - 1.9)),
        initial_state=lambda u: 0.0 * u,
    )
    assert _missed(found) == ["lost"] and found.kind == "unique"
    assert words in found.verdict and found.criteria[-1].value == lost
    assert found.groups[0].exact == exact


def test_difficulty_is_compared_with_evaluations():
    found = _audit(
        lambda z, u: u * z + 1.0,
        [
            _group(
                inputs=np.array([[0.1], [0.3], [0.6], [0.8]], "float32"),
                targets=np.ones((4, 1), "int32"),
                difficulty=[1, 2, 3, 4],
            )
        ],
    )
    assert found.correlation == pytest.approx(1.0)
    assert found.groups[0].evaluations == sorted(found.groups[0].evaluations)


@pytest.mark.slow
def test_batches_and_weights():
    targets = (VECTORS > 0).astype("int32")
    targets[:, 1] = 7
    weights = np.array([[1.0, 0.0]] * 4, "float32")
    repeated = _group(
        inputs=np.tile(VECTORS, (2, 1)),
        targets=np.tile(targets, (2, 1)),
        weights=np.tile(weights, (2, 1)),
    )
    model = WeightTiedModel(contraction, head=_signs)
    whole = audit(model, [repeated], BUDGETS)
    parts = audit(model, [repeated], BUDGETS, batch_size=3)
    assert whole.groups[0].exact == parts.groups[0].exact == [1.0] * 4
    assert whole.groups[0].residuals == parts.groups[0].residuals


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"inputs": VECTORS[:1]}, "two problems"),
        ({"inputs": np.nan * VECTORS}, "inputs"),
        ({"targets": np.ones(3, int)}, "targets"),
        ({"targets": VECTORS}, "targets"),
        ({"targets": np.ones(4, int)}, "targets"),
        ({"targets": np.array([[0, 2], [-1, 1], [1, 1], [9, 1]])}, "targets"),
        ({"weights": np.ones(4)}, "weights"),
        ({"weights": 0 * VECTORS}, "weights"),
        ({"difficulty": [1, 2]}, "difficulty"),
        ({"difficulty": VECTORS}, "difficulty"),
        ({"difficulty": [1, 2, np.inf, 3]}, "difficulty"),
    ],
)
def test_invalid_problems_raise(changes, name):
    with pytest.raises(InputError, match=f"{name}.*Received"):
        _audit(contraction, [_group(**changes)])


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"budgets": [1, 2, 5]}, "budgets"),
        ({"budgets": [10, 1]}, "budgets"),
        ({"solver": FixedPointIteration(tol=None)}, "tol"),
        ({"batch_size": 2}, "batch_size"),
        ({"groups": []}, "group"),
        ({"groups": [_group(), _group()]}, "label"),
    ],
)
def test_invalid_arguments_raise(arguments, name):
    model = WeightTiedModel(contraction, head=_signs)
    with pytest.raises(InputError, match=f"{name}.*Received"):
        audit(model, **{"groups": [_group()], "budgets": BUDGETS, **arguments})


@pytest.mark.parametrize(
    "cell", [lambda z, u: z[:, :1], lambda z, u: z @ np.ones((3, 2))]
)
def test_cell_that_does_not_fit_raises(cell):
    with pytest.raises(InputError, match="cell"):
        _audit(cell)
