import sys
import time
from pathlib import Path

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


def test_spread():
    spread = measuring.spread(np.arange(5.0))
    assert spread == {"median": 2.0, "lower_quartile": 1.0, "upper_quartile": 3.0}


def test_fresh_process_returns_json():
    values = {"values": [1.0, 2.0, 3.0]}
    result = measuring.in_fresh_process("measuring.spread", values)
    assert result == measuring.spread(values["values"])


def test_failure_of_a_fresh_process_is_shown():
    with pytest.raises(RuntimeError, match="exit status 1: (?s:.*)spread"):
        measuring.in_fresh_process("measuring.spread", {})


def test_a_worker_answers_until_it_fails():
    with measuring.Worker() as call:
        for value in (1.0, 2.0):
            request = {"values": [value]}
            assert call("measuring.spread", request) == measuring.spread([value])
        # Importing NumPy alone takes many ticks.
        assert not Path("/proc/stat").exists() or call.processor_ticks() > 0
        with pytest.raises(RuntimeError, match="exit status 1: (?s:.*)spread"):
            call("measuring.spread", {})


def test_another_interpreter_needs_no_library():
    request = {"values": [1.0]}
    result = measuring.in_fresh_process("measuring.spread", request, sys.executable)
    assert result == measuring.spread([1.0])


def test_peak_of_resident_memory_is_above_its_present_size():
    peak, present = map(measuring.resident_memory, ("VmHWM", "VmRSS"))
    assert (peak is None and present is None) or peak >= 0.99 * present > 0
