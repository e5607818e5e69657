import keras
import numpy as np

from dble_tf import batch_norm
from dble_tf import encoders
from dble_tf.baselines import Vanilla
from tests import linear

LAYERS = keras.layers


def make_model(*layers):
  keras.utils.set_random_seed(3)
  encoder = keras.Sequential([
      keras.Input(linear.IMAGE_SHAPE, dtype='uint8'), LAYERS.Rescaling(0.01),
      LAYERS.Flatten(), LAYERS.Dense(linear.DIM), *layers])
  return Vanilla(encoder, linear.NUM_CLASSES)


def test_statistics_are_the_means_of_those_of_the_batches():
  first, second = LAYERS.BatchNormalization(momentum=0.9), LAYERS.BatchNormalization()
  inner = keras.Sequential([keras.Input([5]), second])
  model = make_model(first, LAYERS.Dense(5, activation='tanh'), inner)
  assert batch_norm.moving_layers(model) == [first, second]
  images, class_ids = linear.some_images(40)
  batch_norm.fit_statistics(model, linear.batches(images, class_ids, 16))

  dense = [layer for layer in model.encoder.layers if hasattr(layer, 'kernel')]
  kernels = [layer.get_weights() for layer in dense]
  moments = []
  for batch in (images[:16], images[16:32], images[32:]):
    x = batch.reshape(-1, 4) / 100 @ kernels[0][0] + kernels[0][1]
    y = (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + first.epsilon)
    z = np.tanh(y @ kernels[1][0] + kernels[1][1])
    moments.append([x.mean(axis=0), x.var(axis=0), z.mean(axis=0), z.var(axis=0)])
  for place, variable in enumerate((
      first.moving_mean, first.moving_variance, second.moving_mean,
      second.moving_variance)):
    expected = np.average(
        [batch[place] for batch in moments], axis=0, weights=[16, 16, 8])
    np.testing.assert_allclose(variable, expected, rtol=1e-4, atol=1e-5)


def test_all_else_stays():
  frozen = LAYERS.BatchNormalization()
  frozen.trainable = False
  constant = LAYERS.BatchNormalization(momentum=1.0)
  model = make_model(frozen, LAYERS.Dropout(0.5), LAYERS.BatchNormalization(), constant)
  layer, = batch_norm.moving_layers(model)
  assert frozen in encoders.batch_norm_layers(model)
  mine = {id(layer.moving_mean), id(layer.moving_variance)}
  others = [variable for variable in model.variables if id(variable) not in mine]
  before = [variable.numpy() for variable in others]
  assert any(variable.name == 'seed_generator_state' for variable in others)
  batch_norm.fit_statistics(model, linear.batches(*linear.some_images()))
  assert np.any(layer.moving_mean.numpy() != 0)
  for variable, value in zip(others, before):
    np.testing.assert_array_equal(variable, value, err_msg=variable.path)
