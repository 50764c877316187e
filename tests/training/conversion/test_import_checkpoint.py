import io
import os
import pathlib
import pickle
import struct
import zipfile

import keras
import numpy as np
import pytest

from deq_keras import models  # Registers what the files hold.
from tests.golden import arrays
from training.cli import main
from training.conversion import checkpoint_file


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


@pytest.mark.slow
def test_makes_a_keras_file_of_a_trellisnet(tmp_path, capsys):
    path, out = tmp_path / "trellis.npz", tmp_path / "model.keras"
    np.savez(path, **_stored("trellis", "k3_d2_mos/param/"))
    arguments = ["import-checkpoint", str(path), "--out", str(out)]
    assert main([*arguments, "--set", "dilation=0"]) == 2
    assert "`dilation` must be" in capsys.readouterr().err
    assert main([*arguments, "--set", "dilation=2"]) == 0
    model = keras.saving.load_model(out, compile=False)
    assert isinstance(model, models.DEQTrellisNetCausalLM)
    assert model.backbone.deq.cell.dilation_rate == 2
    assert model.backbone.memory_length == 1
    assert model(np.zeros((2, 5), "int32")).shape == (2, 5, 13)


@pytest.fixture
def mdeq_arguments(tmp_path):
    path, out = tmp_path / "mdeq.npz", tmp_path / "model.keras"
    np.savez(path, **_stored("mdeq", "param/"))
    settings = ["--set", "num_groups=4", "--set", "downsample_times=1"]
    return ["import-checkpoint", str(path), "--out", str(out), *settings]


@pytest.mark.slow
def test_makes_a_keras_file_of_an_mdeq(mdeq_arguments, tmp_path, capsys):
    assert main(mdeq_arguments) == 0
    assert "parameters" in capsys.readouterr().out
    model = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    assert isinstance(model, models.MDEQImageClassifier)
    expected = _stored("mdeq", "param/")["classifier.weight"].T
    np.testing.assert_array_equal(model.head.classifier.kernel.numpy(), expected)


def test_makes_a_keras_file_of_a_monotone_network(tmp_path, capsys):
    path, out = tmp_path / "monotone.npz", tmp_path / "model.keras"
    np.savez(path, **_stored("monotone", "fc/param/"))
    arguments = ["import-checkpoint", str(path), "--out", str(out)]
    assert main([*arguments, "--set", "m=0"]) == 2
    assert "`m` must be a finite number > 0" in capsys.readouterr().err
    assert main([*arguments, "--set", "monotonicity=1"]) == 2
    assert "monotonicity" in capsys.readouterr().err
    assert not out.exists()
    assert main([*arguments, "--set", "m=0.5"]) == 0
    model = keras.saving.load_model(out)
    expected = arrays.load("monotone")
    x = expected["fc/x"].astype("float32")
    np.testing.assert_allclose(model(x), expected["fc/logits"], atol=1e-2)


@pytest.mark.slow
def test_other_classes_need_a_new_head(mdeq_arguments, tmp_path, capsys):
    others = [*mdeq_arguments, "--set", "num_classes=3"]
    assert main(others) == 2
    assert "drop_head" in capsys.readouterr().err
    assert main([*others, "--set", "drop_head=true"]) == 0
    model = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    assert model(np.zeros((1, 32, 32, 3), "float32")).shape == (1, 3)


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


def test_bad_names_have_status_2(tmp_path, refused):
    assert "nothing.pth does not exist" in refused(tmp_path / "nothing.pth")
    assert "is a folder" in refused(tmp_path)
    assert "File name too long" in refused(tmp_path / ("x" * 300 + ".npz"))
    link = tmp_path / "link.npz"
    link.symlink_to(tmp_path / "nothing.npz")
    assert f"a link to {tmp_path}/nothing.npz" in refused(link)
    os.mkfifo(tmp_path / "pipe.npz")
    assert "is no regular file" in refused(tmp_path / "pipe.npz")


def test_file_without_permission(checkpoint, refused, monkeypatch):
    def denied(path, *arguments, **keywords):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("builtins.open", denied)
    assert f"{checkpoint} cannot be read: Permission denied" in refused(checkpoint)


def _zipped(members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def _npy(header, body=b""):
    """An `.npy` file of a header of any text."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def _header(shape, descr="'<f4'"):
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}"


def _savez(**contents):
    stream = io.BytesIO()
    np.savez(stream, **contents)
    return stream.getvalue()


def _flipped(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]


GOOD = _savez(a=np.arange(300.0))
UNREADABLE = {
    "empty": b"",
    "cut in the middle": GOOD[: len(GOOD) // 2],
    "cut at the end": GOOD[:-5],
    "garbage": np.random.default_rng(0).bytes(999),
    "pickle": pickle.dumps({"a": np.ones(3)}),
    "flipped byte": _flipped(GOOD),
    "no directory": GOOD.replace(b"PK\1\2", b"PK\1\3"),
    "no entries": _zipped({}),
    "objects": _savez(a=np.array([{}])),
    "no header": _zipped({"a.npy": _npy("{'descr':")}),
    "nesting": _zipped({"a.npy": _npy("(" * 3000)}),
    "far too large": _zipped({"a.npy": _npy(_header((10**15,)))}),
    "overflow": _zipped({"a.npy": _npy(_header((10**40,)))}),
    "short": _zipped({"a.npy": _npy(_header("(3,)"), bytes(2))}),
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_file_is_named(tmp_path, refused, content):
    path = tmp_path / "damaged.npz"
    path.write_bytes(content)
    message = refused(path)
    assert str(path) in message and "is damaged, or is not a state dict" in message


OTHER_CONTENT = {
    "text": (_zipped({"notes.txt": b"hello"}), "`notes.txt`"),
    "strings": (_savez(a=np.array(["x"])), "`a` is of the dtype <U1"),
    "structures": (_savez(a=np.zeros(3, [("x", "f4")])), "`a` is of the dtype"),
    "complex": (_savez(a=np.ones(3) * 1j), "`a` is of the dtype complex128"),
    "quantized": (_savez(a=np.ones(3, "uint8")), "`a` is of the dtype uint8"),
    "bfloat16": (_savez(a=np.ones(3, "bfloat16")), "NumPy does not know the meaning"),
    "no numbers": (_savez(a=np.ones((3, 0))), "`a` is empty: its shape is (3, 0)"),
    "another model": (GOOD, "It holds: a."),
}


@pytest.mark.parametrize(
    ("content", "words"), OTHER_CONTENT.values(), ids=OTHER_CONTENT
)
def test_arrays_that_are_no_weights(tmp_path, refused, content, words):
    path = tmp_path / "other.npz"
    path.write_bytes(content)
    message = refused(path)
    assert str(path) in message and words in message


def test_weights_that_are_not_finite(state_dict, tmp_path, refused):
    bias = state_dict["inject_conv.bias"].copy()
    bias[3] = np.nan
    path = tmp_path / "model.npz"
    np.savez(path, **{**state_dict, "inject_conv.bias": bias})
    assert "not finite: inject_conv.bias, in 1 of 96 numbers" in refused(path)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("n_head=8", "The weights say n_head=4"),
        ("mem_length=8", "Did you mean 'mem_len'?"),
        ("mem_len", "must have the form"),
        ("pre_lnorm=maybe", "`pre_lnorm` must be True or False"),
        ("mem_len=1e30", "`mem_len` must be an integer"),
        ("state_dict=3", "Unknown argument `state_dict`"),
        ("solver=andersen", "Unknown solver"),
        ("solver={class_name: anderson, max_iter: x}", "`max_iter`"),
        ("dtype=int32", "`dtype` must be one of"),
    ],
)
def test_bad_settings(checkpoint, refused, setting, words):
    assert words in refused(checkpoint, setting)


def test_output_that_is_no_new_file(checkpoint, tmp_path, refused):
    assert "ends in .keras" in refused(checkpoint, out=tmp_path / "model.h5")
    out = tmp_path / "mine.keras"
    out.write_text("precious")
    assert "mine.keras, which exists" in refused(checkpoint, out=out)
    assert out.read_text() == "precious"
    link = tmp_path / "link.keras"
    link.symlink_to("nothing")
    assert "link.keras, which exists" in refused(checkpoint, out=link)


def test_output_folder_that_cannot_take_it(checkpoint, tmp_path, refused, monkeypatch):
    out = tmp_path / "missing" / "model.keras"
    assert f"{out.parent} does not exist" in refused(checkpoint, out=out)
    assert "is no folder" in refused(checkpoint, out=checkpoint / "model.keras")

    def denied(*arguments, **keywords):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", denied)
    monkeypatch.setattr(checkpoint_file, "read", pytest.fail)  # It would take long.
    assert f"{tmp_path}: Permission denied" in refused(checkpoint)


def test_disk_that_is_full(checkpoint, refused, monkeypatch):
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


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float64", "parameter"])
@pytest.mark.parametrize("wrapper", [None, "state_dict", "model_state_dict", "model"])
def test_tensors_become_arrays(torch, tmp_path, kind, wrapper):
    tensor = torch.arange(6.0).reshape(2, 3)
    tensor = (
        torch.nn.Parameter(tensor)
        if kind == "parameter"
        else tensor.to(getattr(torch, kind))
    )
    path = tmp_path / "model.pth"
    state_dict = {"a.weight": tensor, "b": torch.tensor(3)}
    torch.save({wrapper: state_dict, "epoch": 3} if wrapper else state_dict, path)
    (name, array), (_, number) = checkpoint_file.read(path).items()
    assert name == "a.weight" and number == 3
    assert array.dtype == ("float64" if kind == "float64" else "float32")
    np.testing.assert_array_equal(array, np.arange(6.0).reshape(2, 3))


def test_file_of_torch_from_before_2020(torch, tmp_path):
    path = tmp_path / "model.pkl"
    state_dict = {"a": torch.ones(3)}
    torch.save(state_dict, path, _use_new_zipfile_serialization=False)
    np.testing.assert_array_equal(checkpoint_file.read(path)["a"], np.ones(3))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda torch: torch.eye(3).to_sparse(), "dense tensors of numbers"),
        (lambda torch: torch.empty(3, device="meta"), "dense tensors of numbers"),
        (lambda torch: torch.ones(0, 3), "`a` is empty"),
        (lambda torch: torch.ones(3) * 1j, "complex64"),
        (lambda torch: "text", "dense tensors of numbers"),
        (lambda torch: {"b": torch.ones(3)}, "dense tensors of numbers"),
    ],
)
def test_tensors_that_are_no_weights(torch, tmp_path, refused, make, words):
    path = tmp_path / "model.pth"
    torch.save({"a": make(torch)}, path)
    assert words in refused(path)


@pytest.mark.parametrize("content", [None, 3, [], {}, {"state_dict": {}}])
def test_file_of_torch_without_a_state_dict(torch, tmp_path, refused, content):
    path = tmp_path / "model.pth"
    torch.save(content, path)
    assert "is not a state dict" in refused(path)


class Hostile:
    """What runs a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("how", ["archive", "before 2020", "pickle"])
def test_nothing_in_a_file_is_run(torch, tmp_path, refused, how):
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


@pytest.mark.parametrize("spoil", [_flipped, lambda content: content[:-40], bytes])
def test_damaged_file_of_torch(torch, tmp_path, refused, spoil):
    path = tmp_path / "model.pth"
    torch.save({"a": torch.ones(5000)}, path)
    content = path.read_bytes()
    path.write_bytes(b"" if spoil is bytes else spoil(content))
    assert "damaged" in refused(path)
