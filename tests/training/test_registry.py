"""Experiments are found by the names of their modules."""

import subprocess
import sys
from pathlib import Path

import pytest

from training import registry
from training.config import reading as configs
from training.config.fields import VariantsConfig
from training.data.images import digits
from training.runs import variants
from training.runs.job import Job
from training.runs.work_directory import WorkDirectory


@pytest.mark.parametrize("name", registry.names())
def test_declared_classes_exist(name):
    assert issubclass(registry.find(name).schema, VariantsConfig)
    assert issubclass(registry.implementation(name), Job)


def test_experiments_are_found_without_tensorflow():
    source = (
        "import sys; from training import registry\n"
        "for name in ('classification', 'language_model', 'reasoning', 'defaults',\n"
        "             'synthetic', 'mdeq_segmentation'): registry.find(name)\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", source], cwd=root).returncode == 0


def test_variants_share_equal_data(small, tmp_path, monkeypatch):
    loads = []
    load = digits.load
    monkeypatch.setattr(digits, "load", lambda: loads.append(1) or load())
    small["variants"] = {"one": {}, "two": {"seed": 1}, "three": {"data.batch_size": 8}}
    directory = WorkDirectory.start(tmp_path / "run", configs.resolve(small))
    jobs = variants.make_jobs(directory)
    assert jobs["one"].data is jobs["two"].data
    assert jobs["one"].data is not jobs["three"].data
    assert len(loads) == 2
    assert jobs["two"].config.seed == 1
    assert jobs["two"].folder == directory.folder("two")
