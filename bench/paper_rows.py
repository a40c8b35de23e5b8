"""Do the rows of `torsor papers` hold?  Those that are computed quickly, the quickest first; for `mutants.py`.

python bench/paper_rows.py "Saha|Ploen"    # parts of papers' names; exits with the first row that does not hold
"""

import sys

from torsor.papers import PAPERS, featherstone1999, lee2005
from torsor.papers.rows import every_row

SHOWN = ("_times", "_steps_taken", "_forced_puma")  # times, and what takes minutes
LAST = ("_planar_arm", "_free_falls", "_forced_stanford", "_operations", "_solvers", "_brownian")


def main(names: list[str]) -> None:
    featherstone1999.EXPONENTS = (6, 8)
    lee2005.REPLICAS = 8000
    for name, paper in PAPERS.items():
        if any(word in name for word in names):
            parts = [part for part in paper.PARTS if part.__name__ not in SHOWN]
            for row in every_row(sorted(parts, key=lambda part: part.__name__ in LAST)):
                if not row.holds:
                    sys.exit(f"{name}: {row.place}: {row.quantity}")


if __name__ == "__main__":
    main(sys.argv[1].split("|"))
