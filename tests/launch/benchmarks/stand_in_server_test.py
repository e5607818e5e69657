import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2
from tensorflow_serving.apis import prediction_service_pb2_grpc

from launch.benchmarks import stand_in_server


@pytest.fixture(scope='module')
def stub(tmp_path_factory):
  """To a server with a model that doubles numbers and names their sign."""
  module = tf.Module()
  module.factor = tf.Variable(2.0)
  module.double = tf.function(
      lambda numbers: {'doubled': module.factor * numbers,
                       'sign': tf.where(numbers < 0, 'below', 'above')},
      input_signature=[tf.TensorSpec([None], tf.float32, 'numbers')])
  path = str(tmp_path_factory.mktemp('double'))
  tf.saved_model.save(module, path, signatures={'serving_default': module.double})
  with stand_in_server.serving({'double': stand_in_server.Servable(path)}) as address:
    yield prediction_service_pb2_grpc.PredictionServiceStub(
        grpc.insecure_channel(address))


def request(name='double', signature='', outputs=(), **inputs):
  result = predict_pb2.PredictRequest(output_filter=outputs)
  result.model_spec.name = name
  result.model_spec.signature_name = signature
  for key, values in inputs.items():
    result.inputs[key].CopyFrom(tf.make_tensor_proto(values))
  return result


def test_numbers_and_text_come_back_by_name(stub):
  outputs = stub.Predict(request(numbers=np.float32([1, -2]))).outputs
  np.testing.assert_array_equal(tf.make_ndarray(outputs['doubled']), [2, -4])
  np.testing.assert_array_equal(tf.make_ndarray(outputs['sign']), [b'above', b'below'])
  only = stub.Predict(request(numbers=np.float32([3]), outputs=['doubled'])).outputs
  assert set(only) == {'doubled'}


@pytest.mark.parametrize('bad, code, message', [
    (request('half', numbers=np.float32([1])), 'NOT_FOUND', 'Servable not found'),
    (request(signature='other', numbers=np.float32([1])), 'FAILED_PRECONDITION',
     'signature key "other" not found'),
    (request(texts=['a']), 'INVALID_ARGUMENT', r"takes \['numbers'\]"),
    (request(numbers=np.float32([1]), outputs=['third']), 'INVALID_ARGUMENT',
     r"returns \['doubled', 'sign'\]"),
    (request(numbers=['a']), 'INVALID_ARGUMENT', 'string vs. expect float')])
def test_bad_requests_get_tf_servings_codes(stub, bad, code, message):
  with pytest.raises(grpc.RpcError, match=message) as error:
    stub.Predict(bad)
  assert error.value.code().name == code


def test_shapes_are_the_models_business(stub):
  # As in TF Serving, which does not compare them with the signature's.
  outputs = stub.Predict(request(numbers=np.float32([[1], [2]]))).outputs
  np.testing.assert_array_equal(tf.make_ndarray(outputs['doubled']), [[2], [4]])
