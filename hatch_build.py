"""What hatchling runs when it builds torsor: it makes the description of the package out of README.md.

README links to files of the checkout, which a package index does not have.  With an address `Source` in [project.urls]
of pyproject.toml, links and images lead there; without one, links become plain text and images are left out.
"""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

# [text](docs/robots.md), ![what is seen](docs/figures/page.png); addresses and anchors are no files
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?!https?:|mailto:|#)(?P<path>[^)\s]+)\)")


def described(readme: str, source: str | None, version: str) -> str:
    """README.md with every link to a file replaced; `source` is the address of the repository on GitHub."""

    def replaced(link: re.Match[str]) -> str:
        if source:
            kind = "raw" if link["image"] else "blob"
            return f"{link['image']}[{link['text']}]({source.rstrip('/')}/{kind}/v{version}/{link['path']})"
        return "" if link["image"] else link["text"]

    return re.sub(r"\n{3,}", "\n\n", LINK.sub(replaced, readme))


class Description(MetadataHookInterface):
    """The hook, which hatchling finds by the class it inherits from."""

    def update(self, metadata: dict) -> None:
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = described(readme, metadata.get("urls", {}).get("Source"), metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
