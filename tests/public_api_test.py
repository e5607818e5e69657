"""The public names, as the README shows them."""

import pathlib
import pydoc
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import dble_tf

README = pathlib.Path(__file__).parents[1] / 'README.md'


def code(text):
  """The lines of the first block of Python that imports the library."""
  block = re.search(r'```python\n(import dble_tf as dble\n.*?)```', text, re.DOTALL)
  return [line for line in block[1].splitlines() if line]


def test_the_readme_and_the_docstring_show_the_same():
  assert code(README.read_text()) == code(dble_tf.__doc__)


def test_what_the_readme_shows_runs(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  keras.utils.set_random_seed(0)
  names = {}
  exec('\n'.join(code(README.read_text())), names)
  model, data = names['model'], names['data']
  figures = model.evaluate(data.test.batches(500), return_dict=True, verbose=0)
  assert figures['accuracy'] > 0.9 and figures['nll'] < 0.4
  version, = (tmp_path / 'export').glob('*/1')
  images = data.test.images[:20]
  exported = tf.saved_model.load(str(version))
  served = exported.serving_default(images=tf.constant(images))
  np.testing.assert_allclose(
      served['confidence'], model.predict(images, verbose=0)['confidence'], rtol=1e-3)
  assert served['label_name'][0].numpy().decode() in data.class_names


def test_all_public_names_exist_and_are_sorted():
  assert sorted(dble_tf.__all__, key=str.lower) == dble_tf.__all__
  for name in dble_tf.__all__:
    assert hasattr(dble_tf, name), name


def test_help_shows_the_arguments():
  page = pydoc.plaintext.document(dble_tf.DBLE)
  for argument in ('encoder', 'num_classes', 'num_shots', 'confidence_model',
                   'squared_scale', 'label_smoothing', 'num_samples', 'seed',
                   'scaling'):
    assert re.search(rf'__init__\(.*\b{argument}:', page, re.DOTALL), argument
  assert '*args' not in page.partition('__init__(')[2].partition('\n')[0]


SLOW_TO_IMPORT = (
    'tensorflow_probability', 'tensorflow_datasets', 'sklearn', 'scipy.stats',
    'matplotlib', 'grpc', 'tensorflow_serving')


def test_importing_the_library_imports_nothing_slow_beyond_what_keras_does():
  program = f'''
import sys
import keras
import tensorflow
before = set(sys.modules)
import dble_tf
print([name for name in {SLOW_TO_IMPORT} if name in set(sys.modules) - before])
'''
  printed = subprocess.run(
      [sys.executable, '-c', program], capture_output=True, text=True, check=True,
      cwd=README.parent)
  assert printed.stdout.strip() == '[]'


@pytest.mark.parametrize('name', [
    'DBLE', 'ConfidenceModel', 'Vanilla', 'TrustScore', 'WarmUp'])
def test_keras_finds_the_classes_of_saved_models(name):
  assert keras.saving.get_registered_object(f'dble_tf>{name}') is not None
