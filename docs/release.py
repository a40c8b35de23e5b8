"""python docs/release.py FOLDER: build the site of this version into FOLDER/<version>/, beside those of other versions.

FOLDER/index.html leads to the newest version, and FOLDER/versions.json is the list from which readers choose.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from torsor import __version__

ROOT = Path(__file__).resolve().parent.parent
LEAD = '<!doctype html><meta http-equiv="refresh" content="0; url={0}/"><a href="{0}/">torsor {0}</a>\n'


def main(folder: Path) -> None:
    subprocess.run(["zensical", "build", "--strict", "--clean"], cwd=ROOT, check=True)
    shutil.rmtree(folder / __version__, ignore_errors=True)
    shutil.copytree(ROOT / "site", folder / __version__)
    versions = sorted((path.parent.name for path in folder.glob("*/index.html")), key=numbers, reverse=True)
    listed = [{"version": name, "title": name, "aliases": ["latest"] * (name == versions[0])} for name in versions]
    (folder / "versions.json").write_text(json.dumps(listed, indent=1) + "\n")
    (folder / "index.html").write_text(LEAD.format(versions[0]))
    print(folder / __version__)


def numbers(version: str) -> list[int]:
    """0.10.0 comes after 0.9.1."""
    return [int(x) for x in re.findall(r"\d+", version)]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
