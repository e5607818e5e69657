"""A sweep: rows with several values of their flags, judged on validation images."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from absl import flags
from etils import epath

from dble_tf import evaluation
from dble_tf import files
from dble_tf.errors import UserError

from ..settings import experiment
from . import answers
from . import rows
from . import series
from . import table
from . import tuning
from .row_run import RowRun

_FIGURES = ('accuracy', 'ece', 'nll')


class Try(NamedTuple):
  """Values of the flags that are swept.

  Attributes:
    arguments: such as '--num_shots=1 --num_queries=9'.
    directory: the name of its directory.
    values: all flags, with these values.
  """

  arguments: str
  directory: str
  values: flags.FlagValues


class Trial(NamedTuple):
  """A try with one row.

  Attributes:
    row: a key of `ROWS`.
    arguments: of the try.
    runs: one for each seed.
  """

  row: str
  arguments: str
  runs: tuple[RowRun, ...]


def run(
    values: flags.FlagValues, names: list[str], root: epath.Path,
    requested: Sequence[str],
) -> None:
  """Trains every row with every value and writes sweep.md and sweep.json.

  Args:
    values: the flags.
    names: of those that are settings of a run.
    root: the directory of the comparison.
    requested: rows.
  """
  if not rows.has_validation(values):
    raise UserError(
        '--sweep compares figures on validation images: hold some out with '
        '--validation_size.')
  count = values.seeds if values['seeds'].present else 1
  trials = [
      Trial(row, one.arguments, tuple(
          RowRun(one.values, names, root / one.directory, row, seed, one.arguments)
          for seed in range(values.seed, values.seed + count)))
      for row in requested for one in parse(values, names)]
  _require_different(trials)
  runs = series.with_bases(run for trial in trials for run in trial.runs)

  def write(tried):
    return _write(values, root, trials, {run.workdir.path for run in tried})

  series.train(root, runs, write)


def parse(values: flags.FlagValues, names: Sequence[str]) -> list[Try]:
  """The tries of --sweep, such as flag:value,value or flag+flag:value+value.

  Args:
    values: the flags.
    names: of those that are settings of a run.
  """
  flag_text, colon, value_text = values.sweep.partition(':')
  swept = flag_text.split('+')
  tuning.require_settings('sweep', swept, names)
  if not (colon and value_text):
    raise UserError(
        f'--sweep={values.sweep} has no values: give them as in '
        '--sweep=label_smoothing:0.02,0.05,0.1')
  tries = []
  for text in value_text.split(','):
    texts = text.split('+')
    if len(texts) != len(swept):
      raise UserError(
          f'--sweep has {len(swept)} flags and "{text}" has {len(texts)} values: give '
          'one for each, as in --sweep=num_shots+num_queries:1+9,5+5')
    tries.append(Try(
        ' '.join(f'--{name}={one}' for name, one in zip(swept, texts)),
        f'sweep-{flag_text}-{text.replace("/", "-")}',
        experiment.changed(
            values, **tuning.parsed('sweep', values, zip(swept, texts)))))
  return tries


def _require_different(trials):
  """Refuses values that make no difference to a row."""
  first = {}
  for row, arguments, (run, *_) in trials:
    other = first.setdefault((row, run.config), arguments)
    if other != arguments:
      raise UserError(
          f'{row} is the same with {other} and {arguments}: leave this method or that '
          'flag out.')


def _write(values, root, trials, tried) -> list[epath.Path]:
  """Writes the figures of finished runs, and of those tried in vain."""
  series.require_same_data(
      [run for trial in trials for run in trial.runs if run.is_finished])
  runs = {
      trial: {run.seed: _figures(run) if run.is_finished else None
              for run in trial.runs if run.is_finished or run.workdir.path in tried}
      for trial in trials}
  lines = {trial: table.make_line(f'{trial.row} {trial.arguments}', seeds)
           for trial, seeds in runs.items() if seeds}
  best = _best(lines)
  lines = {trial: line._replace(bold=['nll'] if best.get(trial.row) is trial else [])
           for trial, line in lines.items()}
  caption = (
      f'{experiment.name(values)}: figures on validation images of {values.dataset} '
      f'with {values.encoder}, {values.epochs * values.steps_per_epoch:,} steps, after '
      'the fit of temperature or scaling on the same images. Bold: the lowest NLL of '
      'each method.')
  choice = ''.join(f'\nLowest NLL of {row}: {trial.arguments}\n'
                   for row, trial in best.items())
  texts = {
      'md': table.markdown(list(lines.values()), caption) + choice,
      'json': json.dumps({
          'caption': caption,
          'best': {row: trial.arguments for row, trial in best.items()},
          'tries': [{'row': trial.row, 'arguments': trial.arguments,
                     **line._asdict(), 'runs': runs[trial]}
                    for trial, line in lines.items()],
      }, indent=2) + '\n'}
  paths = [root / f'sweep.{extension}' for extension in texts]
  for path, text in zip(paths, texts.values()):
    with files.replacing(path) as temporary:
      temporary.write_text(text)
  return paths


def _figures(run):
  """Those on validation images, of the row's last line: with all that is fitted."""
  *_, line = (line for line in rows.LINES.values() if line.row == run.row)
  predictions, _ = answers.read(run.workdir.path, line, 'validation')
  figures = evaluation.figures(predictions)
  return {name: figures[name] for name in _FIGURES}


def _best(lines) -> dict[str, Trial]:
  """Row -> the trial of the lowest NLL."""
  best = {}
  for trial, line in lines.items():
    if line.mean and (trial.row not in best
                      or line.mean['nll'] < lines[best[trial.row]].mean['nll']):
      best[trial.row] = trial
  return best
