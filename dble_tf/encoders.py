"""Encoders f_theta (Eq. 4): raw images [B, H, W, C] -> representations [B, D].

Each builder gives a `keras.Model` that standardises raw uint8 images itself, so
that training, evaluation and serving all take what the camera gave. Any other
`keras.Model` from an input to a vector does in their place.
"""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from dble_tf.errors import UserError

layers = keras.layers


@keras.saving.register_keras_serializable(package='dble_tf')
class PerImageStandardization(layers.Layer):
  """Scales each image [H, W, C] to zero mean and unit variance.

  A constant image becomes zeros.
  """

  def call(self, images):
    return tf.cast(
        tf.image.per_image_standardization(images), self.compute_dtype)

  def compute_output_spec(self, images):
    return keras.KerasTensor(images.shape, dtype=self.compute_dtype)


def mlp(
    image_shape: Sequence[int], dim: int = 512, weight_decay: float = 5e-4
) -> keras.Model:
  """Pixels, 512 ReLU units, a linear representation of `dim` numbers."""
  regularizer = _regularizer(weight_decay)
  return keras.Sequential(
      [
          keras.Input(image_shape, dtype='uint8'),
          PerImageStandardization(),
          layers.Flatten(),
          layers.Dense(512, activation='relu', kernel_regularizer=regularizer),
          layers.Dense(dim, kernel_regularizer=regularizer),
      ],
      name='mlp')


def vgg11(
    image_shape: Sequence[int], dim: int = 512, weight_decay: float = 5e-4
) -> keras.Model:
  """Eight 3x3 convolutions, each with batch norm and ReLU, and five poolings.

  The last convolution has `dim` filters; what is left of the image is averaged,
  which for 32x32 images is the single remaining pixel.
  """
  _check_image_size('vgg11', image_shape, smallest=32)
  inputs = keras.Input(image_shape, dtype='uint8')
  x = PerImageStandardization()(inputs)
  for filters in (64, 'pool', 128, 'pool', 256, 256, 'pool', 512, 512, 'pool',
                  512, dim, 'pool'):
    if filters == 'pool':
      x = layers.MaxPooling2D(2)(x)
    else:
      x = _convolution(x, filters, 3, 1, weight_decay)
      x = layers.ReLU()(x)
  return keras.Model(inputs, layers.GlobalAveragePooling2D()(x), name='vgg11')


def resnet50(
    image_shape: Sequence[int], dim: int = 512, weight_decay: float = 5e-4
) -> keras.Model:
  """ResNet of bottleneck blocks for small images, 16 filters at first.

  Below 64 pixels: three stages of 8 blocks, the first without stride. From 64
  pixels: stages of 3, 4, 6 and 3 blocks behind a pooling of stride 1. A linear
  layer follows where the last stage is not `dim` wide.
  """
  _check_image_size('resnet50', image_shape, smallest=16)
  large = min(image_shape[:2]) >= 64
  inputs = keras.Input(image_shape, dtype='uint8')
  x = PerImageStandardization()(inputs)
  x = layers.ReLU()(_convolution(x, 16, 3, 1, weight_decay))
  if large:
    x = layers.MaxPooling2D(3, strides=1, padding='same')(x)
  for stage, num_blocks in enumerate((3, 4, 6, 3) if large else (8, 8, 8)):
    for block in range(num_blocks):
      strides = 2 if stage > 0 and block == 0 else 1
      x = _bottleneck(x, 16 * 2**stage, strides, block == 0, weight_decay)
  x = layers.GlobalAveragePooling2D()(x)
  if x.shape[-1] != dim:
    x = layers.Dense(dim, kernel_regularizer=_regularizer(weight_decay))(x)
  return keras.Model(inputs, x, name='resnet50')


ENCODERS: dict[str, Callable[..., keras.Model]] = {
    'mlp': mlp,
    'vgg11': vgg11,
    'resnet50': resnet50,
}


def synchronize_batch_norm(encoder: keras.Model) -> None:
  """Has replicas of an encoder normalise by the statistics of the whole batch.

  Without it each normalises its part by itself.
  """
  for layer in encoder.layers:
    if isinstance(layer, layers.BatchNormalization):
      layer.synchronized = True
    elif isinstance(layer, keras.Model):
      synchronize_batch_norm(layer)


def _regularizer(weight_decay: float) -> keras.regularizers.Regularizer:
  # The gradient of (w / 2) |kernel|^2 is w * kernel: weight decay as papers count it.
  return keras.regularizers.L2(weight_decay / 2)


def _convolution(x, filters, kernel_size, strides, weight_decay):
  x = layers.Conv2D(
      filters, kernel_size, strides, padding='same', use_bias=False,
      kernel_regularizer=_regularizer(weight_decay))(x)
  return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)


def _bottleneck(x, filters, strides, project, weight_decay):
  shortcut = x
  if project:
    shortcut = _convolution(x, 4 * filters, 1, strides, weight_decay)
  x = layers.ReLU()(_convolution(x, filters, 1, 1, weight_decay))
  x = layers.ReLU()(_convolution(x, filters, 3, strides, weight_decay))
  x = _convolution(x, 4 * filters, 1, 1, weight_decay)
  return layers.ReLU()(layers.Add()([x, shortcut]))


def _check_image_size(name, image_shape, smallest):
  if min(image_shape[:2]) < smallest:
    raise UserError(
        f'The encoder {name} needs images of at least {smallest}x{smallest} '
        f'pixels; these are {image_shape[0]}x{image_shape[1]}. Use '
        '--encoder=mlp, or larger images.')
