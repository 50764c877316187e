"""From the tokens of a config to the text of a saved model."""

import pytest

from tests.training.runs import small_runs
from training.config import reading as configs
from training.data.text import WordTokenizer
from training.errors import InputError
from training.experiments.language_model import text
from training.runs import variants
from training.runs.work_directory import WorkDirectory

CONTENT = "to be, or not to be\n"
CONFIG = {
    "experiment": "language_model",
    "data": {"source": "file"},
    "model": {
        "hidden_dim": 8,
        "num_heads": 2,
        "intermediate_dim": 16,
        "solver": "fixed_point_iteration",
    },
    "phases": [{"epochs": 1}],
}


def _config(tmp_path, **data):
    path = tmp_path / "text.txt"
    path.write_text(CONTENT * 40)
    data = {**CONFIG["data"], "path": str(path), **data}
    return configs.resolve({**CONFIG, "data": data})


def test_subwords_come_from_the_cache(tmp_path):
    config = _config(tmp_path, tokens="subword", vocabulary_size=30).data
    first = text.find(config, tmp_path)
    first.keep_vocabulary(tmp_path)
    second = text.find(config, tmp_path)
    assert (tmp_path / "vocabulary.subword.json").is_file()
    assert first.tokenizer.get_vocabulary() == second.tokenizer.get_vocabulary()
    assert second.tokenizer.detokenize(second.train).startswith(
        "to be , or not to be to"
    )


@pytest.mark.parametrize(
    "data, name",
    [
        ({"tokens": "subword"}, "vocabulary_size"),
        ({"tokens": "word", "vocabulary_size": 30}, "vocabulary_size"),
        ({"path": None}, "path"),
        ({"source": "embedded"}, "path"),
    ],
)
def test_refused_texts(tmp_path, data, name):
    with pytest.raises(InputError, match=f"(?s){name}.*Received"):
        text.find(_config(tmp_path, **data).data)


def test_unknown_token_of_the_validation_text_is_located(tmp_path):
    config = _config(tmp_path, tokens="word").data
    (tmp_path / "text.txt").write_text(39 * CONTENT + "to zebra\n")
    with pytest.raises(InputError, match="Line [1-9] of the validation text.*zebra"):
        text.find(config)


def test_vocabulary_is_saved_before_training(tmp_path, monkeypatch):
    config = _config(tmp_path, tokens="word")

    def stop(job, folder):
        raise KeyboardInterrupt

    monkeypatch.setattr("training.runs.variants.train", stop)
    monkeypatch.setattr("training.runs.variants.check", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        small_runs.finished(tmp_path / "run", config)
    assert (tmp_path / "run" / "model" / "vocabulary.word.json").is_file()
    monkeypatch.setattr(WordTokenizer, "learn", None)
    (job,) = variants.make_jobs(WorkDirectory.open(tmp_path / "run")).values()
    assert job.data.tokenizer.vocabulary_size()
