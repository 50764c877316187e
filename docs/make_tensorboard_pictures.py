"""Takes the pictures of the guide to TensorBoard: its own screen, of a finished run.

    deq-keras train digits/main --set phases.0.epochs=12
    pip install PyQt6-WebEngine
    tensorboard --logdir runs/digits-main/regularized/tensorboard --port 6016 &
    python docs/make_tensorboard_pictures.py

They go to docs/images.
"""

import os
import sys
from pathlib import Path

from PyQt6.QtCore import QRect, QTimer, QUrl
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication

IMAGES = Path(__file__).parent / "images"
ADDRESS = "http://127.0.0.1:6016"

# Name of a picture -> what tags and runs are filtered by, and its height in pixels.
PICTURES = {
    "histograms": ("deq/(evaluations|log10_residual)", "equilibrium", 450),
    "curves": ("residual_over_evaluations", "curves", 520),
}
WIDTH, TITLE = 1280, 64

# Clicks that follow one another; where there is nothing to click, nothing happens.
CLICKS = (
    "[aria-label='Close side pane']",
    "[title='Toggle full size mode']",
    "[aria-label='More line chart options']",
    "[aria-label='Toggle Y-axis log scale on line chart']",
)

# Milliseconds that TensorBoard takes to draw a page, and a change of it.
LOADING, CHANGE = 25_000, 3_000


class Photographer:
    """Opens one page after the other in a browser, and keeps what it shows."""

    def __init__(self, view):
        self.view = view
        self.names = list(PICTURES)

    def next(self):
        if not self.names:
            QApplication.quit()
            return
        self.name = self.names.pop(0)
        tags, runs, _ = PICTURES[self.name]
        query = f"smoothing=0&tagFilter={tags}&runFilter={runs}"
        self.view.load(QUrl(f"{ADDRESS}/?{query}#timeseries"))
        clicks = CLICKS if self.name == "curves" else CLICKS[:1]
        QTimer.singleShot(LOADING, lambda: self.click(list(clicks)))

    def click(self, selectors):
        if not selectors:
            self.keep()
            return
        script = f'document.querySelector("{selectors.pop(0)}")?.click()'
        self.view.page().runJavaScript(script)
        QTimer.singleShot(CHANGE, lambda: self.click(selectors))

    def keep(self):
        _, _, height = PICTURES[self.name]
        picture = self.view.grab(QRect(0, TITLE, WIDTH, height))
        picture.save(str(IMAGES / f"tensorboard_{self.name}.png"))
        self.next()


def main():
    # Without a window, and where a container has no sandbox for the browser.
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    os.environ.setdefault("QTWEBENGINE_CHROMIUM_FLAGS", "--no-sandbox --disable-gpu")
    application = QApplication(sys.argv)
    view = QWebEngineView()
    view.resize(WIDTH, 860)
    view.show()
    Photographer(view).next()
    application.exec()


if __name__ == "__main__":
    main()
