import io
import struct

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from PIL import Image

from dble_tf.data import image_bytes

GRAY, COLOR = (8, 8, 1), (6, 5, 3)
RNG = np.random.default_rng(0)


def decoder(shape):
  return tf.function(
      lambda files: image_bytes.decode(files, shape),
      input_signature=[tf.TensorSpec([None], tf.string)])


DECODERS = {shape: decoder(shape) for shape in (GRAY, COLOR)}


def decode(*files, shape=COLOR):
  images = DECODERS[shape](tf.constant(files, tf.string)).numpy()
  assert images.shape == (len(files), *shape) and images.dtype == np.uint8
  return images


def encoded(image, form='PNG', **options):
  """The file, written by PIL, of an array or a PIL image."""
  if isinstance(image, np.ndarray):
    image = Image.fromarray(image.squeeze())
  buffer = io.BytesIO()
  image.save(buffer, form, **options)
  return buffer.getvalue()


def noise(*shape):
  return RNG.integers(256, size=shape, dtype=np.uint8)


def test_images_of_the_right_size_are_unchanged():
  images = noise(3, *COLOR)
  np.testing.assert_array_equal(decode(*map(encoded, images)), images)
  # All gray levels.
  levels = np.arange(256, dtype=np.uint8).reshape(4, *GRAY)
  np.testing.assert_array_equal(decode(*map(encoded, levels), shape=GRAY), levels)


def test_an_empty_batch_gives_an_empty_batch():
  assert decode().shape == (0, *COLOR)


def test_a_jpeg_is_decoded_as_by_pil():
  gradient = np.linspace(0, 255, 90).reshape(COLOR).astype(np.uint8)
  file = encoded(gradient, 'JPEG')
  expected = np.asarray(Image.open(io.BytesIO(file)))
  # TensorFlow uses a fast, less exact inverse cosine transform.
  assert np.abs(decode(file)[0].astype(int) - expected).max() <= 12


def test_grayscale_and_rgb_are_converted_into_each_other():
  gray = noise(6, 5)
  np.testing.assert_array_equal(
      decode(encoded(gray))[0], np.repeat(gray[..., np.newaxis], 3, axis=-1))
  color = noise(8, 8, 3)
  luma = color @ [0.2989, 0.587, 0.114]
  answer = decode(encoded(color), shape=GRAY)[0, ..., 0]
  assert np.abs(answer - luma).max() <= 1


def test_every_pixel_of_a_large_image_counts_when_it_is_resized():
  # PIL's filter also widens with the reduction; otherwise few pixels would count.
  large = noise(1000, 1100, 3)
  expected = np.asarray(Image.fromarray(large).resize((5, 6), Image.BILINEAR))
  answer = decode(encoded(large))[0].astype(int)
  assert np.abs(answer - expected).max() <= 1
  assert np.ptp(answer) < 20  # Means over thousands of pixels each.


def test_small_images_are_enlarged():
  answer = decode(encoded(np.full([1, 1, 3], 77, np.uint8)))
  np.testing.assert_array_equal(answer, np.full([1, *COLOR], 77))


def test_transparency_and_the_lower_8_of_16_bits_are_ignored():
  image = noise(*COLOR[:2], 4)
  np.testing.assert_array_equal(decode(encoded(image))[0], image[..., :3])
  for channels in (1, 2, 3, 4):
    deep = RNG.integers(65536, size=[*COLOR[:2], channels], dtype=np.uint16)
    expected = (deep >> 8)[..., :3] if channels > 2 else np.repeat(
        deep[..., :1] >> 8, 3, axis=-1)
    np.testing.assert_array_equal(
        decode(tf.io.encode_png(deep).numpy())[0], expected)


@pytest.mark.parametrize('mode', ['1', 'P', 'LA', 'L'])
def test_other_modes_of_png_are_decoded_as_by_pil(mode):
  image = Image.fromarray(noise(*COLOR)).convert(mode)
  np.testing.assert_array_equal(
      decode(encoded(image))[0], np.asarray(image.convert('RGB')))


@pytest.mark.parametrize('shape', [COLOR, GRAY])
def test_a_cmyk_jpeg_is_decoded(shape):
  # Cyan: no red. The image is uniform so that JPEG does not blur it.
  file = encoded(Image.new('CMYK', shape[1::-1], (255, 0, 0, 0)), 'JPEG', quality=100)
  answer = decode(file, shape=shape)[0].astype(int)
  expected = [0, 255, 255] if shape[-1] == 3 else [0.701 * 255]
  assert np.abs(answer - expected).max() <= 3


@pytest.mark.parametrize('file, message', [
    (b'', 'not a PNG or JPEG image'),
    (b'hello, this is a letter', 'not a PNG or JPEG image'),
    (b'\x89PNG\r\n\x1a\n', 'not a PNG or JPEG image'),
    (encoded(noise(6, 5, 3), 'GIF'), 'not a PNG or JPEG image'),
    (encoded(noise(6, 5, 3), 'BMP'), 'not a PNG or JPEG image'),
    (encoded(noise(6, 5, 3), 'WEBP'), 'not a PNG or JPEG image'),
    (encoded(noise(6, 5, 3))[:-1], 'Invalid PNG'),
    (encoded(noise(6, 5, 3))[:30], 'Invalid PNG'),
    (encoded(noise(60, 50, 3), 'JPEG')[:-200], 'JPEG'),
    (encoded(noise(60, 50, 3), 'JPEG')[:40], 'Invalid JPEG'),
])
def test_anything_but_a_complete_png_or_jpeg_is_refused(file, message):
  with pytest.raises(tf.errors.InvalidArgumentError, match=message):
    decode(encoded(noise(6, 5, 3)), file)


def with_size(file, height, width):
  """A file whose header claims another size."""
  if file.startswith(b'\x89PNG'):
    return file[:16] + struct.pack('>II', width, height) + file[24:]
  place = file.index(b'\xff\xc0') + 5
  return file[:place] + struct.pack('>HH', height, width) + file[place + 4:]


@pytest.mark.parametrize('form, height, width', [
    ('PNG', 30_000, 30_000), ('PNG', 1, 50_000_001), ('PNG', 2**31, 2), ('PNG', 0, 5),
    ('PNG', 2**31 - 1, 2**31 - 1), ('JPEG', 60_000, 60_000)])
def test_an_image_is_refused_by_the_size_it_claims(form, height, width):
  file = with_size(encoded(noise(20, 20, 3), form), height, width)
  with pytest.raises(tf.errors.InvalidArgumentError, match='50,000,000 pixels'):
    decode(file)


def test_the_largest_allowed_image_is_decoded():
  wide = Image.new('L', (50_000, 1000), 200)
  np.testing.assert_array_equal(decode(encoded(wide)), np.full([1, *COLOR], 200))


WHOLE = [encoded(noise(6, 5, 3)), encoded(noise(9, 9)), encoded(noise(6, 5, 3), 'JPEG')]


@st.composite
def damaged(draw):
  """A file with some bytes deleted, changed or inserted."""
  file = bytearray(draw(st.sampled_from(WHOLE)))
  for _ in range(draw(st.integers(1, 4))):
    start = draw(st.integers(0, len(file)))
    stop = draw(st.integers(start, min(start + 40, len(file))))
    file[start:stop] = draw(st.binary(max_size=8))
  return bytes(file)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=60), damaged()))
def test_any_bytes_give_an_image_or_an_error_about_the_file(file):
  try:
    decode(file)
  except tf.errors.InvalidArgumentError as error:
    assert any(word in str(error) for word in ('PNG', 'JPEG', 'jpeg', 'pixels')), error
