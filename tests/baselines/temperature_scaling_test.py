import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from dble_tf import calibration
from dble_tf.baselines import TemperatureScaling
from dble_tf.baselines import Vanilla
from dble_tf.errors import UserError
from dble_tf.serving.export import export


def make_model(encoder):
  model = TemperatureScaling(encoder, 4, weight_decay=0.0)
  model.compile(keras.optimizers.SGD(0.5))
  return model


def test_held_out_logits_are_divided_by_the_temperature(
    make_encoder, some_data, some_batches):
  model = make_model(make_encoder())
  plain = Vanilla(make_encoder(), 4)
  plain.take_trained(model)
  images, class_ids = some_data(200, seed=5)
  logits = plain.predict(images, verbose=0)['logits']
  model.calibrate(some_batches(), some_batches(200, seed=5))
  temperature = float(model.temperature)
  assert temperature == pytest.approx(
      calibration.fit_temperature(logits, class_ids), rel=1e-3)
  assert abs(temperature - 1) > 0.05
  answers = model.predict(images, verbose=0)
  np.testing.assert_allclose(
      answers['probabilities'], special.softmax(logits / temperature, axis=1),
      rtol=1e-3)
  np.testing.assert_array_equal(answers['label'], logits.argmax(axis=1))


def test_training_is_plain_training_and_forgets_the_temperature(
    make_encoder, some_data, some_batches):
  model, plain = make_model(make_encoder()), Vanilla(
      make_encoder(), 4, weight_decay=0.0)
  plain.compile(keras.optimizers.SGD(0.5))
  plain.take_trained(model)
  model.calibrate(some_batches(), some_batches(200, seed=5))
  for one in (model, plain):
    one.fit(some_batches(), verbose=0)
  np.testing.assert_allclose(model.linear.kernel, plain.linear.kernel, rtol=1e-5)
  images, _ = some_data()
  np.testing.assert_allclose(
      model.predict(images, verbose=0)['probabilities'],
      plain.predict(images, verbose=0)['probabilities'], rtol=1e-5)


@pytest.mark.parametrize('change', [
    lambda data: data.map(lambda images, ids: (images, ids[:, tf.newaxis])),
    lambda data: data.map(lambda images, ids: (images, ids, tf.ones_like(ids))),
    lambda data: data.unbatch().shuffle(200).batch(50)],
    ids=['column', 'weights', 'shuffled'])
def test_labels_stay_with_their_images(change, make_encoder, some_batches):
  models = [make_model(make_encoder()) for _ in range(2)]
  models[1].take_trained(models[0])
  held_out = some_batches(200, seed=5)
  models[0].calibrate(some_batches(), held_out)
  models[1].calibrate(some_batches(), change(held_out))
  assert float(models[1].temperature) == pytest.approx(
      float(models[0].temperature), rel=1e-3)


def test_taking_another_network_forgets_the_temperature(make_encoder, some_batches):
  model = make_model(make_encoder())
  model.calibrate(some_batches(), some_batches(200, seed=5))
  model.take_trained(make_model(make_encoder()))
  with pytest.raises(UserError, match='no temperature yet'):
    model.require_calibrated()


def test_without_held_out_data_it_says_what_to_give(make_encoder, some_batches):
  with pytest.raises(UserError, match='held_out'):
    make_model(make_encoder()).calibrate(some_batches())


def test_an_export_without_temperature_is_refused(
    make_encoder, some_batches, tmp_path):
  model = make_model(make_encoder())
  with pytest.raises(UserError, match='no temperature yet'):
    export(model, tmp_path)
  model.calibrate(some_batches(), some_batches(200, seed=5))
  assert export(model, tmp_path).exists()


def test_it_survives_saving(make_encoder, some_data, some_batches, check_roundtrip):
  model = make_model(make_encoder())
  model.train_on_batch(*some_data())
  model.calibrate(some_batches(), some_batches(200, seed=5))
  loaded = check_roundtrip(model, some_data(), some_data(seed=1)[0])
  # The step after loading is one of training: a temperature does not outlive it.
  assert float(loaded.temperature) == 1.0
  with pytest.raises(UserError, match='no temperature yet'):
    loaded.require_calibrated()


def test_validation_is_with_the_temperature_of_its_moment(
    make_encoder, some_data, some_batches):
  model, plain = make_model(make_encoder()), Vanilla(make_encoder(), 4)
  held_out = some_batches(200, seed=5)
  history = model.fit(
      some_batches(), verbose=0, train_data=some_batches(), validation_data=held_out)
  plain.take_trained(model)
  logits = plain.predict(some_data(200, seed=5)[0], verbose=0)['logits']
  class_ids = some_data(200, seed=5)[1]
  temperature = calibration.fit_temperature(logits, class_ids)
  assert float(model.temperature) == pytest.approx(temperature, rel=1e-4)
  log_likelihoods = special.log_softmax(logits / temperature, axis=1)
  assert history.history['val_loss'][0] == pytest.approx(
      -log_likelihoods[np.arange(200), class_ids].mean(), rel=1e-4)
