import time

import tensorflow as tf
from etils import epath
from tensorboard.backend.event_processing import plugin_event_accumulator

from dble_tf.training import events


def write(directory, first_step, values):
  if any(directory.iterdir()):
    time.sleep(1.0)  # Processes begin in different seconds, which name their files.
  writer = events.open_writer(epath.Path(directory), first_step)
  with writer.as_default():
    for step, value in enumerate(values, first_step):
      tf.summary.scalar('loss', value, step)
  writer.close()


class Reader:
  """TensorBoard, open on a directory."""

  def __init__(self, directory):
    self._events = plugin_event_accumulator.EventAccumulator(str(directory))

  def read(self):
    return [(event.step, tf.make_ndarray(event.tensor_proto).item())
            for event in self._events.Reload().Tensors('loss')]


def test_steps_from_the_first_on_are_discarded_from_earlier_files(tmp_path):
  write(tmp_path, 0, [1.0, 2.0, 3.0, 4.0])
  write(tmp_path, 2, [5.0])
  assert Reader(tmp_path).read() == [(0, 1.0), (1, 2.0), (2, 5.0)]


def test_a_run_can_be_continued_again_and_from_its_beginning(tmp_path):
  write(tmp_path, 0, [1.0, 2.0, 3.0])
  write(tmp_path, 1, [4.0, 5.0])
  write(tmp_path, 3, [6.0])
  assert Reader(tmp_path).read() == [(0, 1.0), (1, 4.0), (2, 5.0), (3, 6.0)]
  write(tmp_path, 0, [7.0])
  assert Reader(tmp_path).read() == [(0, 7.0)]


def test_an_open_tensorboard_discards_them_too(tmp_path):
  write(tmp_path, 0, [1.0, 2.0, 3.0])
  reader = Reader(tmp_path)
  assert reader.read() == [(0, 1.0), (1, 2.0), (2, 3.0)]
  write(tmp_path, 1, [4.0])
  assert reader.read() == [(0, 1.0), (1, 4.0)]


def test_a_new_run_has_one_file(tmp_path):
  write(tmp_path, 0, [1.0])
  assert len(list(tmp_path.iterdir())) == 1


def profile(directory, first, last, num_steps):
  profiler = events.Profiler(epath.Path(directory), first, last)
  for _ in range(num_steps):
    profiler.begin_step()
    tf.reduce_sum(tf.ones([3]))
    profiler.end_step()
  profiler.stop()
  return len(list(directory.glob('plugins/profile/*/*.xplane.pb')))


def test_a_profile_is_written_where_its_range_or_training_ends(tmp_path):
  assert profile(tmp_path / 'within', 2, 3, num_steps=5) == 1
  assert profile(tmp_path / 'at the end', 2, 3, num_steps=3) == 1
  assert profile(tmp_path / 'cut short', 2, 9, num_steps=3) == 1
  assert profile(tmp_path / 'not reached', 5, 9, num_steps=3) == 0
  assert profile(tmp_path / 'none', 0, 0, num_steps=3) == 0
