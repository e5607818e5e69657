"""Averages of the weights (Keras' `use_ema`), for models with batch norm."""

import contextlib
from collections.abc import Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf

from dble_tf import batch_norm


class AveragingModel(keras.Model):
  """A Keras model that `fit` ends with the averages that its optimizer keeps.

  Keras puts averages in place, but leaves the statistics of batch norm, and what was
  calibrated, as they were for other weights. Subclasses have `encode`, `theta`,
  `moving_statistics` and `forget_calibration`.
  """

  def __init__(self, **kwargs):
    super().__init__(**kwargs)
    self._statistics_are_current = False

  def build_optimizer(self) -> None:
    """Builds the compiled optimizer, on all that it is to average if it does."""
    self.optimizer.build(
        self.trainable_variables if _uses_averages(self) else self.theta)

  @property
  def has_averages(self) -> bool:
    """True if the optimizer has averages of the weights, which `fit` ends with.

    It has where it was made with `use_ema` and has taken a step. They include those of
    phi, as it was at each step of theta.
    """
    return _uses_averages(self) and bool(
        keras.ops.convert_to_numpy(self.optimizer.iterations) > 0)

  def take_averages(self, train: tf.data.Dataset, verbose: int = 0) -> None:
    """Replaces the weights by their averages, unless they are in place.

    What was calibrated for other weights is forgotten. Does nothing where the optimizer
    has no averages.

    Args:
      train: batches of (images, class ids), the training set without augmentation, for
        the statistics of batch norm.
      verbose: 1 shows a progress bar.
    """
    if self.has_averages:
      before = values_of(self.trainable_variables)
      self.optimizer.finalize_variable_values(self.trainable_variables)
      if not all(map(np.array_equal, before, values_of(self.trainable_variables))):
        self.forget_calibration()
        self._statistics_are_current = False
      self.fit_statistics(train, verbose)

  @contextlib.contextmanager
  def averaged(self, train: tf.data.Dataset, verbose: int = 0) -> Iterator[None]:
    """Has the averages in place inside the block; behind it training can go on.

    What is calibrated inside stays as it is.

    Args:
      train: as for `take_averages`.
      verbose: 1 shows a progress bar.
    """
    if not self.has_averages:
      yield
      return
    variables = [*self.trainable_variables, *self.moving_statistics]
    values = values_of(variables)
    try:
      self.optimizer.finalize_variable_values(self.trainable_variables)
      self._statistics_are_current = False
      self.fit_statistics(train, verbose)
      yield
    finally:
      self._statistics_are_current = False
      try:
        _assign(variables, values)
      except BaseException:  # A signal's, in between: what is saved must be whole.
        _assign(variables, values)
        raise

  def needs_statistics(self) -> bool:
    """True if batch norm's statistics are those of other weights than the averages."""
    return (not self._statistics_are_current and self.has_averages
            and bool(batch_norm.moving_layers(self)))

  def fit_statistics(self, train: tf.data.Dataset, verbose: int = 0) -> None:
    """Gives batch norm the statistics of averaged weights, where it lacks them."""
    if self.needs_statistics():
      batch_norm.fit_statistics(self, train, verbose)
      self._statistics_are_current = True

  def make_train_function(self, force=False):
    self._statistics_are_current = False
    return super().make_train_function(force)


def _uses_averages(model):
  optimizer = getattr(model, 'optimizer', None)
  return getattr(getattr(optimizer, 'inner_optimizer', optimizer), 'use_ema', False)


def values_of(variables: Sequence[keras.Variable]) -> list[np.ndarray]:
  """The values of variables, as they are now."""
  return [keras.ops.convert_to_numpy(variable) for variable in variables]


def _assign(variables, values):
  for variable, value in zip(variables, values, strict=True):
    variable.assign(value)
