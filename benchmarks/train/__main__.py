"""Trains the same net on the same data with ours and its peers in turn, and prints one table.

python -m benchmarks.train             all rows, more than an hour; exit code 1 where a goal is not met
python -m benchmarks.train --short     a few seconds each, for CI: shows that it runs, and judges nothing
"""

import argparse
import dataclasses
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.train import quality
from benchmarks.train.contenders import Case, measure
from benchmarks.train.data import Log
from benchmarks.train.meter import Figures
from benchmarks.train.rows import Measured, Row, judged_cases, rows, timed_cases
from benchmarks.train.table import Report, one_line
from benchmarks.train.workload import CACHE, Workload

ROUNDS = 3
SHORT_ROWS = 4
"""Those that need ours and each peer once."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="tiny data, one round, the first rows")
    parser.add_argument("--only", default="", metavar="TEXT", help="only rows whose title contains TEXT")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"how often speed is measured (default: {ROUNDS})")
    arguments = parser.parse_args()
    base = _short() if arguments.short else Workload()
    wanted = [row for row in rows(base) if arguments.only in row.title]
    if not wanted:
        parser.error(f"no row has '{arguments.only}' in its title; there is {', '.join(row.title for row in rows(base))}")
    if arguments.short:
        wanted = [dataclasses.replace(row, at_least=None, at_most=None) for row in wanted[:SHORT_ROWS]]
    report = _run(base, wanted, 1 if arguments.short else arguments.rounds)
    print(f"\n{report.text()}")
    report.write(CACHE)
    print(f"\nwritten to {CACHE}/train.md and train.json")
    if report.missed:
        print(f"goals NOT met: {', '.join(report.missed)}")
    return 1 if report.missed else 0


def _short() -> Workload:
    log = Log(rows=2**16, held_out_rows=2**12, shard_rows=2**13)
    return dataclasses.replace(Workload(), log=log, warm_examples=2**15, seconds=2.0)


def _run(base: Workload, wanted: Sequence[Row], rounds: int) -> Report:
    possible, left_out = [], {}
    for case in timed_cases(wanted):
        if why := case.obstacle:
            left_out[case.title] = why
        else:
            possible.append(case)
    figures, failed = _timed(possible, rounds)
    measured = Measured(
        rounds=figures,
        planted={case.title: _judged(case) for case in judged_cases(wanted)},
        movielens=quality.movielens() if any(row.movielens for row in wanted) else {},
    )
    return Report(base=base, rows=wanted, measured=measured, left_out={**left_out, **failed})


def _timed(cases: Sequence[Case], rounds: int) -> tuple[dict[str, list[Figures]], dict[str, str]]:
    """Measures every case once in each round, forth and back, so that a drift of the machine meets both sides of a ratio.

    Returns the figures, and of those cases that failed, and were then given up, the reason.
    """
    figures: dict[str, list[Figures]] = {case.title: [] for case in cases}
    failed: dict[str, str] = {}
    for number in range(rounds):
        for case in cases if number % 2 == 0 else reversed(cases):
            if case.title in failed:
                continue
            try:
                figures[case.title].append(measured := measure(case))
                print(f"round {number + 1} of {rounds}: {one_line(case, measured)}", flush=True)
            except (RuntimeError, subprocess.TimeoutExpired) as error:  # an hour of others' figures is not to be lost
                print(error, file=sys.stderr, flush=True)
                failed[case.title] = f"it failed: {str(error).splitlines()[-1]}"
    return {title: taken for title, taken in figures.items() if title not in failed}, failed


def _judged(case: Case) -> quality.Planted:
    found = quality.planted(case.workload, case.settings)
    print(f"quality: {case.title}: AUC {found.auc:.4f} of {found.bayes:.4f}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
