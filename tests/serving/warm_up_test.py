import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from dble_tf.serving import warm_up
from dble_tf.serving.signatures import Signature

IMAGES = np.arange(3 * 4, dtype=np.uint8).reshape(3, 2, 2, 1)
SIGNATURES = {
    'of_images': Signature(None, tf.TensorSpec([None, 2, 2, 1], tf.uint8, 'images')),
    'of_files': Signature(None, tf.TensorSpec([None], tf.string, 'files')),
}


@pytest.fixture
def requests(tmp_path):
  count = warm_up.write(tmp_path, 'tiny', SIGNATURES, IMAGES)
  path = tmp_path / 'assets.extra' / 'tf_serving_warmup_requests'
  records = list(tf.compat.v1.io.tf_record_iterator(str(path)))
  assert len(records) == count
  return [prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
          for record in records]


def test_every_signature_is_asked_in_small_and_larger_batches(requests):
  assert [(request.model_spec.name, request.model_spec.signature_name)
          for request in requests] == 2 * [('tiny', 'of_images'), ('tiny', 'of_files')]
  one, _, eight, _ = (
      tf.make_ndarray(next(iter(request.inputs.values()))) for request in requests)
  np.testing.assert_array_equal(one, IMAGES[:1])
  assert eight.dtype == np.uint8
  np.testing.assert_array_equal(eight, IMAGES[[0, 1, 2, 0, 1, 2, 0, 1]])


def test_files_are_png_and_jpeg(requests):
  one, eight = (tf.make_ndarray(requests[i].inputs['files']) for i in (1, 3))
  assert len(one) == 1 and len(eight) == 8
  starts = {file[:3] for file in [*one, *eight]}
  assert starts == {b'\x89PN', b'\xff\xd8\xff'}
  pngs = [i for i, file in enumerate(eight) if file.startswith(b'\x89PNG')]
  for i in pngs:
    np.testing.assert_array_equal(tf.io.decode_png(eight[i]), IMAGES[i % 3])


def test_whether_it_is_possible_depends_on_the_package(monkeypatch):
  assert warm_up.is_possible()
  monkeypatch.setitem(sys.modules, 'tensorflow_serving', None)
  assert not warm_up.is_possible()
  assert 'pip install tensorflow-serving-api' in warm_up.MISSING
