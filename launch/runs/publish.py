"""A run's model -> its export: flags for that, and what the export says of the run."""

import sys

from absl import flags

from dble_tf.serving import thresholds
from dble_tf import data as datasets
from dble_tf import evaluation
from dble_tf.serving import export
from dble_tf.serving import warm_up
from dble_tf.classifier import Classifier
from dble_tf.errors import UserError
from launch import experiment
from launch import report
from launch.workdir import Workdir

flags.disclaim_key_flags()


def define_flags(values: flags.FlagValues) -> None:
  """Defines what decides which answers an export accepts."""
  flags.DEFINE_float(
      'target_risk', None, 'The share of wrong labels among accepted answers that the '
      'export may have on validation images, such as 0.01. It accepts all answers '
      'where no target is given.', lower_bound=0, upper_bound=1, flag_values=values)
  flags.DEFINE_float(
      'target_coverage', None, 'In place of --target_risk: the share of answers that '
      'it accepts at least.', lower_bound=0, upper_bound=1, flag_values=values)


def target(values: flags.FlagValues, dataset: datasets.Dataset) -> thresholds.Target:
  """What the flags ask for; refuses what these data cannot give."""
  result = thresholds.Target(values.target_risk, values.target_coverage)
  result.check()
  if result.is_given and not len(dataset.validation):
    raise UserError(
        '--target_risk and --target_coverage need images that the encoder was not '
        'trained on: hold some out with --validation_size.')
  return result


def write(
    workdir: Workdir,
    model: Classifier,
    dataset: datasets.Dataset,
    settings: flags.FlagValues,
    target: thresholds.Target,
) -> None:
  """Chooses the threshold, exports and says what is to be minded.

  Args:
    workdir: of the run, locked.
    model: trained and completed.
    dataset: with the splits of the run.
    settings: the run's flags.
    target: what the threshold is chosen for.
  """
  model.require_complete()
  predictions = {
      name: evaluation.predict(
          model, split, settings.batch_size, int(sys.stdout.isatty()))
      for name, split in (('validation', dataset.validation), ('test', dataset.test))
      if len(split)}
  judged = {name: (split['label'] == split['true_label'], split['confidence'])
            for name, split in predictions.items()}
  threshold = thresholds.threshold(target, *judged.get('validation', ([], [])))
  facts = {
      **report.facts(settings),
      'dataset': settings.dataset,
      'flags': workdir.config.read_text().splitlines(),
      'metrics': {name: evaluation.figures(split)
                  for name, split in predictions.items()},
  }
  if target.is_given:
    facts['abstention'] = {
        'target': {name: value for name, value in target._asdict().items()
                   if value is not None},
        'is_met': threshold != thresholds.NOTHING,
        **{name: thresholds.judge(threshold, *answers)
           for name, answers in judged.items()},
    }
  name = export.model_name(experiment.name(settings))
  workdir.remove_incomplete()  # No other process is at work here.
  export.export(
      model, workdir.export, name=name, class_names=dataset.class_names,
      threshold=threshold, examples=dataset.test.images[:warm_up.BATCH_SIZES[-1]],
      facts=facts)
  if threshold == thresholds.NOTHING:
    print(f'No confidence holds the risk at {target.risk:g} on the validation images: '
          'the export accepts nothing.', file=sys.stderr)
  if not warm_up.is_possible():
    print(warm_up.MISSING, file=sys.stderr)
