"""The figures of runs -> tables and plots in the directory of a comparison."""

import json
from collections.abc import Mapping

from absl import flags
from etils import epath

from dble_tf import files
from dble_tf import plots

from ..settings import experiment
from . import paper
from . import table
from .rows import ROWS

# By seed: what metrics.json holds, or None for a failed run.
Runs = Mapping[int, dict | None]

_SIGMAS = {'none': 'no sigma', 'constant': 'constant sigma', 'learned': 'learned sigma'}
_SCALINGS = {
    'none': '', 'temperature': ', temperature', 'sigma_scale': ', scaled',
    'sigma_scale_and_temperature': ', scaled, temperature'}


def write(
    values: flags.FlagValues, root: epath.Path, figures: Mapping[str, Runs]
) -> list[epath.Path]:
  """Writes the tables and plots of the runs so far, and returns their paths.

  Args:
    values: the flags of the comparison.
    root: its directory.
    figures: the runs of each row.
  """
  baseline = [run for run in figures.get('vanilla', {}).values() if run is not None]
  reported = paper.figures(values.dataset, values.encoder)
  lines = {
      row: table.make_line(ROWS[row].title, runs, baseline, reported.get(row, {}),
                           ROWS[row].is_single)
      for row, runs in figures.items() if runs}
  note = ('; time, with validation and calibration, and number of parameters used at '
          'inference, relative to vanilla training' if baseline else '')
  stem = 'ablation' if values.methods == ['ablation'] else 'table'
  paths = _write_table(root, stem, lines, figures, _caption(values, lines, note))
  parts = _parts(figures.get('dble', {}))
  if parts:
    lines = {title: table.make_line(title, runs, [], {})
             for title, runs in parts.items()}
    note = '; the same encoders with different kinds of sigma'
    paths += _write_table(root, 'parts', lines, parts, _caption(values, lines, note))
  return paths


def _caption(values, lines, note):
  counts = {len(line.seeds) for line in lines.values() if line.seeds}
  text = (f'{experiment.name(values)}: test figures on {values.dataset} with '
          f'{values.encoder}, {values.epochs * values.steps_per_epoch:,} steps')
  if counts == {1}:
    text += ', one seed'
  elif counts:
    up_to = 'up to ' if len(counts) > 1 else ''
    text += f', mean and standard deviation over {up_to}{max(counts)} seeds'
  return f'{text}{note}.'


def _parts(runs: Runs) -> dict[str, dict[int, dict]]:
  """The parts of DBLE's runs: title -> seed -> its entry in metrics.json."""
  parts = {}
  for seed, run in runs.items():
    for part in (run or {}).get('parts', []):
      title = _SIGMAS[part['sigma']] + _SCALINGS[part['scaling']]
      parts.setdefault(title, {})[seed] = part
  return parts


def _write_table(root, stem, lines, runs, caption):
  texts = {
      'md': table.markdown(list(lines.values()), caption),
      'tex': table.latex(list(lines.values()), caption),
      'json': json.dumps({
          'caption': caption,
          'rows': {row: line._asdict() for row, line in lines.items()},
          'runs': runs}, indent=2) + '\n',
  }
  paths = [root / f'{stem}.{extension}' for extension in texts]
  for path, text in zip(paths, texts.values()):
    with files.replacing(path) as temporary:
      temporary.write_text(text)
  shown = [line for line in lines.values() if line.mean]
  if shown:
    paths.append(root / f'{stem}.png')
    plots.comparison(paths[-1], {
        line.title: {name: (line.mean[name], line.deviation.get(name, 0.0))
                     for name in ('accuracy', 'ece', 'nll')}
        for line in shown})
  return paths
