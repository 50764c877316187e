import keras
import numpy as np
import pytest

from deq_keras import models  # Registers what the files hold.
from tests.golden import arrays
from training.cli import main


@pytest.fixture
def state_dict():
    prefix = "a4_pre0_wn1/param/"
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.load("language_model").items()
        if name.startswith(prefix)
    }


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
