"""The style of all plots (trajectories, studies, benchmarks, figures of the papers), and writing them to files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cycler import cycler
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from torsor.errors import ArgumentError
from torsor.files import made, signature, write_whole
from torsor.validate import chosen, file_path

# Okabe & Ito's palette, safe for colour-blind readers, and a grey; on a dark background, the same hues lighter.
BLUE, ORANGE, GREEN, PINK, AMBER, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
GREY = "#7f7f7f"
PALETTES = {
    "light": (BLUE, ORANGE, GREEN, PINK, AMBER, SKY, "#6E6E6E"),
    "dark": (SKY, "#F0803C", "#3CC79E", "#E2A5C6", "#F0C04A", "#4F7BE0", "#B4B4B4"),
}
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
# Text stays text in .svg and .pdf.
STYLE = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6, "lines.linewidth": 1.2,
    "legend.frameon": False, "legend.fontsize": 7, "axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.5,
    "savefig.dpi": 200, "mathtext.fontset": "cm", "svg.fonttype": "none", "pdf.fonttype": 42,
    "axes.prop_cycle": cycler(color=PALETTES["light"]),
}  # fmt: skip
INK = {"light": ("white", "black"), "dark": ("#12161d", "#e6eaf0")}
SOFTWARE, DESCRIPTION = 0x0131, 0x010E  # tags of Exif


class Drawing(Figure):
    """A Matplotlib figure that notebooks show automatically."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=110)
        return content.getvalue()


@contextmanager
def style(theme: str = "light") -> Iterator[None]:
    """A context in which plots have torsor's style, on a light or dark background."""
    paper, ink = INK[chosen("theme", theme, PALETTES)]
    places = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor", "axes.titlecolor")
    colours = dict.fromkeys(places, ink) | dict.fromkeys(
        ("figure.facecolor", "axes.facecolor", "savefig.facecolor"), paper
    )
    with rc_context(STYLE | colours | {"axes.prop_cycle": cycler(color=PALETTES[theme])}):  # type: ignore[arg-type]
        yield


def lines(theme: str = "light", count: int = 24) -> list[tuple[str, Any]]:
    """(colour, dashes) of `count` curves; the dashes distinguish them in grey as well."""
    palette = PALETTES[theme]
    return [(palette[k % len(palette)], DASHES[(k + k // len(palette)) % len(DASHES)]) for k in range(count)]


def save(figure: Figure, path: str | Path | None, about: dict[str, Any] | None = None) -> Figure:
    """Write a figure to a file; the suffix selects the format: .png, .pdf, .svg, or another format of Matplotlib.

    The metadata record the version of torsor, the date and the options of the run.
    """
    if path is not None:
        path, content = picture(path), io.BytesIO()
        kind = path.suffix[1:].lower() or "png"
        try:
            figure.savefig(content, format=kind, **_metadata(kind, signature(about)))
        except (ValueError, OSError) as error:
            raise ArgumentError(f"{path}: the plot cannot be written: {error}") from None
        write_whole(path, content.getvalue())
    return figure


def picture(path: Any) -> Path:
    """The path of a picture: .png if it has no suffix; refused if Matplotlib cannot write that format."""
    path = file_path("path", path)
    if not path.suffix and (path.is_file() or not path.exists()):  # a pipe keeps its name
        path = Path(f"{path}.png")
    known = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix and path.suffix[1:].lower() not in known:
        raise ArgumentError(f"{path}: the plot cannot be written as {path.suffix}; choose one of {', '.join(known)}")
    return path


def _metadata(kind: str, words: str) -> dict[str, Any]:
    """The arguments of `savefig` for the metadata of a format; Matplotlib itself adds the date to .pdf and .svg."""
    name = f"torsor {made()['torsor']}"
    if kind in ("jpg", "jpeg", "tif", "tiff", "webp"):
        from PIL.Image import Exif

        exif = Exif()
        exif[SOFTWARE], exif[DESCRIPTION] = name, words
        return {"pil_kwargs": {"exif": exif}}
    known = {
        "png": {"Software": name, "Creation Time": made()["date"], "Description": words},
        "pdf": {"Creator": name, "Subject": words},
        "svg": {"Creator": name, "Description": words},
        "ps": {"Creator": f"{name} {words}"},
        "eps": {"Creator": f"{name} {words}"},
    }
    return {"metadata": known[kind]} if kind in known else {}
