"""Run all or some benchmarks: print a table each and write bench/results/<name>.json."""

import argparse
import importlib

from harness import ROUNDS, table

BENCHMARKS = (
    "forward_dynamics", "other_functions", "latency", "long_chain", "log_depth", "brent", "fixman", "startup",
    "unrolling", "derivatives", "matrix_gradients", "jacobians", "stiff", "held", "forces", "long_run", "load",
    "control", "webassembly",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"some of {', '.join(BENCHMARKS)}; all if none")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(BENCHMARKS):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    for name in arguments.names or BENCHMARKS:
        report = importlib.import_module(name).measure(arguments.rounds)
        print(table(report), f"\n\n-> {report.save().name}\n", flush=True)


if __name__ == "__main__":
    main()
