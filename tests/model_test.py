import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import special
from scipy.spatial import distance

from dble_tf import confidence
from dble_tf import confidence_models
from dble_tf import data as datasets
from dble_tf import encoders
from dble_tf.data import episodes
from dble_tf.errors import UserError
from dble_tf.model import DBLE

DIM = 3
SHOTS = 2
IMAGE_SHAPE = (2, 2, 1)


def linear_encoder():
  """Pixels / 100 times a kernel [4, 3]: representations that NumPy can follow."""
  return keras.Sequential([
      keras.Input(IMAGE_SHAPE, dtype='uint8'),
      keras.layers.Rescaling(0.01),
      keras.layers.Flatten(),
      keras.layers.Dense(DIM, use_bias=False),
  ])


def plain_confidence_model():
  """Without dropout and weight decay, so that a step can be worked by hand."""
  return confidence_models.confidence_mlp(
      DIM, hidden_units=5, dropout=0.0, weight_decay=0.0, initial_sigma=0.5)


def make_model(rate=0.1, confidence_rate=0.1, seed=0, num_shots=SHOTS,
               **compile_arguments):
  keras.utils.set_random_seed(7)
  model = DBLE(linear_encoder(), plain_confidence_model(), num_classes=4,
               num_shots=num_shots, seed=seed)
  model.compile(keras.optimizers.SGD(rate, momentum=0.9),
                keras.optimizers.SGD(confidence_rate, momentum=0.9),
                **compile_arguments)
  return model


def random_episodes(seed=0, num_episodes=2, num_ways=3, num_images=6):
  return np.random.default_rng(seed).integers(
      256, size=[num_episodes, num_ways, num_images, *IMAGE_SHAPE], dtype=np.uint8)


def separable_episodes():
  """Each class is one grey level times one pixel: the encoder errs on none."""
  batch = np.zeros([1, 3, 6, 4], np.uint8)
  for way in range(3):
    batch[:, way, :, way] = 250
  return batch.reshape(1, 3, 6, *IMAGE_SHAPE)


def some_images(n=40, seed=1):
  rng = np.random.default_rng(seed)
  return rng.integers(256, size=[n, *IMAGE_SHAPE], dtype=np.uint8), np.arange(n) % 4


def batches(images, class_ids, batch_size=16):
  return tf.data.Dataset.from_tensor_slices((images, class_ids)).batch(batch_size)


def fitted_model(**arguments):
  model = make_model(**arguments)
  model.fit_centers(batches(*some_images()))
  return model


def weights(model):
  return [weight.numpy() for weight in model.weights]


def algorithm_1(model, batch):
  """Both losses, as a literal walk through Algorithm 1, query by query.

  Returns theta's loss, and h, label and centers of each error with its place among
  the queries.
  """
  theta_terms, errors = [], []
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
        if int(np.argmin(d)) != label:
          errors.append((rows[place], label, centers, len(theta_terms)))
        theta_terms.append(d[label] + tf.math.log(sum(tf.exp(-x) for x in d)))
  return sum(theta_terms) / len(theta_terms), errors


# Episodes with supports and queries, and leave-one-out; E * Q of `random_episodes`.
EPISODES = pytest.mark.parametrize(
    'num_shots, num_queries', [(SHOTS, 2 * 3 * 4), (None, 2 * 3 * 6)])


@EPISODES
def test_train_step_follows_algorithm_1_for_theta(num_shots, num_queries):
  batch = random_episodes()
  model = make_model(rate=0.05, num_shots=num_shots)
  reference = make_model(num_shots=num_shots)
  theta = reference.encoder.trainable_variables
  with tf.GradientTape() as tape:
    expected_loss, errors = algorithm_1(reference, batch)
  gradient, = tape.gradient(expected_loss, [v.value for v in theta])
  logs = model.train_on_batch(batch, return_dict=True)
  assert logs['prototype_loss'] == pytest.approx(float(expected_loss), rel=1e-4)
  assert logs['error_rate'] == pytest.approx(len(errors) / num_queries)
  np.testing.assert_allclose(
      model.encoder.weights[0], theta[0] - 0.05 * gradient, rtol=1e-4, atol=1e-5)


@EPISODES
def test_train_step_follows_algorithm_1_for_phi(num_shots, num_queries):
  batch = random_episodes()
  model = make_model(confidence_rate=0.3, num_shots=num_shots)
  reference = make_model(num_shots=num_shots)
  _, errors = algorithm_1(reference, batch)
  assert len(errors) >= 3
  # The noise of the first step, for all queries in the order of the episodes.
  noise = confidence.standard_noise([2, num_queries // 2, DIM], [0, 1])
  noise = tf.reshape(noise, [-1, DIM])
  phi = reference.confidence_model.trainable_variables
  with tf.GradientTape() as tape:
    terms = []
    for query, label, centers, place in errors:
      z = query + reference.confidence_model(query[tf.newaxis])[0] * noise[place]
      d = [tf.norm(z - center) for center in centers]
      terms.append(d[label] + tf.math.log(sum(tf.exp(-x) for x in d)))
    expected_loss = sum(terms) / num_queries  # Over all queries.
  gradients = tape.gradient(expected_loss, [v.value for v in phi])
  logs = model.train_on_batch(batch, return_dict=True)
  assert logs['confidence_loss'] == pytest.approx(float(expected_loss), rel=1e-3)
  for actual, before, gradient in zip(
      model.confidence_model.trainable_variables, phi, gradients):
    np.testing.assert_allclose(
        actual, before - 0.3 * gradient, rtol=1e-3, atol=1e-5)


def test_phi_never_moves_theta():
  still, moving = make_model(confidence_rate=0.0), make_model(confidence_rate=1.0)
  for step in range(4):
    for model in (still, moving):
      model.train_on_batch(random_episodes(step))
  for a, b in zip(still.encoder.weights, moving.encoder.weights):
    np.testing.assert_array_equal(a, b)
  assert not np.allclose(still.confidence_model.weights[0],
                         moving.confidence_model.weights[0])


def test_theta_learns_from_every_query_and_phi_from_errors_alone():
  model = make_model()
  before = weights(model.confidence_model)
  logs = model.train_on_batch(separable_episodes(), return_dict=True)
  assert logs['error_rate'] == 0
  assert logs['confidence_loss'] == 0
  for old, new in zip(before, weights(model.confidence_model)):
    np.testing.assert_array_equal(old, new)
  assert not np.allclose(make_model().encoder.weights[0], model.encoder.weights[0])


def test_weight_decay_reaches_theta_and_phi():
  def step(decay):
    keras.utils.set_random_seed(7)
    encoder = keras.Sequential([
        keras.Input(IMAGE_SHAPE, dtype='uint8'), keras.layers.Flatten(),
        keras.layers.Dense(DIM, kernel_regularizer=keras.regularizers.L2(decay / 2))])
    model = DBLE(
        encoder, confidence_models.confidence_mlp(DIM, dropout=0.0, weight_decay=decay), 4,
        num_shots=SHOTS)
    model.compile(keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1))
    kernels = [encoder.layers[-1].kernel, model.confidence_model.layers[1].kernel]
    before = [kernel.numpy() for kernel in kernels]
    model.train_on_batch(separable_episodes())
    return before, [kernel.numpy() for kernel in kernels]

  (before, plain), (_, decayed) = step(0.0), step(0.5)
  for old, without, with_decay in zip(before, plain, decayed):
    np.testing.assert_allclose(with_decay, without - 0.1 * 0.5 * old, rtol=1e-3, atol=1e-5)


def test_encoder_and_confidence_model_run_in_training_mode_in_training_alone():

  seen = []

  class Mode(keras.layers.Layer):
    def call(self, x, training=None):
      seen.append(training)
      return x

  modes = Mode(), Mode()
  encoder = keras.Sequential([
      keras.Input(IMAGE_SHAPE), keras.layers.Flatten(), modes[0], keras.layers.Dense(DIM)])
  confidence_model = keras.Sequential([
      keras.Input([DIM]), modes[1], keras.layers.Dense(DIM, activation='softplus')])
  model = DBLE(encoder, confidence_model, 4, num_shots=SHOTS)
  model.compile('sgd', 'sgd', run_eagerly=True)
  images = some_images()[0].astype(np.float32)
  for use, expected in (
      (lambda: model.train_on_batch(random_episodes().astype(np.float32)), True),
      (lambda: model.fit_centers(batches(images, np.arange(40) % 4)), False),
      (lambda: model.predict(images, verbose=0), False)):
    seen.clear()
    use()
    assert seen and all(bool(mode) is expected for mode in seen)


def test_an_image_is_encoded_once_for_supports_and_queries():
  shapes = []

  class Spy(keras.layers.Layer):
    def call(self, x):
      shapes.append(tuple(x.shape))
      return x

  encoder = linear_encoder()
  encoder = keras.Sequential([keras.Input(IMAGE_SHAPE, dtype='uint8'), encoder, Spy()])
  shapes.clear()
  model = DBLE(encoder, plain_confidence_model(), 4, num_shots=SHOTS)
  model.compile('sgd', 'sgd', run_eagerly=True)
  model.train_on_batch(random_episodes())
  assert shapes == [(2 * 3 * 6, DIM)]


@pytest.mark.parametrize(
    'encoder, num_shots', [('linear', SHOTS), ('mlp', SHOTS), ('mlp', None)])
def test_train_step_gives_the_same_losses_under_xla(encoder, num_shots):
  logs = {}
  for jit_compile in (False, True):
    keras.utils.set_random_seed(7)
    body = linear_encoder() if encoder == 'linear' else encoders.mlp(IMAGE_SHAPE, DIM)
    model = DBLE(body, plain_confidence_model(), 4, num_shots=num_shots)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=1.0),
                  keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=1.0),
                  jit_compile=jit_compile)
    assert model.jit_compile is jit_compile
    logs[jit_compile] = [
        list(model.train_on_batch(random_episodes(step), return_dict=True).values())
        for step in range(3)]
  np.testing.assert_allclose(logs[True], logs[False], rtol=1e-3, atol=1e-5)


def test_nothing_is_traced_again_after_the_first_step():
  traces = {'train': 0, 'test': 0, 'centers': 0}

  class Counting(DBLE):
    def train_step(self, data):
      traces['train'] += 1
      return super().train_step(data)

    def test_step(self, data):
      traces['test'] += 1
      return super().test_step(data)

    def encode(self, images, training=False):
      traces['centers'] += not training
      return super().encode(images, training)

  model = Counting(linear_encoder(), plain_confidence_model(), 4, num_shots=None)
  model.compile('sgd', 'sgd')
  images, class_ids = some_images()  # 40, in batches of 16, 16 and 8.
  data = batches(images, class_ids)

  def fit(steps, **arguments):
    model.fit(tf.data.Dataset.from_tensors(random_episodes()).repeat(), verbose=0,
              steps_per_epoch=steps, centers_data=data, validation_data=data,
              **arguments)
    return dict(traces)

  first = fit(1)
  assert first['train'] == 1
  assert fit(5, epochs=3) == first


def test_centers_are_class_means_over_all_batches():
  images, class_ids = some_images(n=37)
  model = make_model()
  model.fit_centers(batches(images, class_ids, batch_size=5))
  h = model.encoder.predict(images, verbose=0)
  expected = [h[class_ids == c].mean(axis=0) for c in range(4)]
  np.testing.assert_allclose(model.centers, expected, rtol=1e-4)
  np.testing.assert_array_equal(model.center_counts, [10, 9, 9, 9])


def test_a_class_without_images_has_no_center_and_is_named():
  images, _ = some_images(n=6)
  model = make_model()
  with pytest.raises(UserError, match=r'\[1, 3\]'):
    model.fit_centers(batches(images, [0, 0, 2, 2, 0, 2]))
  assert not model.has_centers


def test_prediction_follows_equations_6_and_10():
  model = fitted_model()
  images, _ = some_images(n=11, seed=5)
  outputs = model.predict(images, verbose=0)
  h = model.encoder.predict(images, verbose=0)
  sigma = model.confidence_model.predict(h, verbose=0)
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
  assert model.noise.shape == (20, DIM)


def test_the_same_image_gets_the_same_confidence_in_any_batch():
  model = fitted_model()
  images, _ = some_images(n=30)
  together = model.predict(images, verbose=0)['confidence']
  backwards = model.predict(images[::-1], batch_size=7, verbose=0)['confidence'][::-1]
  alone = [model.predict(image[np.newaxis], verbose=0)['confidence'][0]
           for image in images[:3]]
  np.testing.assert_allclose(backwards, together, rtol=1e-5)
  np.testing.assert_allclose(alone, together[:3], rtol=1e-5)


def test_evaluate_agrees_with_figures_from_predictions():
  model = fitted_model()
  images, class_ids = some_images(n=33, seed=9)
  outputs = model.predict(images, verbose=0)
  figures = model.evaluate(batches(images, class_ids, 8), return_dict=True, verbose=0)
  is_correct = outputs['label'] == class_ids
  gaps = [abs((outputs['confidence'] - is_correct)[
      np.ceil(outputs['confidence'] * 15) == bin_index].sum()) for bin_index in range(1, 16)]
  assert set(figures) == {'accuracy', 'ece', 'nll'}
  assert figures['accuracy'] == pytest.approx(is_correct.mean())
  assert figures['ece'] == pytest.approx(sum(gaps) / 33, rel=1e-4)
  assert figures['nll'] == pytest.approx(
      -np.log(outputs['probabilities'][np.arange(33), class_ids]).mean(), rel=1e-4)


def test_fit_reports_losses_and_validation_at_each_epoch():
  model = make_model(rate=0.01)
  images, class_ids = some_images()
  data = tf.data.Dataset.from_tensors(random_episodes()).repeat()
  history = model.fit(
      data, epochs=2, steps_per_epoch=3, centers_data=batches(images, class_ids),
      validation_data=batches(images, class_ids), verbose=0).history
  assert set(history) == {'loss', 'prototype_loss', 'confidence_loss', 'error_rate',
                          'val_accuracy', 'val_ece', 'val_nll'}
  assert all(len(values) == 2 for values in history.values())


def class_means(model, images, class_ids):
  h = model.encoder.predict(images, verbose=0)
  return [h[class_ids == c].mean(axis=0) for c in range(4)]


def test_every_validation_uses_the_centers_of_its_moment():
  images, class_ids = some_images()
  differences = []

  class Compare(keras.callbacks.Callback):
    def on_test_begin(self, logs=None):
      differences.append(np.abs(
          self.model.centers.numpy() - class_means(self.model, images, class_ids)).max())

  model = make_model()
  model.fit(
      tf.data.Dataset.from_tensors(random_episodes()).repeat(), epochs=3,
      steps_per_epoch=3, centers_data=batches(images, class_ids),
      validation_data=batches(images, class_ids), verbose=0, callbacks=[Compare()])
  assert len(differences) == 3
  np.testing.assert_allclose(differences, 0, atol=1e-5)


def test_an_epochs_losses_are_means_over_its_steps():
  separate, together = make_model(), make_model()
  batch = [random_episodes(step) for step in range(3)]
  logs = []
  for episodes_of_step in batch:
    logs.append(separate.train_on_batch(episodes_of_step, return_dict=True))
    separate.reset_metrics()
  history = together.fit(
      tf.data.Dataset.from_tensor_slices(np.stack(batch)), verbose=0).history
  for name, values in history.items():
    assert values[0] == pytest.approx(np.mean([log[name] for log in logs]), rel=1e-4)


@pytest.mark.parametrize('arguments', [
    {}, {'validation_data': batches(*some_images()), 'validation_freq': 2}])
def test_fit_ends_with_the_centers_of_the_final_encoder(arguments):
  model = make_model()
  images, class_ids = some_images()
  model.compile(
      keras.optimizers.SGD(0.1, use_ema=True), keras.optimizers.SGD(0.1))
  model.fit(tf.data.Dataset.from_tensors(random_episodes()).repeat(), epochs=3,
            steps_per_epoch=2, centers_data=batches(images, class_ids), verbose=0,
            **arguments)
  np.testing.assert_allclose(
      model.centers, class_means(model, images, class_ids), rtol=1e-4, atol=1e-5)


def test_centers_are_fitted_once_for_each_state_of_the_encoder(monkeypatch):
  model = make_model()
  passes = []
  fit_centers = model.fit_centers
  monkeypatch.setattr(model, 'fit_centers', lambda *arguments: (
      passes.append(model.optimizer.iterations.numpy()), fit_centers(*arguments)))
  model.fit(tf.data.Dataset.from_tensors(random_episodes()).repeat(), epochs=3,
            steps_per_epoch=2, centers_data=batches(*some_images()), verbose=0,
            validation_data=batches(*some_images()))
  assert passes == [2, 4, 6]


def test_centers_of_before_training_are_not_used_after_it():
  model = fitted_model()
  assert model.has_centers
  model.fit(tf.data.Dataset.from_tensors(random_episodes()), verbose=0)
  with pytest.raises(UserError, match='fit_centers'):
    model.predict(some_images()[0], verbose=0)


@pytest.mark.parametrize('centers_data', [
    some_images(),
    tf.data.Dataset.from_tensor_slices(some_images()[0]).batch(8),
    batches(*some_images()).repeat(),
])
def test_what_cannot_give_centers_is_refused_before_training(centers_data):
  model = make_model()
  before = weights(model)
  with pytest.raises(UserError, match='finite tf.data.Dataset of batches'):
    model.fit(tf.data.Dataset.from_tensors(random_episodes()),
              centers_data=centers_data, verbose=0)
  np.testing.assert_array_equal(before[0], weights(model)[0])


def test_centers_take_labels_as_a_column_and_ignore_weights():
  images, class_ids = some_images()
  model, column = make_model(), make_model()
  model.fit_centers(batches(images, class_ids))
  column.fit_centers(tf.data.Dataset.from_tensor_slices(
      (images, class_ids[:, np.newaxis], np.zeros(40))).batch(16))
  np.testing.assert_array_equal(model.centers, column.centers)


def test_validation_split_is_refused():
  with pytest.raises(UserError, match='validation_data'):
    make_model().fit(random_episodes(), validation_split=0.5, verbose=0)


def test_callbacks_can_watch_the_loss_and_the_validation_figures(tmp_path):
  model = make_model(rate=float('nan'))
  history = model.fit(
      tf.data.Dataset.from_tensors(random_episodes()).repeat(), epochs=4,
      steps_per_epoch=3, callbacks=[keras.callbacks.TerminateOnNaN()], verbose=0)
  assert len(history.epoch) == 1
  model = make_model()
  path = tmp_path / 'best.keras'
  model.fit(
      tf.data.Dataset.from_tensors(random_episodes()).repeat(), epochs=3,
      steps_per_epoch=3, verbose=0, centers_data=batches(*some_images()),
      validation_data=batches(*some_images()), callbacks=[
          keras.callbacks.ModelCheckpoint(
              path, monitor='val_nll', mode='min', save_best_only=True),
          keras.callbacks.EarlyStopping('val_nll', mode='min')])
  assert keras.models.load_model(path).has_centers


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


def test_validation_without_data_for_centers_is_refused_before_training():
  model = make_model()
  before = weights(model)
  with pytest.raises(UserError, match='centers_data'):
    model.fit(tf.data.Dataset.from_tensors(random_episodes()),
              validation_data=batches(*some_images()), verbose=0)
  for old, new in zip(before, weights(model)):
    np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize('use', [
    lambda model, images: model.predict(images, verbose=0),
    lambda model, images: model.evaluate(images, np.zeros(40), verbose=0),
    lambda model, images: model.predict_on_batch(images),
    lambda model, images: model(images),
    lambda model, images: model.export('never_written'),
])
def test_using_a_model_without_centers_says_what_to_do(use):
  with pytest.raises(UserError, match='fit_centers'):
    use(make_model(), some_images()[0])


def test_images_given_as_episodes_are_refused():
  with pytest.raises(UserError, match='episode_dataset'):
    make_model().train_on_batch(np.zeros([8, 5], np.uint8))


def test_episodes_without_queries_are_refused():
  with pytest.raises(UserError, match='no query is left'):
    make_model().train_on_batch(random_episodes(num_images=SHOTS))


@pytest.mark.parametrize('num_shots', [0, -1])
def test_episodes_without_supports_are_refused(num_shots):
  with pytest.raises(UserError, match='a support or more'):
    make_model(num_shots=num_shots)


def test_leave_one_out_with_a_single_image_a_class_is_refused():
  with pytest.raises(UserError, match='two or more'):
    make_model(num_shots=None).train_on_batch(random_episodes(num_images=1))


def test_one_optimizer_for_both_parts_is_refused():
  model, optimizer = make_model(), keras.optimizers.SGD()
  with pytest.raises(UserError, match='an optimizer each'):
    model.compile(optimizer, optimizer)


@pytest.mark.parametrize('confidence_model', [
    confidence_models.confidence_mlp(4),
    keras.Sequential([keras.Input([DIM]), keras.layers.Dense(7)]),
])
def test_a_confidence_model_of_another_size_is_refused(confidence_model):
  with pytest.raises(UserError, match=r'confidence_mlp\(3\)'):
    DBLE(linear_encoder(), confidence_model, 4, num_shots=1)


def test_a_subclassed_encoder_is_accepted_once_its_input_is_known():

  class Custom(keras.Model):
    def __init__(self):
      super().__init__()
      self.flatten, self.dense = keras.layers.Flatten(), keras.layers.Dense(DIM)

    def call(self, x):
      return self.dense(self.flatten(x))

  with pytest.raises(UserError, match='keras.Input'):
    DBLE(Custom(), plain_confidence_model(), 4, num_shots=SHOTS)
  encoder = keras.Sequential([keras.Input(IMAGE_SHAPE), Custom()])
  model = DBLE(encoder, plain_confidence_model(), 4, num_shots=SHOTS)
  model.compile('sgd', 'sgd')
  logs = model.train_on_batch(
      random_episodes().astype(np.float32) / 255, return_dict=True)
  assert np.isfinite(logs['prototype_loss'])


def test_config_mirrors_the_constructor():
  model = DBLE(linear_encoder(), plain_confidence_model(), 4, num_shots=SHOTS,
               num_samples=9, seed=3, name='mine')
  clone = DBLE.from_config(model.get_config())
  assert clone.get_config() == model.get_config()
  assert clone.noise.shape == (9, DIM)


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
  model = DBLE(linear_encoder(), confidence_models.confidence_mlp(DIM, dropout=0.0), 4,
               num_shots=SHOTS)
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


def test_training_repeats_with_the_seed():
  runs = []
  for seed in (0, 0, 1):
    model = make_model(seed=seed)
    model.train_on_batch(random_episodes())
    runs.append(weights(model.confidence_model))
  np.testing.assert_array_equal(runs[0][2], runs[1][2])
  assert not np.array_equal(runs[0][2], runs[2][2])


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
  digits = datasets.load('digits')
  sampler = episodes.EpisodeSampler(
      digits.train.class_ids, num_ways=10, images_per_class=10, seed=0)
  two = episodes.episode_dataset(digits.train.images, sampler, 2).take(1).repeat()
  model = DBLE(encoders.mlp(digits.image_shape, 64, weight_decay=0.0),
               confidence_models.confidence_mlp(64), 10, num_shots=5)
  model.compile(keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=1.0),
                keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=1.0))
  history = model.fit(two, steps_per_epoch=20, epochs=6, verbose=0).history
  assert history['prototype_loss'][-1] < 0.02 < 0.2 < history['prototype_loss'][0]
  assert history['error_rate'][-1] == 0


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
