"""Differences between the lines of a table that are more than chance."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from dble_tf import comparisons

from .answers import Measured
from .rows import Line

# Whether higher is better.
FIGURES = {
    'accuracy': True, 'ece': False, 'nll': False, 'brier': False,
    'failure_auroc': True, 'aurc': False}


class Shown(NamedTuple):
  """A line with its finished runs.

  Attributes:
    line: what is shown of them.
    runs: by seed.
  """

  line: Line
  runs: Mapping[int, Measured]

  def mean(self, figure: str) -> float | None:
    """The mean over all runs that have the figure."""
    values = [run.figures[figure] for run in self.runs.values()]
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def difference(
    first: Shown, second: Shown, figure: str) -> comparisons.Difference | None:
  """The first's figure less the second's over the seeds of both; None without any."""
  seeds = sorted(first.runs.keys() & second.runs.keys())
  if not seeds:
    return None
  return comparisons.paired_difference(*(
      [one.runs[seed].resampled[figure] for seed in seeds] for one in (first, second)))


def best(lines: Mapping[str, Shown], figure: str) -> list[str]:
  """The lines that are in bold.

  These are the best single model and those with the very same answers, if the
  interval of its difference to the second best excludes zero.

  Args:
    lines: by name.
    figure: a key of `FIGURES`.
  """
  ranked = _ranked(lines, figure)
  if not ranked:
    return []
  winner, *_ = ranked
  equals = [name for name in ranked
            if _is_same(lines[winner], lines[name], figure)]
  second = next((name for name in ranked if name not in equals
                 and _are_rivals(lines[winner].line, lines[name].line)), None)
  if second is None:
    return []
  gap = difference(lines[winner], lines[second], figure)
  is_won = gap and gap.is_significant and (gap.value > 0) == FIGURES[figure]
  return equals if is_won else []


def best_other(lines: Mapping[str, Shown], figure: str) -> str | None:
  """The best single model without DBLE, or None if there is no other."""
  return next((name for name in _ranked(lines, figure)
               if not lines[name].line.is_of_dble), None)


def _ranked(lines, figure):
  """The names of single models that have the figure, from best to worst."""
  means = {name: shown.mean(figure) for name, shown in lines.items()
           if shown.line.is_single}
  known = [name for name, mean in means.items() if mean is not None]
  return sorted(known, key=means.get, reverse=FIGURES[figure])


def _are_rivals(first, second):
  """Lines of one run are one method, and so are lines of DBLE."""
  return first.row != second.row and not (first.is_of_dble and second.is_of_dble)


def _is_same(first, second, figure):
  """True if the seeds of both, if any, measured the same on all resamples."""
  seeds = first.runs.keys() & second.runs.keys()
  return bool(seeds) and all(np.array_equal(
      *(one.runs[seed].resampled[figure] for one in (first, second)), equal_nan=True)
                             for seed in seeds)
