import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from scipy import stats

from dble_tf.data import episodes
from dble_tf.errors import UserError


@st.composite
def samplers(draw):
  """A sampler over random labels, with the labels and the episode's shape."""
  images_per_class = draw(st.integers(2, 8))
  counts = draw(st.lists(
      st.integers(images_per_class, 15), min_size=2, max_size=6))
  shape = draw(st.integers(2, len(counts))), images_per_class
  class_ids = np.random.default_rng(draw(st.integers(0, 99))).permutation(
      np.repeat(np.arange(len(counts)), counts))
  seed = draw(st.integers(0, 2**31 - 1))
  return episodes.EpisodeSampler(class_ids, *shape, seed), class_ids, shape


indices = st.integers(0, 2**40)
properties = hypothesis.settings(max_examples=60, deadline=None)


@properties
@hypothesis.given(samplers(), indices)
def test_an_episode_has_n_classes_and_no_example_twice(case, index):
  sampler, class_ids, shape = case
  examples = sampler(index).numpy()
  assert examples.shape == shape
  # Supports and queries are disjoint because all examples differ.
  assert len(np.unique(examples)) == examples.size
  rows = class_ids[examples]
  assert (rows == rows[:, :1]).all(), 'a row holds one class'
  assert len(np.unique(rows[:, 0])) == shape[0], 'each class has one row'


@properties
@hypothesis.given(samplers(), indices)
def test_an_episode_is_a_function_of_its_index(case, index):
  sampler, _, _ = case
  np.testing.assert_array_equal(sampler(index), sampler(index))


@hypothesis.settings(max_examples=15, deadline=None)
@hypothesis.given(
    samplers(), st.integers(1, 3), st.integers(0, 5), st.integers(0, 10**6))
def test_a_stream_resumes_at_any_step(case, episodes_per_step, step, start):
  sampler, class_ids, shape = case
  images = np.arange(len(class_ids), dtype=np.int32).reshape(-1, 1, 1, 1)
  whole = episodes.episode_dataset(images, sampler, episodes_per_step, start)
  resumed = episodes.episode_dataset(
      images, sampler, episodes_per_step, start + step * episodes_per_step)
  first = next(iter(resumed.take(1)))
  np.testing.assert_array_equal(first, next(iter(whole.skip(step))))
  # And each is the sampler's own episode, in order.
  for i, episode in enumerate(first):
    np.testing.assert_array_equal(
        tf.squeeze(episode, [2, 3, 4]),
        sampler(start + step * episodes_per_step + i))


def test_episodes_differ_between_indices_and_between_seeds():
  class_ids = np.repeat(np.arange(5), 100)
  first, second = (episodes.EpisodeSampler(class_ids, 5, 10, s) for s in (0, 1))
  assert not np.array_equal(first(0), first(1))
  assert not np.array_equal(first(0), second(0))


def test_classes_and_examples_are_drawn_uniformly():
  class_ids = np.repeat(np.arange(6), [10, 10, 10, 10, 10, 20])
  sampler = episodes.EpisodeSampler(class_ids, 2, 3, seed=0)
  draws = tf.stack([sampler(i) for i in range(3000)]).numpy()
  # All classes are equally likely, at either position in the episode.
  for way in range(2):
    counts = np.bincount(class_ids[draws[:, way, 0]], minlength=6)
    assert stats.chisquare(counts).pvalue > 1e-3
  # Within the large class, all examples are equally likely to come first.
  firsts = draws[:, :, 0].ravel()
  firsts = firsts[class_ids[firsts] == 5]
  assert stats.chisquare(np.bincount(firsts - 50, minlength=20)).pvalue > 1e-3


def test_a_batch_of_episodes_has_a_static_shape():
  class_ids = np.repeat(np.arange(3), 8)
  sampler = episodes.EpisodeSampler(class_ids, 2, 7, seed=0)
  dataset = episodes.episode_dataset(
      np.zeros([24, 5, 6, 1], np.uint8), sampler, episodes_per_step=2,
      augmentation_policy='crop_flip')
  assert dataset.element_spec == tf.TensorSpec([2, 2, 7, 5, 6, 1], tf.uint8)


def test_augmentation_repeats_with_the_index_and_varies_between_indices():
  class_ids = np.repeat(np.arange(2), 2)
  sampler = episodes.EpisodeSampler(class_ids, 2, 2, seed=0)
  images = np.random.default_rng(0).integers(
      256, size=[4, 8, 8, 3], dtype=np.uint8)
  images[:] = images[0]  # Identical, so that only augmentation makes a difference.
  dataset = episodes.episode_dataset(
      images, sampler, 1, augmentation_policy='crop_flip')
  once, again = (list(dataset.take(3).as_numpy_iterator()) for _ in range(2))
  np.testing.assert_array_equal(once, again)
  assert not np.array_equal(once[0], once[1])
  assert not np.array_equal(once[0][0, 0, 0], once[0][0, 0, 1])


@pytest.mark.parametrize('class_ids, shape, message', [
    ([], (2, 2), 'empty split'),
    ([0, 0, 1, 1], (0, 2), 'num_ways'),
    ([0, 0, 1, 1], (2, 0), '0 images each'),
    ([0, 0, 1, 1], (3, 2), 'need 3 classes, but the data has 2'),
    ([0, 0, 0, 1, 1, 1, 1], (2, 4), 'Class 0 has 3 examples'),
    ([0, 0, 2, 2], (2, 2), 'Class 1 has 0 examples'),
])
def test_impossible_episodes_are_refused_at_construction(class_ids, shape, message):
  with pytest.raises(UserError, match=message):
    episodes.EpisodeSampler(
        np.array(class_ids, np.int32), *shape, seed=0)
