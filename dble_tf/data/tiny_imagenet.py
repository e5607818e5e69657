"""TFDS builder for Tiny ImageNet: 200 classes of 64x64 images.

TFDS does not include it. The labels of its test images were never published, so its
validation images are the test split here, as in the paper.
"""

import tensorflow_datasets as tfds

_URL = 'http://cs231n.stanford.edu/tiny-imagenet-200.zip'


class TinyImagenet(tfds.core.GeneratorBasedBuilder):
  """100,000 training and 10,000 test images of 200 ImageNet classes."""

  VERSION = tfds.core.Version('1.0.0')

  def _info(self) -> tfds.core.DatasetInfo:
    return self.dataset_info_from_configs(
        features=tfds.features.FeaturesDict({
            'image': tfds.features.Image(shape=(64, 64, 3), encoding_format='jpeg'),
            'label': tfds.features.ClassLabel(num_classes=200),
        }),
        supervised_keys=('image', 'label'),
        homepage='http://cs231n.stanford.edu/')

  def _split_generators(self, dl_manager):
    root = dl_manager.download_and_extract(_URL) / 'tiny-imagenet-200'
    label = self.info.features['label']
    label.names = (root / 'wnids.txt').read_text().split()
    return {
        'train': self._train_examples(root / 'train'),
        'test': self._test_examples(root / 'val'),
    }

  def _generate_examples(self, *args):
    raise NotImplementedError('Each split has its own generator.')

  def _train_examples(self, path):
    for wnid in self.info.features['label'].names:
      for image in sorted((path / wnid / 'images').iterdir()):
        yield image.name, {'image': image, 'label': wnid}

  def _test_examples(self, path):
    for line in (path / 'val_annotations.txt').read_text().splitlines():
      name, wnid = line.split('\t')[:2]
      yield name, {'image': path / 'images' / name, 'label': wnid}
