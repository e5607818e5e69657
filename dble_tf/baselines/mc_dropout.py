"""MC-dropout (Gal and Ghahramani, 2016): dropout that stays on at inference."""

import keras
import tensorflow as tf

from dble_tf.baselines.vanilla import Vanilla
from dble_tf.classifier import likeliest


@keras.saving.register_keras_serializable(package='dble_tf')
class MCDropout(Vanilla):
  """Plain training with dropout on the representation, averaged over dropout masks.

  Attributes:
    masks: [U, D] of zeros and ones, the units that each pass keeps. All images share
      them, so its confidence depends neither on its batch nor on the call.
  """

  def __init__(
      self,
      encoder: keras.Model,
      num_classes: int,
      *,
      dropout: float = 0.5,
      num_samples: int = 20,
      seed: int = 0,
      weight_decay: float = 5e-4,
      name: str | None = None,
      **kwargs,
  ):
    """Builds the model around an encoder.

    Args:
      encoder: f_theta, built: a model whose input shape is known.
      num_classes: M.
      dropout: the share of the representation's units that a pass drops.
      num_samples: U, passes per image at inference.
      seed: of the masks at inference.
      weight_decay: factor of the linear layer's kernel in its own gradient.
      name: of the model.
      **kwargs: `keras.Model`'s, such as dtype.
    """
    super().__init__(
        encoder, num_classes, weight_decay=weight_decay, name=name, **kwargs)
    self.dropout = dropout
    self.num_samples = num_samples
    self.seed = seed
    self.dropout_layer = keras.layers.Dropout(dropout)
    self.masks = self.add_state(
        'masks', [num_samples, self.representation_size],
        lambda shape, dtype: tf.cast(
            tf.random.stateless_uniform(shape, [seed, 0]) >= dropout, dtype))

  def logits(self, h: tf.Tensor, training: bool = False) -> tf.Tensor:
    """The linear layer; in training behind a dropout mask."""
    return self.linear(self.dropout_layer(h, training=training))

  def answer(self, h: tf.Tensor) -> dict[str, tf.Tensor]:
    """Labels representations [B, D].

    Returns:
      label: [B] int32, the likeliest class.
      confidence: [B], its probability.
      probabilities: [B, M], the softmax averaged over the passes.
    """
    # A pass is linear in h: masks times the kernel are the kernels of all passes.
    kept = tf.convert_to_tensor(self.masks) / (1.0 - self.dropout)
    # Asked of the layer, which is float32 under any precision policy: its weights, read
    # here, would be rounded.
    bias = self.linear(tf.zeros([1, self.representation_size]))
    kernel = self.linear(tf.eye(self.representation_size)) - bias
    kernels = tf.einsum('ud,dm->dum', kept, kernel)
    logits = tf.einsum('bd,dum->bum', tf.cast(h, tf.float32), kernels)
    return likeliest(tf.reduce_mean(tf.nn.softmax(logits + bias), axis=1))

  def get_config(self):
    return {**super().get_config(), 'dropout': self.dropout,
            'num_samples': self.num_samples, 'seed': self.seed}
