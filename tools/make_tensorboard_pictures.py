"""Takes the picture of the guide to TensorBoard: its own screen, of a finished run.

    deq-keras train residual/digits --set tensorboard=true --set seeds=null
    pip install PyQt6-WebEngine
    tensorboard --logdir runs/residual-digits --port 6016 &
    python tools/make_tensorboard_pictures.py

It goes to docs/images.
"""

import os
import sys
from pathlib import Path

from PyQt6.QtCore import QRect, QTimer, QUrl
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication

IMAGES = Path(__file__).parents[1] / "docs" / "images"
ADDRESS = "http://127.0.0.1:6016"

# Name of a picture -> the end of its address, its top and its height in pixels.
PICTURES = {
    "histograms": (
        "?runFilter=contraction.*equilibrium&tagFilter=deq/(evaluations|log10_residual)",
        64,
        450,
    ),
}
WIDTH = 1280

# Clicks that follow one another, on the last element that a selector finds; where there
# is nothing to click, nothing happens.
CLICKS = {
    "histograms": ("[aria-label='Close side pane']",),
}
# The charts of some tabs are in shadow roots, which `querySelector` does not enter.
FIND = """
function find(root, selector) {
  let found = null;
  for (const element of root.querySelectorAll("*")) {
    if (element.matches(selector)) found = element;
    if (element.shadowRoot) found = find(element.shadowRoot, selector) ?? found;
  }
  return found;
}
"""

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
        self.view.load(QUrl(f"{ADDRESS}/{PICTURES[self.name][0]}"))
        clicks = [*CLICKS[self.name]]
        QTimer.singleShot(LOADING, lambda: self.click(clicks))

    def click(self, selectors):
        if not selectors:
            self.keep()
            return
        script = f"""
            const element = find(document, "{selectors.pop(0)}");
            element?.click();
            element?.scrollIntoView({{block: "center"}});
        """
        self.view.page().runJavaScript(f"{{ {FIND} {script} }}")
        QTimer.singleShot(CHANGE, lambda: self.click(selectors))

    def keep(self):
        _, top, height = PICTURES[self.name]
        picture = self.view.grab(QRect(0, top, WIDTH, height))
        picture.save(str(IMAGES / f"tensorboard_{self.name}.png"))
        self.next()


def main():
    # Without a window, and without the sandbox that containers lack.
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
