"""The runs of rows -> tables and plots in the directory of a comparison."""

import json
from collections.abc import Callable, Mapping

from absl import flags
from etils import epath

from dble_tf import files
from dble_tf import plots

from ..settings import experiment
from . import answers
from . import paper
from . import rows
from . import significance
from . import table
from . import tuning

_BOLD = (
    'Bold: the best single model, where the 95 % interval of its difference to the '
    f'second best (paired bootstrap, {answers.NUM_RESAMPLES:,} resamples of the test '
    'images) excludes zero; lines of one method are not compared with each other. ECE '
    'floor: the mean ECE of a perfectly calibrated model with the same confidences.')
_PANELS = {
    'vanilla': 'vanilla training', 'dble_no_held_out': 'DBLE, no held-out data',
    'dble': 'DBLE'}
_TEMPERATURE = '+ T: with a temperature, fitted on the validation images. '


def write(
    values: flags.FlagValues,
    root: epath.Path,
    runs: Mapping[str, Mapping[int, epath.Path | None]],
    measure: Callable[[epath.Path, rows.Line], answers.Measured] = answers.measure,
) -> list[epath.Path]:
  """Writes the table and the plot of the runs so far, and returns their paths.

  Args:
    values: the flags of the comparison.
    root: its directory.
    runs: row -> seed -> the directory of a finished run, or None for a failed one.
    measure: `answers.measure`, or the same with a cache.
  """
  measured = {
      name: {seed: path and measure(path, line)
             for seed, path in runs[line.row].items()}
      for name, line in rows.lines(values, runs).items() if runs[line.row]}
  shown = {
      name: significance.Shown(
          rows.LINES[name], {seed: run for seed, run in seeds.items() if run})
      for name, seeds in measured.items()}
  bold = {figure: significance.best(shown, figure) for figure in significance.FIGURES}
  # The paper trained on all images.
  reported = {} if values.train_size else paper.figures(
      values.dataset, values.encoder)
  lines = {
      name: table.make_line(
          _title(values, shown[name].line),
          {seed: run and {**run.figures, 'ece_floor': run.ece_floor[0]}
           for seed, run in seeds.items()},
          reported.get(name), shown[name].line.is_single,
          [figure for figure, names in bold.items() if name in names])
      for name, seeds in measured.items()}
  stem = 'ablation' if rows.is_ablation(values) else 'table'
  paths = _write_table(
      root, stem, shown, lines, _against(values, shown), _caption(values, shown))
  return paths if rows.is_ablation(values) else [*paths, *_write_diagram(root, runs)]


def _title(values, line):
  """A line's title, with those settings of its row that it does not show itself."""
  tuned = tuning.settings(values, line.row)
  shown = {name for name, setting in tuned.items() if line.full_title(
      experiment.changed(values, **{name: setting})) != line.full_title(values)}
  return ', '.join([line.full_title(experiment.changed(values, **tuned)), *(
      f'{name.replace("_", " ")} {setting}' for name, setting in tuned.items()
      if name not in shown and setting != values[name].value)])


def _against(values, shown):
  """DBLE, as the table's main line has it, against the best of the other methods."""
  dble = shown.get('dble_as_printed' if rows.is_ablation(values) else 'dble')
  found = []
  for figure in significance.FIGURES if dble else ():
    other = significance.best_other(shown, figure)
    gap = other and significance.difference(dble, shown[other], figure)
    if gap:
      found.append(
          table.Against(figure, _title(values, shown[other].line), gap))
  return found


def _caption(values, shown):
  count = len({one.line.row for one in shown.values()})
  finished = [one for one in shown.values() if one.runs]
  num_images = {run.num_images for one in finished for run in one.runs.values()}
  text = (f'{experiment.name(values)}: {count} method{"s" if count > 1 else ""} on '
          + ''.join(f'{number:,} ' for number in num_images)
          + f'test images of {values.dataset} with {values.encoder}, '
          f'{values.epochs * values.steps_per_epoch:,} steps')
  counts = {len(one.runs) for one in finished if one.line.is_single}
  if counts == {1}:
    text += ', one seed'
  elif counts:
    up_to = 'up to ' if len(counts) > 1 else ''
    text += f', mean ± standard deviation over {up_to}{max(counts)} seeds'
  has_temperature = any(one.line.has_temperature for one in shown.values())
  return f'{text}. {_TEMPERATURE if has_temperature else ""}{_BOLD}'


def _write_table(root, stem, shown, lines, against, caption):
  texts = {
      'md': table.markdown(list(lines.values()), caption, against),
      'tex': table.latex(list(lines.values()), caption, against),
      'json': json.dumps({
          'caption': caption,
          'lines': {name: {**line._asdict(), 'runs': {
              seed: _as_json(run) for seed, run in shown[name].runs.items()}}
                    for name, line in lines.items()},
          'dble_against_best_other': {
              figure: {'other': other, **gap._asdict()}
              for figure, other, gap in against},
      }, indent=2) + '\n',
  }
  paths = [root / f'{stem}.{extension}' for extension in texts]
  for path, text in zip(paths, texts.values()):
    with files.replacing(path) as temporary:
      temporary.write_text(text)
  finished = [line for line in lines.values() if line.mean]
  if finished:
    paths.append(root / f'{stem}.png')
    plots.comparison(paths[-1], {
        line.title: {name: (line.mean[name], line.deviation.get(name, 0.0))
                     for name in ('accuracy', 'ece', 'nll')}
        for line in finished})
  return paths


def _write_diagram(root, runs):
  """Plots the reliability of vanilla training and of DBLE, of one seed."""
  finished = {row: {seed for seed, path in runs.get(row, {}).items() if path}
              for row in ('vanilla', 'dble')}
  common = finished['vanilla'] & finished['dble']
  if not common:
    return []
  seed, path = min(common), root / 'reliability.png'
  plots.reliability_diagram(path, {
      f'{title}, seed {seed}': answers.read(
          runs[rows.LINES[name].row][seed], rows.LINES[name], 'test')[0]
      for name, title in _PANELS.items()})
  return [path]


def _as_json(run):
  mean, percentile = run.ece_floor
  return {**run.figures, 'temperature': run.temperature, 'ece_floor': mean,
          'ece_floor_95': percentile}
