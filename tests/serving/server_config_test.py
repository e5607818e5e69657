import warnings

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
  """Makes a protobuf class; fields are (name, number, class or type)."""
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
  del file.dependency[1:]  # All message fields here are of one file.
  pool = descriptor_pool.Default()
  pool.Add(file)
  return message_factory.GetMessageClass(pool.FindMessageTypeByName(f'test.{name}'))


# As in TF Serving's session_bundle_config.proto and monitoring_config.proto.
Batching = message('BatchingParameters', [
    (name, number, wrappers_pb2.Int64Value) for number, name in enumerate((
        'max_batch_size', 'batch_timeout_micros', 'max_enqueued_batches',
        'num_batch_threads'), start=1)])
Prometheus = message('PrometheusConfig', [
    ('enable', 1, descriptor_pb2.FieldDescriptorProto.TYPE_BOOL),
    ('path', 2, descriptor_pb2.FieldDescriptorProto.TYPE_STRING)])
Monitoring = message('MonitoringConfig', [('prometheus_config', 1, Prometheus)])


def models(directory):
  """Parses models.config as TF Serving does."""
  config = text_format.Parse(
      (directory / 'models.config').read_bytes(),
      model_server_config_pb2.ModelServerConfig())
  return list(config.model_config_list.config)


def add(directory, name):
  """Adds a model, and fails on any warning."""
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    server_config.write(epath.Path(directory), name, [name])


@pytest.fixture
def directory(tmp_path):
  server_config.write(epath.Path(tmp_path), 'mnist', ['digits', 'mnist'])
  return tmp_path


def test_tf_serving_can_read_which_models_there_are(directory):
  assert [(model.name, model.base_path, model.model_platform)
          for model in models(directory)] == [
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


def test_what_was_tuned_stays_and_no_other_file_is_left(directory):
  (directory / 'batching_parameters.txt').write_text('max_batch_size { value: 7 }\n')
  add(directory, 'cifar10')
  assert (directory / 'batching_parameters.txt').read_text() == (
      'max_batch_size { value: 7 }\n')
  assert {path.name for path in directory.iterdir()} == {
      'models.config', 'batching_parameters.txt', 'monitoring.txt'}


def test_a_new_model_is_appended_in_the_same_layout(directory):
  add(directory, 'cifar10')
  appended = (directory / 'models.config').read_text()
  (directory / 'models.config').unlink()
  server_config.write(
      epath.Path(directory), 'cifar10', ['digits', 'mnist', 'cifar10'])
  assert appended == (directory / 'models.config').read_text()


OPERATED = b'''\
# Ours: } config { name: "commented" }
model_config_list: {
  config {
    name: 'digits'  # "name: \\"
    base_path: "/elsewhere/}{/digits"
    model_platform: "tensorflow"
    model_version_policy { specific { versions: 3, versions: 4 } }
    version_labels { key: "stable" value: 3 }
    version_labels { key: "name" value: 4 }
    logging_config { log_collector_config { filename_prefix: "mnist" } }
  }\r
  # The last line of the list.
}
'''


def test_an_operators_file_that_lists_the_model_is_left_byte_for_byte(directory):
  (directory / 'models.config').write_bytes(OPERATED)
  add(directory, 'digits')
  assert (directory / 'models.config').read_bytes() == OPERATED


def test_a_model_is_added_to_an_operators_file_and_nothing_else_changes(directory):
  (directory / 'models.config').write_bytes(OPERATED)
  before, = models(directory)
  # Names in comments, paths, labels and log prefixes are not models.
  for name in ('commented', 'mnist', 'stable'):
    add(directory, name)
  after = (directory / 'models.config').read_bytes()
  assert after.startswith(OPERATED[:-2]) and after.endswith(b'  }\n}\n')
  first, *added = models(directory)
  assert first == before
  assert [(model.name, model.base_path, model.model_platform) for model in added] == [
      ('commented', '/models/commented', 'tensorflow'),
      ('mnist', '/models/mnist', 'tensorflow'),
      ('stable', '/models/stable', 'tensorflow')]


@pytest.mark.parametrize('text', [
    'model_config_list { config { name: "a" base_path: "/a" } }',
    'model_config_list < config < name: "a"; base_path: "/a", > >',
    'model_config_list: {config: {name: "a" base_path: "/a"}}  # The end }',
    'model_config_list {\n  config { name: "a" base_path: "/a" } }',
    'model_config_list {\n  config: [{ name: "a" base_path: "/a" }]\n}',
], ids=['one line', 'angles', 'colons', 'last line', 'list'])
def test_a_model_is_added_in_any_spelling_of_the_format(text, directory):
  (directory / 'models.config').write_text(text)
  add(directory, 'a')
  assert (directory / 'models.config').read_text() == text
  add(directory, 'b')
  assert [(model.name, model.base_path) for model in models(directory)] == [
      ('a', '/a'), ('b', '/models/b')]


def test_every_model_of_a_list_counts_as_listed(directory):
  text = ('model_config_list { config: [{ name: "a" model_platform: "t" },'
          ' { base_path: "/b" name: "b" }] }')
  (directory / 'models.config').write_text(text)
  add(directory, 'b')
  assert (directory / 'models.config').read_text() == text


def test_a_model_is_added_to_an_empty_list(directory):
  (directory / 'models.config').write_text('model_config_list {}')
  add(directory, 'a')
  assert [model.name for model in models(directory)] == ['a']


@pytest.mark.parametrize('content', [
    b'', b'model_config_list {', b'model_config_list { config { > }', b'}',
    b'{"model_config_list": {}', b'custom_model_config { type_url: "x" }',
    b'model_config_list {} model_config_list {}', b'model_config_list { "a }',
    b'model_config_list { # caf\xe9\n}',
], ids=['empty', 'open', 'mixed', 'close', 'json', 'custom', 'two', 'quote', 'latin'])
def test_a_file_that_cannot_be_parsed_is_left_alone_with_a_warning(content, directory):
  (directory / 'models.config').write_bytes(content)
  with pytest.warns(UserWarning, match='cannot be parsed') as warned:
    server_config.write(epath.Path(directory), 'digits', ['digits'])
  assert (directory / 'models.config').read_bytes() == content
  # The warning ends with the entry to add.
  _, _, entry = str(warned[0].message).partition('\n')
  parsed = text_format.Parse(
      f'model_config_list {{ {entry} }}', model_server_config_pb2.ModelServerConfig())
  assert parsed.model_config_list.config[0].base_path == '/models/digits'
