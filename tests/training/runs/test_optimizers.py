"""Optimizers, and learning rates of schedules."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.training.runs import small_runs
from training.config import reading as configs
from training.config.fields import OptimizerConfig
from training.runs.optimizers import build_optimizer
from training.runs.rectified_adam import RectifiedAdam
from training.runs.train import train


class ShortFeed(small_runs.RegressionFeed):
    steps_per_epoch = 2


class ScoredJob(small_runs.RegressionJob):
    """A linear regression with scores of our choice."""

    feed_class = ShortFeed
    monitor = "score"

    def __init__(self, small, optimizer, scores, dies_in=None):
        phases = [{"epochs": 2}, {"epochs": len(scores) - 2}]
        changes = {"phases": phases, "optimizer": optimizer}
        super().__init__(configs.resolve({**small, **changes}), dies_in=dies_in)
        self.scores = scores
        self.rates = []

    def build_model(self):
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])

    def make_callbacks(self, model):
        callback = keras.callbacks.LambdaCallback(
            on_epoch_end=self._score,
            on_train_batch_end=lambda batch, logs: self.rates.append(
                float(model.optimizer.learning_rate)
            ),
        )
        return [*super().make_callbacks(model), callback]

    def _score(self, epoch, logs):
        if self.scores[epoch] is not None:  # Other epochs are not validated.
            logs["score"] = self.scores[epoch]


def _rates(small, folder, optimizer, scores, deaths=()):
    """Trains, also after deaths; returns the rates of all steps, and the model."""
    folder.mkdir()
    rates = []
    for dies_in in (*deaths, None):
        job = ScoredJob(small, optimizer, scores, dies_in)
        try:
            model, _ = train(job, folder)
        except small_runs.Killed:
            pass
        rates += job.rates
    return np.array(rates), model


def test_plateau_lowers_the_rate_also_when_resumed(small, tmp_path):
    optimizer = {
        "learning_rate": 0.08,
        "schedule": "plateau",
        "decay_factor": 0.5,
        "patience": 2,
        "final_learning_rate": 0.03,
    }
    # Two epochs without progress in 1 and 3, in 5 and 6, and in 7 and 8.
    scores = [3.0, 3.0, None, 3.1, 2.0, 2.5, 2.5, 2.5, 2.5]
    expected = np.repeat([0.08] * 4 + [0.04] * 3 + [0.03] * 2, 2)
    with small_runs.eagerly():
        whole, model = _rates(small, tmp_path / "whole", optimizer, scores)
        parts, resumed = _rates(small, tmp_path / "parts", optimizer, scores, (1, 3, 6))
    np.testing.assert_allclose(whole, expected, rtol=1e-6)
    np.testing.assert_allclose(parts, expected, rtol=1e-6)
    np.testing.assert_equal(model.get_weights(), resumed.get_weights())


def test_inverse_square_root_falls_after_the_warmup(small, tmp_path):
    optimizer = {
        "learning_rate": 0.1,
        "schedule": "inverse_square_root",
        "warmup_epochs": 1.0,
    }
    rates, model = _rates(small, tmp_path / "run", optimizer, [1.0] * 3, (1,))
    steps = np.arange(2, 6)
    expected = [0.0, 0.05, *0.1 * np.sqrt(2 / steps)]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    # Users need no class of ours to load the optimizer.
    loaded = keras.saving.load_model(tmp_path / "run" / "model.keras")
    np.testing.assert_allclose(loaded.optimizer.learning_rate, rates[-1], rtol=1e-6)


def schedule(num_steps=20, **arguments):
    """Returns the learning rates of the steps of two epochs."""
    config = OptimizerConfig(learning_rate=0.1, **arguments)
    rate = build_optimizer(config, num_steps, num_steps // 2, "float32")._learning_rate
    return np.array([float(rate(step)) for step in range(num_steps + 1)])


def test_step_decay():
    rates = schedule(8, schedule="step", decay_epochs=[1, 1.5], decay_factor=0.2)
    expected = [0.1] * 4 + [0.02] * 2 + [0.004] * 3
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


def test_cosine_decay_with_warmup():
    rates = schedule(final_learning_rate=0.001, warmup_epochs=0.5)
    np.testing.assert_allclose(rates[:6], np.linspace(0, 0.1, 6), atol=1e-7)
    half_way = (rates[12] + rates[13]) / 2
    assert half_way == pytest.approx((0.1 + 0.001) / 2, rel=1e-3)
    assert rates[20] == pytest.approx(0.001, rel=1e-3)


def test_polynomial_decay():
    rates = schedule(final_learning_rate=0.01, schedule="poly")
    expected = 0.01 + 0.09 * (1 - np.arange(21) / 20) ** 0.9
    np.testing.assert_allclose(rates, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "name, expected",
    [
        ("adagrad", keras.optimizers.Adagrad),
        ("adam", keras.optimizers.Adam),
        ("radam", RectifiedAdam),
        ("rmsprop", keras.optimizers.RMSprop),
        ("sgd", keras.optimizers.SGD),
    ],
)
def test_names(name, expected):
    config = OptimizerConfig(name=name, weight_decay=1e-4, clip_norm=2.0)
    optimizer = build_optimizer(config, 1, 1, "float32")
    assert type(optimizer) is expected
    if name == "sgd":
        assert (optimizer.momentum, optimizer.nesterov) == (0.9, True)
    assert (optimizer.weight_decay, optimizer.global_clipnorm) == (1e-4, 2.0)


def _rectified(weights, gradients, rate, beta_1=0.9, beta_2=0.999, epsilon=1e-7):
    """Algorithm 2 of Liu et al. (2020) in float64; returns the weights of all steps."""
    momentum, velocity, seen = 0.0, 0.0, []
    largest = 2 / (1 - beta_2) - 1
    for t, gradient in enumerate(gradients, 1):
        momentum = beta_1 * momentum + (1 - beta_1) * gradient
        velocity = beta_2 * velocity + (1 - beta_2) * gradient**2
        step = momentum / (1 - beta_1**t)
        length = largest - 2 * t * beta_2**t / (1 - beta_2**t)
        if length > 4:
            above = (length - 4) * (length - 2) * largest
            below = (largest - 4) * (largest - 2) * length
            adaptive = np.sqrt(1 - beta_2**t) / (np.sqrt(velocity) + epsilon)
            step *= np.sqrt(above / below) * adaptive
        weights = weights - rate * step
        seen.append(weights)
    return np.array(seen)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_rectified_adam_has_the_published_steps(is_sparse):
    """The rate is adaptive from step 5 on."""
    generator = np.random.RandomState(0)
    weights, gradients = generator.normal(size=3), generator.normal(size=(40, 3))
    for dtype, tolerance in (("float64", 1e-13), ("float32", 1e-5)):
        variable = keras.Variable(weights, dtype=dtype)
        optimizer = RectifiedAdam(0.01)
        seen = []
        for gradient in gradients:
            gradient = tf.constant(gradient, dtype)
            if is_sparse:  # An embedding that read row 1 twice has it.
                rows = tf.gather(gradient, [0, 1, 1, 2])
                rows *= tf.constant([1, 0.25, 0.75, 1], dtype)
                gradient = tf.IndexedSlices(rows, [0, 1, 1, 2], [3])
            optimizer.apply([gradient], [variable])
            seen.append(variable.numpy())
        expected = _rectified(weights, gradients, np.float64(np.float32(0.01)))
        np.testing.assert_allclose(seen, expected, rtol=tolerance, atol=tolerance)


def test_rectified_adam_is_saved_with_its_model(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(RectifiedAdam(0.01, beta_2=0.99), "mse")
    model.fit(np.ones((4, 3)), np.zeros((4, 1)), verbose=0)
    model.save(tmp_path / "model.keras")
    optimizer = keras.saving.load_model(tmp_path / "model.keras").optimizer
    assert isinstance(optimizer, RectifiedAdam) and optimizer.beta_2 == 0.99
    for one, other in zip(optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "arguments, name",
    [
        ({"schedule": "step"}, "decay_epochs"),
        ({"decay_epochs": [1.0]}, "decay_epochs"),
        ({"schedule": "step", "decay_epochs": [2.0, 1.0]}, "decay_epochs"),
        ({"schedule": "plateau", "warmup_epochs": 0.5}, "warmup_epochs"),
        ({"schedule": "poly", "warmup_epochs": 0.5}, "warmup_epochs"),
        ({"schedule": "inverse_square_root"}, "warmup_epochs"),
        ({"warmup_epochs": 2.0}, "warmup_epochs"),
    ],
)
def test_invalid_schedule_raises(arguments, name):
    with pytest.raises(ValueError, match=f"`optimizer.{name}`.*Received"):
        build_optimizer(OptimizerConfig(**arguments), 20, 10, "float32")
