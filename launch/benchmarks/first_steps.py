"""The first steps of a run in a process of its own: their time and memory.

  python -m launch.benchmarks.first_steps --flagfile=launch/mnist.flags

The data are random images of the experiment's size, so that nothing is downloaded.
The last line of the output is a JSON object; `measurements` reads it.
"""

import json
import pathlib
import time

from absl import flags

from ..cli import entry
from ..cli.groups import group
from ..settings import experiment

FLAGS = flags.FLAGS

with group('run', FLAGS):
  flags.DEFINE_integer('num_images', 50_000, 'Training images.', lower_bound=1)
  flags.DEFINE_integer(
      'image_size', None, "Height and width (default: the data set's).", lower_bound=1)
  flags.DEFINE_integer(
      'num_predicted', 0, 'Images to predict after the first steps.', lower_bound=0)
experiment.define_flags(FLAGS)
experiment.require_dataset(FLAGS)


def main() -> None:
  moments = [time.perf_counter()]
  import numpy as np
  import tensorflow as tf

  from ..runs import build
  from . import random_data
  moments.append(time.perf_counter())
  dataset = random_data.make(FLAGS.dataset, FLAGS.num_images, FLAGS.image_size)
  batch = next(iter(build.make_training_data(FLAGS, dataset)))
  moments.append(time.perf_counter())
  model = build.build_model(FLAGS, dataset)
  moments.append(time.perf_counter())
  for _ in range(2):
    model.fit(tf.data.Dataset.from_tensors(batch), shuffle=False, verbose=0)
    moments.append(time.perf_counter())
  if FLAGS.num_predicted:
    some = dataset.test.batches(FLAGS.batch_size)
    model.calibrate(some, some)
    images = np.resize(dataset.train.images, [
        FLAGS.num_predicted, *dataset.image_shape])
    model.predict(images, batch_size=FLAGS.batch_size, verbose=0)
  imports, data, building, first, second = np.diff(moments)
  print(json.dumps({
      'import': imports,
      'data': data,
      'build': building,
      'trace': first - second,
      'step': second,
      'peak_memory': _peak_memory(),
  }))


def _peak_memory() -> int:
  """The peak resident memory of this process in bytes, as Linux counts it.

  The figure of the resource module would include memory that the parent process held
  before.
  """
  status = pathlib.Path('/proc/self/status').read_text()
  return int(status.partition('VmHWM:')[2].split()[0]) * 1024


if __name__ == '__main__':
  entry.run(main)
