"""What a comparison consists of: its rows, their runs, and the tables."""

import json
import signal
import subprocess
import sys

from absl import flags
from etils import epath

from dble_tf import files
from dble_tf import plots
from dble_tf.errors import UserError
from launch import devices
from launch import entry
from launch import experiment
from launch import methods
from launch import paper
from launch import preemption
from launch import table
from launch.workdir import Workdir

_AS_PRINTED = {'method': 'dble', 'scaling': 'none'}
# The rows that a table can have: title and settings.
ROWS = {
    'vanilla': ('vanilla training', {}),
    'mc_dropout': ('MC-dropout', {}),
    'temperature_scaling': ('temperature scaling', {}),
    'label_smoothing': ('label smoothing', {}),
    'mixup': ('mixup', {}),
    'trust_score': ('TrustScore', {}),
    'vanilla_errors': ('learning from errors in vanilla training', {}),
    'prototypical': ('DBLE without confidence model', {}),
    'dble_all': (
        'DBLE as printed, calibration learned from all samples',
        {**_AS_PRINTED, 'confidence_candidates': ['all+raw_input']}),
    'dble_errors': (
        'DBLE as printed',
        {**_AS_PRINTED, 'confidence_candidates': ['raw_input']}),
    'dble': ('DBLE', {}),
    'deep_ensemble': ('deep ensemble', {}),
}
GROUPS = {
    'all': [row for row in ROWS
            if row not in ('vanilla_errors', 'prototypical', 'dble_all', 'dble_errors')],
    'ablation': ['vanilla', 'vanilla_errors', 'dble_all', 'dble_errors'],
}


def requested_rows(values: flags.FlagValues) -> list[str]:
  """The rows of --methods, each once, bases before what builds on them."""
  if values['method'].present:
    raise UserError(
        '--method is set for each row here: leave it out, and choose rows with '
        '--methods.')
  asked = {row for name in values.methods for row in GROUPS.get(name, [name])}
  unknown = sorted(asked - set(ROWS))
  if unknown or not asked:
    raise UserError(
        f'There is no method "{", ".join(unknown)}": --methods takes '
        f'{", ".join([*GROUPS, *ROWS])}.')
  return [row for row in ROWS if row in asked]


class Run:
  """One row's run with one seed."""

  def __init__(
      self, values: flags.FlagValues, names: list[str], root: epath.Path, row: str,
      seed: int,
  ):
    """Describes a run.

    Args:
      values: the comparison's flags.
      names: of those that are settings of a run.
      root: the comparison's directory.
      row: a key of `ROWS`.
      seed: of the run.
    """
    self.row = row
    self.seed = seed
    self.workdir = Workdir(root / f'{row}-{seed}')
    _, settings = ROWS[row]
    own_values = experiment.changed(
        values, **{'method': row, **settings, 'seed': seed})
    self.config = experiment.config(own_values, names)
    self._device_arguments = devices.arguments(values)
    # The run whose network can be taken.
    base = methods.METHODS[own_values.method].base
    self.base = Run(values, names, root, base, seed) if base else None

  @property
  def is_finished(self) -> bool:
    return self.workdir.is_finished and self.workdir.holds(self.config)

  def check(self) -> None:
    """Refuses a directory with another run before anything is trained."""
    self.workdir.check()
    self.workdir.require(self.config, 'or remove it')

  def train(self) -> None:
    """Trains in a process of its own, so that a crash there ends nothing here."""
    command = [sys.executable, '-m', 'launch.train', *self.config.split('\n')[:-1],
               *self._device_arguments, f'--workdir={self.workdir.path}']
    if self.base is not None and self.base.is_finished:
      command.append(f'--trained_run={self.base.workdir.path}')
    process = subprocess.Popen(command)
    try:
      code = process.wait()
    except preemption.Preempted:
      process.terminate()  # It saves, then ends.
      process.wait()
      raise
    except BaseException:
      process.kill()
      process.wait()
      raise
    if code == preemption.EXIT_CODE:
      raise preemption.Preempted
    if code in (entry.INTERRUPTED, -signal.SIGINT):
      raise KeyboardInterrupt
    if code:
      print(f'{self.row}, seed {self.seed}: failed with exit code {code}',
            file=sys.stderr)

  def read(self) -> dict | None:
    """What metrics.json holds, or None where there is none."""
    return self.workdir.read_metrics() if self.is_finished else None


def write(
    values: flags.FlagValues, root: epath.Path,
    results: dict[str, dict[int, dict | None]],
) -> list[epath.Path]:
  """Writes the tables and plots of the runs so far, and returns their paths.

  Args:
    values: the comparison's flags.
    root: where to.
    results: row -> seed -> what metrics.json holds, or None where the run failed.
  """
  caption = (
      f'{experiment.name(values)}: test figures on {values.dataset} with '
      f'{values.encoder}, {values.epochs * values.steps_per_epoch:,} steps, mean and '
      'standard deviation over runs with different seeds')
  baseline = [run for run in results.get('vanilla', {}).values() if run is not None]
  reported = paper.figures(values.dataset, values.encoder)
  rows = {
      row: table.make_row(
          ROWS[row][0], runs, baseline, reported.get(row, {}),
          is_single=row != 'deep_ensemble')
      for row, runs in results.items() if runs}
  stem = 'ablation' if values.methods == ['ablation'] else 'table'
  paths = _write_table(
      root, stem, rows, results,
      f'{caption}; time of training, validations and all confidence models included, '
      'and number of trained parameters that answers come from, relative to vanilla '
      'training.')
  parts = parts_of(results.get('dble', {}))
  if parts:
    rows = {title: table.make_row(title, runs, [], {}, is_single=True)
            for title, runs in parts.items()}
    paths += _write_table(
        root, 'parts', rows, parts,
        f'{caption}; the same encoders with different kinds of sigma.')
  return paths


def parts_of(runs: dict[int, dict | None]) -> dict[str, dict[int, dict]]:
  """The parts of DBLE's runs, title -> seed -> what metrics.json holds of it."""
  titles = {
      'none': '', 'temperature': ', temperature', 'sigma_scale': ', scaled',
      'sigma_scale_and_temperature': ', scaled, temperature'}
  parts = {}
  for seed, run in runs.items():
    for part in (run or {}).get('parts', []):
      kind = {'none': 'no sigma', 'constant': 'constant sigma'}.get(
          part['sigma'], f'sigma of "{part["sigma"]}"')
      parts.setdefault(kind + titles[part['scaling']], {})[seed] = part
  return parts


def _write_table(root, stem, rows, runs, caption):
  texts = {
      'md': table.markdown(list(rows.values()), caption),
      'tex': table.latex(list(rows.values()), caption),
      'json': json.dumps({
          'caption': caption,
          'rows': {row: line._asdict() for row, line in rows.items()},
          'runs': runs}, indent=2) + '\n',
  }
  paths = [root / f'{stem}.{extension}' for extension in texts]
  for path, text in zip(paths, texts.values()):
    with files.replacing(path) as temporary:
      temporary.write_text(text)
  shown = {line.title: line for line in rows.values() if line.mean}
  if shown:
    paths.append(root / f'{stem}.png')
    plots.comparison(paths[-1], {
        title: {name: (line.mean[name], line.deviation.get(name, 0.0))
                for name in ('accuracy', 'ece', 'nll')}
        for title, line in shown.items()})
  return paths
