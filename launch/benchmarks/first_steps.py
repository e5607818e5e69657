"""The first steps of a run in a process of its own: how long and how much memory.

  python -m launch.first_steps --flagfile=launch/mnist.flags

The data are random images of the experiment's size, so that nothing is downloaded.
The last line of the output is a JSON object; `launch.benchmark` reads it.
"""

import time

_start = time.perf_counter()

import json
import pathlib

import numpy as np
import tensorflow as tf
from absl import flags

from launch import entry
from launch import experiment
from launch import random_data

_imported = time.perf_counter()

FLAGS = flags.FLAGS

experiment.define_flags(FLAGS)
flags.DEFINE_integer('num_images', 50_000, 'Of the training set.', lower_bound=1)
flags.DEFINE_integer('image_size', None, "Pixels a side, if not the data set's.",
                     lower_bound=1)
flags.DEFINE_integer('num_predicted', 0, 'Images to be predicted after the first steps.',
                     lower_bound=0)
flags.mark_flag_as_required('dataset')


def main() -> None:
  moments = [time.perf_counter()]
  dataset = random_data.make(FLAGS.dataset, FLAGS.num_images, FLAGS.image_size)
  batch = next(iter(experiment.make_training_data(FLAGS, dataset)))
  moments.append(time.perf_counter())
  model = experiment.build_model(FLAGS, dataset)
  moments.append(time.perf_counter())
  for _ in range(2):
    model.fit(tf.data.Dataset.from_tensors(batch), shuffle=False, verbose=0)
    moments.append(time.perf_counter())
  if FLAGS.num_predicted:
    some = dataset.test.batches(FLAGS.batch_size)
    model.complete(some, some)
    images = np.resize(dataset.train.images, [
        FLAGS.num_predicted, *dataset.image_shape])
    model.predict(images, batch_size=FLAGS.batch_size, verbose=0)
  data, build, first, second = np.diff(moments)
  print(json.dumps({
      'import': _imported - _start,
      'data': data,
      'build': build,
      'trace': first - second,
      'step': second,
      'peak_memory': _peak_memory(),
  }))


def _peak_memory() -> int:
  """The most bytes that this process held, as Linux counts them.

  The resource module's figure would include what the process that started this one
  held before.
  """
  status = pathlib.Path('/proc/self/status').read_text()
  return int(status.partition('VmHWM:')[2].split()[0]) * 1024


if __name__ == '__main__':
  entry.run(main)
