"""From the tokens of a config to the text of a saved model."""

import pytest

from training.config import reading as configs
from training.errors import InputError
from training.experiments.language_model import text
from training.experiments.language_model.job import build_model
from training.files import saved_model

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


# Models of characters are those of `test_language_model`.
@pytest.mark.slow
@pytest.mark.parametrize(
    "data",
    [
        {"tokens": "word"},
        {"tokens": "subword", "vocabulary_size": 30},
        {"tokens": "byte"},
    ],
    ids=lambda data: data["tokens"],
)
def test_a_saved_model_generates_text(tmp_path, data):
    config = _config(tmp_path, **data)
    tokenizer = text.find(config.data)[0].tokenizer
    build_model(config, tokenizer).save(tmp_path / "model.keras")
    causal_lm = saved_model.load(tmp_path / "model.keras", "").causal_lm
    assert causal_lm.backbone.vocabulary_size == tokenizer.vocabulary_size()
    generated = causal_lm.generate("to be", max_length=10)
    assert isinstance(generated, str)
    assert generated.startswith("to be")
    assert len(generated) > 5


def test_subwords_come_from_the_cache(tmp_path):
    config = _config(tmp_path, tokens="subword", vocabulary_size=30).data
    first, keep = text.find(config, tmp_path)
    keep(tmp_path)
    second, _ = text.find(config, tmp_path)
    assert (tmp_path / "vocabulary.subword.json").is_file()
    assert first.tokenizer.get_vocabulary() == second.tokenizer.get_vocabulary()
    assert second.tokenizer.detokenize(second.train).startswith(
        "to be , or not to be to"
    )


@pytest.mark.parametrize(
    "data", [{"tokens": "subword"}, {"tokens": "word", "vocabulary_size": 30}]
)
def test_the_vocabulary_size_is_for_subwords(tmp_path, data):
    with pytest.raises(InputError, match="is for subwords, which need it"):
        text.find(_config(tmp_path, **data).data)


def test_a_token_that_is_only_in_the_validation_text_is_located(tmp_path):
    config = _config(tmp_path, tokens="word").data
    (tmp_path / "text.txt").write_text(39 * CONTENT + "to zebra\n")
    with pytest.raises(InputError, match="Line [1-9] of the validation text.*zebra"):
        text.find(config)
