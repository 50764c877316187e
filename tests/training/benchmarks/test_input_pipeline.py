import json

import pytest
import yaml

from training.cli import main


@pytest.fixture
def config_file(tmp_path, small):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(small))
    return str(path)


def test_prints_the_rate(config_file, capsys):
    arguments = ["--config", config_file, "--set", "data.batch_size=7"]
    status = main(["benchmark", "input_pipeline", *arguments, "--batches", "25"])
    assert status == 0
    results = json.loads(capsys.readouterr().out)
    rate = results["images_per_second"]
    assert 0 < rate["lower_quartile"] <= rate["median"] <= rate["upper_quartile"]
    assert results["data"]["batch_size"] == 7
    assert results["rounds"] * results["batches_per_round"] == 30
    assert results["image_shape"] == [8, 8, 1]


def test_is_for_images_only(capsys):
    config = "synthetic/jacobian"
    assert main(["benchmark", "input_pipeline", "--config", config]) == 2
    assert "Received: experiment='synthetic'" in capsys.readouterr().err


def test_data_that_is_missing(config_file, capsys):
    override = "data={name: imagenette, directory: /nowhere}"
    arguments = ["--config", config_file, "--set", override]
    assert main(["benchmark", "input_pipeline", *arguments]) == 2
    assert "/nowhere does not exist" in capsys.readouterr().err
