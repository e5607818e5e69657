import keras
import numpy as np
import pytest
from scipy import special

from dble_tf import encoders
from dble_tf.baselines import Vanilla
from dble_tf.data import load
from tests import linear


def make_model(**compile_arguments):
  keras.utils.set_random_seed(3)
  model = Vanilla(linear.encoder(), 4, weight_decay=0.1)
  model.compile(keras.optimizers.SGD(0.5), **compile_arguments)
  return model


def some_data(n=20):
  rng = np.random.default_rng(0)
  return (rng.integers(256, size=[n, *linear.IMAGE_SHAPE], dtype=np.uint8),
          rng.integers(4, size=n).astype(np.int32))


def test_label_and_confidence_are_those_of_the_softmax():
  model, (images, _) = make_model(), some_data()
  answers = model.predict(images, verbose=0)
  h = images.reshape(-1, 4) * 0.01 @ model.encoder.get_weights()[0]
  kernel, bias = model.linear.get_weights()
  expected = special.softmax(h @ kernel + bias, axis=1)
  np.testing.assert_allclose(answers['probabilities'], expected, rtol=1e-4)
  np.testing.assert_array_equal(answers['label'], expected.argmax(axis=1))
  np.testing.assert_allclose(answers['confidence'], expected.max(axis=1), rtol=1e-4)


def test_a_step_descends_cross_entropy_and_weight_decay():
  model, (images, class_ids) = make_model(), some_data()
  kernel, bias = model.linear.get_weights()
  h = images.reshape(-1, 4) * 0.01 @ model.encoder.get_weights()[0]
  probabilities = special.softmax(h @ kernel + bias, axis=1)
  error = (probabilities - np.eye(4)[class_ids]) / len(images)
  loss = model.train_on_batch(images, class_ids, return_dict=True)['loss']
  expected = -np.log(probabilities[np.arange(20), class_ids]).mean()
  np.testing.assert_allclose(loss, expected + 0.05 * (kernel**2).sum(), rtol=1e-4)
  np.testing.assert_allclose(
      model.linear.get_weights()[0], kernel - 0.5 * (h.T @ error + 0.1 * kernel),
      rtol=1e-3, atol=1e-5)
  np.testing.assert_allclose(
      model.linear.get_weights()[1], bias - 0.5 * error.sum(axis=0),
      rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize('as_given', [
    lambda ids: ids[:, np.newaxis], lambda ids: ids.astype(np.float32),
    lambda ids: np.eye(4)[ids]], ids=['column', 'floats', 'distributions'])
def test_targets_may_be_given_in_several_ways(as_given):
  images, class_ids = some_data()
  models = make_model(), make_model()
  logs = [model.train_on_batch(images, targets, return_dict=True)
          for model, targets in zip(models, (class_ids, as_given(class_ids)))]
  assert logs[0] == pytest.approx(logs[1], rel=1e-5)
  np.testing.assert_allclose(
      models[0].linear.get_weights()[0], models[1].linear.get_weights()[0], rtol=1e-5)


def test_it_survives_saving_with_its_optimizer(tmp_path):
  model, (images, class_ids) = make_model(), some_data()
  model.train_on_batch(images, class_ids)
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  for name, expected in model.predict(images, verbose=0).items():
    np.testing.assert_array_equal(loaded.predict(images, verbose=0)[name], expected)
  assert loaded.weight_decay == 0.1
  for once_more in (model, loaded):
    once_more.train_on_batch(images, class_ids)
  np.testing.assert_array_equal(model.linear.get_weights()[0],
                                loaded.linear.get_weights()[0])


def test_a_step_compiles_under_xla():
  plain, compiled = make_model(), make_model(jit_compile=True)
  images, class_ids = some_data()
  for model in (plain, compiled):
    model.train_on_batch(images, class_ids)
  np.testing.assert_allclose(
      plain.linear.get_weights()[0], compiled.linear.get_weights()[0], rtol=1e-4)


def test_it_learns_digits():
  keras.utils.set_random_seed(0)
  digits = load('digits', validation_size=200)
  model = Vanilla(encoders.mlp(digits.image_shape, 64), 10)
  model.compile(keras.optimizers.SGD(0.1, momentum=0.9))
  history = model.fit(
      digits.training_batches(100), steps_per_epoch=100, shuffle=False, verbose=0,
      validation_data=digits.validation.batches(100)).history
  assert set(history) == {
      'loss', 'accuracy', 'val_loss', 'val_accuracy', 'val_ece', 'val_nll'}
  assert history['val_accuracy'][-1] > 0.93
  assert history['val_loss'] == history['val_nll']
