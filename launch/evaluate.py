"""Computes the figures of a finished run again, from its saved model.

  python -m launch.evaluate --workdir=runs/digits
"""

from absl import flags

from launch import entry
from launch import experiment
from launch import report
from launch import workdir as workdirs

FLAGS = flags.FLAGS

flags.DEFINE_string('workdir', None, 'Directory of the run.')
flags.DEFINE_string(
    'data_dir', None, "Where TFDS keeps its data, if no longer where it was.")
flags.mark_flag_as_required('workdir')


def main() -> None:
  workdir = workdirs.Workdir(FLAGS.workdir)
  workdir.require_model()
  with workdir.lock():
    workdir.remove_incomplete()
    model = workdir.load_model()
    settings = experiment.of_run(workdir.config, FLAGS.data_dir)
    facts = report.facts(settings)
    if workdir.is_finished:
      facts.update(workdir.read_metrics())
    report.write(
        workdir, model, experiment.load_dataset(settings), settings.batch_size, facts)
  report.show(workdir)


if __name__ == '__main__':
  entry.run(main)
