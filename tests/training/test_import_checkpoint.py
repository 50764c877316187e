import keras
import numpy as np
import pytest

from deq_keras import models  # Registers what the files hold.
from tests.golden import arrays
from training.cli import main


def _stored(file, prefix):
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.load(file).items()
        if name.startswith(prefix)
    }


@pytest.fixture
def state_dict():
    return _stored("language_model", "a4_pre0_wn1/param/")


@pytest.fixture
def checkpoint(state_dict, tmp_path):
    path = tmp_path / "model.npz"
    np.savez(path, **state_dict)
    return path


def test_makes_a_keras_file(checkpoint, state_dict, tmp_path, capsys):
    out = tmp_path / "model.keras"
    arguments = ["import-checkpoint", str(checkpoint), "--out", str(out)]
    assert main([*arguments, "--set", "mem_len=8", "--set", "local_size=5"]) == 0
    assert "parameters" in capsys.readouterr().out
    model = keras.saving.load_model(out, compile=False)
    assert isinstance(model, models.DEQTransformerCausalLM)
    assert (model.backbone.memory_length, model.backbone.local_size) == (8, 5)
    table = model.backbone.token_embedding.tables[2]
    expected = state_dict["word_emb.emb_layers.2.weight"]
    np.testing.assert_array_equal(table.numpy(), expected)
    assert main(arguments) == 2
    assert "which exists" in capsys.readouterr().err


@pytest.fixture
def mdeq_arguments(tmp_path):
    path, out = tmp_path / "mdeq.npz", tmp_path / "model.keras"
    np.savez(path, **_stored("mdeq", "param/"))
    settings = ["--set", "num_groups=4", "--set", "downsample_times=1"]
    return ["import-checkpoint", str(path), "--out", str(out), *settings]


def test_makes_a_keras_file_of_an_mdeq(mdeq_arguments, tmp_path, capsys):
    assert main(mdeq_arguments) == 0
    assert "parameters" in capsys.readouterr().out
    model = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    assert isinstance(model, models.MDEQImageClassifier)
    expected = _stored("mdeq", "param/")["classifier.weight"].T
    np.testing.assert_array_equal(model.head.classifier.kernel.numpy(), expected)


@pytest.mark.slow
def test_other_classes_need_a_new_head(mdeq_arguments, tmp_path, capsys):
    others = [*mdeq_arguments, "--set", "num_classes=3"]
    assert main(others) == 2
    assert "drop_head" in capsys.readouterr().err
    assert main([*others, "--set", "drop_head=true"]) == 0
    model = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    assert model(np.zeros((1, 32, 32, 3), "float32")).shape == (1, 3)


@pytest.mark.parametrize(
    "override, words",
    [
        ("n_head=8", "The weights say n_head=4"),
        ("mem_length=8", "Did you mean `mem_len`"),
        ("mem_len", "must have the form"),
        ("mem_len=-1", "0 or more"),
    ],
)
def test_what_does_not_fit_has_status_2(checkpoint, tmp_path, override, words, capsys):
    out = tmp_path / "model.keras"
    arguments = ["import-checkpoint", str(checkpoint), "--out", str(out)]
    assert main([*arguments, "--set", override]) == 2
    assert words in capsys.readouterr().err
    assert not out.exists()


def test_bad_files_have_status_2(tmp_path, capsys):
    out = str(tmp_path / "model.keras")
    assert main(["import-checkpoint", "nothing.pth", "--out", out]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["import-checkpoint", "nothing.pth", "--out", "model.h5"]) == 2
    assert "ends in .keras" in capsys.readouterr().err


def test_state_dict_of_torch(state_dict, tmp_path):
    torch = pytest.importorskip("torch")
    path, out = tmp_path / "model_state_dict.pth", tmp_path / "model.keras"
    torch.save({k: torch.tensor(v) for k, v in state_dict.items()}, path)
    assert main(["import-checkpoint", str(path), "--out", str(out)]) == 0
    assert out.is_file()
