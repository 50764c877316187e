"""Classifiers of images that are streamed from disk."""

import keras
import pytest
import yaml

from training.cli import main
from training.data.images import evaluation_batches, imagenet, training_batches
from training.experiments.classification.schema import AugmentationConfig

RANDOM = AugmentationConfig(resized_crop=True, horizontal_flip=True)


@pytest.mark.slow
def test_a_run_and_its_export(tmp_path, small, folder, capsys):
    small["data"] = {
        "name": "imagenette",
        "directory": str(folder),
        "image_size": 8,
        "batch_size": 4,
        "augmentation": {"resized_crop": True, "horizontal_flip": True},
    }
    config = tmp_path / "small.yaml"
    config.write_text(yaml.safe_dump(small))
    run = str(tmp_path / "run")
    assert main(["train", str(config), "--work-dir", run]) == 0
    assert "test accuracy" in capsys.readouterr().out
    assert main(["export", run, "--out", str(tmp_path / "saved")]) == 0


def test_keras_sees_the_end_of_an_epoch(folder):
    training, test = imagenet.load("imagenette", folder, image_size=8)
    layers = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(
        training_batches(training, 4, RANDOM, 0, range(2)),
        validation_data=evaluation_batches(test, 4),
        steps_per_epoch=3,
        epochs=2,
        shuffle=False,
        verbose=0,
    ).history
    assert len(history["val_loss"]) == 2
