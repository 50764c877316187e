"""Samples that a run saves, so that later commands need no data."""

import json
import shutil

import keras
import numpy as np
import pytest
import yaml
from PIL import Image

from tests.training.conftest import SMALL
from training.cli import main
from training.files import records

MULTISCALE = {
    "name": "mdeq",
    "filters": [4, 8],
    "expansion": 1,
    "groups": 2,
    "num_downsamplings": 1,
    "head_filters": [4, 4],
    "final_filters": 8,
    "solver": {"class_name": "anderson", "max_iter": 4},
}


@pytest.fixture(params=["single_scale", "mdeq"])
def run(request, tmp_path):
    """The folder of a run on a folder of images that is gone."""
    generator = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for index in range(12):
            pixels = generator.integers(0, 256, (12, 12, 3), "uint8")
            Image.fromarray(pixels).save(tmp_path / "images" / label / f"{index}.png")
    data = {
        "name": "folder",
        "directory": str(tmp_path / "images"),
        "image_size": 12,
        "batch_size": 4,
        "evaluation_batch_size": 4,
    }
    config = {**SMALL, "data": data}
    if request.param == "mdeq":
        config["model"] = MULTISCALE
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    path = tmp_path / "run"
    train = ["train", str(tmp_path / "config.yaml"), "--work-dir", str(path)]
    assert main(train) == 0
    shutil.rmtree(tmp_path / "images")
    return path


@pytest.mark.slow
def test_export_and_diagnose_without_data(run, tmp_path, capsys):
    diagnosis = run / "model" / records.DIAGNOSIS
    before = diagnosis.read_text()
    diagnosis.unlink()
    out = tmp_path / "model.tflite"
    assert main(["diagnose", str(run)]) == 0
    assert json.loads(diagnosis.read_text()) == json.loads(before)
    export = ["export", str(run), "--variant", "model", "--format", "litert"]
    assert main([*export, "--out", str(out)]) == 0
    assert "its outputs agree" in capsys.readouterr().out
    assert main(["evaluate", str(run)]) == 2
    assert str(tmp_path / "images") in capsys.readouterr().err

    file = run / "model" / "samples.npz"
    file.write_bytes(file.read_bytes()[:50])
    assert main(["diagnose", str(run)]) == 2
    error = capsys.readouterr().err
    assert str(file) in error and "Remove it" in error


def test_export_normalizes_like_the_preprocessor():
    from types import SimpleNamespace

    from training.experiments.classification.mdeq import (
        converter,
        normalization,
        normalization_of,
    )

    data = SimpleNamespace(mean=(0.1, 0.5, 118.2), standard_deviation=(0.3, 1.0, 61.7))
    task = SimpleNamespace(
        preprocessor=SimpleNamespace(image_converter=converter(data))
    )
    restored = normalization_of(task, "float32")
    expected = normalization(data, keras.DTypePolicy("float32"))
    images = np.random.default_rng(0).uniform(0, 255, (2, 4, 4, 3)).astype("float32")
    np.testing.assert_array_equal(restored(images), expected(images))
