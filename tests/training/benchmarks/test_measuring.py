import time

import numpy as np
import pytest

from training.benchmarks import measuring

EFFORT = measuring.Effort(seconds=0.0, min_rounds=2, attempts=1)


def test_ratio_is_numerator_over_denominator():
    # Far enough apart for any load of the machine.
    ratio = measuring.compare(lambda: time.sleep(0.1), lambda: None, EFFORT)
    assert ratio.median > 1
    assert ratio.numerator.rounds == 2
    assert ratio.difference > 0


def test_quartiles():
    assert measuring.quartiles(np.arange(5.0)) == (2.0, 1.0, 3.0)


def test_fresh_process_returns_json():
    values = {"values": [1.0, 2.0, 3.0]}
    result = measuring.in_fresh_process("measuring.quartiles", values)
    assert result == [2.0, 1.5, 2.5]


def test_failure_of_a_fresh_process_is_shown():
    with pytest.raises(RuntimeError, match="exit status 1: (?s:.*)quartiles"):
        measuring.in_fresh_process("measuring.quartiles", {})


def test_another_interpreter_needs_no_library():
    import sys

    result = measuring.in_fresh_process(
        "measuring.quartiles", {"values": [1.0]}, python=sys.executable
    )
    assert result == [1.0, 1.0, 1.0]


def test_peak_of_resident_memory_is_above_its_present_size():
    peak, present = map(measuring.resident_memory, ("VmHWM", "VmRSS"))
    assert (peak is None and present is None) or peak >= 0.99 * present > 0
