"""The finished runs of --trained_runs, whose networks another run takes."""

from absl import flags

from dble_tf.errors import UserError

from ..settings import choices
from ..settings import experiment
from .workdir import Workdir


def find(values: flags.FlagValues, names: list[str]) -> list[Workdir]:
  """The runs that are named, none without the flag; refuses those that do not fit.

  Args:
    values: the flags of the run that takes the networks.
    names: of those that are settings of a run.
  """
  runs = [Workdir(path) for path in values.trained_runs]
  if not runs:
    return []
  method = choices.METHODS[values.method]
  if method.base is None:
    raise UserError(f'{values.method} has to be trained: leave --trained_runs out.')
  expected = values[method.num_bases].value if method.num_bases else 1
  if len(runs) != expected:
    raise UserError(
        f'{values.method} takes the networks of {expected} '
        f'run{"s" if expected > 1 else ""}, and --trained_runs names {len(runs)}: name '
        + (f'as many as --{method.num_bases}.' if method.num_bases else 'one.'))
  seeds = [_seed(run) for run in runs] if method.num_bases else [values.seed]
  for run, seed in zip(runs, seeds):
    config = experiment.config(
        experiment.changed(values, method=method.base, seed=seed), names)
    if not (run.is_finished and run.holds(config) and 'seconds' in run.read_metrics()):
      raise UserError(
          f'{run.path} does not hold a finished run of --method={method.base} with '
          'otherwise the same settings: leave --trained_runs out, or train such a run.')
  if len(set(seeds)) < len(seeds):
    raise UserError(
        f'--trained_runs names runs of the seeds {", ".join(map(str, seeds))}: name '
        'runs of different ones.')
  return runs


def _seed(run):
  """That of the run, or None if there is none."""
  return experiment.of_run(run.config).seed if run.config.exists() else None
