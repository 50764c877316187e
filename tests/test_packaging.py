"""What is installed: the library, and the command line with the configs."""

import configparser
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

import deq_keras
from training.cli.extras import EXTRA

ROOT = pathlib.Path(__file__).parents[1]
SOURCES = ["configs", "deq_keras", "training"]
FILES = ["LICENSE", "README.md", "pyproject.toml", "setup.cfg"]
RUNTIMES = ["ai_edge_litert", "onnx", "onnxruntime", "tf2onnx"]
SMALL = [
    "phases.0.epochs=1",
    "seeds=[0]",
    "data.train_examples=64",
    "data.test_examples=32",
    "evaluation={budgets: [1], num_samples: 4, max_iter: 4}",
]


@pytest.fixture(scope="module")
def setup():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def _lines(text):
    return [line for line in text.strip().splitlines() if not line.startswith("#")]


def _folders(parser):
    """The installed packages and their folders, by what `package_dir` says."""
    places = dict(
        line.split(" = ") for line in _lines(parser["options"]["package_dir"])
    )
    for name, folder in {"deq_keras": "deq_keras", **places}.items():
        yield name, ROOT / folder
        for path in (ROOT / folder).glob("*/**/__init__.py"):
            yield (
                ".".join([name, *path.parent.relative_to(ROOT / folder).parts]),
                path.parent,
            )


def test_every_package_is_listed(setup):
    assert _lines(setup["options"]["packages"]) == sorted(dict(_folders(setup)))


def test_every_file_of_data_is_listed(setup):
    listed = set()
    for name, patterns in setup["options.package_data"].items():
        for pattern in patterns.split(","):
            listed |= set(dict(_folders(setup))[name].glob(pattern.strip()))
    assert listed == {
        path
        for source in SOURCES
        for path in (ROOT / source).rglob("*.*")
        if path.is_file() and path.suffix not in {".py", ".pyc"}
    }


def _python(source):
    """Runs a program in the checkout."""
    command = [sys.executable, "-c", source]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def _without(*modules):
    return f"import sys; sys.modules.update(dict.fromkeys({modules!r}))\n"


def test_import_needs_no_optional_package():
    process = _python(_without(*EXTRA, *RUNTIMES) + "import deq_keras.serving")
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("module", ["yaml", "filelock", "pydantic"])
def test_missing_extra_is_named(module):
    source = (
        "from training.cli import main; sys.exit(main(['train', 'residual/digits']))"
    )
    process = _python(_without(module) + source)
    assert process.returncode == 2
    (line,) = process.stderr.splitlines()
    assert EXTRA[module] in line and 'pip install ".[train]"' in line


@pytest.mark.slow
def test_model_trains_without_the_extra():
    process = _python(
        _without(*EXTRA) + "import keras, deq_keras, numpy as np\n"
        "cell = deq_keras.layers.DenseCell(4)\n"
        "deq = deq_keras.layers.DEQ(cell)\n"
        "model = keras.Sequential([deq, keras.layers.Dense(1)])\n"
        "model.compile('adam', 'mse')\n"
        "model.fit(np.ones((8, 3)), np.ones((8, 1)), verbose=0)\n"
    )
    assert process.returncode == 0, process.stderr


def _checkout(path):
    """Copies what is installed, so that nothing is built in the checkout itself."""
    for name in SOURCES:
        shutil.copytree(ROOT / name, path / name)
    for name in FILES:
        shutil.copy(ROOT / name, path / name)
    return path


def _environment(path):
    """Returns the Python of a new environment that sees the packages of this one."""
    subprocess.run([sys.executable, "-m", "venv", path], check=True)
    (folder,) = path.glob("lib/python*/site-packages")
    packages = pathlib.Path(pytest.__file__).parents[1]
    (folder / "base.pth").write_text(f"{packages}\n")
    return path / "bin" / "python"


def _pip(python, *arguments):
    command = [python, "-m", "pip", "-q", *map(str, arguments)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": ""})


def _run(command, cwd):
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environment
    )


def _install_wheel(python, path):
    """Builds a wheel, looks into it, and leaves nothing else to import from."""
    version, checkout = deq_keras.__version__, _checkout(path / "checkout")
    _pip(python, "wheel", "--no-deps", "-w", path, checkout)
    (wheel,) = path.glob(f"deq_keras-{version}-*.whl")
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert tops == {"deq_keras", "deq_keras_training", f"deq_keras-{version}.dist-info"}
    shutil.rmtree(checkout)
    _pip(python, "install", "--no-deps", wheel)


@pytest.mark.slow
def test_wheel_trains_a_shipped_config(tmp_path):
    python = _environment(tmp_path / "environment")
    _install_wheel(python, tmp_path)
    sets = [part for value in SMALL for part in ("--set", value)]
    command = [python.with_name("deq-keras"), "train", "residual/digits.yaml", *sets]
    process = _run(command, tmp_path)
    assert process.returncode == 0, process.stderr
    assert (tmp_path / "runs" / "residual-digits" / "report.txt").is_file()
    source = (
        "import sys\n"
        "from deq_keras_training.experiments.classification import job\n"
        # One copy of each class that Keras knows by its name.
        "assert 'training' not in sys.modules\n"
    )
    process = _run([python, "-c", source], tmp_path)
    assert process.returncode == 0, process.stderr


@pytest.mark.slow
def test_editable_install_runs_elsewhere(tmp_path):
    python = _environment(tmp_path / "environment")
    checkout = _checkout(tmp_path / "checkout")
    _pip(python, "install", "--no-deps", "-e", checkout)
    command = [python.with_name("deq-keras"), "train", "residual/digist"]
    process = _run(command, tmp_path)
    assert process.returncode == 2
    assert "Did you mean `residual/digits`?" in process.stderr
    source = "import deq_keras_training.cli as cli, deq_keras; print(cli.__file__)"
    process = _run([python, "-c", source], tmp_path)
    assert process.stdout.split() == [
        str(checkout / "training" / "cli" / "__init__.py")
    ]
