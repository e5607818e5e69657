"""DBLE's `fit`: logs, traces, refusals."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from dble_tf.errors import UserError
from dble_tf.model import DBLE
from tests import linear
from tests.linear import fit
from tests.linear import make_model
from tests.linear import random_episodes
from tests.linear import some_batches
from tests.linear import some_images
from tests.linear import weights


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


def test_callbacks_can_watch_the_loss():
  history = fit(make_model(rate=float('nan')), epochs=4,
                callbacks=[keras.callbacks.TerminateOnNaN()])
  assert len(history.epoch) == 1


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
