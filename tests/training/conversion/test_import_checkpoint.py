"""`import` converts checkpoints of other libraries and names unreadable ones."""

import io
import os
import pathlib
import pickle
import zipfile

import keras
import numpy as np
import pytest

from deq_keras import models  # Registers what the files hold.
from tests.golden import arrays
from training.cli import main
from training.conversion import checkpoint_file


@pytest.fixture
def state_dict():
    return arrays.part("language_model", "a4_pre0_wn1/param/")


@pytest.fixture
def checkpoint(state_dict, tmp_path):
    path = tmp_path / "model.npz"
    np.savez(path, **state_dict)
    return path


def test_deq_transformer_is_converted(checkpoint, state_dict, tmp_path):
    out = tmp_path / "model.keras"
    arguments = ["import-checkpoint", str(checkpoint), "--out", str(out)]
    assert main([*arguments, "--set", "mem_len=8", "--set", "local_size=5"]) == 0
    model = keras.saving.load_model(out, compile=False)
    assert isinstance(model, models.DEQTransformerCausalLM)
    assert (model.backbone.memory_length, model.backbone.local_size) == (8, 5)
    table = model.backbone.token_embedding.tables[2]
    expected = state_dict["word_emb.emb_layers.2.weight"]
    np.testing.assert_array_equal(table.numpy(), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "file, prefix, settings, cls",
    [
        ("trellis", "k3_d2_mos/param/", ["dilation=2"], models.DEQTrellisNetCausalLM),
        (
            "mdeq",
            "param/",
            ["num_groups=4", "--set", "downsample_times=1"],
            models.MDEQImageClassifier,
        ),
    ],
)
def test_names_of_weights_choose_the_model(file, prefix, settings, cls, tmp_path):
    path, out = tmp_path / "weights.npz", tmp_path / "model.keras"
    np.savez(path, **arrays.part(file, prefix))
    arguments = ["import-checkpoint", str(path), "--out", str(out), "--set", *settings]
    assert main(arguments) == 0
    assert isinstance(keras.saving.load_model(out, compile=False), cls)


def test_monotone_network_is_converted(tmp_path, capsys):
    path, out = tmp_path / "monotone.npz", tmp_path / "model.keras"
    np.savez(path, **arrays.part("monotone", "fc/param/"))
    arguments = ["import-checkpoint", str(path), "--out", str(out)]
    assert main([*arguments, "--set", "m=0"]) == 2
    assert "`m` must be" in capsys.readouterr().err
    assert not out.exists()
    assert main([*arguments, "--set", "m=0.5"]) == 0
    model = keras.saving.load_model(out)
    expected = arrays.load("monotone")
    x = expected["fc/x"].astype("float32")
    np.testing.assert_allclose(model(x), expected["fc/logits"], atol=1e-2)


@pytest.fixture
def refused(tmp_path, capsys):
    """Returns the message that a file is refused with, and checks that all is clean."""

    def refused(path, *settings, out=tmp_path / "model.keras"):
        before = set(tmp_path.rglob("*"))
        overrides = [part for setting in settings for part in ("--set", setting)]
        arguments = ["import-checkpoint", str(path), "--out", str(out), *overrides]
        assert main(arguments) == 2
        assert set(tmp_path.rglob("*")) == before
        message = capsys.readouterr().err
        assert message.startswith("deq-keras: error: ")
        for advice in ("allow_pickle", "weights_only", "safe_globals", "max_header"):
            assert advice not in message
        return message

    return refused


def _zipped(members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def _savez(**contents):
    stream = io.BytesIO()
    np.savez(stream, **contents)
    return stream.getvalue()


def _flipped(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]


GOOD = _savez(a=np.arange(300.0))
UNREADABLE = {
    "missing": None,
    "empty": b"",
    "truncated": GOOD[: len(GOOD) // 2],
    "garbage": np.random.default_rng(0).bytes(999),
    "pickle": pickle.dumps({"a": np.ones(3)}),
    "flipped byte": _flipped(GOOD),
    "no entries": _zipped({}),
    "objects": _savez(a=np.array([{}])),
    "text": _zipped({"notes.txt": b"hello"}),
    "strings": _savez(a=np.array(["x"])),
    "complex": _savez(a=np.ones(3) * 1j),
    "quantized": _savez(a=np.ones(3, "uint8")),
    "no numbers": _savez(a=np.ones((3, 0))),
    "another model": GOOD,
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_file_without_weights_is_named(tmp_path, refused, content):
    path = tmp_path / "other.npz"
    if content is not None:
        path.write_bytes(content)
    assert str(path) in refused(path)


def test_nonfinite_weights_raise(state_dict, tmp_path, refused):
    bias = state_dict["inject_conv.bias"].copy()
    bias[3] = np.nan
    path = tmp_path / "model.npz"
    np.savez(path, **{**state_dict, "inject_conv.bias": bias})
    assert "not finite: inject_conv.bias, in 1 of 96 numbers" in refused(path)


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("n_head=8", "n_head"),
        ("mem_length=8", "'mem_len'"),
        ("mem_len", "a.b=value"),
        ("pre_lnorm=maybe", "`normalize_first`"),
        ("state_dict=3", "`state_dict`"),
        ("solver=andersen", "solver"),
    ],
)
def test_bad_setting_raises(checkpoint, refused, setting, name):
    assert name in refused(checkpoint, setting)


def test_bad_output_raises_early(checkpoint, tmp_path, refused, monkeypatch):
    def denied(*arguments, **keywords):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(checkpoint_file, "read", pytest.fail)  # It would take long.
    out = tmp_path / "mine.keras"
    out.write_text("precious")
    for path in (out, tmp_path / "model.h5", tmp_path / "missing" / "model.keras"):
        assert "--out" in refused(checkpoint, out=path)
    assert out.read_text() == "precious"
    monkeypatch.setattr("tempfile.TemporaryFile", denied)
    assert f"{tmp_path}: Permission denied" in refused(checkpoint)


def test_full_disk_raises(checkpoint, refused, monkeypatch):
    def full(model, path):
        pathlib.Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keras.Model, "save", full)
    assert "model.keras: No space left on device" in refused(checkpoint)


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_state_dict_of_torch(torch, state_dict, tmp_path):
    path, out = tmp_path / "model_state_dict.pth", tmp_path / "model.keras"
    torch.save({k: torch.tensor(v) for k, v in state_dict.items()}, path)
    assert main(["import-checkpoint", str(path), "--out", str(out)]) == 0
    assert out.is_file()


@pytest.mark.parametrize(
    ("kind", "wrapper"),
    [
        ("bfloat16", None),
        ("float16", "state_dict"),
        ("float64", "model_state_dict"),
        ("parameter", "model"),
    ],
)
def test_tensors_become_arrays(torch, tmp_path, kind, wrapper):
    tensor = torch.arange(6.0).reshape(2, 3)
    if kind == "parameter":
        tensor = torch.nn.Parameter(tensor)
    else:
        tensor = tensor.to(getattr(torch, kind))
    path = tmp_path / "model.pth"
    state_dict = {"a.weight": tensor, "b": torch.tensor(3)}
    torch.save({wrapper: state_dict, "epoch": 3} if wrapper else state_dict, path)
    (name, array), (_, number) = checkpoint_file.read(path).items()
    assert name == "a.weight" and number == 3
    assert array.dtype == ("float64" if kind == "float64" else "float32")
    np.testing.assert_array_equal(array, np.arange(6.0).reshape(2, 3))


def test_old_format_of_torch(torch, tmp_path):
    path = tmp_path / "model.pkl"
    state_dict = {"a": torch.ones(3)}
    torch.save(state_dict, path, _use_new_zipfile_serialization=False)
    np.testing.assert_array_equal(checkpoint_file.read(path)["a"], np.ones(3))


@pytest.mark.parametrize(
    "make",
    [
        lambda torch: None,
        lambda torch: {"state_dict": {}},
        lambda torch: {"a": torch.eye(3).to_sparse()},
        lambda torch: {"a": torch.ones(3) * 1j},
        lambda torch: {"a": {"b": torch.ones(3)}},
    ],
    ids=["none", "empty", "sparse", "complex", "nested"],
)
def test_file_of_torch_without_weights_is_named(torch, tmp_path, refused, make):
    path = tmp_path / "model.pth"
    torch.save(make(torch), path)
    assert str(path) in refused(path)


class Hostile:
    """Creates a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("how", ["archive", "before 2020", "pickle"])
def test_code_in_a_file_is_not_run(torch, tmp_path, refused, how):
    path, evidence = tmp_path / "model.pth", tmp_path / "evidence"
    content = {"a": torch.ones(3), "b": Hostile(evidence)}
    if how == "pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        is_archive = how == "archive"
        torch.save(content, path, _use_new_zipfile_serialization=is_archive)
    message = refused(path)
    assert "model_state_dict.pth, not model.pt" in message
    assert not evidence.exists()


@pytest.mark.parametrize(
    "spoil", [_flipped, lambda content: content[:-40]], ids=["flipped", "truncated"]
)
def test_corrupt_file_of_torch_is_named(torch, tmp_path, refused, spoil):
    path = tmp_path / "model.pth"
    torch.save({"a": torch.ones(5000)}, path)
    path.write_bytes(spoil(path.read_bytes()))
    assert str(path) in refused(path)
