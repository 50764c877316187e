#!/usr/bin/env bash
# `keras.ops.rfft` and `irfft` compute float64 arrays in single precision on TensorFlow and
# return float32, without a warning, though `fft` and `fft2` keep float64.
#
# Packages: keras 3.15.1, tensorflow 2.21.0 (Python 3.11, Linux, CPU), seen on 2026-11-30.
# Expected: float64 in, float64 out, as of `keras.ops.fft2` and `tf.signal.rfft`.
# Seen: the parts of `rfft` are float32, and differ from NumPy's by 2e-7; those of `fft2` are
#   float64 and equal NumPy's to 1e-12.
# Fails if a later run sees something else.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet keras==3.15.1 tensorflow==2.21.0
cat > "$folder/transform.py" << 'END'
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(5, 8))


def compare(name, parts, exact):
    parts = [np.array(part) for part in parts]
    error = np.abs(parts[0] + 1j * parts[1] - exact).max()
    print(f"{name}: {parts[0].dtype}, error {error:.0e}")
    return parts[0].dtype, error


dtype, error = compare("fft2", keras.ops.fft2((x, np.zeros_like(x))), np.fft.fft2(x))
assert dtype == "float64" and error < 1e-12
dtype, error = compare("rfft", keras.ops.rfft(x), np.fft.rfft(x))
assert dtype == "float32" and 1e-8 < error < 1e-5
back = keras.ops.irfft(keras.ops.rfft(x))
print("irfft of rfft:", back.dtype)
assert "float32" in str(back.dtype)
END
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/transform.py"
