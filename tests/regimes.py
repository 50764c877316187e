"""Which of the `regime`s a test runs in, where all of them take too long."""

import pytest

XLA_IS_SLOW = pytest.mark.parametrize(
    "regime",
    ["eager", "graph", pytest.param("xla", marks=pytest.mark.slow)],
    indirect=True,
)
