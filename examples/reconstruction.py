"""Sharpen blurred photographs: an equilibrium of the data and of a denoiser."""

from pathlib import Path

import keras
import numpy as np

from deq_keras import layers, models
from deq_keras.solvers import SolveRequest

keras.utils.set_random_seed(0)
root = Path(__file__).resolve().parents[1]
with np.load(root / "training" / "data" / "images" / "photographs.npz") as file:
    photographs = dict(file)  # gray, uint8
camera = photographs.pop("camera")

random = np.random.default_rng(0)


def crops(photograph, count, size=32):
    corners = random.integers(np.subtract(photograph.shape, size), size=(count, 2))
    found = [photograph[i : i + size, j : j + size] for i, j in corners]
    return np.stack(found)[..., None].astype("float32") / 255


def blurred(images):
    noise = 0.01 * random.normal(size=images.shape).astype("float32")
    return np.asarray(operator(images)) + noise


operator = layers.Blur(np.ones((5, 5)) / 25, (32, 32, 1))
sharp = np.concatenate([crops(image, 48) for image in photographs.values()])
cell = layers.ProximalGradientCell(operator, layers.ImageDenoiser(16, num_layers=3))
backbone = models.ImageRestorerBackbone(cell)
restorer = models.ImageRestorer(backbone)
restorer.compile(keras.optimizers.Adam(2e-3))
random.shuffle(sharp)  # A preprocessor maps arrays in their order.
restorer.fit(blurred(sharp), sharp, batch_size=16, epochs=6, shuffle=False, verbose=2)

test = crops(camera, 32)
measured = blurred(test)
restored = restorer.predict(measured, verbose=0)


def psnr(images):
    error = np.mean((np.clip(images, 0, 1) - test) ** 2, axis=(1, 2, 3))
    return np.mean(-10 * np.log10(error))


print(f"PSNR: measured {psnr(measured):.2f} dB, restored {psnr(restored):.2f} dB")
solution = backbone.deq.solve(measured, SolveRequest(max_iter=60, tol=1e-4))
print("evaluations", solution.num_evaluations.numpy()[:8])
