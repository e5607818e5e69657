"""Learning from errors (Section 3.2): a confidence model trained beside the encoder."""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from dble_tf import classifier
from dble_tf import confidence
from dble_tf import replicas
from dble_tf.errors import UserError


class LearningFromErrors(classifier.Classifier):
  """The part of a classifier that learns sigma from what theta gets wrong.

  To be inherited together with a classifier that trains theta: `DBLE` has it with
  distances to class centers, `VanillaErrors` with logits.

  Phi never moves theta, so several confidence models can learn side by side from one
  encoder; one of them gives sigma.

  Attributes:
    candidates: the confidence models g_phi, from points that the encoder gives to
      sigma > 0.
    chosen: the place of the one that gives sigma.
    noise: [U, D], the standard normal vectors behind Eq. 10's samples. Every image
      shares them, so its confidence depends neither on its batch nor on the call.
  """

  confidence_trainings = ('errors', 'all')

  def __init__(
      self,
      encoder: keras.Model,
      confidence_model: keras.Model | Sequence[keras.Model],
      num_classes: int,
      *,
      num_samples: int = 20,
      seed: int = 0,
      confidence_training: str | Sequence[str] = 'errors',
      normalisation: str | Sequence[str] = 'queries',
      chosen: int = 0,
      **kwargs,
  ):
    """Builds the model around an encoder and confidence models.

    Args:
      encoder: f_theta, built: a model whose input shape is known.
      confidence_model: g_phi, built likewise, or several candidates.
      num_classes: M.
      num_samples: U, how many points are sampled per image (Eq. 10).
      seed: of the noise, in training and at inference.
      confidence_training: what phi learns from: 'errors' of theta, or 'all' samples;
        one word, or one for each candidate.
      normalisation: of phi's loss, see `confidence.error_loss`; likewise.
      chosen: the place of the candidate that gives sigma.
      **kwargs: for the classifier that trains theta.
    """
    super().__init__(encoder, num_classes, **kwargs)
    self.candidates = (
        [confidence_model] if isinstance(confidence_model, keras.Model)
        else list(confidence_model))
    if not 0 <= chosen < len(self.candidates):
      raise UserError(
          f'There are {len(self.candidates)} confidence models: give one or more, and '
          f'a place below that number as chosen, not {chosen}.')
    self.confidence_training = self._one_each(
        'confidence_training', confidence_training, self.confidence_trainings)
    self.normalisation = self._one_each(
        'normalisation', normalisation, confidence.NORMALISATIONS)
    self.num_samples = num_samples
    self.seed = seed
    self.chosen = chosen
    dim = self.sigma_size
    for candidate in self.candidates:
      size = classifier.vector_size('confidence model', candidate)
      if size != dim or candidate.inputs[0].shape[-1] != dim:
        raise UserError(
            f'The confidence model must take and give {dim} numbers an image: build it '
            f'with confidence_mlp({dim}).')
    self.noise = self.add_state(
        'noise', [num_samples, dim],
        lambda shape, dtype: confidence.standard_noise(shape, [seed, 0]))
    self.confidence_loss = keras.metrics.Mean('confidence_loss')

  def _one_each(self, name, given, allowed):
    words = [given] * len(self.candidates) if isinstance(given, str) else list(given)
    for word in words:
      if word not in allowed:
        raise UserError(
            f'{name} is {" or ".join(map(repr, allowed))}, not {word!r}.')
    if len(words) != len(self.candidates):
      raise UserError(
          f'{name} has {len(words)} words for {len(self.candidates)} confidence '
          'models: give one for all, or one for each.')
    return words

  @property
  def sigma_size(self) -> int:
    """D: of how many numbers each has its sigma."""
    return self.representation_size

  @property
  def confidence_model(self) -> keras.Model:
    """The candidate that gives sigma."""
    return self.candidates[self.chosen]

  @property
  def answering(self) -> list[keras.Variable]:
    """The trained variables that answers come from: none of other candidates."""
    others = {id(variable) for candidate in self.candidates
              if candidate is not self.confidence_model
              for variable in candidate.trainable_variables}
    return [variable for variable in self.trainable_variables
            if id(variable) not in others]

  def choose(self, place: int) -> None:
    """Takes the sigma of this candidate from now on."""
    if place != self.chosen:
      self.chosen = place
      # They were traced with the candidate of before.
      self.test_function = self.predict_function = None

  @property
  def phi(self) -> list[keras.Variable]:
    """What `confidence_optimizer` moves: all candidates that learn beside theta."""
    return [variable for _, candidate in self._learning()
            for variable in candidate.trainable_variables]

  def _learning(self):
    """Places and candidates that learn from what theta is trained on."""
    return [(place, candidate) for place, candidate in enumerate(self.candidates)
            if self.confidence_training[place] in ('errors', 'all')
            and candidate.trainable_variables]

  def with_sigma(
      self,
      answers: dict[str, tf.Tensor],
      probabilities: tf.Tensor,
      sigma: tf.Tensor,
  ) -> dict[str, tf.Tensor]:
    """The same labels with the averaged probabilities [B, M] of Eq. 10."""
    return {
        **answers,
        'confidence': tf.gather(
            probabilities, answers['label'], axis=1, batch_dims=1),
        'probabilities': probabilities,
        'sigma': sigma,
    }

  def served(self, outputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """What an export answers: also mean sigma [B]."""
    return {**super().served(outputs),
            'sigma': tf.reduce_mean(outputs['sigma'], axis=-1)}

  def compile(self, optimizer='sgd', confidence_optimizer='sgd', **kwargs):
    """Sets the optimizers of theta and phi; the rest as without phi."""
    super().compile(optimizer, **kwargs)
    self.confidence_optimizer = keras.optimizers.get(confidence_optimizer)
    if self.confidence_optimizer is self.optimizer:
      raise UserError('Theta and phi need an optimizer each; this is one for both.')
    loss_scaling = keras.optimizers.LossScaleOptimizer
    if (isinstance(self.optimizer, loss_scaling)
        and not isinstance(self.confidence_optimizer, loss_scaling)):
      # Keras scales losses under mixed_float16; for phi as for theta.
      self.confidence_optimizer = loss_scaling(self.confidence_optimizer)
    self.confidence_optimizer.build(self.phi)

  def get_compile_config(self):
    config = super().get_compile_config()
    if config:
      config['confidence_optimizer'] = keras.saving.serialize_keras_object(
          self.confidence_optimizer)
    return config

  def learn_confidence(
      self,
      h: tf.Tensor,
      is_error: tf.Tensor,
      log_likelihoods: Callable[[tf.Tensor], tf.Tensor],
  ) -> tf.Tensor:
    """The second half of Algorithm 1: the confidence loss (Eq. 8 and 9) on phi.

    Phi never moves theta: its tape begins behind the encoder.

    Args:
      h: [..., D], the points around which z is sampled.
      is_error: [...], where theta got the label wrong.
      log_likelihoods: z [..., D] -> [...] log-likelihoods of the true class.

    Returns:
      The sum of the candidates' losses of before the update.
    """
    if not self.phi:
      return tf.constant(0.0)
    noise = self._training_noise(tf.shape(h))  # The same for every candidate.
    losses, loss = [], 0.0
    with tf.GradientTape() as tape:
      for place, candidate in self._learning():
        losses.append(candidate_loss(
            candidate, self.confidence_training[place], self.normalisation[place],
            h, is_error, noise, log_likelihoods))
        loss += losses[-1] + classifier.regularization(candidate)
      scaled_loss = self.confidence_optimizer.scale_loss(replicas.share(loss))
    move(self.confidence_optimizer, tape, scaled_loss, self.phi)
    self.confidence_loss.update_state(losses)
    return loss

  def _training_noise(self, shape):
    """Noise of its own for each step and place in the batch.

    It is the same when a run is repeated, also on another number of replicas.
    """
    # Inference has the seed (seed, 0), so the first step has (seed, 1).
    step = tf.cast(self.confidence_optimizer.iterations.value, tf.int32) + 1
    return confidence.standard_noise(
        shape, tf.stack([self.seed, step]), replicas.index(), replicas.count())

  def get_config(self):
    return {
        **super().get_config(),
        'confidence_model': [
            keras.saving.serialize_keras_object(candidate)
            for candidate in self.candidates],
        'num_samples': self.num_samples,
        'seed': self.seed,
        'confidence_training': list(self.confidence_training),
        'normalisation': list(self.normalisation),
        'chosen': self.chosen,
    }


def candidate_loss(
    candidate: keras.Model,
    confidence_training: str,
    normalisation: str,
    h: tf.Tensor,
    is_error: tf.Tensor,
    noise: tf.Tensor,
    log_likelihoods: Callable[[tf.Tensor], tf.Tensor],
) -> tf.Tensor:
  """A candidate's confidence loss, a scalar; see `learn_confidence`.

  Args:
    candidate: g_phi.
    confidence_training: what it learns from; all samples, or errors.
    normalisation: of its loss.
    h: [..., D].
    is_error: [...].
    noise: [..., D], standard normal.
    log_likelihoods: z [..., D] -> [...].
  """
  rows = tf.reshape(h, [-1, h.shape[-1]])
  sigma = tf.reshape(candidate(rows, training=True), tf.shape(h))
  z = confidence.sample_representations(h, sigma, noise)
  if confidence_training == 'all':
    is_error = tf.ones_like(is_error)
  return confidence.error_loss(log_likelihoods(z), is_error, normalisation)


def move(
    optimizer: keras.optimizers.Optimizer,
    tape: tf.GradientTape,
    loss: tf.Tensor,
    variables: Sequence[keras.Variable],
) -> None:
  """Updates phi; gradients that are missing or not finite count as zero."""
  gradients = replicas.gradients(tape, loss, variables)
  if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
    # A loss-scaling optimizer must see them, and leaves such a step out itself.
    gradients = [
        None if gradient is None
        else tf.where(tf.reduce_all(tf.math.is_finite(gradient)), gradient, 0.0)
        for gradient in gradients]
  replicas.apply(optimizer, gradients, variables)
