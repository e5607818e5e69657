import keras
import numpy as np
import pytest
import tensorflow as tf

from dble_tf import baselines
from dble_tf.classifier import Classifier
from dble_tf.confidence_model import ConfidenceModel
from dble_tf.errors import UserError
from dble_tf.model import DBLE
from tests import linear


class Fixed(Classifier):
  """Gives the pixels as probabilities; its label is the second likeliest class."""

  def __init__(self, encoder=None, **kwargs):
    super().__init__(encoder or keras.Sequential([
        keras.Input([1, 1, 4], dtype='uint8'), keras.layers.Flatten(),
        keras.layers.Rescaling(0.01)]), 4, **kwargs)

  def answer(self, h):
    order = tf.argsort(h, direction='DESCENDING')
    return {'label': order[:, 1], 'probabilities': h,
            'confidence': tf.gather(h, order[:, 1], batch_dims=1)}


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
  assert set(figures) == {'loss', 'accuracy', 'ece', 'nll'}
  assert figures['accuracy'] == pytest.approx(2 / 3)
  # One image a bin: gaps 0.7, 0.4 and 0.8.
  assert figures['ece'] == pytest.approx((0.7 + 0.4 + 0.8) / 3)
  assert figures['nll'] == pytest.approx(-np.log([0.3, 0.5, 0.2]).mean())
  assert figures['loss'] == figures['nll']


def test_a_list_of_figures_begins_with_the_loss_as_in_keras():
  model = Fixed()
  model.compile()
  loss, accuracy, ece, nll = model.evaluate(IMAGES, np.array([1, 0, 2]), verbose=0)
  assert loss == nll
  figures = evaluate([1, 0, 2])
  assert [accuracy, ece, nll] == pytest.approx(
      [figures['accuracy'], figures['ece'], figures['nll']])


def test_labels_may_be_a_column():
  assert evaluate([[1], [0], [2]]) == evaluate([1, 0, 2])


def test_samples_can_be_weighted():
  figures = evaluate([1, 0, 2], np.array([0.0, 1.0, 3.0]))
  assert figures['accuracy'] == pytest.approx(3 / 4)
  assert figures['ece'] == pytest.approx((0.4 + 3 * 0.8) / 4)
  assert figures['nll'] == pytest.approx(-np.log([0.5, 0.2, 0.2, 0.2]).mean())
  assert figures['loss'] == pytest.approx(figures['nll'])


def test_further_metrics_see_the_probabilities():
  figures = evaluate([1, 0, 2], metrics=['sparse_categorical_accuracy'])
  assert figures['sparse_categorical_accuracy'] == pytest.approx(1 / 3)
  assert set(figures) == {
      'loss', 'accuracy', 'ece', 'nll', 'sparse_categorical_accuracy'}


@pytest.mark.parametrize('metric', ['accuracy', keras.metrics.Mean('loss')])
def test_metrics_named_like_the_models_own_are_refused(metric):
  name = metric if isinstance(metric, str) else metric.name
  with pytest.raises(UserError, match=f'{name} already'):
    Fixed().compile(metrics=[metric])


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
  expected = IMAGES[:, 0, 0] / 100
  np.testing.assert_allclose(
      Fixed().embed(tf.constant(IMAGES)), expected, rtol=1e-6)
  h, class_ids = Fixed().represent(
      tf.data.Dataset.from_tensor_slices((IMAGES, [[2], [0], [1]])).batch(2))
  np.testing.assert_allclose(h, expected, rtol=1e-6)
  np.testing.assert_array_equal(class_ids, [2, 0, 1])
  assert h.dtype == np.float32


def test_what_cannot_be_represented_is_refused():
  with pytest.raises(UserError, match='finite tf.data.Dataset of batches'):
    Fixed().represent((IMAGES, np.arange(3)))


METHODS = {
    'vanilla': baselines.Vanilla,
    'mc_dropout': baselines.MCDropout,
    'temperature_scaling': baselines.TemperatureScaling,
    'trust_score': lambda *args: baselines.TrustScore(*args, num_points=40),
    'vanilla_errors': lambda *args: baselines.VanillaErrors(
        *args, confidence_model=ConfidenceModel(4)),
    'deep_ensemble': lambda encoder, num_classes: baselines.DeepEnsemble([
        baselines.Vanilla(one, num_classes) for one in (encoder, linear.encoder())]),
    'dble': lambda *args: DBLE(*args, num_shots=1),
    'prototypical': lambda *args: DBLE(*args, num_shots=1, confidence_model=None),
}


@pytest.mark.parametrize('method', METHODS)
def test_representations_calibrate_and_answer_as_images_do(method, monkeypatch):
  monkeypatch.setattr('dble_tf.classifier._BATCH', 16)
  models = []
  for place in range(2):
    keras.utils.set_random_seed(0)
    model = METHODS[method](linear.encoder(), 4)
    train, held_out = (
        linear.batches(*linear.class_images(40, seed)) for seed in (0, 1))
    model.calibrate(train, model.represent(held_out) if place else held_out)
    model.require_calibrated()
    models.append(model)
  for mine, theirs in zip(*(model.weights for model in models)):
    np.testing.assert_array_equal(theirs, mine, err_msg=mine.path)
  images, class_ids = linear.class_images(40, seed=2)
  expected = models[0].predict(images, batch_size=40, verbose=0)
  h = models[0].represent(linear.batches(images, class_ids, 7)).h
  answers = models[0].predict_from(h)
  assert set(answers) == set(expected)
  for name in expected:
    assert answers[name].dtype == expected[name].dtype
    np.testing.assert_allclose(
        answers[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name)
