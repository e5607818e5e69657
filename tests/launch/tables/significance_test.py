import numpy as np
import pytest

from launch.tables import significance
from launch.tables.answers import Measured
from launch.tables.rows import LINES
from launch.tables.significance import Shown


def shown(line, *values, seeds=None, noise=0.0, figures=significance.FIGURES):
  """A line with the given means by seed, resampled with independent noise."""
  rng = np.random.default_rng(len(line))
  seeds = range(len(values)) if seeds is None else seeds
  return Shown(LINES[line], {
      seed: Measured(
          {figure: np.append(value, value + noise * rng.normal(size=300))
           for figure in figures}, None, (0.0, 0.0), 100)
      for seed, value in zip(seeds, values)})


def best(figure='accuracy', **lines):
  named = {name.replace('_plus_', '+'): line for name, line in lines.items()}
  return significance.best(named, figure)


def test_the_best_line_is_bold_where_it_is_more_than_chance():
  sure = {'vanilla': shown('vanilla', 0.80, noise=0.01),
          'mixup': shown('mixup', 0.90, noise=0.01)}
  assert best('accuracy', **sure) == ['mixup']
  assert best('nll', **sure) == ['vanilla']  # Lower is better.
  unsure = {'vanilla': shown('vanilla', 0.80, noise=0.1),
            'mixup': shown('mixup', 0.90, noise=0.1)}
  assert best('accuracy', **unsure) == [] == best('nll', **unsure)


def test_the_second_best_decides():
  lines = {'vanilla': shown('vanilla', 0.5, noise=0.01),
           'mixup': shown('mixup', 0.9, noise=0.01)}
  assert best(**lines) == ['mixup']
  assert best(**lines, label_smoothing=shown(
      'label_smoothing', 0.895, noise=0.01)) == []


def test_lines_of_dble_are_not_rivals_of_each_other():
  dble = {'dble': shown('dble', 0.90, noise=0.01),
          'dble_as_printed': shown('dble_as_printed', 0.899, noise=0.01)}
  assert best(**dble, vanilla=shown('vanilla', 0.7, noise=0.01)) == ['dble']
  assert best(**dble, vanilla=shown('vanilla', 0.9, noise=0.01)) == []
  # Nor without any other method.
  assert best(**dble) == []
  # Where another method is the best, the best of them is its rival.
  assert best(**dble, vanilla=shown('vanilla', 0.95, noise=0.01)) == ['vanilla']


def test_lines_with_the_very_same_figures_share_the_bold():
  lines = {'vanilla': shown('vanilla', 0.9, 0.8),
           'trust_score': shown('trust_score', 0.9, 0.8),
           'mixup': shown('mixup', 0.5, 0.6)}
  assert best(**lines) == ['vanilla', 'trust_score']
  assert best(vanilla=lines['vanilla'], trust_score=lines['trust_score']) == []


def test_ensembles_do_not_take_part():
  assert best(vanilla=shown('vanilla', 0.8), mixup=shown('mixup', 0.7),
              deep_ensemble=shown('deep_ensemble', 0.9)) == ['vanilla']


def test_differences_are_of_the_seeds_of_both():
  first = shown('mixup', 0.9, 0.8, 0.1, seeds=[0, 1, 7])
  second = shown('vanilla', 0.7, 0.7, seeds=[1, 0])
  gap = significance.difference(first, second, 'accuracy')
  assert gap == pytest.approx((0.15, 0.15, 0.15))
  assert significance.difference(
      first, shown('vanilla', 0.7, seeds=[3]), 'accuracy') is None


def test_a_lead_that_other_seeds_made_is_not_bold():
  lines = {'mixup': shown('mixup', 0.6, 0.99, seeds=[0, 1]),
           'vanilla': shown('vanilla', 0.7, seeds=[0])}
  assert best(**lines) == []


def test_the_best_other_is_the_best_single_model_without_dble():
  lines = {'dble': shown('dble', 0.9), 'dble_as_printed': shown('dble', 0.8),
           'vanilla': shown('vanilla', 0.6), 'vanilla+T': shown('vanilla+T', 0.7),
           'deep_ensemble': shown('deep_ensemble', 0.95)}
  assert significance.best_other(lines, 'accuracy') == 'vanilla+T'
  assert significance.best_other(lines, 'ece') == 'vanilla'
  assert significance.best_other({'dble': lines['dble']}, 'ece') is None


def test_lines_without_a_figure_are_left_out_of_its_column():
  perfect = shown('vanilla', 0.9)
  run, = perfect.runs.values()
  run.resampled['failure_auroc'][:] = np.nan
  assert perfect.mean('failure_auroc') is None
  lines = {'vanilla': perfect, 'mixup': shown('mixup', 0.5)}
  assert best('failure_auroc', **lines) == []
  assert significance.best_other(lines, 'failure_auroc') == 'mixup'
  assert best('failure_auroc') == []
