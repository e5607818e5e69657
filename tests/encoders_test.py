import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from dble_tf import encoders
from dble_tf.errors import UserError


@functools.cache
def built(name, size, dim=512):
  return encoders.ENCODERS[name]([size, size, 3], dim)


def layers_of(model, kind):
  return [layer for layer in model.layers if isinstance(layer, kind)]


def test_standardization_gives_zero_mean_and_unit_variance():
  images = np.random.default_rng(0).integers(256, size=[5, 8, 8, 3], dtype=np.uint8)
  result = encoders.PerImageStandardization()(images).numpy()
  np.testing.assert_allclose(result.mean(axis=(1, 2, 3)), 0, atol=1e-5)
  np.testing.assert_allclose(result.std(axis=(1, 2, 3)), 1, rtol=1e-4)


def test_a_constant_image_standardizes_to_zeros():
  result = encoders.PerImageStandardization()(np.full([1, 4, 4, 1], 200, np.uint8))
  np.testing.assert_allclose(result, 0, atol=1e-5)


def test_mlp_is_784_512_512_and_linear_at_the_end():
  model = encoders.mlp([28, 28, 1])
  first, second = layers_of(model, keras.layers.Dense)
  assert first.kernel.shape == (784, 512) and second.kernel.shape == (512, 512)
  assert first.activation is keras.activations.relu
  assert second.activation is keras.activations.linear


def test_vgg11_has_eight_convolutions_with_batch_norm_and_relu():
  model = built('vgg11', 32)
  convolutions = layers_of(model, keras.layers.Conv2D)
  assert [layer.filters for layer in convolutions] == [
      64, 128, 256, 256, 512, 512, 512, 512]
  assert len(layers_of(model, keras.layers.BatchNormalization)) == 8
  assert len(layers_of(model, keras.layers.ReLU)) == 8
  assert len(layers_of(model, keras.layers.MaxPooling2D)) == 5
  # 3*3*(3*64 + 64*128 + 128*256 + 256*256 + 256*512 + 3*512*512) weights, and
  # scale, shift, mean and variance for each of the 2,752 filters.
  assert model.count_params() == 9 * 1_024_192 + 4 * 2752


@pytest.mark.parametrize('size, blocks, width', [(32, 24, 256), (64, 16, 512)])
def test_thin_resnet_has_bottleneck_blocks_for_its_image_size(size, blocks, width):
  model = built('thin_resnet', size)
  additions = layers_of(model, keras.layers.Add)
  assert len(additions) == blocks
  assert additions[-1].output.shape == (None, 8, 8, width)
  assert model.output_shape == (None, 512)
  # The stem, three convolutions per block, and one projection per stage.
  stages = 3 if size == 32 else 4
  assert len(layers_of(model, keras.layers.Conv2D)) == 1 + 3 * blocks + stages


def test_width_scales_every_layer_but_the_last():
  dense = layers_of(encoders.mlp([8, 8, 1], 24, width=0.5), keras.layers.Dense)
  assert [layer.units for layer in dense] == [256, 24]
  model = encoders.vgg11([32, 32, 3], 24, width=0.5)
  assert [layer.filters for layer in layers_of(model, keras.layers.Conv2D)] == [
      32, 64, 128, 128, 256, 256, 256, 24]
  assert model.name == 'vgg11'


@pytest.mark.parametrize('name, stem, last', [
    ('thin_resnet', 8, 128), ('resnet50', 32, 1024)])
def test_width_scales_all_stages_before_the_linear_layer(name, stem, last):
  model = encoders.ENCODERS[name]([32, 32, 3], width=0.5)
  assert [layer.filters // 2 for layer in layers_of(
      built(name, 32), keras.layers.Conv2D)] == [
          layer.filters for layer in layers_of(model, keras.layers.Conv2D)]
  assert layers_of(model, keras.layers.Conv2D)[0].filters == stem
  linear, = layers_of(model, keras.layers.Dense)
  assert linear.kernel.shape == (last, 512)
  as_wide = encoders.ENCODERS[name]([32, 32, 3], last, width=0.5)
  assert not layers_of(as_wide, keras.layers.Dense)


def test_filters_are_rounded_and_at_least_one():
  units = lambda width: layers_of(
      encoders.mlp([2, 2, 1], 3, width=width), keras.layers.Dense)[0].units
  assert [units(width) for width in (0.3, 1e-9, 1.5)] == [154, 1, 768]


def trainable_parameters(model):
  return sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)


def bottleneck_parameters(width_in, filters, blocks):
  """Kernels, and scale and shift of batch norm, of a stage as in He et al."""
  width = 4 * filters
  inside = lambda x: (  # 1x1, 3x3 and 1x1 convolutions.
      x * filters + 9 * filters**2 + filters * width + 2 * (2 * filters + width))
  projection = width_in * width + 2 * width
  return inside(width_in) + projection + (blocks - 1) * inside(width)


def test_thin_resnet_has_about_a_million_parameters():
  small, large = (built('thin_resnet', size) for size in (32, 64))
  stem = 9 * 3 * 16 + 2 * 16
  assert trainable_parameters(small) == (
      stem + bottleneck_parameters(16, 16, 8) + bottleneck_parameters(64, 32, 8)
      + bottleneck_parameters(128, 64, 8) + 256 * 512 + 512) == 905_808
  assert trainable_parameters(large) == (
      stem + bottleneck_parameters(16, 16, 3) + bottleneck_parameters(64, 32, 4)
      + bottleneck_parameters(128, 64, 6) + bottleneck_parameters(256, 128, 3)
      ) == 1_479_056


@pytest.mark.parametrize('size', [32, 64])
def test_resnet50_has_the_parameters_of_the_original_but_for_its_stem(size):
  model = built('resnet50', size, dim=2048)
  by_hand = (
      9 * 3 * 64 + 2 * 64 + bottleneck_parameters(64, 64, 3)
      + bottleneck_parameters(256, 128, 4) + bottleneck_parameters(512, 256, 6)
      + bottleneck_parameters(1024, 512, 3))
  # The 25,557,032 parameters of the original less the 1,000-way linear layer, with
  # a 3x3 in place of the 7x7 stem.
  published = 25_557_032 - (2048 * 1000 + 1000) - (49 - 9) * 3 * 64
  assert trainable_parameters(model) == by_hand == published == 23_500_352
  # Plus a linear layer if the last stage does not have the requested width.
  projected = built('resnet50', size)
  assert trainable_parameters(projected) == published + 2048 * 512 + 512


@pytest.mark.parametrize('size, poolings', [(32, 0), (64, 1)])
def test_resnet50_has_four_stages_that_begin_at_32_pixels(size, poolings):
  model = built('resnet50', size)
  outputs = [layer.output.shape[1:] for layer in layers_of(model, keras.layers.Add)]
  assert outputs == (3 * [(32, 32, 256)] + 4 * [(16, 16, 512)] + 6 * [(8, 8, 1024)]
                     + 3 * [(4, 4, 2048)])
  convolutions = layers_of(model, keras.layers.Conv2D)
  assert len(convolutions) == 1 + 3 * 16 + 4  # 49 layers, and a projection per stage.
  assert (convolutions[0].kernel_size, convolutions[0].strides) == ((3, 3), (1, 1))
  assert len(layers_of(model, keras.layers.MaxPooling2D)) == poolings


@pytest.mark.parametrize('name', list(encoders.ENCODERS))
def test_an_encoder_maps_raw_images_to_finite_vectors_of_size_dim(name):
  model = encoders.ENCODERS[name]([32, 32, 3], dim=24)
  images = np.random.default_rng(0).integers(256, size=[2, 32, 32, 3], dtype=np.uint8)
  h = model.predict(images, verbose=0)
  assert h.shape == (2, 24)
  assert np.isfinite(h).all()
  assert not np.allclose(h[0], h[1])


@pytest.mark.parametrize('name', list(encoders.ENCODERS))
def test_every_kernel_is_glorot_initialized_and_decays(name):
  model = encoders.ENCODERS[name]([32, 32, 3], weight_decay=0.25)
  kernels = [layer for layer in model.layers if hasattr(layer, 'kernel')]
  assert kernels
  for layer in kernels:
    assert isinstance(layer.kernel_initializer, keras.initializers.GlorotUniform)
  with tf.GradientTape() as tape:
    loss = tf.add_n(model.losses)
  gradients = tape.gradient(loss, [layer.kernel.value for layer in kernels])
  for layer, gradient in zip(kernels, gradients):
    np.testing.assert_allclose(gradient, 0.25 * layer.kernel.numpy(), rtol=1e-4)


@pytest.mark.parametrize('name, smallest', [
    ('vgg11', 32), ('thin_resnet', 16), ('resnet50', 16)])
def test_images_too_small_for_the_encoder_are_refused(name, smallest):
  message = f'{name} needs images of at least {smallest}x{smallest} pixels, not 8x9'
  with pytest.raises(UserError, match=message):
    encoders.ENCODERS[name]([8, 9, 1])


def test_an_encoder_round_trips_through_its_file(tmp_path):
  model = encoders.mlp([4, 4, 1], dim=3)
  model.save(tmp_path / 'encoder.keras')
  loaded = keras.models.load_model(tmp_path / 'encoder.keras')
  images = np.random.default_rng(0).integers(256, size=[2, 4, 4, 1], dtype=np.uint8)
  np.testing.assert_array_equal(
      model.predict(images, verbose=0), loaded.predict(images, verbose=0))


def test_batch_norm_is_synchronized_in_nested_models_too():
  inner = keras.Sequential([keras.Input([4]), keras.layers.BatchNormalization()])
  outer = keras.Sequential([keras.Input([4]), inner, keras.layers.BatchNormalization()])
  encoders.synchronize_batch_norm(outer)
  copy = keras.models.clone_model(outer)  # It is saved in the config.
  assert copy.layers[0].layers[0].synchronized and copy.layers[1].synchronized
