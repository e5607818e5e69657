"""Encoders f_theta (Eq. 4): raw images [B, H, W, C] -> representations [B, D].

Each builder returns a `keras.Model` that standardizes raw uint8 images itself, so
that training, evaluation and serving all take unprocessed images. Any other
`keras.Model` that maps a batch of inputs to vectors can be used in their place.

`dim` is the size D of the representation, `weight_decay` the factor of each kernel in
its own gradient, and `width` a factor on the filters or units of every other layer.
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
    image_shape: Sequence[int], dim: int = 512, weight_decay: float = 5e-4,
    width: float = 1.0,
) -> keras.Model:
  """A hidden layer of 512 ReLU units and a linear layer of `dim` units."""
  regularizer = _regularizer(weight_decay)
  return keras.Sequential(
      [
          keras.Input(image_shape, dtype='uint8'),
          PerImageStandardization(),
          layers.Flatten(),
          layers.Dense(_scaled(512, width), activation='relu',
                       kernel_regularizer=regularizer),
          layers.Dense(dim, kernel_regularizer=regularizer),
      ],
      name='mlp')


def vgg11(
    image_shape: Sequence[int], dim: int = 512, weight_decay: float = 5e-4,
    width: float = 1.0,
) -> keras.Model:
  """VGG-11: eight 3x3 convolutions with batch norm and ReLU, five max-poolings.

  The last convolution has `dim` filters. Global average pooling follows; for 32x32
  images a single pixel is left by then.
  """
  _check_image_size('vgg11', image_shape, smallest=32)
  inputs = keras.Input(image_shape, dtype='uint8')
  x = PerImageStandardization()(inputs)
  for stage in ((64,), (128,), (256, 256), (512, 512), (512, None)):
    for filters in stage:
      filters = _scaled(filters, width) if filters else dim
      x = layers.ReLU()(_convolution(x, filters, 3, 1, weight_decay))
    x = layers.MaxPooling2D(2)(x)
  return keras.Model(inputs, layers.GlobalAveragePooling2D()(x), name='vgg11')


def thin_resnet(
    image_shape: Sequence[int], dim: int = 512, weight_decay: float = 5e-4,
    width: float = 1.0,
) -> keras.Model:
  """The bottleneck ResNet of the paper's released code, which starts at 16 filters.

  Below 64 pixels it has three stages of 8 blocks, 74 layers with the linear layer,
  and 0.9 million parameters; from 64 pixels four stages of 3, 4, 6 and 3 blocks
  behind a 3x3 max-pooling of stride 1, and 1.5 million parameters. Every stage but
  the first halves the resolution. Global average pooling follows, and a linear layer
  if the last stage, 256 or 512 filters wide at width 1, is not `dim` wide.
  """
  _check_image_size('thin_resnet', image_shape, smallest=16)
  large = min(image_shape[:2]) >= 64
  inputs = keras.Input(image_shape, dtype='uint8')
  x = PerImageStandardization()(inputs)
  filters = _scaled(16, width)
  x = layers.ReLU()(_convolution(x, filters, 3, 1, weight_decay))
  if large:
    x = layers.MaxPooling2D(3, strides=1, padding='same')(x)
  x = _stages(x, filters, (3, 4, 6, 3) if large else (8, 8, 8), weight_decay)
  return keras.Model(
      inputs, _pooled(x, dim, weight_decay), name='thin_resnet')


def resnet50(
    image_shape: Sequence[int], dim: int = 512, weight_decay: float = 5e-4,
    width: float = 1.0,
) -> keras.Model:
  """ResNet-50 (He et al., 2016, Table 1) with the usual stem for small images.

  Four stages of 3, 4, 6 and 3 bottleneck blocks, 256, 512, 1024 and 2048 filters
  wide; a block halves the resolution in its 3x3 convolution. The stem is a 3x3
  convolution of stride 1 instead of 7x7 of stride 2, and below 64 pixels there is no
  max-pooling (3x3 of stride 2): the first stage works at 32x32 pixels both for CIFAR
  and for the 64x64 images of Tiny ImageNet. Global average pooling follows, and a
  linear layer if `dim` is not 2048. It has 23.5 million parameters without that layer.
  All of this is at width 1.
  """
  _check_image_size('resnet50', image_shape, smallest=16)
  inputs = keras.Input(image_shape, dtype='uint8')
  x = PerImageStandardization()(inputs)
  filters = _scaled(64, width)
  x = layers.ReLU()(_convolution(x, filters, 3, 1, weight_decay))
  if min(image_shape[:2]) >= 64:
    x = layers.MaxPooling2D(3, strides=2, padding='same')(x)
  x = _stages(x, filters, (3, 4, 6, 3), weight_decay)
  return keras.Model(inputs, _pooled(x, dim, weight_decay), name='resnet50')


ENCODERS: dict[str, Callable[..., keras.Model]] = {
    'mlp': mlp,
    'vgg11': vgg11,
    'thin_resnet': thin_resnet,
    'resnet50': resnet50,
}


def batch_norm_layers(model: keras.Model) -> list[keras.layers.BatchNormalization]:
  """The batch-norm layers of a model and of the models in it, each once."""
  found = {}
  for layer in model.layers:
    if isinstance(layer, layers.BatchNormalization):
      found[id(layer)] = layer
    elif isinstance(layer, keras.Model):
      found.update((id(inner), inner) for inner in batch_norm_layers(layer))
  return list(found.values())


def synchronize_batch_norm(encoder: keras.Model) -> None:
  """Makes batch norm use the statistics of the global batch, across all replicas.

  Otherwise each replica normalizes its part of the batch by itself.
  """
  for layer in batch_norm_layers(encoder):
    layer.synchronized = True


def _scaled(filters: int, width: float) -> int:
  return max(1, round(filters * width))


def _regularizer(weight_decay: float) -> keras.regularizers.Regularizer:
  # The gradient of (w / 2) |kernel|^2 is w * kernel: weight decay as papers state it.
  return keras.regularizers.L2(weight_decay / 2)


def _convolution(x, filters, kernel_size, strides, weight_decay):
  x = layers.Conv2D(
      filters, kernel_size, strides, padding='same', use_bias=False,
      kernel_regularizer=_regularizer(weight_decay))(x)
  return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)


def _stages(x, filters, num_blocks, weight_decay):
  """Bottleneck stages; each after the first doubles the filters, with stride 2."""
  for stage, blocks in enumerate(num_blocks):
    for block in range(blocks):
      strides = 2 if stage > 0 and block == 0 else 1
      x = _bottleneck(x, filters * 2**stage, strides, block == 0, weight_decay)
  return x


def _pooled(x, dim, weight_decay):
  x = layers.GlobalAveragePooling2D()(x)
  if x.shape[-1] != dim:
    x = layers.Dense(dim, kernel_regularizer=_regularizer(weight_decay))(x)
  return x


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
        f'pixels, not {image_shape[0]}x{image_shape[1]}. Use the encoder mlp or larger '
        'images.')
