"""A run's model -> its export, with its threshold and what the manifest says."""

import sys

from absl import flags

from dble_tf import evaluation
from dble_tf.classifier import Classifier
from dble_tf.data import Dataset
from dble_tf.errors import UserError
from dble_tf.serving import export
from dble_tf.serving import thresholds
from dble_tf.serving import warm_up

from ..settings import experiment
from . import report
from .workdir import Workdir


def target(values: flags.FlagValues, dataset: Dataset) -> thresholds.Target:
  """The target of the flags; refuses one that these data cannot give."""
  result = thresholds.Target(values.target_risk, values.target_coverage)
  result.check()
  if result.is_given and not len(dataset.threshold):
    raise UserError(
        '--target_risk and --target_coverage need images that nothing else was fitted '
        'or chosen on, and this run has none: '
        + ('train with --threshold_size, or with the target.'
           if len(dataset.validation) else 'hold some out with --validation_size.'))
  return result


def write(
    workdir: Workdir,
    model: Classifier,
    dataset: Dataset,
    settings: flags.FlagValues,
    target: thresholds.Target,
    predictions: dict[str, evaluation.Predictions],
) -> None:
  """Chooses the threshold and exports.

  Args:
    workdir: of the run, locked.
    model: trained and calibrated.
    dataset: with the splits of the run.
    settings: the run's flags.
    target: what the threshold is chosen for.
    predictions: by split: test, validation and threshold.
  """
  judged = {name: (split['label'] == split['true_label'], split['confidence'])
            for name, split in predictions.items()}
  threshold = thresholds.threshold(target, *judged.get('threshold', ([], [])))
  facts = {
      **report.facts(settings),
      'dataset': settings.dataset,
      'data_fingerprint': workdir.read_data()['fingerprint'],
      'flags': workdir.config.read_text().splitlines(),
      'metrics': {name: evaluation.figures(split)
                  for name, split in predictions.items() if name != 'threshold'},
  }
  if target.is_given:
    facts['abstention'] = {
        'target': {name: value for name, value in target._asdict().items()
                   if value is not None},
        'is_met': threshold != thresholds.NOTHING,
        **{name: thresholds.judge(threshold, *answers)
           for name, answers in judged.items()},
    }
  workdir.remove_incomplete()  # The directory is locked.
  export.export(
      model, workdir.export, dataset, name=experiment.name(settings),
      threshold=threshold, facts=facts)
  if threshold == thresholds.NOTHING:
    print(f'No threshold keeps the risk at {target.risk:g} on the '
          f'{len(dataset.threshold)} images of --threshold_size: the export accepts '
          'nothing.', file=sys.stderr)
  if not warm_up.is_possible():
    print(warm_up.MISSING, file=sys.stderr)
