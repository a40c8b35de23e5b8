"""Show a model, a motion or a study in the browser: `torsor.view(x)`.

The package has plots for papers (`plots`), and a page that plays a motion in 3-D (`page`).

Parameters
----------
shown : Model, Trajectory, Study, str or Path
    The object to show; a name of the zoo, or a model or robot file, is loaded first.
*what : (nq,) or (m, nq) array_like, str or Path
    The arguments of its method `view`: one or more configurations of a model; the path of the page.
**options : optional
    By name: `q`, `path`, `live`, `forces`.

Returns
-------
path : Path
    The page, one HTML file. Without a path, a temporary one, which is opened in the browser.

Raises
------
ArgumentError
    There is no such machine, or the object cannot be shown.

Examples
--------
>>> import torsor as ts
>>> ts.view("panda", path="panda.html").name
'panda.html'
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from torsor.errors import ArgumentError
from torsor.later import Later
from torsor.validate import brief

formats, zoo = Later("torsor.formats"), Later("torsor.zoo")


class _Viewer(ModuleType):
    """This package, which can be called."""

    def __call__(self, shown: Any, *what: Any, **options: Any) -> Path:
        if isinstance(shown, str | Path):
            shown = formats.load(shown) if Path(shown).suffix else zoo.get(str(shown))
        if not type(shown).__module__.startswith("torsor.") or not hasattr(shown, "view"):
            raise ArgumentError(f"a model, a trajectory or a study can be shown, not {brief(shown)}")
        return shown.view(*what, **options)


sys.modules[__name__].__class__ = _Viewer
