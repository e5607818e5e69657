import keras
import numpy as np
import pytest
import tensorflow as tf

from dble_tf.classifier import Classifier
from dble_tf.errors import UserError


class Fixed(Classifier):
  """Gives the pixels as probabilities; its label is the second likeliest class."""

  def __init__(self, encoder=None, **kwargs):
    super().__init__(encoder or keras.Sequential([
        keras.Input([1, 1, 4], dtype='uint8'), keras.layers.Flatten(),
        keras.layers.Rescaling(0.01)]), 4, **kwargs)

  def call(self, images, training=False):
    probabilities = self.encode(images, training)
    order = tf.argsort(probabilities, direction='DESCENDING')
    return {'label': order[:, 1], 'probabilities': probabilities,
            'confidence': tf.gather(probabilities, order[:, 1], batch_dims=1)}


# Labels 1, 1 and 2, confidences 0.3, 0.4 and 0.2.
IMAGES = np.array([[60, 30, 6, 4], [50, 40, 6, 4], [5, 70, 20, 5]], np.uint8)[
    :, np.newaxis, np.newaxis]


def evaluate(class_ids, sample_weight=None, metrics=None):
  model = Fixed()
  model.compile(metrics=metrics)
  return model.evaluate(IMAGES, np.array(class_ids), sample_weight=sample_weight,
                        batch_size=2, return_dict=True, verbose=0)


def test_figures_are_those_of_label_confidence_and_probabilities():
  # The label is no argmax here, and figures must not assume that it is.
  figures = evaluate([1, 0, 2])
  assert figures['accuracy'] == pytest.approx(2 / 3)
  # One image a bin: gaps 0.7, 0.4 and 0.8.
  assert figures['ece'] == pytest.approx((0.7 + 0.4 + 0.8) / 3)
  assert figures['nll'] == pytest.approx(-np.log([0.3, 0.5, 0.2]).mean())


def test_labels_may_be_a_column():
  assert evaluate([[1], [0], [2]]) == evaluate([1, 0, 2])


def test_samples_can_be_weighted():
  figures = evaluate([1, 0, 2], np.array([0.0, 1.0, 3.0]))
  assert figures['accuracy'] == pytest.approx(3 / 4)
  assert figures['ece'] == pytest.approx((0.4 + 3 * 0.8) / 4)
  assert figures['nll'] == pytest.approx(-np.log([0.5, 0.2, 0.2, 0.2]).mean())


def test_further_metrics_see_the_probabilities():
  figures = evaluate([1, 0, 2], metrics=['sparse_categorical_accuracy'])
  assert figures['sparse_categorical_accuracy'] == pytest.approx(1 / 3)


def test_metrics_named_like_the_models_own_are_refused():
  with pytest.raises(UserError, match='accuracy already'):
    Fixed().compile(metrics=['accuracy'])


def test_float_images_are_refused_where_raw_pixels_are_due():
  with pytest.raises(UserError, match='raw uint8 pixels'):
    Fixed().predict(IMAGES / 255.0, verbose=0)


def test_an_encoder_that_gives_no_vector_is_refused():
  encoder = keras.Sequential([keras.Input([2, 2, 1]), keras.layers.ReLU()])
  with pytest.raises(UserError, match='a vector per image'):
    Fixed(encoder)


def test_an_export_answers_with_label_confidence_and_probabilities(tmp_path):
  model = Fixed()
  answers = model.serve(tf.constant(IMAGES))
  assert list(answers) == ['label', 'confidence', 'probabilities']
  model.export(tmp_path, verbose=False)
  served = tf.saved_model.load(str(tmp_path)).serve(tf.constant(IMAGES))
  np.testing.assert_allclose(served['confidence'], [0.3, 0.4, 0.2], rtol=1e-6)


def test_representations_are_the_encoders():
  np.testing.assert_allclose(
      Fixed().embed(tf.constant(IMAGES)), IMAGES[:, 0, 0] / 100, rtol=1e-6)


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
