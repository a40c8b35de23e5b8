"""Which script and which data a figure of the docs comes from, and whether it is older than they are.

python docs/sources.py FIGURE.png ...       after the figure has been drawn: note what it was drawn from
python docs/sources.py                      list the figures that are older than their data

`figures/sources.json` holds, by figure: how it is drawn (`by`), and the digests of what it depends on (`from`): data
where there are some, else the script itself, or a function of it, FILE::FUNCTION. Figures of the papers depend on
nothing here: `torsor papers` compares their numbers itself.
"""

import ast
import json
import sys
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures"
SOURCES = FIGURES / "sources.json"


def digest(name: str) -> str:
    """Of a file, or of one function of it."""
    file, _, function = name.partition("::")
    text = (ROOT / file).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if function else ():
        if isinstance(node, ast.FunctionDef) and node.name == function:
            text = ast.unparse(node)
    return sha256(text.encode()).hexdigest()[:16]


def outdated() -> list[str]:
    """The figures whose data have changed since they were drawn."""
    known = json.loads(SOURCES.read_text())
    return [name for name, one in known.items() if any(digest(file) != old for file, old in one["from"].items())]


def note(names: list[str]) -> None:
    """Note the digests as they are now."""
    known = json.loads(SOURCES.read_text())
    for name in names:
        known[name]["from"] = {file: digest(file) for file in known[name]["from"]}
    SOURCES.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


if __name__ == "__main__":
    note(sys.argv[1:])
    print(*outdated(), sep="\n")
