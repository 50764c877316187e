"""Errors of a model become errors of the config key."""

import pytest
import tensorflow as tf

from training.errors import InputError, config_errors


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("no\n  such"), "`model`: no such"),
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
        (ValueError("Received: {'a': {'b': {}}} (odd)"), r"{}}} \(odd\)$"),
        (InputError("`model.cell`: odd"), "^`model.cell`: odd$"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_become_input_errors(error, words):
    with pytest.raises(InputError, match=words), config_errors("model"):
        raise error


def test_long_reasons_are_cut():
    with pytest.raises(InputError) as error, config_errors("model"):
        raise ValueError("x" * 100_000)
    assert len(str(error.value)) < 700


def test_other_errors_do_not_change():
    with pytest.raises(KeyboardInterrupt), config_errors("model"):
        raise KeyboardInterrupt
    with pytest.raises(AttributeError), config_errors("model"):
        raise AttributeError("a mistake of ours")
