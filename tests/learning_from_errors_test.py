"""What model_test and vanilla_errors_test do not show: the choice of samples."""

import keras
import numpy as np
import pytest

from dble_tf import confidence
from dble_tf.errors import UserError
from dble_tf.model import DBLE


def make_model(confidence_training):
  keras.utils.set_random_seed(0)
  encoder = keras.Sequential([
      keras.Input([2, 1, 1], dtype='uint8'), keras.layers.Rescaling(0.01),
      keras.layers.Flatten()])
  model = DBLE(
      encoder, confidence.confidence_mlp(2, dropout=0.0, weight_decay=0.0), 2,
      num_shots=1, confidence_training=confidence_training)
  model.compile(keras.optimizers.SGD(0.0), keras.optimizers.SGD(0.1))
  return model


def episode(*greys):
  """Support and query of class 0, support and query of class 1."""
  images = np.array(greys, np.uint8).reshape(1, 2, 2, 1, 1, 1)
  return np.repeat(images, 2, axis=3)


SEPARATE = episode(0, 0, 250, 250)
SWAPPED = episode(0, 250, 250, 0)  # Each query is at the other class's center.


@pytest.mark.parametrize('confidence_training, batch, learns', [
    ('errors', SEPARATE, False), ('errors', SWAPPED, True), ('all', SEPARATE, True)])
def test_phi_learns_from_the_samples_it_is_given(confidence_training, batch, learns):
  model = make_model(confidence_training)
  before = model.confidence_model.get_weights()
  logs = model.train_on_batch(batch, return_dict=True)
  after = model.confidence_model.get_weights()
  assert logs['error_rate'] == (batch is SWAPPED)
  assert (logs['confidence_loss'] > 0) == learns
  assert any(not np.array_equal(a, b) for a, b in zip(before, after)) == learns


def test_another_choice_is_refused_and_names_both():
  with pytest.raises(UserError, match="'errors' or 'all', not 'some'"):
    make_model('some')


def test_the_choice_is_saved(tmp_path):
  make_model('all').save(tmp_path / 'model.keras')
  assert keras.models.load_model(tmp_path / 'model.keras').confidence_training == 'all'


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
