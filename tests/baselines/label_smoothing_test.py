import keras
import numpy as np
import pytest
from scipy import special

from dble_tf.baselines import label_smoothing
from dble_tf.baselines import Vanilla


def test_the_loss_is_the_cross_entropy_to_smoothed_targets():
  logits = np.array([[2.0, -1.0, 0.5], [0.0, 0.0, 3.0]])
  targets = 0.7 * np.eye(3)[[0, 1]] + 0.3 / 3
  expected = -(targets * special.log_softmax(logits, axis=1)).sum(axis=1).mean()
  loss = label_smoothing.loss(0.3)(np.eye(3)[[0, 1]], logits)
  assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_plain_training_takes_it_and_descends_towards_smoothed_targets(
    make_encoder, some_data):
  model = Vanilla(make_encoder(), 4, weight_decay=0.0)
  model.compile(keras.optimizers.SGD(0.5), loss=label_smoothing.loss(0.2))
  images, class_ids = some_data()
  kernel, bias = model.linear.get_weights()
  h = images.reshape(-1, 4) * 0.01 @ model.encoder.get_weights()[0]
  targets = 0.8 * np.eye(4)[class_ids] + 0.05
  error = (special.softmax(h @ kernel + bias, axis=1) - targets) / len(images)
  model.train_on_batch(images, class_ids)
  np.testing.assert_allclose(
      model.linear.get_weights()[1], bias - 0.5 * error.sum(axis=0), atol=1e-6)
