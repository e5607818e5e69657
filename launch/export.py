"""Exports the model of a finished run once more, as a new version for TF Serving.

  python -m launch.export --workdir=runs/digits --target_risk=0.01
"""

from absl import flags

from dble_tf.serving import export
from launch import entry
from launch import experiment
from launch import exporting
from launch import workdir as workdirs

FLAGS = flags.FLAGS

flags.DEFINE_string('workdir', None, 'Directory of the run.')
flags.DEFINE_string(
    'data_dir', None, "Where TFDS keeps its data, if no longer where it was.")
exporting.define_flags(FLAGS)
flags.mark_flag_as_required('workdir')


def main() -> None:
  workdir = workdirs.Workdir(FLAGS.workdir)
  workdir.require_model()
  with workdir.lock():
    model = workdir.load_model()
    settings = experiment.of_run(workdir.config, FLAGS.data_dir)
    dataset = experiment.load_dataset(settings)
    target = exporting.target(FLAGS, dataset)
    exporting.write(workdir, model, dataset, settings, target)
  print((export.versions(workdir.export)[-1] / 'README.md').read_text())
  print(f'SavedModel {export.versions(workdir.export)[-1]}')


if __name__ == '__main__':
  entry.run(main)
