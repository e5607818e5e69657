import socket

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import downloader

from dble_tf.data import load
from dble_tf.data import tfds_arrays
from dble_tf.errors import UserError


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
  def refuse(*_):
    raise OSError('no network in tests')

  monkeypatch.setattr(socket.socket, 'connect', refuse)
  monkeypatch.setattr(socket, 'getaddrinfo', refuse)
  monkeypatch.setattr(downloader, 'MAX_RETRIES', 0)  # TFDS would try for minutes.


def prepare(name, data_dir, splits):
  builder = tfds.builder(name, data_dir=data_dir)
  tfds.dataset_builders.store_as_tfds_dataset(
      name=name, version=str(builder.version), data_dir=data_dir,
      features=builder.info.features,
      split_datasets={split: tf.data.Dataset.from_tensor_slices(arrays)
                      for split, arrays in splits.items()})


def some(n, shape, num_classes, seed):
  return {
      'image': np.random.default_rng(seed).integers(
          256, size=[n, *shape], dtype=np.uint8),
      'label': np.arange(n) % num_classes,
  }


def sorted_rows(images, class_ids):
  return sorted((int(i), image.tobytes()) for image, i in zip(images, class_ids))


@pytest.fixture(scope='module')
def prepared(tmp_path_factory):
  data_dir = tmp_path_factory.mktemp('data')
  splits = {'train': some(40, [28, 28, 1], 10, 0), 'test': some(20, [28, 28, 1], 10, 1)}
  prepare('mnist', data_dir, splits)
  return data_dir, splits


def test_a_prepared_data_set_is_read_without_the_network(prepared):
  data_dir, splits = prepared
  train, test, names = tfds_arrays.load_arrays('mnist', data_dir)
  for (images, class_ids), split in ((train, 'train'), (test, 'test')):
    assert images.dtype == np.uint8
    assert sorted_rows(images, class_ids) == sorted_rows(
        splits[split]['image'], splits[split]['label'])
  assert names == list('0123456789')


def test_the_order_is_the_same_at_each_load(prepared):
  (first, _), _, _ = tfds_arrays.load_arrays('mnist', prepared[0])
  (second, _), _, _ = tfds_arrays.load_arrays('mnist', prepared[0])
  np.testing.assert_array_equal(first, second)


def test_load_gives_splits_and_the_augmentation_of_the_data_set(prepared):
  data = load('mnist', prepared[0], validation_size=10)
  assert len(data.train) == 30 and len(data.validation) == 10 and len(data.test) == 20
  assert data.augmentation_policy == 'none'
  assert data.class_names == tuple('0123456789')


def test_a_failed_download_says_how_to_prepare_the_data_set(tmp_path):
  with pytest.raises(UserError) as caught:
    load('fashion_mnist', tmp_path)
  message = str(caught.value)
  assert 'fashion_mnist is not prepared' in message
  assert str(tmp_path) in message
  assert "load('fashion_mnist', data_dir='DIR')" in message
  assert '--' not in message
