"""Phi from errors that theta makes on images it was not trained on.

Errors on training images vanish as theta fits them; these do not. Theta is done by
then, so h and the centers of the training set are all that is needed.
"""

import keras
import numpy as np
import tensorflow as tf

from dble_tf import classifier
from dble_tf import confidence
from dble_tf import learning_from_errors
from dble_tf import prototypes
from dble_tf import replicas
from dble_tf.errors import UserError

_STEPS = 500
_BATCH = 200


def learn(model: keras.Model, h: np.ndarray, class_ids: np.ndarray) -> None:
  """Trains the candidates of a `DBLE` whose confidence_training is 'held_out'.

  Each goes on from the weights that it has for 500 updates on 200 images each, with an
  optimizer for itself that has the settings of `confidence_optimizer` and is at the
  start of its schedule.

  Args:
    model: a DBLE, compiled, with class centers.
    h: [n, D], of held-out images.
    class_ids: [n].
  """
  if not model.compiled:
    raise UserError(
        'Phi learns from held-out errors with the settings of confidence_optimizer: '
        'compile the model first.')
  strategy = model.distribute_strategy
  centers = tf.convert_to_tensor(model.centers)
  for place, candidate in enumerate(model.candidates):
    if model.confidence_training[place] != 'held_out':
      continue
    phi = candidate.trainable_variables
    with strategy.scope():
      optimizer = type(model.confidence_optimizer).from_config(
          model.confidence_optimizer.get_config())
      optimizer.build(phi)
    # Anew for each candidate: a data set shuffles differently when it is read again.
    batches = (
        tf.data.Dataset.from_tensor_slices((h, class_ids))
        .shuffle(len(h), seed=model.seed).repeat().batch(_BATCH).take(_STEPS))

    def step(h, class_ids, seed):
      distances = prototypes.distances(h, centers)
      log_likelihoods = lambda z: _at(class_ids, prototypes.log_likelihoods(
          prototypes.distances(z, centers)))
      with tf.GradientTape() as tape:
        loss = learning_from_errors.candidate_loss(
            candidate, 'errors', model.normalisation[place], h,
            prototypes.predicted_labels(distances) != tf.cast(class_ids, tf.int32),
            confidence.standard_noise(tf.shape(h), seed), log_likelihoods)
        scaled_loss = optimizer.scale_loss(replicas.share(
            loss + classifier.regularization(candidate)))
      learning_from_errors.move(optimizer, tape, scaled_loss, phi)

    # Every replica does the same: a batch is too small to be worth splitting.
    run = tf.function(lambda *batch: strategy.run(step, args=batch))
    for number, (some_h, some_ids) in enumerate(batches, start=1):
      run(some_h, some_ids, tf.constant([model.seed, number]))


def _at(class_ids, values):
  """The value [B] of each row's class, of [B, M]."""
  return tf.gather(values, class_ids, axis=1, batch_dims=1)
