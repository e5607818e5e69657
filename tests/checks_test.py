import keras
import pytest
import tensorflow as tf

from dble_tf import checks
from dble_tf.errors import UserError


def test_the_size_of_a_vector_is_that_of_the_last_layer():
  model = keras.Sequential([keras.Input([2]), keras.layers.Dense(5)])
  assert checks.vector_size('encoder', model) == 5


def test_a_model_without_input_shape_or_vector_is_refused_by_its_role():
  with pytest.raises(UserError, match='The encoder has no known input shape'):
    checks.vector_size('encoder', keras.Sequential([keras.layers.Dense(5)]))
  image = keras.Sequential([keras.Input([2, 2, 1]), keras.layers.ReLU()])
  with pytest.raises(UserError, match=r'must give a vector per image; .*\(2, 2, 1\)'):
    checks.vector_size('encoder', image)


@pytest.mark.parametrize('size, num_replicas', [(6, 1), (6, 2), (6, 3), (5, 1)])
def test_replicas_share_batches_that_they_divide(size, num_replicas):
  checks.require_equal_parts(
      tf.data.Dataset.from_tensors(tf.zeros([size, 2])), num_replicas)


# Functions: TensorFlow must be idle while modules are imported.
@pytest.mark.parametrize('batches, problem', [
    (lambda: tf.data.Dataset.from_tensors(tf.zeros([6, 2])), 'share 6 episodes'),
    (lambda: tf.data.Dataset.from_tensors([0.0, 0.0]).batch(8), 'drop_remainder=True'),
    (lambda: tf.zeros([8, 2]), 'drop_remainder=True'),
])
def test_batches_without_equal_parts_are_refused(batches, problem):
  with pytest.raises(UserError, match=problem):
    checks.require_equal_parts(batches(), 4)


@pytest.mark.parametrize('shape, num_shots, problem', [
    ([2, 3], 1, 'takes episodes'),
    ([2, 3, None, 4], 1, 'fixed size'),
    (None, 1, 'takes episodes'),
    ([2, 3, 1, 4], None, 'single image a class'),
    ([2, 3, 4, 4], 4, 'no query is left'),
])
def test_episodes_without_supports_and_queries_are_refused(shape, num_shots, problem):
  with pytest.raises(UserError, match=problem):
    checks.require_episodes(tf.TensorShape(shape), num_shots)


def test_the_batch_of_episodes_may_have_any_size():
  checks.require_episodes(tf.TensorShape([None, 3, 4, 8, 8, 1]), 2)
