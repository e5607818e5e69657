import keras
import numpy as np
import pytest

from dble_tf.errors import UserError
from tests import linear
from tests.linear import batches
from tests.linear import fit
from tests.linear import fitted_model
from tests.linear import make_model
from tests.linear import some_batches
from tests.linear import some_images


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
