import keras
import numpy as np
import pytest
from scipy import stats

from dble_tf.baselines import mixup
from dble_tf.baselines import Vanilla
from dble_tf.data import batches


def test_images_and_targets_are_mixed_with_the_next_of_the_batch(some_data):
  images, class_ids = some_data(5)
  shares = np.array([1.0, 0.0, 0.5, 0.25, 0.9], np.float32)
  mixed, targets = mixup.mix(images, class_ids, 4, shares)
  for i, share in enumerate(shares):
    j = (i + 1) % 5
    expected = share * images[i].astype(float) + (1 - share) * images[j]
    np.testing.assert_allclose(mixed[i], expected, atol=0.5)  # Rounded.
    expected = np.zeros(4)
    expected[class_ids[i]] += share
    expected[class_ids[j]] += 1 - share
    np.testing.assert_allclose(targets[i], expected, atol=1e-6)
  assert mixed.dtype == images.dtype


@pytest.mark.parametrize('alpha', [0.2, 1.0])
def test_shares_are_of_the_beta_distribution(alpha):
  shares = mixup.shares(4000, alpha, np.array([1, 2])).numpy()
  # Shares that float32 cannot tell from 0 and 1 are ties, of no consequence here.
  assert stats.kstest(shares, stats.beta(alpha, alpha).cdf).pvalue > 1e-3


def test_a_stream_starts_anywhere_and_its_batches_differ(some_data):
  images, class_ids = some_data(40)

  def stream(start, seed=0):
    plain = batches.batch_dataset(images, class_ids, 8, seed=0, start=start)
    return mixup.mixup_dataset(plain, 4, 0.4, seed, start).as_numpy_iterator()

  first = stream(0)
  expected = [next(first) for _ in range(4)]
  later = stream(2)
  for mixed, targets in expected[2:]:
    again, again_targets = next(later)
    np.testing.assert_array_equal(again, mixed)
    np.testing.assert_array_equal(again_targets, targets)
  shares = [targets.max(axis=1) for _, targets in expected]
  assert not np.array_equal(shares[0], shares[1])
  assert not np.array_equal(next(stream(0, seed=1))[1], expected[0][1])


def test_plain_training_takes_mixed_batches(some_data, make_encoder):
  images, class_ids = some_data()
  model = Vanilla(make_encoder(), 4, weight_decay=0.0)
  model.compile(keras.optimizers.SGD(0.5))
  mixed, targets = mixup.mix(images, class_ids, 4, np.full(20, 0.7, np.float32))
  probabilities = model.predict(mixed.numpy(), verbose=0)['probabilities']
  bias = model.linear.get_weights()[1]
  logs = model.train_on_batch(mixed, targets, return_dict=True)
  expected = -(targets * np.log(probabilities)).numpy().sum(axis=1).mean()
  assert logs['loss'] == pytest.approx(expected, rel=1e-4)
  np.testing.assert_allclose(
      model.linear.get_weights()[1],
      bias - 0.5 * (probabilities - targets).numpy().mean(axis=0), atol=1e-6)
