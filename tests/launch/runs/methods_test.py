import keras
import numpy as np
import pytest
import tensorflow as tf

from dble_tf.data import load
from dble_tf.serving import export
from launch.benchmarks import stand_in_server
from launch.runs import build
from launch.runs import methods
from launch.settings import experiment


def parse(method, *arguments):
  return experiment.parse([
      f'--method={method}', '--representation_size=8', '--num_shots=2',
      '--num_queries=2', '--batch_size=200', *arguments])


@pytest.fixture(scope='module')
def digits():
  return load('digits', validation_size=200)


@pytest.mark.parametrize('method', methods.METHODS)
def test_each_method_trains_under_xla_is_calibrated_and_exported(
    method, digits, tmp_path):
  values = parse(method)
  keras.utils.set_random_seed(0)
  model = build.build_model(values, digits)
  model.jit_compile = True
  data = build.make_training_data(values, digits)
  history = model.fit(data, steps_per_epoch=15, shuffle=False, verbose=0).history
  assert np.isfinite(history['loss'][0])
  model.calibrate(digits.train.batches(200), digits.validation.batches(200))
  answers = model.predict(digits.test.images, batch_size=200, verbose=0)
  figures = model.evaluate(digits.test.batches(200), verbose=0, return_dict=True)
  assert figures['accuracy'] == pytest.approx(
      (answers['label'] == digits.test.class_ids).mean())
  rows = np.arange(len(digits.test))
  np.testing.assert_allclose(answers['probabilities'].sum(axis=1), 1, rtol=1e-4)
  np.testing.assert_allclose(
      answers['confidence'], answers['probabilities'][rows, answers['label']],
      rtol=1e-4)
  assert (answers['label'] == digits.test.class_ids).mean() > 0.4  # Chance is 0.1.
  servable = stand_in_server.Servable(export.export(model, tmp_path))
  images = digits.test.images[:7]
  files = np.array([tf.io.encode_png(image).numpy() for image in images], object)
  for served in (servable.run('serving_default', {'images': images}),
                 servable.run('serving_bytes', {'image_bytes': files}),
                 tf.function(model.serve, jit_compile=True)(tf.constant(images))):
    for name in ('label', 'confidence', 'probabilities'):
      np.testing.assert_allclose(served[name], answers[name][:7], rtol=1e-3, atol=1e-6)
  embedded = servable.run('embed', {'images': images})['representation']
  encoders = [part.encoder for part in getattr(model, 'members', [model])]
  np.testing.assert_allclose(embedded, np.concatenate(
      [encoder.predict(images, verbose=0) for encoder in encoders], axis=1),
      rtol=1e-3, atol=1e-5)
  for name in ('serving_default', 'serving_bytes', 'embed'):
    for output in servable.signatures[name].outputs.values():
      assert output.tensor_shape.dim[0].size == -1, output.name  # The batch.
  has_centers = method in ('dble', 'prototypical')
  assert ('distance' in servable.signatures['serving_default'].outputs) == has_centers
  has_sigma = method in ('dble', 'vanilla_errors')
  assert ('sigma' in servable.signatures['serving_default'].outputs) == has_sigma


def test_methods_take_their_own_flags(digits):
  dropout = build.build_model(
      parse('mc_dropout', '--dropout=0.3', '--num_samples=7', '--seed=4'), digits)
  assert (dropout.dropout, dropout.num_samples, dropout.seed) == (0.3, 7, 4)
  trust = build.build_model(parse('trust_score', '--sparse_share=0.2'), digits)
  assert (trust.sparse_share, trust.num_points) == (0.2, len(digits.train))
  ensemble = build.build_model(parse('deep_ensemble', '--ensemble_size=3'), digits)
  assert len(ensemble.members) == 3
  smoothed = build.build_model(
      parse('label_smoothing', '--label_smoothing=0.25'), digits)
  assert smoothed.loss.label_smoothing == 0.25
  errors = build.build_model(parse('vanilla_errors', '--num_samples=7'), digits)
  assert errors.num_samples == 7


def test_dble_takes_its_own_flags(digits):
  default = build.build_model(parse('dble'), digits)
  assert default.confidence_model.learns_from == 'errors'
  assert (default.scaling, default.num_shots) == ('fitted', 2)
  assert default.squared_scale is None and default.label_smoothing == 0.0
  model = build.build_model(
      parse('dble', '--confidence_training=all', '--squared_scale=0.2',
            '--episode_smoothing=0.1', '--scaling=none', '--episode=leave_one_out',
            '--num_samples=7', '--seed=4'), digits)
  assert model.confidence_model.learns_from == 'all'
  assert (model.scaling, model.num_shots) == ('none', None)
  assert model.squared_scale == 0.2 and model.label_smoothing == 0.1
  assert model.noise.shape == (7, 8) and model.seed == 4
  prototypical = build.build_model(
      parse('prototypical', '--episode=leave_one_out', '--squared_scale=0.2',
            '--episode_smoothing=0.1'), digits)
  assert prototypical.num_shots is prototypical.confidence_model is None
  assert prototypical.squared_scale == 0.2 and prototypical.label_smoothing == 0.1


def test_mixed_batches_have_shares_of_the_flags_distribution(digits):
  def sharpness(alpha):
    values = parse('mixup', f'--mixup_alpha={alpha}')
    _, targets = next(iter(build.make_training_data(values, digits)))
    return float(tf.reduce_mean(tf.reduce_max(targets, axis=1)))

  assert sharpness(0.01) > 0.95 > 0.8 > sharpness(50)


def test_members_of_an_ensemble_see_batches_of_their_own(digits):
  first, other = (
      next(build.make_training_data(
          parse('deep_ensemble', f'--seed={seed}'), digits).as_numpy_iterator())[1]
      for seed in (0, 1))
  orders = {row.tobytes() for row in [*first.T, *other.T]}
  assert len(orders) == 8


def test_methods_start_from_the_same_weights(digits):
  def first_weights(method):
    keras.utils.set_random_seed(0)
    model = build.build_model(parse(method), digits)
    return model.encoder.get_weights(), model

  expected, vanilla = first_weights('vanilla')
  for method in set(methods.METHODS) - {'vanilla'}:
    weights, model = first_weights(method)
    for mine, other in zip(weights, expected):
      np.testing.assert_array_equal(mine, other, err_msg=method)
    if hasattr(model, 'linear'):
      np.testing.assert_array_equal(model.linear.kernel, vanilla.linear.kernel)


@pytest.mark.parametrize('method', methods.METHODS)
def test_answers_are_float32_under_mixed_precision(method, digits):
  model = build.build_model(parse(method, '--dtype_policy=mixed_float16'), digits)
  assert model.encoder.layers[-1].compute_dtype == 'float16'
  model.calibrate(digits.train.batches(200), digits.validation.batches(200))
  answers = model.predict(digits.test.images[:7], verbose=0)
  assert answers['probabilities'].dtype == answers['confidence'].dtype == np.float32
  np.testing.assert_allclose(answers['probabilities'].sum(axis=1), 1, rtol=1e-4)
