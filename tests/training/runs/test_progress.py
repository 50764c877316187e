"""Logs of an epoch: the printed line, the history and the best model."""

import math

import keras
import numpy as np
import pytest

from training.registry import ACCURACY, Score
from training.runs.callbacks import EpochLine, EpochRecorder

NAN = math.nan
LOSS = Score("loss", "loss [nats a token]", 1, ".3f")


def _line(capsys, score, logs, epoch=11, num_epochs=40):
    callback = EpochLine(score, "deq", num_epochs)
    callback.on_epoch_begin(epoch)
    callback.on_epoch_end(epoch, logs)
    return capsys.readouterr().out.removesuffix("\n")


def test_line_of_an_epoch(capsys):
    logs = {
        "accuracy": 0.9512,
        "deq_evaluations": 11.93,
        "deq_residual": 0.00123,
        "deq_penalty": 3.0,
        "loss": 0.12345,
        "val_accuracy": 0.9407,
        "val_loss": 0.2,
    }
    line = _line(capsys, ACCURACY, logs)
    assert line.startswith(
        "epoch 12/40  accuracy 95.1 %  loss 0.1235  val 94.1 %  NFE 11.9  "
        "residual 1.2e-03  0.0 s"
    )
    losses = _line(capsys, LOSS, {"loss": 3.21, "val_loss": NAN})
    assert losses.startswith("epoch 12/40  loss 3.210  val nan  ")


@pytest.fixture
def recorder(tmp_path):
    recorder = EpochRecorder(tmp_path, [], "phase", "val_loss", "min")
    inputs = keras.Input((2,))
    recorder.set_model(keras.Model(inputs, keras.layers.Dense(1)(inputs)))
    recorder.model.compile("adam", "mse")
    return recorder


def test_nan_validation_is_never_the_best(recorder):
    best = recorder.folder / "best.keras"
    for epoch, (value, is_saved) in enumerate([(NAN, False), (2.0, True), (NAN, True)]):
        recorder.on_epoch_begin(epoch)
        recorder.on_train_batch_end(0)
        recorder.on_epoch_end(epoch, {"loss": 1.0, "val_loss": value})
        assert best.exists() == is_saved
    np.testing.assert_array_equal(
        [row["val_loss"] for row in recorder.history], [NAN, 2.0, NAN]
    )


@pytest.mark.parametrize("mode, best", [("min", 3), ("max", 1)])
def test_best_of_all_epochs(recorder, mode, best):
    recorder.mode = mode
    for epoch, value in enumerate([4.0, 9.0, 5.0, 2.0, 8.0, 3.0]):
        recorder.model.layers[-1].bias.assign([float(epoch)])
        recorder.on_epoch_begin(epoch)
        recorder.on_train_batch_end(0)
        recorder.on_epoch_end(epoch, {"loss": 1.0, "val_loss": value})
    kept = keras.saving.load_model(recorder.folder / "best.keras")
    assert kept.layers[-1].bias.numpy() == best


def test_non_finite_weights_raise_before_saving(recorder):
    recorder.model.layers[-1].kernel.assign([[NAN], [1.0]])
    recorder.on_epoch_begin(0)
    recorder.on_train_batch_end(0)
    with pytest.raises(FloatingPointError, match="weights .*kernel.* are not finite"):
        recorder.on_epoch_end(0, {"loss": 1.0, "val_loss": 1.0})
    assert list(recorder.folder.iterdir()) == []
