import pytest
import tensorflow as tf

from training.config import reading as configs
from training.data import images as datasets
from training.errors import InputError, config_errors
from training.experiments.classification.build import build_single_scale
from training.runs.phases import phase_spans


def build(mapping):
    config = configs.resolve(mapping)
    return build_single_scale(
        config.model, datasets.load(config.data), config.precision
    )


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("no\n  such"), "`model`: no such"),
        (TypeError("unexpected keyword"), "`model`: unexpected keyword"),
        (OverflowError("too large"), "`model`: too large"),
        (ZeroDivisionError(), "`model`: ZeroDivisionError"),
        (MemoryError(), "`model` needs more memory.*smaller sizes"),
        (
            tf.errors.ResourceExhaustedError(None, None, "OOM when allocating"),
            "`model` needs more memory.*smaller sizes.*OOM when allocating",
        ),
        (
            tf.errors.InvalidArgumentError(
                None, None, "{{function_node f}} negative size"
            ),
            "`model`: negative size",
        ),
        (InputError("`model.cell`: odd"), "^`model.cell`: odd$"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_refusals_become_input_errors(error, words):
    with pytest.raises(InputError, match=words), config_errors("model"):
        raise error


def test_long_reasons_are_cut():
    with pytest.raises(InputError) as error, config_errors("model"):
        raise ValueError("x" * 100_000)
    assert len(str(error.value)) < 700


def test_other_errors_stay_what_they_are():
    with pytest.raises(KeyboardInterrupt), config_errors("model"):
        raise KeyboardInterrupt
    with pytest.raises(AttributeError), config_errors("model"):
        raise AttributeError("a mistake of ours")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model.stem.strides": 9}, "`model.stem.strides` must be at most 8, "),
        ({"model.head.pool_size": 9}, "`model.head.pool_size` must be at most 8, "),
        (
            {"model.stem.strides": 3, "model.head.pool_size": 4},
            "`model.head.pool_size` must be at most 3, .*Received: pool_size=4",
        ),
    ],
)
def test_steps_and_windows_beyond_the_image_are_refused(small, changes, words):
    with pytest.raises(InputError, match=words):
        build(configs.assign(small, changes.items()))


@pytest.mark.parametrize(
    "changes", [{"model.stem.strides": 8, "model.head.pool_size": 1}]
)
def test_steps_and_windows_as_large_as_the_image_are_not(small, changes):
    model = build(configs.assign(small, changes.items()))
    assert model.get_layer("logits").kernel.shape == (4, 10)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("filters", "many"),
        ("filters", [8]),
        ("filters", None),
        ("filters", 3),
        ("expansion", None),
        ("expansion", "x"),
        ("expansion", -1),
        ("groups", 0),
        ("kernel_size", 4),
        ("kernel_size", [3, 3, 3]),
        ("dropout_rate", "x"),
        ("kernel_initializer", "unknown"),
        ("seed", "x"),
        ("dtype", "float16"),
        ("name", "mine"),
        ("unknown", 1),
    ],
)
def test_arguments_of_the_cell_are_refused(small, argument, value):
    small["model"]["cell"][argument] = value
    with pytest.raises(InputError, match="`model"):
        build(small)


@pytest.mark.parametrize(
    ("part", "config"),
    [
        ("solver", {"class_name": "anderson", "max_iter": "3"}),
        ("solver", {"class_name": "anderson", "ridge": [1]}),
        ("solver", {"class_name": "anderson", "max_iter": 3, "max_iter_jitter": 3}),
        ("solver", {"class_name": "broyden", "ridge": 1}),
        ("solver", "a_nderson"),
        (
            "gradient",
            {"class_name": "implicit", "solver": {"class_name": "broyden", "x": 1}},
        ),
        ("gradient", {"class_name": "phantom", "damping": 0}),
        ("regularizer", {"class_name": "jacobian", "probability": None}),
    ],
)
def test_arguments_of_parts_are_refused(small, part, config):
    small["model"][part] = config
    with pytest.raises(InputError, match=f"`model.{part}`: "):
        build(small)


def test_a_weight_rises_a_thousand_times_at_most(small):
    rising = {"regularizer_weight_increment": {"every_epochs": 1, "amount": 1e-3}}
    small["model"]["regularizer"] = "jacobian"
    small["phases"] = [{"epochs": 1_000_000, **rising}]
    with pytest.raises(InputError, match="`phases.0.regularizer_weight_incr"):
        phase_spans(configs.resolve(small))
    small["phases"] = [{"epochs": 1001, **rising}]
    assert len(phase_spans(configs.resolve(small))) == 1001
