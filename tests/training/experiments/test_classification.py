import numpy as np
import pytest

from deq_keras.diagnostics import split_model
from training.config import reading as configs
from training.config.fields import OptimizerConfig
from training.data import images as datasets
from training.data.images import digits
from training.errors import InputError
from training.experiments.classification.build import build_single_scale
from training.experiments.classification.job import ClassificationJob
from training.runs.optimizers import build_optimizer
from training.runs.phases import phase_spans
from training.runs.train import enter_phase


def build(small):
    config = configs.resolve(small)
    data = datasets.load(config.data)
    return build_single_scale(config.model, data, config.precision)


def test_model_takes_raw_pixels(small):
    model = build(small)
    normalized = model.get_layer("normalization")(digits.load()[0].images)
    assert np.mean(normalized) == pytest.approx(0, abs=1e-4)
    assert np.std(normalized) == pytest.approx(1, abs=1e-3)
    assert model(np.zeros((3, 8, 8, 1))).shape == (3, 10)


@pytest.mark.parametrize("pool_size", [None, 2, 8])
def test_heads(small, pool_size):
    small["model"]["head"] = {"pool_size": pool_size}
    inputs = {None: 4, 2: 4 * 16, 8: 4}[pool_size]
    assert build(small).get_layer("logits").kernel.shape == (inputs, 10)


@pytest.mark.parametrize(
    ("precision", "compute", "variable", "logits"),
    [
        ("mixed_bfloat16", "bfloat16", "float32", "float32"),
        pytest.param(
            *("mixed_float16", "float16", "float32", "float32"), marks=pytest.mark.slow
        ),
        ("float64", "float64", "float64", "float64"),
    ],
)
def test_precision_reaches_the_cell(small, precision, compute, variable, logits):
    small["precision"] = precision
    model = build(small)
    cell = split_model(model).layer.cell
    assert cell.conv1.compute_dtype == compute
    assert {weight.dtype for weight in cell.weights} == {variable}
    assert model(np.zeros((1, 8, 8, 1))).dtype == logits


@pytest.mark.slow
def test_half_precision_scales_the_loss(small):
    small["precision"] = "mixed_float16"
    config = configs.resolve(small)
    data = datasets.load(config.data)
    data = data._replace(training=data.training.part(0, 16))
    job = ClassificationJob(config, lambda: data)
    model, optimizer, (span,) = job.build()
    enter_phase(job, model, span, optimizer)
    loss = model.train_on_batch(
        data.training.images.astype("float32"), data.training.labels
    )
    assert np.isfinite(loss[0] if isinstance(loss, list) else loss)
    assert type(model.optimizer).__name__ == "LossScaleOptimizer"


def test_phases_inherit_and_follow_each_other(small):
    small["phases"] = [
        {"epochs": 2, "solver": {"class_name": "broyden", "max_iter": 6}},
        {"epochs": 3, "gradient": "implicit", "regularizer": None},
    ]
    small["model"]["regularizer"] = "jacobian"
    spans = phase_spans(configs.resolve(small))
    assert [span.epochs for span in spans] == [range(0, 2), range(2, 5)]
    assert spans[0].phase.gradient == "phantom"
    assert spans[0].phase.regularizer == "jacobian"
    assert spans[1].phase.solver == small["model"]["solver"]
    assert spans[1].phase.gradient == "implicit"
    assert spans[1].phase.regularizer is None


@pytest.mark.slow
def test_entering_a_phase_keeps_the_optimizer(small):
    small["phases"] = [{"epochs": 1, "gradient": "implicit"}, {"epochs": 1}]
    config = configs.resolve(small)
    data = datasets.load(config.data)
    job = ClassificationJob(config, lambda: data)
    model, optimizer, spans = job.build()
    images, labels = data.training.images[:16], data.training.labels[:16]
    for step, span in enumerate(spans, start=1):
        enter_phase(job, model, span, optimizer)
        model.train_on_batch(images.astype("float32"), labels)
        assert model.optimizer is optimizer
        assert int(optimizer.iterations) == step
    assert type(split_model(model).layer.gradient).__name__ == "PhantomGradient"


def learning_rates(config, steps=10):
    schedule = build_optimizer(config, 2, steps, "float32")._learning_rate
    return np.array([float(schedule(step)) for step in range(2 * steps + 1)])


def test_cosine_schedule_with_warmup():
    rates = learning_rates(
        OptimizerConfig(learning_rate=0.1, final_learning_rate=0.001, warmup_epochs=0.5)
    )
    np.testing.assert_allclose(rates[:6], np.linspace(0, 0.1, 6), atol=1e-7)
    half_way = (rates[12] + rates[13]) / 2
    assert half_way == pytest.approx((0.1 + 0.001) / 2, rel=1e-3)
    assert rates[20] == pytest.approx(0.001, rel=1e-3)


def test_constant_schedule():
    rates = learning_rates(OptimizerConfig(learning_rate=0.1, schedule="constant"))
    np.testing.assert_allclose(rates, 0.1, rtol=1e-6)


def test_optimizer_arguments():
    config = OptimizerConfig(name="sgd", weight_decay=1e-4, clip_norm=2.0)
    optimizer = build_optimizer(config, 1, 1, "float32")
    assert (optimizer.momentum, optimizer.nesterov) == (0.9, True)
    assert (optimizer.weight_decay, optimizer.global_clipnorm) == (1e-4, 2.0)


def test_warmup_must_end():
    with pytest.raises(InputError, match="less than the 2 epochs.*warmup_epochs=2.0"):
        build_optimizer(OptimizerConfig(warmup_epochs=2.0), 2, 10, "float32")


def test_poly_schedule():
    rates = learning_rates(
        OptimizerConfig(learning_rate=0.1, final_learning_rate=0.01, schedule="poly")
    )
    expected = 0.01 + 0.09 * (1 - np.arange(21) / 20) ** 0.9
    np.testing.assert_allclose(rates, expected, rtol=1e-5)


def test_poly_has_no_warmup():
    config = OptimizerConfig(schedule="poly", warmup_epochs=0.5)
    with pytest.raises(InputError, match="must be 0 with.*poly.*warmup_epochs=0.5"):
        build_optimizer(config, 2, 10, "float32")


def test_plain_momentum():
    optimizer = build_optimizer(
        OptimizerConfig(name="sgd", nesterov=False), 1, 1, "float32"
    )
    assert (optimizer.momentum, optimizer.nesterov) == (0.9, False)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"name": "mdeqs"}, "`model.name` must be one of.*mdeq"),
        ({"name": "mdeq"}, "`model.filters` is required"),
        ({"name": "monotone", "cell": "monotone_dense_cell", "stem": {}}, "model.stem"),
        ({"cell": "residual_block_cell", "filters": [8]}, "model.filters"),
    ],
)
def test_the_name_of_the_model_chooses_its_keys(small, model, words):
    with pytest.raises(InputError, match=words):
        configs.resolve({**small, "model": model})


def test_a_variant_can_be_another_kind_of_model(small):
    model = {"name": "monotone", "cell": {"class_name": "monotone_dense_cell"}}
    small["variants"] = {"convolutional": {}, "monotone": {"model": model}}
    config = configs.resolve(small)
    assert configs.variant(config, "convolutional").model.name == "single_scale"
    assert configs.variant(config, "monotone").model.name == "monotone"
