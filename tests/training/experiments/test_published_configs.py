"""Configs of published runs: what they say, and that their models train."""

from pathlib import Path

import keras
import numpy as np
import pytest

from tests.training.runs import small_runs
from training.config import reading as configs
from training.data.text import WordTokenizer
from training.errors import InputError
from training.experiments.language_model import text
from training.experiments.language_model.job import LanguageModelJob
from training.runs.optimizers import build_optimizer
from training.runs.phases import phase_spans
from training.runs.train import enter_phase

FOLDER = Path(__file__).parents[3] / "configs" / "deq_transformer"

# The published scripts, with what differs between them.
RUNS = {
    "wikitext103_plain": {},
    "wikitext103_regularized": {
        "dropout": 0.06,
        "attention_dropout": 0.01,
        "memory_length": 300,
        "budgets": (12, 13),
        "jitter": 2,
        "probability": 0.35,
        "weights": {32: 1.9, 34: 1.9, 35: 2.0, 69: 2.0, 70: 2.1, 279: 2.6, 299: 2.7},
    },
    "wikitext103_preln_regularized": {
        "dropout": 0.06,
        "attention_dropout": 0.01,
        "memory_length": 300,
        "normalize_first": True,
        "budgets": (14, 14),
        "jitter": 2,
        "probability": 0.4,
        "weights": {32: 2.0, 59: 2.0, 60: 2.1, 90: 2.2, 269: 2.7, 270: 2.8, 299: 2.8},
    },
    "wikitext103_medium_2019": {
        "solver": "broyden",
        "stop_mode": "abs",
        "budgets": (31, 40),
        "pretraining": 16,
    },
    "wikitext103_medium_one_table_2019": {
        "sizes": (480, 10, 42800, 480),
        "solver": "broyden",
        "stop_mode": "abs",
        "budgets": (31, 40),
        "pretraining": 16,
        "cutoffs": [],
        "div_val": 1,
    },
    "wikitext103_small_2019": {
        "sizes": (500, 10, 2500, 500),
        "solver": "broyden",
        "stop_mode": "abs",
        "budgets": (31, 40),
        "pretraining": 16,
        "cutoffs": [],
        "div_val": 1,
    },
    "ptb": {"cutoffs": [], "lower_case": True},
}
COMMON = {
    "sizes": (700, 10, 48000, 700),
    "cutoffs": [20000, 40000, 200000],
    "div_val": 4,
    "normalize_first": False,
    "dropout": 0.05,
    "attention_dropout": 0.0,
    "memory_length": 150,
    "solver": "anderson",
    "stop_mode": "rel",
    "budgets": (30, 35),
    "jitter": 0,
    "pretraining": 32,
    "probability": None,
    "weights": {},
    "lower_case": False,
}
VOCABULARY = {name: 267_735 for name in RUNS} | {"ptb": 10_000}
# Counted by hand from the shapes; see `parameters`.
PARAMETERS = {
    "wikitext103_plain": 97_691_888,
    "wikitext103_regularized": 97_691_888,
    "wikitext103_preln_regularized": 97_691_888,
    "wikitext103_medium_2019": 97_691_888,
    "wikitext103_medium_one_table_2019": 171_803_575,
    "wikitext103_small_2019": 138_646_735,
    "ptb": 79_215_100,
}

each_run = pytest.mark.parametrize("name", RUNS)


def load(name, *overrides):
    return configs.load(FOLDER / f"{name}.yaml", overrides)


@each_run
class TestWhatItSays:
    def test_model(self, name):
        run, model = {**COMMON, **RUNS[name]}, load(name).model
        sizes = (model.hidden_dim, model.num_heads, model.intermediate_dim)
        embedding_dim = model.embedding_dim or model.hidden_dim
        assert (*sizes, embedding_dim) == run["sizes"]
        for field in (
            "cutoffs",
            "div_val",
            "normalize_first",
            "dropout",
            "attention_dropout",
            "memory_length",
        ):
            assert getattr(model, field) == run[field], field
        assert model.weight_normalization
        assert model.local_size is None

    def test_equilibrium(self, name):
        run, (_, span, *_) = {**COMMON, **RUNS[name]}, phase_spans(load(name))
        solver, gradient = span.phase.solver, span.phase.gradient
        assert solver["class_name"] == run["solver"]
        assert gradient["class_name"] == "implicit"
        adjoint = gradient["solver"]
        assert adjoint["class_name"] == "broyden"
        assert (solver["max_iter"], adjoint["max_iter"]) == run["budgets"]
        assert span.phase.max_iter_jitter == run["jitter"]
        for each in (solver, adjoint):
            assert each.get("stop_mode", "rel") == run["stop_mode"]
            if run["stop_mode"] == "rel":
                assert each["tol"] == 1e-3
        if run["stop_mode"] == "abs":
            size = (150 * run["sizes"][0]) ** 0.5
            assert solver["tol"] == pytest.approx(1e-6 * size, rel=2e-3)
            assert adjoint["tol"] == pytest.approx(2e-10 * size, rel=2e-3)

    def test_pretraining(self, name):
        run, (span, *_) = {**COMMON, **RUNS[name]}, phase_spans(load(name))
        assert span.epochs == range(run["pretraining"])
        assert span.phase.solver == {
            "class_name": "fixed_point_iteration",
            "max_iter": 2,
            "tol": None,
        }
        assert span.phase.gradient == "unrolled"
        assert span.phase.regularizer is None

    def test_weights(self, name):
        run, (_, *spans) = {**COMMON, **RUNS[name]}, phase_spans(load(name))
        assert spans[0].epochs.start == run["pretraining"]
        assert spans[-1].epochs.stop == 300
        found = {
            epoch: span.phase.regularizer for span in spans for epoch in span.epochs
        }
        assert len(found) == 300 - run["pretraining"]
        if not run["weights"]:
            assert set(found.values()) == {None}
        for epoch, weight in run["weights"].items():
            assert found[epoch]["weight"] == pytest.approx(weight)
            assert found[epoch]["probability"] == run["probability"]
            assert found[epoch]["num_probes"] == 1

    def test_data(self, name):
        config = load(name)
        data = config.data
        assert (data.source, data.tokens) == ("directory", "word")
        assert data.lower_case == {**COMMON, **RUNS[name]}["lower_case"]
        assert (data.batch_size, data.length) == (56, 150)
        assert (data.evaluation_batch_size, data.evaluation_length) == (16, 150)
        assert (data.steps_per_epoch, config.evaluation.every_epochs) == (1000, 5)
        assert config.seed == 1111

    def test_optimizer(self, name):
        optimizer = build_optimizer(load(name).optimizer, 300, 1000, "float32")
        assert type(optimizer) is keras.optimizers.Adam
        assert optimizer.global_clipnorm == 0.25
        assert optimizer.weight_decay is None
        rate = optimizer._learning_rate
        for step, expected in ((0, 0), (8_000, 1.25e-4), (16_000, 2.5e-4)):
            np.testing.assert_allclose(rate(step), expected, rtol=1e-6)
        # The reference's cosine begins earlier; it ends at the same step.
        for step, reference in ((100_000, 1.875e-4), (200_000, 6.25e-5), (300_000, 0)):
            difference = float(rate(step)) - reference
            assert -1e-10 <= difference <= 0.05 * 2.5e-4


def test_the_text_must_be_given():
    with pytest.raises(InputError, match="needs a `data.path`"):
        text.find(load("ptb").data)


def parameters(model, vocabulary_size):
    """Number of parameters of a config's model, from the shapes of its weights."""
    d, inner = model.hidden_dim, model.intermediate_dim
    embedding_dim = model.embedding_dim or d
    bounds = [0, *model.cutoffs, vocabulary_size]
    sizes = np.diff(bounds)
    widths = [embedding_dim // model.div_val**i for i in range(len(sizes))]
    has_projections = model.div_val > 1 or embedding_dim != d
    embedding = sum(sizes * widths) + has_projections * sum(widths) * d
    clusters = len(model.cutoffs)
    softmax = vocabulary_size + clusters * (embedding_dim + 1)
    softmax += has_projections * embedding_dim * d  # Only the first is not shared.
    injection = 3 * d * (d + 1)
    # Kernels with their scales, one a unit; biases of heads and of the output.
    attention = 3 * d * (d + 1) + d * (d + 1) + d * (d + 1) + d + 2 * d
    branch = inner * (d + 2) + d * (inner + 2)
    return int(embedding + softmax + injection + attention + branch)


def uniform_loss(config, vocabulary_size, targets):
    """Mean loss of `targets` where all choices of the softmax are alike."""
    bounds = [0, *config.model.cutoffs, vocabulary_size]
    head = np.log(bounds[1] + len(bounds) - 2)
    sizes = np.diff(bounds)
    cluster = np.searchsorted(bounds, targets, side="right") - 1
    return np.mean(head + np.where(cluster > 0, np.log(sizes)[cluster], 0))


def take_step(job, model, optimizer, span, eagerly):
    """Takes one training step of a phase and checks it."""
    config, vocabulary_size = job.config, job.text.tokenizer.vocabulary_size()
    batch, length = config.data.batch_size, config.data.length
    # Tokens of every cluster of the softmax.
    tokens = np.linspace(0, vocabulary_size - 1, batch * (length + 1)).astype("int32")
    tokens = np.random.RandomState(0).permutation(tokens).reshape(batch, length + 1)
    enter_phase(job, model, span, optimizer)
    model.run_eagerly = eagerly
    optimizer.build(model.trainable_variables)
    # In the warm-up, whose first steps are too small for float32.
    optimizer.iterations.assign(2000)
    examples = model.examples(tokens[:, :-1], tokens[:, 1:])
    logs = small_runs.take_step(model, *examples)
    expected = uniform_loss(config, vocabulary_size, tokens[:, 1:])
    assert np.log(logs["perplexity"]) == pytest.approx(expected, rel=0.1)
    assert 1 < logs["deq_evaluations"] <= span.phase.solver["max_iter"]
    assert int(optimizer.iterations) == 2001


def train_both_phases(config, vocabulary_size, eagerly=False):
    """Takes a step of pretraining and one of the equilibrium; returns the model."""
    nothing = np.zeros(0, "int32")
    words = ["<eos>", *(f"{i}" for i in range(vocabulary_size - 1))]
    tokens = np.zeros(2**14, "int32")  # Enough to be cut into streams.
    loaded = text.Text(WordTokenizer(words), nothing, tokens, nothing)
    job = LanguageModelJob(config, lambda: (loaded, None))
    model, optimizer, (pretraining, equilibrium, *_) = job.build()
    assert model.count_params() == parameters(config.model, vocabulary_size)
    take_step(job, model, optimizer, pretraining, eagerly)
    take_step(job, model, optimizer, equilibrium, eagerly)
    return model


@pytest.mark.parametrize(
    "name",
    [
        name if "preln" in name else pytest.param(name, marks=pytest.mark.slow)
        for name in RUNS
    ],
)
def test_trains_at_reduced_size(name):
    small = {"data.batch_size": 3, "data.length": 8, "model.intermediate_dim": 32}
    small["model.hidden_dim"] = 20
    if load(name).model.cutoffs:
        small |= {"model.embedding_dim": 64, "model.cutoffs": [5, 12, 30]}
    config = load(name, *(f"{path}={value}" for path, value in small.items()))
    train_both_phases(config, 50, eagerly=True)  # Tracing takes most of the time.


@pytest.mark.large
@pytest.mark.slow
# The gradient of a table that is embedding and softmax at once is dense anyway.
@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices:UserWarning")
@each_run
def test_trains_at_full_size(name):
    config = load(name, "data.batch_size=2", "data.length=8")
    model = train_both_phases(config, VOCABULARY[name])
    assert model.count_params() == PARAMETERS[name]
