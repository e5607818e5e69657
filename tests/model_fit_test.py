"""DBLE's `fit`: logs, validation of the finished model, callbacks, refusals."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from dble_tf.errors import UserError
from dble_tf.model import DBLE
from tests import linear
from tests.linear import batches
from tests.linear import fitted_model
from tests.linear import make_model
from tests.linear import random_episodes
from tests.linear import some_images
from tests.linear import weights


def some_batches(seed=1):
  return batches(*some_images(seed=seed))


def fit(model, epochs=1, steps=3, **arguments):
  episodes = tf.data.Dataset.from_tensors(random_episodes()).repeat()
  return model.fit(
      episodes, epochs=epochs, steps_per_epoch=steps, verbose=0, **arguments)


def test_fit_reports_losses_and_validation_at_each_epoch():
  history = fit(make_model(), epochs=2, train_data=some_batches(),
                validation_data=some_batches()).history
  assert set(history) == {
      'loss', 'prototype_loss', 'confidence_loss', 'error_rate', 'val_loss',
      'val_accuracy', 'val_ece', 'val_nll'}
  assert all(len(values) == 2 for values in history.values())


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


def test_nothing_is_traced_again_after_the_first_step():
  traces = {'train': 0, 'test': 0, 'encode': 0}

  class Counting(DBLE):
    def train_step(self, data):
      traces['train'] += 1
      return super().train_step(data)

    def test_step(self, data):
      traces['test'] += 1
      return super().test_step(data)

    def encode(self, images, training=False):
      traces['encode'] += not training
      return super().encode(images, training)

  model = Counting(linear.encoder(), 4, num_shots=None)
  model.compile()
  # 40 images, in batches of 16, 16 and 8.
  data = {'train_data': some_batches(), 'validation_data': some_batches()}
  fit(model, steps=1, **data)
  first = dict(traces)
  assert first['train'] == 1
  fit(model, epochs=3, steps=5, **data)
  assert traces == first


# Validation


class Finish(keras.callbacks.Callback):
  """Calibrates and evaluates a copy of the model after each epoch."""

  def __init__(self, train_data, held_out):
    super().__init__()
    self.train_data, self.held_out = train_data, held_out
    self.figures, self.alphas = [], []

  def on_epoch_end(self, epoch, logs=None):
    copy = linear.copy_of(self.model)
    copy.forget_calibration()
    copy.calibrate(self.train_data, self.held_out)
    self.alphas.append(float(copy.sigma_scale))
    self.figures.append(
        copy.evaluate(self.held_out, return_dict=True, verbose=0))


# Where theta rests, phi alone changes what is to be calibrated.
@pytest.mark.parametrize('rate', [0.02, 0.0])
def test_validation_is_of_the_model_as_it_would_be_finished_then(rate):
  model = make_model(rate=rate, confidence_rate=0.5)
  model.theta[0].assign(20 * model.theta[0])  # Too sure by its distances: sigma pays.
  train, held_out = (batches(*linear.class_images(40, seed)) for seed in (1, 2))
  finish = Finish(train, held_out)
  history = fit(model, epochs=3, train_data=train, validation_data=held_out,
                callbacks=[finish]).history
  assert min(finish.alphas) > 0 and len(set(finish.alphas)) == 3
  for name in ('loss', 'accuracy', 'ece', 'nll'):
    expected = [figures[name] for figures in finish.figures]
    np.testing.assert_allclose(history[f'val_{name}'], expected, rtol=1e-5)
  assert history['val_loss'] == history['val_nll']
  # And the end of training leaves it finished.
  model.require_calibrated()
  assert float(model.sigma_scale) == pytest.approx(finish.alphas[-1], rel=1e-5)


def test_validation_data_can_be_arrays():
  arrays = some_images(seed=2)
  results = []
  for validation_data in ((*arrays, np.ones(40)), batches(*arrays)):
    model = make_model()
    history = fit(model, train_data=some_batches(), validation_data=validation_data)
    results.append([history.history['val_nll'][0], float(model.sigma_scale)])
  assert results[0][1] != 1.0
  np.testing.assert_allclose(*results, rtol=1e-4)


def test_every_validation_uses_the_centers_of_its_moment():
  images, class_ids = some_images()
  differences = []

  class Compare(keras.callbacks.Callback):
    def on_test_begin(self, logs=None):
      expected = linear.class_means(self.model, images, class_ids)
      differences.append(np.abs(self.model.centers.numpy() - expected).max())

  fit(make_model(), epochs=3, train_data=batches(images, class_ids),
      validation_data=batches(images, class_ids), callbacks=[Compare()])
  assert len(differences) == 3
  np.testing.assert_allclose(differences, 0, atol=1e-5)


@pytest.mark.parametrize('arguments', [
    {}, {'validation_data': some_batches(), 'validation_freq': 2}])
def test_fit_ends_with_the_centers_of_the_final_encoder(arguments):
  model = make_model()
  model.compile(keras.optimizers.SGD(0.1, use_ema=True), keras.optimizers.SGD(0.1))
  fit(model, epochs=3, steps=2, train_data=some_batches(), **arguments)
  np.testing.assert_allclose(
      model.centers, linear.class_means(model, *some_images()), rtol=1e-4, atol=1e-5)


def test_a_model_is_calibrated_once_for_each_state_of_its_weights(monkeypatch):
  model = make_model()
  passes = []
  fit_held_out = model.fit_held_out
  monkeypatch.setattr(model, 'fit_held_out', lambda held_out: (
      passes.append(model.optimizer.iterations.numpy()), fit_held_out(held_out)))
  fit(model, epochs=3, steps=2, train_data=some_batches(),
      validation_data=some_batches())
  assert passes == [2, 4, 6]


def test_centers_of_before_training_are_not_used_after_it():
  model = fitted_model()
  assert model.has_centers
  fit(model)
  with pytest.raises(UserError, match='no class centers yet'):
    model.predict(some_images()[0], verbose=0)


# Callbacks


def test_callbacks_can_watch_the_loss():
  history = fit(make_model(rate=float('nan')), epochs=4,
                callbacks=[keras.callbacks.TerminateOnNaN()])
  assert len(history.epoch) == 1


def test_validation_of_a_diverged_model_says_so():
  with pytest.raises(UserError, match='training has diverged'):
    fit(make_model(rate=float('nan')), epochs=4, train_data=some_batches(),
        validation_data=some_batches())


def test_callbacks_can_watch_the_validation_loss_without_a_mode(tmp_path):
  path = tmp_path / 'best.keras'
  early_stopping = keras.callbacks.EarlyStopping('val_loss', patience=9)
  model = make_model(rate=0.5)
  history = fit(
      model, epochs=4, train_data=some_batches(), validation_data=some_batches(seed=2),
      callbacks=[early_stopping, keras.callbacks.ModelCheckpoint(
          path, monitor='val_loss', save_best_only=True)]).history
  losses = history['val_loss']
  assert len(set(losses)) == 4
  assert early_stopping.best == min(losses)
  best = keras.models.load_model(path)
  best.require_calibrated()
  figures = best.evaluate(some_batches(seed=2), return_dict=True, verbose=0)
  assert figures['nll'] == pytest.approx(min(losses), rel=1e-5)


def test_early_stopping_stops_where_the_validation_loss_rises():
  early_stopping = keras.callbacks.EarlyStopping('val_loss')
  history = fit(make_model(rate=0.0, confidence_rate=0.0), epochs=9, steps=1,
                train_data=some_batches(), validation_data=some_batches(seed=2),
                callbacks=[early_stopping])
  assert len(history.epoch) == 2


# Refusals


def assert_refused_before_training(message, **arguments):
  model = make_model()
  before = weights(model)
  with pytest.raises(UserError, match=message):
    fit(model, **arguments)
  for old, new in zip(before, weights(model)):
    np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize('data', [
    some_images(),
    tf.data.Dataset.from_tensor_slices(some_images()[0]).batch(8),
    some_batches().repeat(),
])
def test_what_cannot_give_centers_is_refused_before_training(data):
  assert_refused_before_training(
      'finite tf.data.Dataset of batches', train_data=data)


def test_what_cannot_calibrate_is_refused_before_training():
  assert_refused_before_training(
      'finite tf.data.Dataset of batches', train_data=some_batches(),
      validation_data=some_batches().repeat(), validation_steps=2)


def test_validation_without_data_for_centers_is_refused_before_training():
  assert_refused_before_training('train_data', validation_data=some_batches())


def test_validation_split_is_refused():
  assert_refused_before_training('validation_data', validation_split=0.5)


def test_images_given_as_episodes_are_refused():
  with pytest.raises(UserError, match=r'Dataset\.episodes'):
    make_model().train_on_batch(np.zeros([8, 5], np.uint8))


def test_episodes_without_queries_are_refused():
  with pytest.raises(UserError, match='no query is left'):
    make_model().train_on_batch(random_episodes(num_images=linear.SHOTS))


def test_leave_one_out_with_a_single_image_a_class_is_refused():
  with pytest.raises(UserError, match='two or more'):
    make_model(num_shots=None).train_on_batch(random_episodes(num_images=1))


def test_one_optimizer_for_both_parts_is_refused():
  model, optimizer = make_model(), keras.optimizers.SGD()
  with pytest.raises(UserError, match='an optimizer each'):
    model.compile(optimizer, optimizer)
