"""Whatever the experiment, a config that cannot be used leaves nothing behind."""

import pytest
import yaml

from tests.training.conftest import SMALL as CLASSIFICATION
from tests.training.experiments.small_texts import SMALL as TEXT
from training.cli import main

TASKS = {
    "experiment": "defaults",
    "tasks": {"regression": {"data.train_examples": 8}},
    "model": {"units": 4},
    "phases": [{"epochs": 1}],
    "variants": {"default": {}, "twin": {"model.gradient": "unrolled"}},
}
SEGMENTATION = {
    "experiment": "mdeq_segmentation",
    "data": {"name": "shapes", "train_examples": 4, "test_examples": 2},
    "model": {"filters": [4, 8], "groups": 2, "num_downsamplings": 1},
    "phases": [{"epochs": 1}],
}
SYNTHETIC = {"experiment": "synthetic", "model": {}, "phases": [{"epochs": 1}]}


def _train(tmp_path, mapping, *overrides):
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(mapping))
    sets = [part for override in overrides for part in ("--set", override)]
    return main(["train", str(file), "--work-dir", str(tmp_path / "a" / "run"), *sets])


REFUSED = [
    (CLASSIFICATION, "model.solver.histroy=3"),
    (CLASSIFICATION, "phases.0.gradient={{class_name: phantom, steps: 3}}"),
    (CLASSIFICATION, "model.regularizer={{class_name: jacobian, wight: 1}}"),
    (CLASSIFICATION, "model.cell.groups=3"),
    (CLASSIFICATION, "model.head.pool_size=50"),
    (CLASSIFICATION, "optimizer.warmup_epochs=1"),
    (CLASSIFICATION, "data={{name: imagenette, directory: {folder}/nowhere}}"),
    (CLASSIFICATION, "data.train_examples=100000"),
    (CLASSIFICATION, "variants={{a: {{}}, b: {{model.solver.histroy: 3}}}}"),
    (CLASSIFICATION, "phases=[{{epochs: 1}}, {{epochs: 1, gradient: reversible}}]"),
    (CLASSIFICATION, "variants={{a: {{}}, b: {{model.solver: forward_backward}}}}"),
    (CLASSIFICATION, "model.gradient={{class_name: truncated, num_steps: 30}}"),
    (CLASSIFICATION, "model.gradient={{class_name: truncated, num_free_steps: 30}}"),
    (TEXT, "phases=[{{epochs: 1}}, {{epochs: 1, solver: peaceman_rachford}}]"),
    (TEXT, "data.path={folder}/nothing.txt"),
    (TEXT, "model.num_heads=3"),
    (TEXT, "variants={{a: {{}}, b: {{model.solver.histroy: 3}}}}"),
    (TEXT, "data.evaluation_batch_size=5000"),
    (TASKS, "model.gradient={{class_name: neumann, num_terms: 0}}"),
    (TASKS, "variants.twin={{model.solver: {{class_name: anderson, histroy: 3}}}}"),
    (TASKS, "tasks.regression={{optimizer.warmup_epochs: 1}}"),
    (TASKS, "variants.twin={{model.gradient: reversible, model.solver: anderson}}"),
    (SYNTHETIC, "model.solver={{class_name: anderson, histroy: 3}}"),
    (SYNTHETIC, "phases=[{{epochs: 1, gradient: reversible, solver: broyden}}]"),
    (SYNTHETIC, "optimizer.warmup_epochs=1"),
    (SEGMENTATION, "model.groups=3"),
    (SEGMENTATION, "model.gradient={{class_name: implicit, solver: forward_backward}}"),
    (SEGMENTATION, "data.directory={folder}/nothing"),
]


@pytest.mark.parametrize(("mapping", "override"), REFUSED)
def test_a_refused_config_leaves_nothing(tmp_path, mapping, override, capsys):
    if mapping is TEXT:
        (tmp_path / "text.txt").write_text("to be or not to be " * 40)
        path = str(tmp_path / "text.txt")
        mapping = {**mapping, "data": {**mapping["data"], "path": path}}
    override = override.format(folder=tmp_path)
    assert _train(tmp_path, mapping, override) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("deq-keras: error:")
    assert not (tmp_path / "a").exists()


def test_a_refused_config_leaves_an_empty_folder_empty(tmp_path):
    path = tmp_path / "a" / "run"
    path.mkdir(parents=True)
    assert _train(tmp_path, CLASSIFICATION, "model.solver.histroy=3") == 2
    assert list(path.iterdir()) == []


def test_the_vocabulary_is_kept_when_the_run_begins(tmp_path, monkeypatch):
    """It has been learnt for the check already, and is not learnt again."""
    from training.data.text import WordTokenizer
    from training.runs import variants
    from training.runs.work_directory import WorkDirectory

    def stop(job, folder):
        raise KeyboardInterrupt

    (tmp_path / "text.txt").write_text("to be or not to be " * 40)
    data = {**TEXT["data"], "path": str(tmp_path / "text.txt"), "tokens": "word"}
    monkeypatch.setattr("training.runs.variants.train", stop)
    assert _train(tmp_path, {**TEXT, "data": data}) == 130
    assert (tmp_path / "a" / "run" / "model" / "vocabulary.word.json").is_file()
    monkeypatch.setattr(WordTokenizer, "learn", None)
    (job,) = variants.make_jobs(WorkDirectory.open(tmp_path / "a" / "run")).values()
    assert job.text.tokenizer.vocabulary_size()
