import keras
import numpy as np
import pytest
import tensorflow as tf

from dble_tf import encoders
from dble_tf.errors import UserError


def layers_of(model, kind):
  return [layer for layer in model.layers if isinstance(layer, kind)]


def test_standardization_gives_zero_mean_and_unit_variance():
  images = np.random.default_rng(0).integers(256, size=[5, 8, 8, 3], dtype=np.uint8)
  result = encoders.PerImageStandardization()(images).numpy()
  np.testing.assert_allclose(result.mean(axis=(1, 2, 3)), 0, atol=1e-5)
  np.testing.assert_allclose(result.std(axis=(1, 2, 3)), 1, rtol=1e-4)


def test_a_constant_image_standardises_to_zeros():
  result = encoders.PerImageStandardization()(np.full([1, 4, 4, 1], 200, np.uint8))
  np.testing.assert_allclose(result, 0, atol=1e-5)


def test_mlp_is_784_512_512_and_linear_at_the_end():
  model = encoders.mlp([28, 28, 1])
  first, second = layers_of(model, keras.layers.Dense)
  assert first.kernel.shape == (784, 512) and second.kernel.shape == (512, 512)
  assert first.activation is keras.activations.relu
  assert second.activation is keras.activations.linear


def test_vgg11_has_eight_convolutions_with_batch_norm_and_relu():
  model = encoders.vgg11([32, 32, 3])
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
def test_resnet50_has_bottleneck_blocks_for_its_image_size(size, blocks, width):
  model = encoders.resnet50([size, size, 3])
  additions = layers_of(model, keras.layers.Add)
  assert len(additions) == blocks
  assert additions[-1].output.shape == (None, 8, 8, width)
  assert model.output_shape == (None, 512)
  # The first convolution, three a block, and a projection a stage.
  stages = 3 if size == 32 else 4
  assert len(layers_of(model, keras.layers.Conv2D)) == 1 + 3 * blocks + stages


@pytest.mark.parametrize('name', list(encoders.ENCODERS))
def test_an_encoder_maps_raw_images_to_finite_vectors_of_the_asked_size(name):
  model = encoders.ENCODERS[name]([32, 32, 3], dim=24)
  images = np.random.default_rng(0).integers(256, size=[2, 32, 32, 3], dtype=np.uint8)
  h = model.predict(images, verbose=0)
  assert h.shape == (2, 24)
  assert np.isfinite(h).all()
  assert not np.allclose(h[0], h[1])


@pytest.mark.parametrize('name', list(encoders.ENCODERS))
def test_every_kernel_is_glorot_initialised_and_decays(name):
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


def test_images_too_small_for_the_encoder_are_refused():
  with pytest.raises(UserError, match='vgg11 needs images of at least 32x32'):
    encoders.vgg11([8, 8, 1])


def test_an_encoder_round_trips_through_its_file(tmp_path):
  model = encoders.mlp([4, 4, 1], dim=3)
  model.save(tmp_path / 'encoder.keras')
  loaded = keras.models.load_model(tmp_path / 'encoder.keras')
  images = np.random.default_rng(0).integers(256, size=[2, 4, 4, 1], dtype=np.uint8)
  np.testing.assert_array_equal(
      model.predict(images, verbose=0), loaded.predict(images, verbose=0))


def test_batch_norm_is_synchronised_wherever_it_is():
  inner = keras.Sequential([keras.Input([4]), keras.layers.BatchNormalization()])
  outer = keras.Sequential([keras.Input([4]), inner, keras.layers.BatchNormalization()])
  encoders.synchronize_batch_norm(outer)
  copy = keras.models.clone_model(outer)  # It is part of the encoder's settings.
  assert [copy.layers[0].layers[0].synchronized, copy.layers[1].synchronized] == [True] * 2


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
