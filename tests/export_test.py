import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from dble_tf import confidence
from dble_tf import confidence_models
from dble_tf import encoders
from dble_tf import export
from dble_tf.errors import UserError
from dble_tf.model import DBLE

IMAGES = np.random.default_rng(0).integers(256, size=[9, 4, 4, 1], dtype=np.uint8)


def make_model():
  return DBLE(encoders.mlp([4, 4, 1], 8), confidence_models.confidence_mlp(8), 3,
              num_shots=1, scaling='none')


@pytest.fixture(scope='module')
def model():
  keras.utils.set_random_seed(0)
  model = make_model()
  model.fit_centers(
      tf.data.Dataset.from_tensor_slices((IMAGES, np.arange(9) % 3)).batch(4))
  return model


@pytest.fixture(scope='module')
def saved_model(model, tmp_path_factory):
  return export.export(model, tmp_path_factory.mktemp('export'))


def test_the_saved_model_answers_as_the_model_does_for_any_batch(model, saved_model):
  serve = tf.saved_model.load(str(saved_model)).signatures['serving_default']
  expected = model.predict(IMAGES, verbose=0)
  expected['sigma'] = expected['sigma'].mean(axis=-1)
  for n in (1, 9):
    outputs = serve(images=tf.constant(IMAGES[:n]))
    assert set(outputs) == {'label', 'confidence', 'probabilities', 'distance', 'sigma'}
    for name, values in outputs.items():
      np.testing.assert_allclose(values, expected[name][:n], rtol=1e-4)


def test_the_saved_model_runs_in_a_v1_session_without_keras_or_this_package(
    model, saved_model):
  np.save(saved_model.parent / 'images.npy', IMAGES)
  program = '''
import sys
sys.modules['keras'] = sys.modules['dble_tf'] = None
import numpy as np
import tensorflow.compat.v1 as tf
with tf.Session(graph=tf.Graph()) as session:
  meta = tf.saved_model.loader.load(session, ['serve'], sys.argv[1])
  signature = meta.signature_def['serving_default']
  confidence = session.run(
      signature.outputs['confidence'].name,
      {signature.inputs['images'].name: np.load(sys.argv[2])})
np.save(sys.argv[3], confidence)
'''
  answer = saved_model.parent / 'confidence.npy'
  subprocess.run(
      [sys.executable, '-c', program, saved_model, saved_model.parent / 'images.npy',
       answer], check=True)
  np.testing.assert_allclose(
      np.load(answer), model.predict(IMAGES, verbose=0)['confidence'], rtol=1e-4)


def test_each_export_is_a_new_version(model, tmp_path):
  (tmp_path / '7').mkdir()
  (tmp_path / 'notes').mkdir()
  assert export.export(model, tmp_path).name == '8'
  assert export.export(model, tmp_path).name == '9'


def test_versions_are_the_numbers_in_their_order(tmp_path):
  assert export.versions(tmp_path / 'missing') == []
  for name in ('10', '2', 'notes'):
    (tmp_path / name).mkdir()
  assert [path.name for path in export.versions(tmp_path)] == ['2', '10']


def test_a_failed_export_leaves_no_version(model, tmp_path, monkeypatch):
  def fail(archive, path, *args, **kwargs):
    tf.io.gfile.makedirs(f'{path}/variables')
    raise OSError('disk full')

  monkeypatch.setattr(tf.saved_model, 'save', fail)
  with pytest.raises(OSError, match='disk full'):
    export.export(model, tmp_path)
  assert not list(tmp_path.iterdir())


def test_an_export_without_centers_is_refused(tmp_path):
  with pytest.raises(UserError, match='fit_centers'):
    export.export(make_model(), tmp_path / 'export')
  assert not (tmp_path / 'export').exists()


def test_keras_own_export_works_too(model, tmp_path):
  model.export(tmp_path / 'keras', verbose=False)
  serve = tf.saved_model.load(str(tmp_path / 'keras')).signatures['serving_default']
  np.testing.assert_allclose(
      serve(tf.constant(IMAGES))['confidence'],
      model.predict(IMAGES, verbose=0)['confidence'], rtol=1e-4)


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
