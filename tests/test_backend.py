"""Another backend of Keras is refused before Keras looks for it."""

import json
import os
import subprocess
import sys

from tests.harness import ROOT


def _run(arguments, home, **environment):
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("KERAS_")}
    return subprocess.run(
        [sys.executable, *arguments],
        env={
            **inherited,
            "PYTHONPATH": str(ROOT),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "KERAS_HOME": str(home),
            **environment,
        },
        cwd=home,
        capture_output=True,
        text=True,
    )


def test_variable_of_another_backend_raises(tmp_path):
    result = _run(["-c", "import deq_keras"], tmp_path, KERAS_BACKEND="jax")
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError")
    assert "KERAS_BACKEND=tensorflow" in last and "'jax'" in last


def test_config_file_of_another_backend_raises(tmp_path):
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "jax"}))
    result = _run(["-c", "import deq_keras.solvers"], tmp_path)
    assert "KERAS_BACKEND=tensorflow" in result.stderr.strip().splitlines()[-1]
    assert "keras.json" in result.stderr


def test_command_line_has_no_traceback(tmp_path):
    code = "import sys; from training.cli import main; sys.exit(main())"
    arguments = ["-c", code, "demo", "digits"]
    result = _run(arguments, tmp_path, KERAS_BACKEND="jax")
    assert result.returncode == 2
    assert "KERAS_BACKEND=tensorflow" in result.stderr
    assert "Traceback" not in result.stderr
