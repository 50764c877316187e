from pathlib import Path

import pytest

from training.config import reading as configs

FOLDER = Path(__file__).parents[3] / "configs"


@pytest.mark.parametrize(
    "path",
    sorted(FOLDER.glob("*/*.yaml")),
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_is_valid(path):
    configs.load(path)
