"""`evaluate-checkpoint`: a checkpoint on the data of a config."""

import numpy as np
import pytest
import yaml

import deq_keras
from deq_keras.converters import locuslab
from tests.golden import arrays
from tests.training.data.images.test_files import write_classes
from tests.training.experiments.small_texts import SMALL
from tests.training.runs.small_runs import eagerly
from training.cli import main
from training.config import reading as configs
from training.conversion import checkpoint_job
from training.experiments.classification.job import ClassificationJob


def _stored(file, prefix, path):
    state_dict = arrays.part(file, prefix)
    np.savez(path, **state_dict)
    return state_dict


@pytest.fixture
def language(tmp_path):
    """The path of a checkpoint, its state dict, the path of a config and the words."""
    state_dict = _stored("language_model", "a4_pre0_wn1/param/", tmp_path / "deq.npz")
    words = [f"w{i}" for i in range(199)]  # With the end of a line, 200 tokens.
    folder = tmp_path / "text"
    folder.mkdir()
    tested = np.random.RandomState(0).choice(words, 63)
    (folder / "train.txt").write_text(" ".join(words) + "\n")
    for name in ("validation.txt", "test.txt"):
        (folder / name).write_text(" ".join(tested) + "\n")
    mapping = {
        **SMALL,
        "data": {
            **SMALL["data"],
            "source": "directory",
            "path": str(folder),
            "tokens": "word",
            "batch_size": 2,
            "evaluation_batch_size": 1,
            "evaluation_length": 21,
        },
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(mapping))
    ids = [1 + words.index(word) for word in tested]
    return tmp_path / "deq.npz", state_dict, tmp_path / "config.yaml", [*ids, 0]


def _evaluated(capsys, checkpoint, config, *settings, budgets=("30",)):
    """Returns the rows of the table, by the first words of their heading."""
    arguments = ["evaluate-checkpoint", str(checkpoint), str(config)]
    arguments += [part for setting in settings for part in ("--set", setting)]
    before = set(checkpoint.parent.rglob("*"))
    with eagerly():
        assert main([*arguments, "--budgets", *budgets]) == 0
    assert set(checkpoint.parent.rglob("*")) == before
    score, first, residual, second = capsys.readouterr().out.splitlines()
    assert residual.startswith("residual")
    assert first.split()[0] == second.split()[0]
    return score, first.split()[1:], second.split()[1:]


EXACT = "model.solver={class_name: anderson, max_iter: 60, tol: 1e-5}"


@pytest.mark.usefixtures("full_float32")
def test_language_model_has_the_loss_of_its_checkpoint(language, capsys):
    checkpoint, state_dict, config, ids = language
    settings = [EXACT, "model.memory_length=0", "data.evaluation_length=63"]
    score, (loss,), (residual,) = _evaluated(
        capsys, checkpoint, config, *settings, budgets=["60"]
    )
    assert score.split()[:2] == ["loss", "[nats"]
    solver = deq_keras.solvers.Anderson(max_iter=60, tol=1e-5)
    model = locuslab.load_deq_transformer(state_dict, solver=solver)
    scores = np.asarray(model(np.array([ids[:-1]])))[0]
    expected = -np.mean(scores[np.arange(63), ids[1:]])
    np.testing.assert_allclose(float(loss), expected, atol=2e-3)
    assert float(residual) < 1e-4


def test_memory_and_tolerance_are_the_configs(language, capsys):
    """The memory changes the loss, and the tolerance the residual."""
    checkpoint, _, config, _ = language
    losses = []
    for length in (0, 63):
        settings = ["model.solver.tol=0.1", f"model.memory_length={length}"]
        _, loss, (residual,) = _evaluated(capsys, checkpoint, config, *settings)
        assert 1e-3 < float(residual) < 0.1  # At a smaller tolerance it is smaller.
        losses.append(loss)
    assert losses[0] != losses[1]


@pytest.mark.slow
def test_trellisnet_is_measured(tmp_path, language, capsys):
    *_, config, _ = language
    _stored("trellis", "k3_d2_mos/param/", tmp_path / "trellis.npz")
    mapping = yaml.safe_load(config.read_text())
    mapping |= {
        "experiment": "trellisnet",
        "model": {"hidden_dim": 6, "intermediate_dim": 22, "dilation_rate": 2},
    }
    words = [f"w{i}" for i in range(12)]
    for name in ("train.txt", "validation.txt", "test.txt"):
        (tmp_path / "text" / name).write_text(" ".join(3 * words) + "\n")
    config.write_text(yaml.safe_dump(mapping))
    for length in (0, 1):
        setting = f"model.memory_length={length}"
        _, (loss,), _ = _evaluated(capsys, tmp_path / "trellis.npz", config, setting)
        assert 1 < float(loss) < 6


@pytest.mark.slow
def test_mdeq_is_measured(tmp_path, capsys):
    _stored("mdeq", "param/", tmp_path / "mdeq.npz")
    folder = tmp_path / "images"
    write_classes(folder, 2, [f"c{i}" for i in range(10)])
    mapping = {
        "experiment": "classification",
        "data": {"name": "folder", "directory": str(folder), "image_size": 32},
        "model": {"name": "mdeq", "filters": [8], "groups": 4, "num_downsamplings": 1},
        "phases": [{"epochs": 1}],
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(mapping))
    arguments = ["evaluate-checkpoint", str(tmp_path / "mdeq.npz")]
    assert main([*arguments, str(tmp_path / "config.yaml")]) == 2
    assert "`data.mean`" in capsys.readouterr().err
    mapping["data"] |= {"mean": [0.5] * 3, "standard_deviation": [0.3] * 3}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(mapping))
    arguments = capsys, tmp_path / "mdeq.npz", tmp_path / "config.yaml"
    score, values, residuals = _evaluated(*arguments, budgets=["1", "12"])
    assert "accuracy" in score and len(values) == 2
    assert float(residuals[1]) < float(residuals[0])


def test_monotone_network_is_loaded(tmp_path, capsys):
    file = tmp_path / "monotone.npz"
    state_dict = _stored("monotone", "conv/param/", file)
    kernel = np.random.RandomState(0).normal(size=(3, 3, 3, 3)) / 9  # RGB images.
    state_dict["mon.linear_module.U.weight"] = kernel
    np.savez(file, **state_dict)
    write_classes(tmp_path / "images", 2, [f"c{i}" for i in range(10)])
    data = {"name": "folder", "directory": str(tmp_path / "images"), "image_size": 8}
    data |= {"mean": [0.4] * 3, "standard_deviation": [0.3] * 3}
    cell = {"class_name": "monotone_conv_cell", "filters": 3, "m": 0.5}
    model = {"name": "monotone", "cell": cell}
    mapping = {"experiment": "classification", "data": data, "model": model}
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({**mapping, "phases": [{"epochs": 1}]}))
    _, model = checkpoint_job.load(file, configs.load(config))
    source = locuslab.load_monotone_network(state_dict, 0.5, image_size=8)
    pixels = np.random.RandomState(1).uniform(0, 255, (3, 8, 8, 3)).astype("float32")
    expected = source(model.preprocessing(pixels))
    np.testing.assert_allclose(model(pixels), expected, rtol=1e-5)
    arguments = ["evaluate-checkpoint", str(file), str(config)]
    assert main([*arguments, "--set", "model.cell.filters=4"]) == 2
    assert "sizes of the config's model" in capsys.readouterr().err


def test_keras_file_of_a_run_has_the_table_of_the_run(finished_run, capsys):
    run = finished_run.path
    path, config = run / "tied" / "model.keras", run / "config.yaml"
    variant = ["--variant", "tied"]
    arguments = ["evaluate-checkpoint", str(path), str(config)]
    assert main([*arguments, *variant]) == 0
    scores = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert main(["report", str(run)]) == 0
    reported = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = [row for row in reported if row and row[0] == "tied"][1:3]
    assert [row for row in scores if row[0] == "tied"] == rows
    assert main([*arguments, *variant, "--set", "model.stem.filters=8"]) == 2
    assert "must have the weights of the config's model" in capsys.readouterr().err
    assert main([*arguments, "--set", "model.stem.filters=8"]) == 2
    assert "one --variant" in capsys.readouterr().err


def test_keras_file_keeps_its_normalization(small, tmp_path):
    """The images of a folder would determine another one."""
    write_classes(tmp_path / "images", 2)
    small["data"] = {"name": "folder", "directory": str(tmp_path / "images")}
    small["data"] |= {"image_size": 8, "validation_split": 0.2}
    statistics = {"mean": [0.1] * 3, "standard_deviation": [0.3] * 3}
    trained = {**small, "data": {**small["data"], **statistics}}
    model = ClassificationJob(configs.resolve(trained)).build_model()
    model.save(tmp_path / "model.keras")
    pixels = np.random.default_rng(0).uniform(0, 255, (2, 8, 8, 3))
    _, loaded = checkpoint_job.load(tmp_path / "model.keras", configs.resolve(small))
    np.testing.assert_array_equal(loaded(pixels), model(pixels))


def test_missing_checkpoint_is_named(capsys):
    assert main(["evaluate-checkpoint", "x.npz", "residual/cifar10"]) == 2
    assert "x.npz" in capsys.readouterr().err


def test_checkpoint_of_another_vocabulary_raises(language, capsys):
    checkpoint, state_dict, config, _ = language
    (config.parent / "text" / "train.txt").write_text("<unk> w1 w2\n")
    arguments = ["evaluate-checkpoint", str(checkpoint), str(config)]
    assert main(arguments) == 2
    assert "must have 200 tokens" in capsys.readouterr().err
    assert main([*arguments, "--set", "model.cutoffs=[3]"]) == 2
    assert "cutoffs" in capsys.readouterr().err


def test_experiment_without_checkpoints_raises(language, capsys):
    checkpoint, *_ = language
    arguments = ["evaluate-checkpoint", str(checkpoint), "residual/digits"]
    assert main([*arguments, "--variant", "plain/seed_0"]) == 2
    assert "No published checkpoint" in capsys.readouterr().err
