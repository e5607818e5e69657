"""Decoding of image files in the graph, so that TF Serving does it without Python."""

from collections.abc import Sequence

import tensorflow as tf

# Larger images are rejected; this many pixels take 150 MB as RGB.
MAX_PIXELS = 50_000_000
# Images decoded at a time, which bounds the memory of a batch of any size.
_PARALLEL = 2
_PNG, _JPEG = b'\x89PNG\r\n\x1a\n', b'\xff\xd8\xff'
_HEADER = 24  # Bytes of a PNG up to and including its width and height.


def decode(image_bytes: tf.Tensor, image_shape: Sequence[int]) -> tf.Tensor:
  """Decodes PNG and JPEG files [B] of any size to images [B, H, W, C] uint8.

  Images of another size are stretched to H x W with an antialiasing triangle filter;
  images of the right size are unchanged. Grayscale is converted to RGB and RGB to
  grayscale as C requires. Only the upper eight bits of 16-bit images are used;
  transparency and the EXIF orientation are ignored.

  Anything else fails with an `InvalidArgumentError`, as does an image of more than
  `MAX_PIXELS`, before memory is allocated for it.

  Args:
    image_bytes: [B] strings, each the content of a file.
    image_shape: H, W and C, where C is 1 or 3.
  """
  height, width, channels = image_shape

  def decode_one(data):
    image = tf.io.decode_image(_checked(data), channels=3, expand_animations=False)
    # tf.image.resize would first make a float copy of the full-size image.
    size = tf.cast(tf.shape(image)[:2], tf.float32)
    image = tf.raw_ops.ScaleAndTranslate(
        images=image[tf.newaxis], size=[height, width],
        scale=tf.constant([height, width], tf.float32) / size, translation=[0.0, 0.0],
        kernel_type='triangle', antialias=True)[0]
    image = tf.cast(tf.round(tf.clip_by_value(image, 0.0, 255.0)), tf.uint8)
    # The three channels of a grayscale image are equal; this gives back any of them.
    image = tf.image.rgb_to_grayscale(image) if channels == 1 else image
    return tf.ensure_shape(image, image_shape)

  return tf.map_fn(
      decode_one, image_bytes, parallel_iterations=_PARALLEL,
      fn_output_signature=tf.TensorSpec(image_shape, tf.uint8))


def _checked(data):
  """Returns the bytes after checking the file format and the size in the header."""
  is_png = tf.strings.substr(data, 0, len(_PNG)) == _PNG
  is_jpeg = tf.strings.substr(data, 0, len(_JPEG)) == _JPEG
  length = tf.strings.length(data)
  with _required(
      (is_png | is_jpeg) & (length >= _HEADER),
      'The file is not a PNG or JPEG image. Its length in bytes:', length):
    data = tf.identity(data)
  size = tf.cond(is_png, lambda: _png_size(data), lambda: _jpeg_size(data))
  is_bounded = tf.reduce_all(size > 0) & (tf.reduce_prod(size) <= MAX_PIXELS)
  with _required(
      is_bounded,
      f'The image is empty or larger than {MAX_PIXELS:,} pixels. Its height and width:',
      size):
    return tf.identity(data)


def _required(condition, message, value):
  return tf.control_dependencies([tf.Assert(condition, [message, value])])


def _png_size(data):
  width_and_height = tf.io.decode_raw(
      tf.strings.substr(data, _HEADER - 8, 8), tf.int32, little_endian=False)
  return tf.cast(width_and_height[::-1], tf.int64)


def _jpeg_size(data):
  return tf.cast(tf.image.extract_jpeg_shape(data)[:2], tf.int64)
