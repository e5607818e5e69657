"""Algorithm 1, inference and serialization of DBLE."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import special
from scipy.spatial import distance

from dble_tf import confidence
from dble_tf import encoders
from dble_tf.confidence_model import ConfidenceModel
from dble_tf.data import load
from dble_tf.errors import UserError
from dble_tf.model import DBLE
from tests import linear
from tests.linear import batches
from tests.linear import fitted_model
from tests.linear import make_model
from tests.linear import random_episodes
from tests.linear import separable_episodes
from tests.linear import some_images
from tests.linear import weights


def test_the_constructor_names_its_arguments():
  parameters = inspect.signature(DBLE.__init__).parameters
  assert list(parameters) == [
      'self', 'encoder', 'num_classes', 'num_shots', 'confidence_model',
      'squared_scale', 'label_smoothing', 'num_samples', 'seed', 'scaling', 'name',
      'kwargs']
  assert parameters['num_shots'].kind is inspect.Parameter.KEYWORD_ONLY


# Training


def algorithm_1(model, batch):
  """A literal walk through the first half of Algorithm 1, query by query.

  Returns theta's loss, and h, label, centers and whether it is an error of each query.
  """
  terms, queries = [], []
  for episode in batch:
    h = [[tf.reshape(model.encoder(image[np.newaxis]), [-1]) for image in images]
         for images in episode]
    for label, rows in enumerate(h):
      for place in range(model.num_shots or 0, len(rows)):
        centers = []
        for supports in h:
          if model.num_shots is not None:
            supports = supports[:model.num_shots]
          elif supports is rows:  # Leave-one-out.
            supports = rows[:place] + rows[place + 1:]
          centers.append(sum(supports) / len(supports))
        d = [tf.norm(rows[place] - center) for center in centers]
        queries.append((rows[place], label, centers, int(np.argmin(d)) != label))
        if model.squared_scale is not None:
          d = [model.squared_scale * tf.reduce_sum((rows[place] - center)**2)
               for center in centers]
        target = [model.label_smoothing / len(d)] * len(d)
        target[label] += 1 - model.label_smoothing
        terms.append(sum(share * x for share, x in zip(target, d))
                     + tf.math.log(sum(tf.exp(-x) for x in d)))
  return sum(terms) / len(terms), queries


# Episodes with supports and queries, and leave-one-out.
EPISODES = pytest.mark.parametrize('num_shots', [linear.SHOTS, None])


@EPISODES
@pytest.mark.parametrize(
    'squared_scale, label_smoothing',
    [(None, 0.0), (0.3, 0.0), (None, 0.2), (0.3, 0.2)])
def test_train_step_follows_algorithm_1_for_theta(
    num_shots, squared_scale, label_smoothing):
  batch = random_episodes()
  model, reference = (
      make_model(rate=0.05, num_shots=num_shots, squared_scale=squared_scale,
                 label_smoothing=label_smoothing)
      for _ in range(2))
  with tf.GradientTape() as tape:
    expected_loss, queries = algorithm_1(reference, batch)
  gradient, = tape.gradient(expected_loss, [v.value for v in reference.theta])
  logs = model.train_on_batch(batch, return_dict=True)
  assert logs['prototype_loss'] == pytest.approx(float(expected_loss), rel=1e-4)
  assert logs['error_rate'] == pytest.approx(
      np.mean([is_error for *_, is_error in queries]))
  np.testing.assert_allclose(
      model.theta[0], reference.theta[0] - 0.05 * gradient, rtol=1e-4, atol=1e-5)


@EPISODES
@pytest.mark.parametrize('learns_from', ['errors', 'all'])
def test_train_step_follows_algorithm_1_for_phi(num_shots, learns_from):
  batch = random_episodes()
  model, reference = (
      make_model(confidence_rate=0.3, num_shots=num_shots,
                 confidence_model=linear.confidence_model(learns_from=learns_from))
      for _ in range(2))
  reference.set_weights(model.get_weights())
  _, queries = algorithm_1(reference, batch)
  num_errors = sum(is_error for *_, is_error in queries)
  assert 3 <= num_errors < len(queries)
  own = [np.linalg.norm(query - centers[label]) for query, label, centers, _ in queries]
  reference.confidence_model.scale.assign(
      0.9 * 0.5 + 0.1 * np.mean(own) / np.sqrt(linear.DIM))
  # The noise of the first step, for all queries in the order of the episodes.
  noise = tf.reshape(confidence.standard_noise(
      [2, len(queries) // 2, linear.DIM], [0, 1]), [-1, linear.DIM])
  with tf.GradientTape() as tape:
    expected_loss = 0.0
    for (query, label, centers, is_error), e in zip(queries, noise):
      if is_error or learns_from == 'all':
        z = query + reference.confidence_model(query[tf.newaxis])[0] * e
        d = [tf.norm(z - center) for center in centers]
        expected_loss += d[label] + tf.math.log(sum(tf.exp(-x) for x in d))
    expected_loss /= num_errors if learns_from == 'errors' else len(queries)
  gradients = tape.gradient(expected_loss, [v.value for v in reference.phi])
  logs = model.train_on_batch(batch, return_dict=True)
  assert logs['confidence_loss'] == pytest.approx(float(expected_loss), rel=1e-3)
  for actual, before, gradient in zip(model.phi, reference.phi, gradients):
    np.testing.assert_allclose(
        actual, before - 0.3 * gradient, rtol=1e-3, atol=1e-5)
  assert float(model.confidence_model.scale) == pytest.approx(
      float(reference.confidence_model.scale), rel=1e-5)


def test_errors_and_phis_loss_are_of_distances_where_theta_learns_from_squared_ones():
  plain, squared = (
      make_model(squared_scale=squared_scale) for squared_scale in (None, 0.3))
  logs, expected = (model.train_on_batch(random_episodes(), return_dict=True)
                    for model in (squared, plain))
  for name in ('confidence_loss', 'error_rate'):
    assert logs[name] == pytest.approx(expected[name], rel=1e-5), name
  for actual, other in zip(squared.phi, plain.phi):
    np.testing.assert_allclose(actual, other, rtol=1e-5, atol=1e-7)
  assert logs['prototype_loss'] != pytest.approx(expected['prototype_loss'], rel=0.01)


def test_sigma_follows_the_scale_of_the_encoders_output():
  sigmas = []
  for factor in (1.0, 20.0):
    model = make_model(rate=0.0, confidence_rate=0.0)
    kernel = model.confidence_model.output_layer.kernel
    kernel.assign(tf.random.stateless_normal(kernel.shape, [0, 0]))
    model.theta[0].assign(30 * factor * model.theta[0])  # Beyond layer norm's epsilon.
    model.fit(tf.data.Dataset.from_tensors(random_episodes()).repeat(50), verbose=0)
    images, class_ids = some_images()
    sigmas.append(model.confidence_model(
        model.represent(batches(images, class_ids)).h).numpy())
  assert sigmas[0].std() > 0.05 * sigmas[0].mean()
  np.testing.assert_allclose(sigmas[1], 20 * sigmas[0], rtol=1e-3)


def test_phi_never_moves_theta():
  still, moving = make_model(confidence_rate=0.0), make_model(confidence_rate=1.0)
  for step in range(4):
    for model in (still, moving):
      model.train_on_batch(random_episodes(step))
  for a, b in zip(still.encoder.weights, moving.encoder.weights):
    np.testing.assert_array_equal(a, b)
  assert not np.allclose(still.phi[0], moving.phi[0])


def test_theta_learns_from_every_query_and_phi_from_errors_alone():
  model = make_model()
  before = [variable.numpy() for variable in model.phi]
  logs = model.train_on_batch(separable_episodes(), return_dict=True)
  assert logs['error_rate'] == 0
  assert logs['confidence_loss'] == 0
  for old, new in zip(before, model.phi):
    np.testing.assert_array_equal(old, new)
  assert not np.allclose(make_model().theta[0], model.theta[0])


def test_the_loss_is_the_sum_of_both_losses_and_their_weight_decay():
  model = make_model(confidence_model=linear.confidence_model(weight_decay=0.3))
  decay = sum(0.15 * (layer.kernel.numpy()**2).sum() for layer in (
      model.confidence_model.hidden, model.confidence_model.output_layer))
  logs = model.train_on_batch(random_episodes(), return_dict=True)
  assert decay > 0.1
  assert logs['loss'] == pytest.approx(
      logs['prototype_loss'] + logs['confidence_loss'] + decay, rel=1e-5)


def test_weight_decay_reaches_theta_and_phi():
  def step(decay):
    keras.utils.set_random_seed(7)
    encoder = linear.encoder(keras.regularizers.L2(decay / 2))
    model = DBLE(encoder, 4, num_shots=linear.SHOTS, confidence_model=ConfidenceModel(
        linear.DIM, dropout=0.0, weight_decay=decay))
    model.compile(keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1))
    kernels = [encoder.layers[-1].kernel, model.confidence_model.hidden.kernel]
    before = [kernel.numpy() for kernel in kernels]
    model.train_on_batch(separable_episodes())
    return before, [kernel.numpy() for kernel in kernels]

  (before, plain), (_, decayed) = step(0.0), step(0.5)
  for old, without, with_decay in zip(before, plain, decayed):
    np.testing.assert_allclose(
        with_decay, without - 0.1 * 0.5 * old, rtol=1e-3, atol=1e-5)


def test_encoder_and_confidence_model_run_in_training_mode_in_training_alone():
  seen = []

  class Mode(keras.layers.Layer):
    def call(self, x, training=None):
      seen.append(training)
      return x

  class WithMode(ConfidenceModel):
    def call(self, h, training=False):
      seen.append(training)
      return super().call(h, training)

  encoder = keras.Sequential([
      keras.Input(linear.IMAGE_SHAPE), keras.layers.Flatten(), Mode(),
      keras.layers.Dense(linear.DIM)])
  model = DBLE(
      encoder, 4, num_shots=linear.SHOTS, confidence_model=WithMode(linear.DIM))
  model.compile(run_eagerly=True)
  images, class_ids = some_images()
  images = images.astype(np.float32)
  for use, count, expected in (
      (lambda: model.train_on_batch(random_episodes().astype(np.float32)), 2, True),
      (lambda: model.fit_centers(batches(images, class_ids, 40)), 1, False),
      (lambda: model.predict(images, batch_size=40, verbose=0), 2, False)):
    seen.clear()
    use()
    assert len(seen) == count and all(bool(mode) is expected for mode in seen)


def test_an_image_is_encoded_once_for_supports_and_queries():
  shapes = []

  class Spy(keras.layers.Layer):
    def call(self, x):
      shapes.append(tuple(x.shape))
      return x

  encoder = keras.Sequential([
      keras.Input(linear.IMAGE_SHAPE, dtype='uint8'), linear.encoder(), Spy()])
  model = DBLE(encoder, 4, num_shots=linear.SHOTS)
  model.compile(run_eagerly=True)
  shapes.clear()
  model.train_on_batch(random_episodes())
  assert shapes == [(2 * 3 * 6, linear.DIM)]


@EPISODES
def test_train_step_gives_the_same_losses_under_xla(num_shots):
  logs = {}
  for jit_compile in (False, True):
    keras.utils.set_random_seed(7)
    model = DBLE(encoders.mlp(linear.IMAGE_SHAPE, linear.DIM), 4, num_shots=num_shots,
                 confidence_model=linear.confidence_model())
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=1.0),
                  keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=1.0),
                  jit_compile=jit_compile)
    assert model.jit_compile is jit_compile
    logs[jit_compile] = [
        list(model.train_on_batch(random_episodes(step), return_dict=True).values())
        for step in range(3)]
  np.testing.assert_allclose(logs[True], logs[False], rtol=1e-3, atol=1e-5)


def test_mixed_float16_trains_and_predicts_in_float32_where_it_matters():
  keras.config.set_dtype_policy('mixed_float16')
  try:
    model = make_model(rate=0.05)
    losses = []
    for _ in range(20):
      losses.append(model.train_on_batch(
          separable_episodes(), return_dict=True)['prototype_loss'])
      model.reset_metrics()
    model.fit_centers(batches(*some_images()))
    outputs = model.predict(some_images()[0], verbose=0)
  finally:
    keras.config.set_dtype_policy('float32')
  assert losses[-1] < losses[0] / 2
  assert outputs['confidence'].dtype == outputs['distances'].dtype == np.float32
  np.testing.assert_allclose(outputs['probabilities'].sum(axis=1), 1, rtol=1e-5)


def test_training_repeats_with_the_seed():
  runs = []
  for seed in (0, 0, 1):
    model = make_model(seed=seed)
    model.train_on_batch(random_episodes())
    runs.append(model.phi[2].numpy())
  np.testing.assert_array_equal(runs[0], runs[1])
  assert not np.array_equal(runs[0], runs[2])


def test_noise_is_new_at_each_step():
  model = make_model(rate=0.0, confidence_rate=0.0)
  losses = []
  for _ in range(2):
    losses.append(model.train_on_batch(
        random_episodes(), return_dict=True)['confidence_loss'])
    model.reset_metrics()
  assert losses[0] != losses[1]


def test_two_episodes_of_digits_overfit():
  keras.utils.set_random_seed(0)
  digits = load('digits')
  two = digits.episodes(
      num_shots=5, num_queries=5, episodes_per_step=2).take(1).repeat()
  model = DBLE(
      encoders.mlp(digits.image_shape, 64, weight_decay=0.0), 10, num_shots=5)
  model.compile(keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=1.0),
                keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=1.0))
  history = model.fit(two, steps_per_epoch=20, epochs=6, verbose=0).history
  assert history['prototype_loss'][-1] < 0.02 < 0.2 < history['prototype_loss'][0]
  assert history['error_rate'][-1] == 0


# Inference


def test_prediction_follows_equations_6_and_10():
  model = fitted_model()
  images, _ = some_images(n=11, seed=5)
  outputs = model.predict(images, verbose=0)
  h = model.encoder.predict(images, verbose=0)
  sigma = model.confidence_model(h).numpy()
  d = distance.cdist(h, model.centers.numpy())
  labels = d.argmin(axis=1)
  averaged = np.mean([
      special.softmax(-distance.cdist(h + sigma * noise, model.centers.numpy()), axis=1)
      for noise in model.noise.numpy()], axis=0)
  np.testing.assert_array_equal(outputs['label'], labels)
  np.testing.assert_allclose(outputs['distances'], d, rtol=1e-3)
  np.testing.assert_allclose(outputs['distance'], d.min(axis=1), rtol=1e-3)
  np.testing.assert_allclose(outputs['sigma'], sigma, rtol=1e-5)
  np.testing.assert_allclose(outputs['probabilities'], averaged, rtol=1e-3)
  np.testing.assert_allclose(
      outputs['confidence'], averaged[np.arange(11), labels], rtol=1e-3)
  assert model.noise.shape == (20, linear.DIM)


def test_labels_and_equation_10_are_of_distances_where_theta_learns_from_squared_ones():
  images, _ = some_images(n=11, seed=5)
  plain, squared = (
      fitted_model(squared_scale=squared_scale).predict(images, verbose=0)
      for squared_scale in (None, 0.3))
  for name, expected in plain.items():
    np.testing.assert_array_equal(squared[name], expected, err_msg=name)


def test_without_sigma_probabilities_are_of_what_theta_learns_from():
  model = fitted_model(squared_scale=0.3)
  model.sigma_scale.assign(0.0)
  model.temperature.assign(2.0)
  images, _ = some_images(n=11, seed=5)
  outputs = model.predict(images, verbose=0)
  h = model.encoder.predict(images, verbose=0)
  d = distance.cdist(h, model.centers.numpy(), 'sqeuclidean')
  np.testing.assert_allclose(
      outputs['probabilities'], special.softmax(-0.3 * d / 2, axis=1), rtol=1e-3)
  np.testing.assert_array_equal(outputs['label'], d.argmin(axis=1))
  np.testing.assert_allclose(outputs['distances'], np.sqrt(d), rtol=1e-3)


def test_the_same_image_gets_the_same_confidence_in_any_batch():
  model = fitted_model()
  images, _ = some_images(n=30)
  together = model.predict(images, verbose=0)['confidence']
  backwards = model.predict(images[::-1], batch_size=7, verbose=0)['confidence'][::-1]
  alone = [model.predict(image[np.newaxis], verbose=0)['confidence'][0]
           for image in images[:3]]
  np.testing.assert_allclose(backwards, together, rtol=1e-5)
  np.testing.assert_allclose(alone, together[:3], rtol=1e-5)


def test_answers_never_come_through_dropout():
  model = fitted_model(confidence_model=linear.confidence_model(dropout=0.5))
  kernel = model.confidence_model.output_layer.kernel
  kernel.assign(tf.random.stateless_normal(kernel.shape, [0, 0]))
  images, _ = some_images()
  expected = model.predict(images, verbose=0)['sigma']
  np.testing.assert_allclose(
      model(images, training=True)['sigma'], expected, rtol=1e-5)


def test_evaluate_agrees_with_figures_from_predictions():
  model = fitted_model()
  images, class_ids = some_images(n=33, seed=9)
  outputs = model.predict(images, verbose=0)
  figures = model.evaluate(batches(images, class_ids, 8), return_dict=True, verbose=0)
  is_correct = outputs['label'] == class_ids
  gaps = [abs((outputs['confidence'] - is_correct)[
      np.ceil(outputs['confidence'] * 15) == place].sum()) for place in range(1, 16)]
  assert set(figures) == {'loss', 'accuracy', 'ece', 'nll'}
  assert figures['accuracy'] == pytest.approx(is_correct.mean())
  assert figures['ece'] == pytest.approx(sum(gaps) / 33, rel=1e-4)
  assert figures['nll'] == pytest.approx(
      -np.log(outputs['probabilities'][np.arange(33), class_ids]).mean(), rel=1e-4)
  assert figures['loss'] == figures['nll']


@pytest.mark.parametrize('use', [
    lambda model, images: model.predict(images, verbose=0),
    lambda model, images: model.evaluate(images, np.zeros(40), verbose=0),
    lambda model, images: model.predict_on_batch(images),
    lambda model, images: model.predict_from(np.zeros([2, 3], np.float32)),
    lambda model, images: model(images),
    lambda model, images: model.export('never_written'),
])
def test_using_a_model_without_centers_says_what_to_do(use):
  with pytest.raises(UserError, match=r'no class centers yet: call calibrate\('):
    use(make_model(), some_images()[0])


# Construction


@pytest.mark.parametrize('confidence_model', [
    ConfidenceModel(4),
    keras.Sequential([keras.Input([linear.DIM]), keras.layers.Dense(linear.DIM)]),
    'large',
])
def test_another_confidence_model_is_refused(confidence_model):
  with pytest.raises(UserError, match=r'ConfidenceModel\(3\)'):
    DBLE(linear.encoder(), 4, num_shots=1, confidence_model=confidence_model)


def test_the_default_confidence_model_fits_the_encoder():
  model = DBLE(linear.encoder(), 4, num_shots=1)
  assert model.confidence_model.dim == linear.DIM
  assert model.confidence_model.learns_from == 'errors'


@pytest.mark.parametrize('squared_scale', [0.0, -1.0, float('nan')])
def test_squared_distances_need_a_factor_above_zero(squared_scale):
  with pytest.raises(UserError, match='squared_scale must be above 0'):
    make_model(squared_scale=squared_scale)


@pytest.mark.parametrize('label_smoothing', [-0.1, 1.0, float('nan')])
def test_smoothed_targets_keep_a_share_of_the_true_class(label_smoothing):
  with pytest.raises(UserError, match='label_smoothing must be at least 0 and below 1'):
    make_model(label_smoothing=label_smoothing)


@pytest.mark.parametrize('num_shots', [0, -1])
def test_episodes_without_supports_are_refused(num_shots):
  with pytest.raises(UserError, match='at least one support'):
    make_model(num_shots=num_shots)


def test_a_subclassed_encoder_is_accepted_once_its_input_is_known():

  class Custom(keras.Model):
    def __init__(self):
      super().__init__()
      self.flatten = keras.layers.Flatten()
      self.dense = keras.layers.Dense(linear.DIM)

    def call(self, x):
      return self.dense(self.flatten(x))

  with pytest.raises(UserError, match='keras.Input'):
    DBLE(Custom(), 4, num_shots=linear.SHOTS)
  encoder = keras.Sequential([keras.Input(linear.IMAGE_SHAPE), Custom()])
  model = DBLE(encoder, 4, num_shots=linear.SHOTS)
  model.compile()
  logs = model.train_on_batch(
      random_episodes().astype(np.float32) / 255, return_dict=True)
  assert np.isfinite(logs['prototype_loss'])


# Serialization


@pytest.mark.parametrize('confidence_model', ['own', None])
def test_config_mirrors_the_constructor(confidence_model):
  if confidence_model == 'own':
    confidence_model = linear.confidence_model(learns_from='all', dropout=0.25)
  model = DBLE(
      linear.encoder(), 4, num_shots=None, confidence_model=confidence_model,
      squared_scale=0.3, label_smoothing=0.1, num_samples=9, seed=3, scaling='none',
      name='mine')
  clone = DBLE.from_config(model.get_config())
  assert clone.get_config() == model.get_config()
  assert clone.name == 'mine' and clone.scaling == 'none' and clone.num_shots is None
  assert clone.squared_scale == 0.3 and clone.label_smoothing == 0.1
  if confidence_model is not None:
    assert clone.noise.shape == (9, linear.DIM)
    np.testing.assert_array_equal(clone.noise, model.noise)


def test_the_config_of_another_version_is_refused_with_what_to_do():
  config = {**make_model().get_config(), 'normalisation': ['queries'], 'chosen': 0,
            'confidence_model': [{'class_name': 'Gone', 'config': {}, 'module': 'gone',
                                  'registered_name': 'dble_tf>Gone'}]}
  with pytest.raises(UserError, match=(
      r'another version of dble_tf.*\(chosen, normalisation\).*train again')):
    DBLE.from_config(config)


def test_a_saved_model_predicts_the_same(tmp_path):
  model = make_model()
  model.train_on_batch(random_episodes())
  model.fit_centers(batches(*some_images()))
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  images, _ = some_images()
  expected, actual = model.predict(images, verbose=0), loaded.predict(images, verbose=0)
  for name in expected:
    np.testing.assert_array_equal(actual[name], expected[name])


def test_training_continues_from_a_saved_model(tmp_path):
  keras.utils.set_random_seed(7)
  model = DBLE(linear.encoder(), 4, num_shots=linear.SHOTS,
               confidence_model=linear.confidence_model(weight_decay=0.1))
  schedule = keras.optimizers.schedules.PiecewiseConstantDecay([4], [0.1, 0.01])
  model.compile(keras.optimizers.SGD(schedule, momentum=0.9, clipnorm=1.0),
                keras.optimizers.Adam(0.02), metrics=['sparse_categorical_accuracy'])
  for step in range(3):
    model.train_on_batch(random_episodes(step))
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  for trained in (model, loaded):
    for step in range(3, 6):
      trained.train_on_batch(random_episodes(step))
  assert int(loaded.optimizer.iterations) == 6
  assert int(loaded.confidence_optimizer.iterations) == 6
  for a, b in zip(weights(model), weights(loaded)):
    np.testing.assert_array_equal(a, b)
  for a, b in zip(model.confidence_optimizer.variables,
                  loaded.confidence_optimizer.variables):
    np.testing.assert_array_equal(a, b)
