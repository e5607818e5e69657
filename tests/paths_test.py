"""Paths may be of another file system than this machine's, as gs:// is.

Without a network gs:// itself cannot be tried: TensorFlow's file system in memory,
ram://, stands in for it. Its directories cannot be renamed, unlike those of gs://.
"""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from etils import epath
from etils.epath import backend
from etils.epath import gpath
from etils.epath import register

from dble_tf import baselines
from dble_tf import files
from dble_tf.data import load
from dble_tf.serving import export


@pytest.fixture
def bucket(monkeypatch, tmp_path):
  """A directory on ram://, for which epath asks TensorFlow as it does for gs://."""
  monkeypatch.setattr(gpath, '_URI_SCHEMES', gpath._URI_SCHEMES | {'ram'})
  monkeypatch.setattr(gpath, '_URI_PREFIXES', (*gpath._URI_PREFIXES, 'ram://'))
  monkeypatch.setitem(gpath._URI_MAP_ROOT, 'ram://', '/ram/')
  monkeypatch.setitem(gpath._PREFIX_TO_BACKEND, 'ram', backend.tf_backend)
  monkeypatch.setitem(register._URI_PREFIXES_TO_CLS, 'ram://', gpath.PosixGPath)
  monkeypatch.chdir(tmp_path)
  yield f'ram://bucket-{tmp_path.name}'
  assert not any(tmp_path.iterdir())  # Nothing went to this machine's disk.


def test_files_are_replaced_on_another_file_system(bucket):
  target = epath.Path(bucket) / 'run' / 'metrics.json'
  for text in ('old', 'new'):
    with files.replacing(target) as temporary:
      temporary.write_text(text)
  with pytest.raises(KeyboardInterrupt):
    with files.replacing(target) as temporary:
      temporary.write_text('half')
      raise KeyboardInterrupt
  assert target.read_text() == 'new'
  assert [path.name for path in target.parent.iterdir()] == ['metrics.json']
  assert tf.io.gfile.exists(f'{bucket}/run/metrics.json')


def test_data_sets_are_read_from_another_file_system(bucket, tmp_path_factory):
  prepared = tmp_path_factory.mktemp('data')
  builder = tfds.builder('mnist', data_dir=prepared)
  images = np.random.default_rng(0).integers(256, size=[20, 28, 28, 1], dtype=np.uint8)
  split = tf.data.Dataset.from_tensor_slices(
      {'image': images, 'label': np.arange(20) % 10})
  tfds.dataset_builders.store_as_tfds_dataset(
      name='mnist', version=str(builder.version), data_dir=prepared,
      features=builder.info.features, split_datasets={'train': split, 'test': split})
  for path in prepared.rglob('*.*'):
    if path.is_file():
      copy = f'{bucket}/data/{path.relative_to(prepared)}'
      tf.io.gfile.makedirs(copy.rpartition('/')[0])
      tf.io.gfile.copy(str(path), copy)
  data = load('mnist', f'{bucket}/data')
  assert {image.tobytes() for image in data.train.images} == {
      image.tobytes() for image in images}


def test_exports_are_written_to_another_file_system(bucket, monkeypatch):
  # A directory's renaming is left out: see above.
  monkeypatch.setattr(
      files, 'replacing', lambda path: contextlib.nullcontext(epath.Path(path)))
  encoder = keras.Sequential([
      keras.Input([2, 2, 1], dtype='uint8'), keras.layers.Rescaling(0.01),
      keras.layers.Flatten(), keras.layers.Dense(3)])
  model = baselines.Vanilla(encoder, num_classes=4)
  export.export(model, f'{bucket}/export')
  newest = export.export(model, f'{bucket}/export')
  assert str(newest) == f'{bucket}/export/model/2'
  assert export.versions(f'{bucket}/export')[-1] == newest
  images = np.full([3, 2, 2, 1], 7, np.uint8)
  served = tf.saved_model.load(str(newest)).signatures['serving_default'](
      images=tf.constant(images))
  np.testing.assert_allclose(
      served['probabilities'], model.predict(images, verbose=0)['probabilities'],
      rtol=1e-5)
