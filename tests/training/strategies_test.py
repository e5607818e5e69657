import keras
import pytest
import tensorflow as tf

from dble_tf import DBLE
from dble_tf.errors import UserError
from dble_tf.training import strategies

CONNECTED = (
    'experimental_connect_to_cluster', 'initialize_tpu_system', 'TPUStrategy')


@pytest.fixture
def hardware(monkeypatch):
  """(gpus, tpus) -> a machine that TensorFlow says to have them."""
  made = []

  def build(gpus=0, tpus=0):
    devices = {'GPU': gpus, 'TPU': tpus}
    real = tf.config.list_physical_devices
    monkeypatch.setattr(tf.config, 'list_physical_devices', lambda kind: [
        tf.config.PhysicalDevice(f'/physical_device:{kind}:{i}', kind)
        for i in range(devices[kind])] if kind in devices else real(kind))
    monkeypatch.setattr(tf.distribute, 'MirroredStrategy', lambda devices, _: (
        made.append(('mirrored', devices)) or 'strategy'))
    monkeypatch.setattr(
        tf.distribute.cluster_resolver, 'TPUClusterResolver', lambda tpu: tpu)
    for module, name in ((tf.config, 'experimental_connect_to_cluster'),
                         (tf.tpu.experimental, 'initialize_tpu_system'),
                         (tf.distribute, 'TPUStrategy')):
      monkeypatch.setattr(
          module, name, lambda resolver, name=name: made.append((name, resolver)))
    return made

  monkeypatch.delenv('TPU_NAME', raising=False)
  return build


def test_auto_takes_one_cpu_or_one_gpu_as_it_is(hardware):
  for gpus in (0, 1):
    assert not hardware(gpus=gpus)
    strategy = strategies.make_strategy('auto')
    assert strategy is tf.distribute.get_strategy()
    assert strategy.num_replicas_in_sync == 1


def test_auto_takes_all_gpus_if_several(hardware):
  made = hardware(gpus=3)
  assert strategies.make_strategy('auto') == 'strategy'
  assert made == [('mirrored', ['GPU:0', 'GPU:1', 'GPU:2'])]


def test_auto_takes_a_tpu_before_gpus(hardware):
  made = hardware(gpus=2, tpus=8)
  strategies.make_strategy('auto')
  assert made == [(name, 'local') for name in CONNECTED]


def test_a_tpu_by_name_is_connected_to(hardware, monkeypatch):
  made = hardware()
  strategies.make_strategy('tpu', tpu='my-tpu')
  assert made == [(name, 'my-tpu') for name in CONNECTED]
  made.clear()
  monkeypatch.setenv('TPU_NAME', 'somewhere')  # For other programs.
  strategies.make_strategy('auto')
  assert not made
  monkeypatch.setenv('TPU_NAME', 'local')
  strategies.make_strategy('auto')
  assert ('TPUStrategy', 'local') in made


def test_none_is_one_device_whatever_there_is(hardware):
  assert not hardware(gpus=2, tpus=8)
  assert strategies.make_strategy('none') is tf.distribute.get_strategy()


def test_virtual_devices_are_replicas():
  for choice in ('auto', 'mirrored'):
    strategy = strategies.make_strategy(choice, num_virtual_devices=4)
    assert strategy.num_replicas_in_sync == 4
  assert strategies.make_strategy('mirrored').num_replicas_in_sync == 4


def test_a_tpu_that_is_not_there_is_an_error_for_people():
  with pytest.raises(UserError, match='connect to the TPU local.*tensorflow-tpu'):
    strategies.make_strategy('tpu')


@pytest.mark.parametrize('arguments, message', [
    ({'choice': 'all'}, "one of auto, none, mirrored, tpu, not 'all'"),
    ({'choice': 'none', 'tpu': 'local'}, "tpu='local' needs choice='tpu' or 'auto'"),
    ({'choice': 'none', 'num_virtual_devices': 2}, "use it with choice='mirrored'"),
    ({'choice': 'auto', 'tpu': 'x', 'num_virtual_devices': 2}, 'without tpu'),
])
def test_choices_that_cannot_be_are_refused(arguments, message):
  with pytest.raises(UserError, match=message):
    strategies.make_strategy(**arguments)


def test_virtual_devices_cannot_come_later():
  tf.constant(0)
  with pytest.raises(UserError, match='can no longer divide the CPU'):
    strategies.virtual_devices(3)
  assert len(strategies.virtual_devices(4)) == 4


def test_compilation_is_by_device_unless_forced():
  one = tf.distribute.get_strategy()
  several = strategies.make_strategy('mirrored')
  for strategy in (one, several):
    assert strategies.jit_compile('auto', strategy) == 'auto'
    assert strategies.jit_compile('false', strategy) is False
  assert strategies.jit_compile('true', one) is True
  with pytest.raises(UserError, match='for a single device'):
    strategies.jit_compile('true', several)
  with pytest.raises(UserError, match="not 'yes'"):
    strategies.jit_compile('yes', one)


def test_auto_compiles_for_one_gpu_and_nothing_else(monkeypatch):
  encoder = keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
  model = DBLE(encoder, num_classes=2, num_shots=None, confidence_model=None)
  model.compile(jit_compile=strategies.jit_compile('auto', model.distribute_strategy))
  assert model.jit_compile is False
  with strategies.make_strategy('mirrored').scope():
    shared = DBLE(
        keras.models.clone_model(encoder), num_classes=2, num_shots=None,
        confidence_model=None)
  monkeypatch.setattr(tf.config, 'list_physical_devices', lambda *_: [
      tf.config.PhysicalDevice(f'/physical_device:{kind}:0', kind)
      for kind in ('CPU', 'GPU')])
  for one in (model, shared):
    one.compile(jit_compile='auto')
  assert model.jit_compile is True
  assert shared.jit_compile is False
