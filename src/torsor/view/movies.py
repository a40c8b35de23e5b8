"""Pictures and movies of a page, drawn by an installed Chromium."""

from __future__ import annotations

import io
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from torsor.errors import ArgumentError
from torsor.files import write_whole
from torsor.validate import brief, chosen, file_path, integer, number
from torsor.view.browser import Browser
from torsor.view.page import Scene, write
from torsor.view.style import PALETTES

SIZE = (1280, 800)  # pixels
RATES = {".mp4": 30, ".gif": 20}  # frames per second
MOST_FRAMES = 10_000
MOST_PIXELS = 4096  # of a side


def picture(scene: Scene, path: str | Path, t: float | None = None, size: tuple[int, int] = SIZE,
            theme: str = "light") -> Path:  # fmt: skip
    """Write the view of a page at a time, without title and panels, as a .png file."""
    path = _path(path, (".png",))
    begin, end = scene.data["times"][0], scene.data["times"][-1]
    at = begin if t is None else number("t", t)
    if not begin <= at <= end:
        raise ArgumentError(f"t must lie in [{begin:g}, {end:g}], where the motion is known, not {at:g}")
    with _bare(scene, size, theme) as browser:
        return write_whole(path, _frame(browser, at))


def movie(scene: Scene, path: str | Path, fps: float | None = None, speed: float = 1.0,
          size: tuple[int, int] = SIZE, theme: str = "light") -> Path:  # fmt: skip
    """Write a motion as an .mp4 or a .gif file."""
    path = _path(path, tuple(RATES))
    kind = path.suffix.lower()
    rate = RATES[kind] if fps is None else number("fps", fps, above=0.0)
    times = np.arange(scene.data["times"][0], scene.data["times"][-1] + 1e-9, number("speed", speed, above=0.0) / rate)
    if len(times) > MOST_FRAMES:
        raise ArgumentError(f"the movie has {len(times)} frames; {MOST_FRAMES} are drawn: choose a smaller fps")
    encode = _mp4 if kind == ".mp4" else _gif
    if kind == ".mp4" and shutil.which("ffmpeg") is None:
        raise ArgumentError(f"{path}: .mp4 files are written by ffmpeg, which is not on the PATH; write a .gif instead")
    with _bare(scene, size, theme) as browser:
        return write_whole(path, encode((_frame(browser, t) for t in times.tolist()), rate))


def _path(path: Any, kinds: tuple[str, ...]) -> Path:
    path = file_path("path", path)
    if path.suffix.lower() not in kinds:
        raise ArgumentError(f"{path}: the name must end in {' or '.join(kinds)}")
    return path


class _bare:
    """The page of a scene without title and panels, in a browser."""

    def __init__(self, scene: Scene, size: tuple[int, int], theme: str) -> None:
        chosen("theme", theme, PALETTES)
        if not isinstance(size, Sequence) or len(size) != 2:
            raise ArgumentError(f"size must be (width, height) in pixels, not {brief(size)}")
        width, height = (integer("size", x, least=16, most=MOST_PIXELS) for x in size)
        self._folder = tempfile.TemporaryDirectory(prefix="torsor-picture-")
        try:
            page = write(scene, Path(self._folder.name) / "page.html")
            self._browser = Browser(page, width, height, theme)
            self._browser.evaluate("torsor.setBare()")
        except BaseException:
            self._folder.cleanup()
            raise

    def __enter__(self) -> Browser:
        return self._browser

    def __exit__(self, *_: object) -> None:
        self._browser.close()
        self._folder.cleanup()


def _frame(browser: Browser, t: float) -> bytes:
    browser.evaluate(f"torsor.seek && torsor.seek({t!r}); torsor.draw()")
    return browser.png()


def _gif(frames: Iterator[bytes], rate: float) -> bytes:
    images = [Image.open(io.BytesIO(frame)).convert("RGB").quantize(128) for frame in frames]
    content = io.BytesIO()
    images[0].save(content, "gif", save_all=True, append_images=images[1:], duration=1000 / rate, loop=0, optimize=True)
    return content.getvalue()


def _mp4(frames: Iterator[bytes], rate: float) -> bytes:
    with tempfile.TemporaryDirectory(prefix="torsor-movie-") as folder:
        out = Path(folder) / "movie.mp4"
        words = ["ffmpeg", "-loglevel", "error", "-y", "-f", "image2pipe", "-framerate", f"{rate:g}", "-i", "-"]
        words += ["-vf", "crop=trunc(iw/2)*2:trunc(ih/2)*2", "-c:v", "libx264", "-pix_fmt", "yuv420p", str(out)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdin is not None
        try:
            with suppress(BrokenPipeError):  # the reason is reported below
                for frame in frames:
                    process.stdin.write(frame)
            _, errors = process.communicate()
        except BaseException:
            process.kill()
            raise
        if process.returncode or not out.exists():
            raise ArgumentError(f"ffmpeg fails: {errors.decode(errors='replace').strip()[-500:]}")
        return out.read_bytes()
