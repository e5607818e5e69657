"""Several replicas do what one does; these are virtual CPUs."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from dble_tf import baselines
from dble_tf import confidence
from dble_tf import encoders
from dble_tf import replicas
from dble_tf.baselines import deep_ensemble
from dble_tf.confidence_model import ConfidenceModel
from dble_tf.errors import UserError
from dble_tf.model import DBLE

IMAGE_SHAPE = (2, 2, 1)
NUM_CLASSES = 4
DIM = 3
STEPS = 4
STRATEGIES = {}


def strategy(num_replicas):
  if num_replicas == 1:
    return tf.distribute.get_strategy()
  if num_replicas not in STRATEGIES:
    STRATEGIES[num_replicas] = tf.distribute.MirroredStrategy(
        [f'CPU:{i}' for i in range(num_replicas)], tf.distribute.ReductionToOneDevice())
  return STRATEGIES[num_replicas]


def make_encoder(batch_norm=False):
  norm = [keras.layers.BatchNormalization()] if batch_norm else []
  return keras.Sequential([
      keras.Input(IMAGE_SHAPE, dtype='uint8'), keras.layers.Rescaling(0.01),
      keras.layers.Flatten(), keras.layers.Dense(6, activation='tanh'), *norm,
      keras.layers.Dense(DIM, kernel_regularizer=keras.regularizers.L2(0.05))])


def make_phi(dim=DIM):
  return ConfidenceModel(dim, hidden_units=5, dropout=0.0, weight_decay=0.1)


def optimizer():
  # Clipped: each replica's gradient by itself would be clipped less.
  return keras.optimizers.SGD(0.5, momentum=0.9, clipnorm=0.1)


def make_model(kind, encoder):
  plain = {'encoder': encoder, 'num_classes': NUM_CLASSES, 'weight_decay': 0.1}
  if kind == 'dble':
    model = DBLE(
        encoder, NUM_CLASSES, num_shots=2, confidence_model=make_phi(), seed=5)
  elif kind == 'prototypical':
    model = DBLE(encoder, NUM_CLASSES, num_shots=None, confidence_model=None)
  elif kind == 'vanilla':
    model = baselines.Vanilla(**plain)
  elif kind == 'vanilla_errors':
    model = baselines.VanillaErrors(
        confidence_model=make_phi(NUM_CLASSES), **plain, seed=5)
  elif kind == 'deep_ensemble':
    model = baselines.DeepEnsemble([
        baselines.Vanilla(make_encoder(), NUM_CLASSES, weight_decay=0.1)
        for _ in range(3)])
  phi = {'confidence_optimizer': optimizer()} if getattr(model, 'phi', None) else {}
  model.compile(optimizer(), **phi)
  return model


def labelled(n, seed=0):
  rng = np.random.default_rng(seed)
  class_ids = (np.arange(n) % NUM_CLASSES).astype(np.int32)
  images = rng.integers(200, size=[n, 4])
  images[np.arange(n), class_ids] += 55
  return images.reshape(n, *IMAGE_SHAPE).astype(np.uint8), class_ids


def training_data(kind):
  if kind in ('dble', 'prototypical'):
    rng = np.random.default_rng(1)
    episodes = rng.integers(256, size=[STEPS * 4, 3, 5, *IMAGE_SHAPE], dtype=np.uint8)
    return tf.data.Dataset.from_tensor_slices(episodes).batch(4, drop_remainder=True)
  streams = [tf.data.Dataset.from_tensor_slices(labelled(STEPS * 8, seed)).batch(
      8, drop_remainder=True) for seed in range(3)]
  return (deep_ensemble.member_batches(streams) if kind == 'deep_ensemble'
          else streams[0])


def train(kind, num_replicas, encoder=make_encoder, data=None):
  keras.utils.set_random_seed(2)
  with strategy(num_replicas).scope():
    model = make_model(kind, encoder())
  history = model.fit(
      training_data(kind) if data is None else data, shuffle=False, verbose=0).history
  return model, history


def check_same(model, history, other, other_history):
  assert other.optimizer.iterations.numpy() == model.optimizer.iterations.numpy()
  for mine, theirs in zip(model.weights, other.weights):
    np.testing.assert_allclose(
        theirs, mine, rtol=1e-4, atol=2e-5, err_msg=mine.path)
  assert set(history) == set(other_history)
  for name in history:
    np.testing.assert_allclose(
        other_history[name], history[name], rtol=1e-4, err_msg=name)


@pytest.mark.parametrize('kind, counts', [
    ('dble', (2, 4)), ('prototypical', (2,)), ('vanilla', (2,)),
    ('vanilla_errors', (4,)), ('deep_ensemble', (2,))])
def test_replicas_learn_and_log_as_one(kind, counts):
  one = train(kind, 1)
  for num_replicas in counts:
    check_same(*one, *train(kind, num_replicas))


def test_a_replica_without_any_error_counts():
  # Each class has a pixel of its own in the first two episodes, so that only the other
  # two, which the second replica gets, have errors.
  easy = np.zeros([2, 3, 5, 4], np.uint8)
  for label in range(3):
    easy[:, label, :, label] = 250
  hard = np.random.default_rng(0).integers(256, size=[2, 3, 5, 4], dtype=np.uint8)
  episodes = np.concatenate([easy, hard]).reshape(4, 3, 5, *IMAGE_SHAPE)
  data = tf.data.Dataset.from_tensors(episodes).repeat(3)
  one, two = train('dble', 1, data=data), train('dble', 2, data=data)
  check_same(*one, *two)
  # It was as was said: what each replica counted, of two episodes in three steps.
  errors, episodes = ([copy.numpy() for copy in variable.value.values]
                      for variable in two[0].error_rate.variables)
  assert errors[0] == 0 < errors[1] and episodes == [6, 6]


def on_each_replica(function, *values):
  """Runs a function on two replicas; each gets its row of every value."""
  rows = lambda: function(*(tf.constant(value)[replicas.index()] for value in values))
  return [result.numpy() for result in tf.function(
      lambda: strategy(2).run(rows))().values]


@pytest.mark.parametrize('is_error, expected', [
    ([[False, False], [True, True]], (3 + 5) / 2),
    ([[True, False], [True, True]], (1 + 3 + 5) / 3),
    ([[False, False], [False, False]], 0)])
def test_phis_loss_is_the_mean_over_the_errors_of_all_replicas(is_error, expected):
  with strategy(2).scope():
    phi = make_phi()
  losses = on_each_replica(phi.loss, [[-1.0, -9.0], [-3.0, -5.0]], is_error)
  assert np.mean(losses) == pytest.approx(expected)


def test_the_scale_of_the_space_is_that_of_all_replicas():
  with strategy(2).scope():
    phi = ConfidenceModel(4)

  def update(own_distances):
    phi.update_scale(own_distances)
    return tf.convert_to_tensor(phi.scale)

  # The mean distance is 4, on replicas 2 and 6, over sqrt(4); then it is 2.
  for distances, expected in (
      ([[1.0, 3.0], [4.0, 8.0]], 0.9 + 0.1 * 2),
      ([[2.0, 3.0], [3.0, 0.0]], 0.9 * 1.1 + 0.1 * 1)):
    np.testing.assert_allclose(
        on_each_replica(update, distances), [expected] * 2, rtol=1e-6)
  # A replica that has none is not left behind.
  np.testing.assert_allclose(
      on_each_replica(update, [[1.0, 1.0], [np.nan, 1.0]]), [1.09] * 2, rtol=1e-6)
  copies = [copy.numpy() for copy in phi.scale.value.values]
  np.testing.assert_array_equal(*copies)


def test_synchronized_batch_norm_makes_replicas_equal_one():
  def synchronized():
    encoder = make_encoder(batch_norm=True)
    encoders.synchronize_batch_norm(encoder)
    return encoder

  check_same(*train('dble', 1, synchronized), *train('dble', 2, synchronized))


def test_replicas_that_normalize_apart_agree_on_moving_statistics():
  apart = lambda: make_encoder(batch_norm=True)
  one, _ = train('prototypical', 1, apart)
  two, _ = train('prototypical', 2, apart)
  layer, = [layer for layer in two.encoder.layers if hasattr(layer, 'moving_mean')]
  for variable in (layer.moving_mean, layer.moving_variance):
    copies = [copy.numpy() for copy in variable.value.values]
    np.testing.assert_array_equal(*copies)
  # Apart is not together: parts of a batch have statistics of their own.
  assert not np.allclose(one.theta[0], two.theta[0], rtol=1e-4)


def test_noise_of_replicas_is_the_parts_of_what_one_draws():
  with strategy(2).scope():
    phi_optimizer = optimizer()
    phi_optimizer.build([keras.Variable([0.0])])
  draw = lambda shape: confidence.training_noise(
      tf.constant(shape), seed=5, optimizer=phi_optimizer)
  parts = [part.numpy() for part in strategy(2).run(draw, args=([2, 6, DIM],)).values]
  assert not np.intersect1d(*parts).size
  np.testing.assert_array_equal(np.concatenate(parts), draw([4, 6, DIM]))


def test_dropout_differs_between_replicas_and_their_state_does_not():
  class Masks(keras.Model):
    moving_statistics = ()

    def __init__(self):
      super().__init__()
      self.dropout = keras.layers.Dropout(0.5)

    @replicas.training_step
    def train_step(self, data):
      return self.dropout(data, training=True)

  with strategy(2).scope():
    model = Masks()
  step = tf.function(lambda: strategy(2).run(model.train_step, args=(tf.ones([64]),)))
  first, second = ([part.numpy() for part in step().values] for _ in range(2))
  drawn = {masks.tobytes() for masks in (*first, *second)}
  assert len(drawn) == 4
  states = [copy.numpy() for copy in model.dropout.seed_generator.state.value.values]
  np.testing.assert_array_equal(*states)


def minimize(optimizer, num_replicas, slope=4.0, **arguments):
  """Moves two variables, which start at zero, by one step.

  The gradients of the first are [3, 0] and [0, slope], on a replica each or both on
  one: their mean is [1.5, 2]. That of the second is 1 everywhere.
  """
  with strategy(num_replicas).scope():
    variables = [keras.Variable([0.0, 0.0]), keras.Variable([0.0])]
    optimizer = optimizer()
    optimizer.build(variables)

  def step():
    slopes = tf.constant([[3.0, 0.0], [0.0, slope]])
    if num_replicas > 1:
      slopes = slopes[replicas.index(), tf.newaxis]
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(
          tf.reduce_sum(slopes * variables[0].value, axis=-1)) + variables[1].value[0]
    replicas.minimize(optimizer, tape, loss, variables, **arguments)

  tf.function(lambda: strategy(num_replicas).run(step))()
  return [variable.numpy() for variable in variables], optimizer


REPLICAS = pytest.mark.parametrize('num_replicas', [1, 2])


@REPLICAS
def test_a_step_follows_the_mean_gradient_of_all_replicas(num_replicas):
  (first, second), _ = minimize(lambda: keras.optimizers.SGD(0.1), num_replicas)
  np.testing.assert_allclose(first, [-0.15, -0.2], rtol=1e-6)
  np.testing.assert_allclose(second, [-0.1], rtol=1e-6)


@REPLICAS
def test_the_gradient_of_the_whole_batch_is_clipped(num_replicas):
  (first, second), _ = minimize(
      lambda: keras.optimizers.SGD(1.0, clipnorm=1.0), num_replicas)
  np.testing.assert_allclose(first, [-0.6, -0.8], rtol=1e-6)
  np.testing.assert_allclose(second, [-1.0], rtol=1e-6)


def loss_scaling():
  return keras.optimizers.LossScaleOptimizer(
      keras.optimizers.SGD(0.1), initial_scale=1024.0)


@REPLICAS
def test_a_scaled_loss_moves_weights_as_much(num_replicas):
  (first, second), _ = minimize(loss_scaling, num_replicas)
  np.testing.assert_allclose(first, [-0.15, -0.2], rtol=1e-6)
  np.testing.assert_allclose(second, [-0.1], rtol=1e-6)


@REPLICAS
@pytest.mark.parametrize('slope', [np.nan, np.inf])
def test_loss_scaling_skips_steps_that_overflow_and_lowers_the_scale(
    num_replicas, slope):
  variables, optimizer = minimize(
      loss_scaling, num_replicas, slope, skip_non_finite=True)
  for variable in variables:
    np.testing.assert_array_equal(variable, np.zeros_like(variable))
  assert float(keras.ops.convert_to_numpy(optimizer.dynamic_scale)) == 512.0


@REPLICAS
def test_gradients_that_are_not_finite_anywhere_can_be_skipped(num_replicas):
  sgd = lambda: keras.optimizers.SGD(0.1)
  (first, second), _ = minimize(sgd, num_replicas, np.nan, skip_non_finite=True)
  np.testing.assert_array_equal(first, [0.0, 0.0])
  np.testing.assert_allclose(second, [-0.1], rtol=1e-6)
  (first, second), _ = minimize(sgd, num_replicas, np.nan)
  assert first[0] == pytest.approx(-0.15) and np.isnan(first[1])
  np.testing.assert_allclose(second, [-0.1], rtol=1e-6)


@pytest.mark.parametrize('kind', ['prototypical', 'vanilla'])
def test_representations_figures_and_answers_are_those_of_one_replica(kind):
  images, class_ids = labelled(33, seed=7)  # The last batch, of one, leaves one idle.
  batches = tf.data.Dataset.from_tensor_slices((images, class_ids)).batch(16)
  results = []
  for num_replicas in (1, 2):
    model, _ = train(kind, num_replicas)
    model.calibrate(batches)
    representations = model.represent(batches)
    np.testing.assert_array_equal(representations.class_ids, class_ids)
    results.append((
        [variable.numpy() for variable in model.non_trainable_variables],
        representations.h,
        model.predict_from(representations.h),
        model.evaluate(batches, verbose=0, return_dict=True),
        model.predict(images, batch_size=16, verbose=0)))
  keras.tree.map_structure(
      lambda mine, theirs: np.testing.assert_allclose(
          theirs, mine, rtol=1e-3, atol=1e-5),
      *results)


def test_validation_is_that_of_one_replica():
  batches = tf.data.Dataset.from_tensor_slices(labelled(48, seed=7)).batch(16)
  results = []
  for num_replicas in (1, 2):
    keras.utils.set_random_seed(2)
    with strategy(num_replicas).scope():
      model = make_model('dble', make_encoder())
    history = model.fit(
        training_data('dble'), shuffle=False, verbose=0, train_data=batches,
        validation_data=batches).history
    results.append([
        *np.ravel(list(history.values())), model.sigma_scale.numpy(),
        model.temperature.numpy()])
  assert results[0][-2] > 0
  np.testing.assert_allclose(results[1], results[0], rtol=1e-2, atol=1e-4)


def test_trust_scores_are_those_of_one_replica():
  train_set, held_out = (
      tf.data.Dataset.from_tensor_slices(labelled(48, seed)).batch(20)
      for seed in (7, 8))
  results = []
  for num_replicas in (1, 2):
    keras.utils.set_random_seed(2)
    with strategy(num_replicas).scope():
      model = baselines.TrustScore(make_encoder(), NUM_CLASSES, num_points=48)
      model.compile(optimizer())
    model.fit(training_data('vanilla'), shuffle=False, verbose=0)
    model.calibrate(train_set, held_out)
    results.append(model.predict(labelled(20, seed=9)[0], verbose=0))
  for name in results[0]:
    np.testing.assert_allclose(
        results[1][name], results[0][name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_a_model_of_replicas_survives_saving_and_answers_alone(tmp_path):
  images, class_ids = labelled(40)
  model, _ = train('prototypical', 2)
  model.fit_centers(tf.data.Dataset.from_tensor_slices((images, class_ids)).batch(16))
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  expected = model.predict(images, verbose=0)
  for name, answer in loaded.predict(images, verbose=0).items():
    np.testing.assert_allclose(answer, expected[name], rtol=1e-5, atol=1e-6)
  for mine, theirs in zip(model.optimizer.variables, loaded.optimizer.variables):
    np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize('data, message', [
    (tf.data.Dataset.from_tensors, 'cannot share 3 episodes'),
    (lambda episodes: tf.data.Dataset.from_tensor_slices(episodes).batch(2),
     'fixed size'),
    (lambda episodes: episodes, 'fixed size'),
])
def test_batches_that_do_not_split_into_equal_parts_are_refused(data, message):
  with strategy(2).scope():
    model = make_model('prototypical', make_encoder())
  episodes = np.zeros([3, 3, 5, *IMAGE_SHAPE], np.uint8)
  with pytest.raises(UserError, match=message):
    model.fit(data(episodes), verbose=0)
