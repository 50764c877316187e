"""Renamed public names work, and warn."""

import pytest

from deq_keras import solvers
from deq_keras.core.deprecations import renamed


def test_old_name_is_the_new_class_and_warns():
    find = renamed("deq_keras.solvers", {"Picard": "FixedPointIteration"})
    with pytest.warns(DeprecationWarning, match="Picard.*FixedPointIteration") as found:
        assert find("Picard") is solvers.FixedPointIteration
    assert found[0].filename == __file__
    with pytest.raises(AttributeError, match="Unknown"):
        find("Unknown")
