import pytest
from etils import epath
from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message_factory
from google.protobuf import text_format
from google.protobuf import wrappers_pb2
from tensorflow_serving.config import model_server_config_pb2

from dble_tf.serving import server_config


def message(name, fields):
  """A protobuf class: fields are (name, number, kind), a kind a class or a type."""
  Field = descriptor_pb2.FieldDescriptorProto
  file = descriptor_pb2.FileDescriptorProto(
      name=f'{name}.proto', package='test', syntax='proto3')
  described = file.message_type.add(name=name)
  for field, number, kind in fields:
    added = described.field.add(
        name=field, number=number, label=Field.LABEL_OPTIONAL, json_name=field)
    if isinstance(kind, int):
      added.type = kind
    else:
      added.type = Field.TYPE_MESSAGE
      added.type_name = f'.{kind.DESCRIPTOR.full_name}'
      file.dependency.append(kind.DESCRIPTOR.file.name)
  del file.dependency[1:]  # All fields of a message here are of the same file.
  pool = descriptor_pool.Default()
  pool.Add(file)
  return message_factory.GetMessageClass(pool.FindMessageTypeByName(f'test.{name}'))


# As TF Serving's session_bundle_config.proto and monitoring_config.proto have them.
Batching = message('BatchingParameters', [
    (name, number, wrappers_pb2.Int64Value) for number, name in enumerate((
        'max_batch_size', 'batch_timeout_micros', 'max_enqueued_batches',
        'num_batch_threads'), start=1)])
Prometheus = message('PrometheusConfig', [
    ('enable', 1, descriptor_pb2.FieldDescriptorProto.TYPE_BOOL),
    ('path', 2, descriptor_pb2.FieldDescriptorProto.TYPE_STRING)])
Monitoring = message('MonitoringConfig', [('prometheus_config', 1, Prometheus)])


@pytest.fixture
def directory(tmp_path):
  server_config.write(epath.Path(tmp_path), ['digits', 'mnist'])
  return tmp_path


def test_tf_serving_can_read_which_models_there_are(directory):
  config = text_format.Parse(
      (directory / 'models.config').read_text(),
      model_server_config_pb2.ModelServerConfig())
  assert [(model.name, model.base_path, model.model_platform)
          for model in config.model_config_list.config] == [
              ('digits', '/models/digits', 'tensorflow'),
              ('mnist', '/models/mnist', 'tensorflow')]


def test_tf_serving_can_read_its_batching_and_monitoring(directory):
  batching = text_format.Parse(
      (directory / 'batching_parameters.txt').read_text(), Batching())
  assert batching.max_batch_size.value == 64
  assert 0 < batching.batch_timeout_micros.value < 10_000
  monitoring = text_format.Parse(
      (directory / 'monitoring.txt').read_text(), Monitoring())
  assert monitoring.prometheus_config.enable
  assert monitoring.prometheus_config.path == '/monitoring/prometheus/metrics'


def test_what_was_tuned_stays_and_what_is_served_is_new(directory):
  (directory / 'batching_parameters.txt').write_text('max_batch_size { value: 7 }\n')
  server_config.write(epath.Path(directory), ['cifar10'])
  assert (directory / 'batching_parameters.txt').read_text() == (
      'max_batch_size { value: 7 }\n')
  models = (directory / 'models.config').read_text()
  assert 'cifar10' in models and 'mnist' not in models
  assert {path.name for path in directory.iterdir()} == {
      'models.config', 'batching_parameters.txt', 'monitoring.txt'}


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
