"""Training in Keras' `fit`, validated as the model would be finished then."""

import contextlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dble_tf import checks
from dble_tf.averages import AveragingModel
from dble_tf.averages import values_of

_BATCH = 1000


class ValidatedModel(AveragingModel):
  """A Keras model that `fit` averages and calibrates before each validation.

  Subclasses have `represent`, `takes_held_out`, `fit_train`, `fit_held_out`,
  `forget_calibration` and `require_fitted`; see `Classifier`.
  """

  def __init__(self, **kwargs):
    super().__init__(**kwargs)
    self._validating = contextlib.nullcontext  # Set by `fit` while it runs.

  def fit(
      self,
      x: Any = None,
      y: Any = None,
      *,
      train_data: tf.data.Dataset | None = None,
      validation_data: Any = None,
      verbose: str | int = 'auto',
      **kwargs,
  ) -> keras.callbacks.History:
    """Keras' `fit`; validation is of the model as it would be finished then.

    Args:
      x: batches, or episodes, as the method's `train_step` takes them. With several
        replicas each gets an equal part.
      y: as in Keras.
      train_data: batches of (images, class ids), the training set without augmentation.
        With it the model is calibrated before each validation, on `validation_data`
        where it takes held-out images, and at the end. Averages of the weights, where
        the optimizer has them (`use_ema`), are in place for each validation.
      validation_data: batches of (images, class ids).
      verbose: as in Keras.
      **kwargs: as in Keras.
    """
    checks.require_equal_parts(x, self.distribute_strategy.num_replicas_in_sync)
    if train_data is not None:
      checks.require_labelled_batches(train_data)
      held_out, progress = None, int(verbose in ('auto', 1))
      if self.takes_held_out and validation_data is not None:
        held_out = _batches(validation_data)
        checks.require_labelled_batches(held_out)
      calibrate = self._calibration(train_data, held_out, progress)

      @contextlib.contextmanager
      def validating():
        with self.averaged(train_data, progress):
          calibrate()
          yield

      self._validating = validating
    try:
      history = super().fit(
          x, y, validation_data=validation_data, verbose=verbose, **kwargs)
      if train_data is not None:
        self.fit_statistics(train_data, progress)
        calibrate()
    finally:
      self._validating = contextlib.nullcontext
    return history

  def _calibration(self, train_data, held_out, verbose):
    """A function that calibrates, where weights have moved since it last did."""
    calibrated_with = None

    def calibrate():
      nonlocal calibrated_with
      # Not steps: averaged weights replace theta's behind the last one.
      weights = values_of([*self.trainable_variables, *self.moving_statistics])
      if calibrated_with is None or not all(
          map(np.array_equal, weights, calibrated_with)):
        self.forget_calibration()
        self.fit_train(train_data, verbose)
        if held_out is not None:
          self.fit_held_out(self.represent(held_out, verbose))
        calibrated_with = weights

    return calibrate

  def evaluate(self, *args, **kwargs):
    """Keras' `evaluate`, of the finished model while `fit` validates."""
    with self._validating():
      return super().evaluate(*args, **kwargs)

  def make_train_function(self, force=False):
    self.forget_calibration()
    return super().make_train_function(force)

  def make_test_function(self, force=False):
    self.require_fitted()
    return super().make_test_function(force)

  def make_predict_function(self, force=False):
    self.require_fitted()
    return super().make_predict_function(force)


def _batches(data) -> tf.data.Dataset:
  """Validation data as `fit` takes them, in batches."""
  if isinstance(data, tuple):
    return tf.data.Dataset.from_tensor_slices(data[:2]).batch(_BATCH)
  return data
