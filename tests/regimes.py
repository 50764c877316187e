"""Which of the `regime`s a test runs in, where all of them take too long."""

import pytest

XLA_IS_SLOW = pytest.mark.parametrize(
    "regime",
    ["eager", "graph", pytest.param("xla", marks=pytest.mark.slow)],
    indirect=True,
)

ALL_BUT_EAGER_ARE_SLOW = pytest.mark.parametrize(
    "regime",
    [
        "eager",
        pytest.param("graph", marks=pytest.mark.slow),
        pytest.param("xla", marks=pytest.mark.slow),
    ],
    indirect=True,
)
