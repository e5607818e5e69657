import keras
import numpy as np
import pytest
from scipy import special

from dble_tf import confidence
from dble_tf.baselines import Vanilla
from dble_tf.baselines import VanillaErrors
from dble_tf.confidence_model import ConfidenceModel
from dble_tf.errors import UserError


def make_model(encoder, learns_from='errors', **arguments):
  confidence_model = ConfidenceModel(
      4, learns_from=learns_from, hidden_units=5, dropout=0.0, weight_decay=0.0)
  confidence_model.scale.assign(0.5)
  model = VanillaErrors(
      encoder, 4, confidence_model=confidence_model, weight_decay=0.1, **arguments)
  model.compile(keras.optimizers.SGD(0.5), keras.optimizers.SGD(0.5))
  return model


def test_confidence_is_the_softmax_averaged_over_sampled_logits(
    make_encoder, some_data):
  model, (images, _) = make_model(make_encoder(), num_samples=6), some_data()
  plain = Vanilla(make_encoder(), 4)
  plain.take_trained(model)
  logits = plain.predict(images, verbose=0)['logits']
  sigma = model.confidence_model(logits).numpy()
  samples = [special.softmax(logits + sigma * e, axis=1) for e in model.noise.numpy()]
  expected = np.mean(samples, axis=0)
  answers = model.predict(images, verbose=0)
  np.testing.assert_allclose(answers['probabilities'], expected, rtol=1e-4)
  np.testing.assert_array_equal(answers['label'], logits.argmax(axis=1))
  np.testing.assert_allclose(
      answers['confidence'], expected[np.arange(20), logits.argmax(axis=1)], rtol=1e-4)


def test_theta_learns_as_in_plain_training(make_encoder, some_data):
  model = make_model(make_encoder())
  plain = Vanilla(make_encoder(), 4, weight_decay=0.1)
  plain.compile(keras.optimizers.SGD(0.5))
  plain.take_trained(model)
  for _ in range(3):
    for one in (model, plain):
      one.train_on_batch(*some_data())
  for mine, other in zip(model.theta, plain.theta):
    np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)


def phi_gradient_of_the_last_bias(model, images, class_ids, which):
  """By hand: the softplus's bias moves sigma by sigmoid, z by the noise.

  Sigma is in units of the scale, 0.5.
  """
  logits = model.linear(model.encode(images)).numpy()
  sigma = model.confidence_model(logits).numpy()
  noise = confidence.standard_noise(logits.shape, [0, 1]).numpy()
  p = special.softmax(logits + sigma * noise, axis=1)
  # Sigma / 0.5 is s / (1 + s / 10) of s = softplus, whose slope is 1 - exp(-s).
  unbent = sigma / 0.5 / (1 - sigma / 0.5 / 10)
  slope = 0.5 * (1 - np.exp(-unbent)) / (1 + unbent / 10)**2
  terms = (p - np.eye(4)[class_ids]) * noise * slope
  return terms[which(logits)].mean(axis=0)


@pytest.mark.parametrize('learns_from', ['errors', 'all'])
def test_phi_learns_from_errors_or_from_all(learns_from, make_encoder, some_data):
  model = make_model(make_encoder(), learns_from)
  images, class_ids = some_data()
  gradient = phi_gradient_of_the_last_bias(
      model, images, class_ids, lambda logits: (
          logits.argmax(axis=1) != class_ids if learns_from == 'errors'
          else np.full(20, True)))
  assert np.abs(gradient).max() > 1e-3
  bias = model.confidence_model.output_layer.bias.numpy()
  model.train_on_batch(images, class_ids)
  np.testing.assert_allclose(
      model.confidence_model.output_layer.bias, bias - 0.5 * gradient, atol=1e-5)


def test_the_loss_is_the_sum_of_both(make_encoder, some_data):
  phi = ConfidenceModel(4, dropout=0.0, weight_decay=0.3)
  model = VanillaErrors(make_encoder(), 4, confidence_model=phi, weight_decay=0.1)
  model.compile(keras.optimizers.SGD(0.0), keras.optimizers.SGD(0.0))
  plain = Vanilla(make_encoder(), 4, weight_decay=0.1)
  plain.compile(keras.optimizers.SGD(0.0))
  plain.take_trained(model)
  logs = model.train_on_batch(*some_data(), return_dict=True)
  theta = plain.train_on_batch(*some_data(), return_dict=True)['loss']
  decay = sum(0.15 * (layer.kernel.numpy()**2).sum()
              for layer in (phi.hidden, phi.output_layer))
  assert logs['loss'] == pytest.approx(
      theta + logs['confidence_loss'] + decay, rel=1e-4)


def test_a_confidence_model_of_another_size_is_refused(make_encoder):
  with pytest.raises(UserError, match=r'ConfidenceModel\(4\)'):
    VanillaErrors(make_encoder(), 4, confidence_model=ConfidenceModel(3))


def test_it_survives_saving(make_encoder, some_data, check_roundtrip):
  model = make_model(make_encoder(), learns_from='all', num_samples=6, seed=3)
  model.train_on_batch(*some_data())
  loaded = check_roundtrip(model, some_data(), some_data(seed=1)[0])
  np.testing.assert_allclose(
      loaded.confidence_model.output_layer.bias,
      model.confidence_model.output_layer.bias, rtol=1e-5)
  assert loaded.confidence_model.learns_from == 'all'


def test_a_step_compiles_under_xla(make_encoder, some_data):
  plain, compiled = make_model(make_encoder()), make_model(make_encoder())
  compiled.set_weights(plain.get_weights())
  compiled.compile(
      keras.optimizers.SGD(0.5), keras.optimizers.SGD(0.5), jit_compile=True)
  for model in (plain, compiled):
    model.train_on_batch(*some_data())
  for mine, other in zip(plain.trainable_variables, compiled.trainable_variables):
    np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-6)
