"""The command line hides TensorFlow's notices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from training.cli import notices

ROOT = Path(__file__).parents[2]
SCRIPT = str(Path(sys.executable).with_name("deq-keras"))
EARLY = b"WARNING: All log messages before absl::InitializeLog() is called are written"
INFO = b"I0000 00:00:1795557384.584200 6684 cudart_stub.cc:31] Could not find cuda"
ERROR = b"E0000 00:00:1795557384.584200 6684 cuda_platform.cc:52] failed call to cuInit"
NO_DRIVER = (
    ERROR + b": INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)"
)
OLD_INFO = b"2025-11-24 21:00:00.151051: I tensorflow/core/util/port.cc:153] oneDNN"
TEXT = b"Illegal instruction"


def _environment(**variables):
    own = ("CUDA_VISIBLE_DEVICES", "PYTHONPATH", notices._LEVEL)
    kept = {name: value for name, value in os.environ.items() if name not in own}
    return {**kept, **variables}


def _run(command, **variables):
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=_environment(**variables)
    )


@pytest.mark.parametrize(
    "program",
    [
        [SCRIPT],
        [sys.executable, "-m", "deq_keras_training"],
        [sys.executable, "-m", "training"],
    ],
    ids=["script", "installed", "checkout"],
)
def test_error_is_one_line(program):
    process = _run([*program, "report", "nowhere"])
    assert process.returncode == 2
    (line,) = process.stderr.splitlines()
    assert line.startswith("deq-keras: error: nowhere")


def test_first_operation_logs_nothing(tmp_path):
    """Also where a variable overrides the backend of Keras' config file."""
    (tmp_path / "keras.json").write_text('{"backend": "jax"}')
    source = (
        "from training.cli import notices; notices.hide()\n"
        "import deq_keras, sys, tensorflow as tf\n"
        "print(int(tf.constant(1)), deq_keras.DEQ.__name__, file=sys.stderr)"
    )
    keras = {"KERAS_HOME": str(tmp_path), "KERAS_BACKEND": "tensorflow"}
    assert _run([sys.executable, "-c", source], **keras).stderr == "1 DEQ\n"


def test_level_of_the_user_takes_precedence():
    source = (
        "import os; from training.cli import notices; notices.hide()\n"
        f"print(os.environ[{notices._LEVEL!r}])"
    )
    command = [sys.executable, "-c", source]
    assert _run(command).stdout == "2\n"
    assert _run(command, TF_CPP_MIN_LOG_LEVEL="0").stdout == "0\n"


def test_last_message_of_a_crash_is_written(tmp_path):
    (tmp_path / "tensorflow.py").write_text(
        f"import os; os.write(2, {INFO + bytes([10]) + TEXT!r}); os.abort()"
    )
    source = (
        "import sys; from training.cli import notices; notices.hide()\n"
        f"sys.path.insert(0, {str(tmp_path)!r}); import tensorflow"
    )
    process = _run([sys.executable, "-c", source])
    assert process.returncode < 0 and process.stderr.encode() == TEXT


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        (0, {EARLY, INFO, ERROR, NO_DRIVER, OLD_INFO, TEXT}),
        (1, {ERROR, NO_DRIVER, TEXT}),
        (2, {ERROR, TEXT}),
        (3, {TEXT}),
    ],
)
def test_level_hides_lower_severities(level, shown):
    lines = (EARLY, INFO, ERROR, NO_DRIVER, OLD_INFO, TEXT)
    assert {line for line in lines if not notices.is_hidden(line, level)} == shown
