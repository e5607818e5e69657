import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from etils import epath

from dble_tf.data import AUGMENTATION_POLICIES
from dble_tf.data import load
from dble_tf.data import tiny_imagenet

WNIDS = [f'n{i:08d}' for i in range(200)]


def write_jpeg(path, gray):
  path.parent.mkdir(parents=True, exist_ok=True)
  image = np.full([64, 64, 3], gray, np.uint8)
  path.write_bytes(tf.io.encode_jpeg(image, quality=100).numpy())


def make_archive(root):
  """The published archive's layout, with one or two images per class."""
  top = root / 'tiny-imagenet-200'
  (top / 'val').mkdir(parents=True)
  shuffled = WNIDS[100:] + WNIDS[:100]
  (top / 'wnids.txt').write_text('\n'.join(shuffled))
  annotations = []
  for i, wnid in enumerate(WNIDS):
    for j in range(2):
      write_jpeg(top / 'train' / wnid / 'images' / f'{wnid}_{j}.JPEG', i)
    write_jpeg(top / 'val' / 'images' / f'val_{i}.JPEG', i)
    annotations.append(f'val_{i}.JPEG\t{wnid}\t0\t0\t62\t62')
  (top / 'val' / 'val_annotations.txt').write_text('\n'.join(annotations))


def test_the_builder_reads_the_published_layout(tmp_path, monkeypatch):
  make_archive(tmp_path / 'extracted')
  asked = []

  def extracted(manager, url):
    asked.append(url)
    return epath.Path(tmp_path / 'extracted')

  monkeypatch.setattr(
      tfds.download.DownloadManager, 'download_and_extract', extracted)
  data = load('tiny_imagenet', tmp_path / 'data', validation_size=200)
  assert asked == ['http://cs231n.stanford.edu/tiny-imagenet-200.zip']
  assert (len(data.train), len(data.validation), len(data.test)) == (200, 200, 200)
  assert data.image_shape == (64, 64, 3)
  assert data.augmentation_policy == 'flip'
  # The gray level of an image is the index of its class in WNIDS.
  for split in (data.train, data.validation, data.test):
    names = [data.class_names[class_id] for class_id in split.class_ids]
    assert names == [WNIDS[gray] for gray in split.images[:, 0, 0, 0]]


def test_the_builder_is_registered_with_tfds():
  assert tiny_imagenet.TinyImagenet.name in tfds.list_builders()
  assert tiny_imagenet.TinyImagenet.name in AUGMENTATION_POLICIES
