import errno
import io
import json
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

from dble_tf import ConfidenceModel
from dble_tf import DBLE
from dble_tf import encoders
from dble_tf.errors import UserError
from dble_tf.training import checkpoints

EPISODES = np.random.default_rng(0).integers(
    0, 256, [6, 1, 3, 4, 4, 4, 1], np.uint8)  # Six batches of an episode.


def make_model(seed=0, dim=4):
  keras.utils.set_random_seed(seed)
  model = DBLE(
      encoders.mlp([4, 4, 1], dim), num_classes=3, num_shots=2,
      confidence_model=ConfidenceModel(dim, hidden_units=5))
  model.compile(keras.optimizers.SGD(0.1, momentum=0.9),
                keras.optimizers.Adam(0.01))
  return model


def train(model, episodes):
  for batch in episodes:
    model.train_on_batch(batch)
  return model


def position(step):
  return checkpoints.Position(epoch=0, step=step, steps_per_epoch=10, seconds=1.5)


def everything(model):
  return [keras.ops.convert_to_numpy(variable) for variable in (
      *model.variables, *model.metrics_variables, *model.optimizer.variables,
      *model.confidence_optimizer.variables)]


@pytest.fixture(scope='module')
def trained():
  return train(make_model(), EPISODES[:3])


def test_a_restored_model_goes_on_as_the_saved_one_does(trained, tmp_path):
  store = checkpoints.Checkpoints(tmp_path)
  store.save(trained, position(3))
  found = store.newest()
  assert found.position == position(3)
  restored = make_model(seed=1)
  found.restore(restored)
  found.restore_metrics(restored)
  for mine, other in zip(everything(restored), everything(trained), strict=True):
    np.testing.assert_array_equal(mine, other)
  # Dropout's masks, momentum, phi's noise and the means of metrics too.
  original = make_model()
  found = store.newest()
  found.restore(original)
  found.restore_metrics(original)
  for model in (original, restored):
    train(model, EPISODES[3:])
  for mine, other in zip(everything(restored), everything(original), strict=True):
    np.testing.assert_array_equal(mine, other)


def test_a_run_in_one_piece_and_one_from_a_checkpoint_are_the_same(trained, tmp_path):
  store = checkpoints.Checkpoints(tmp_path)
  store.save(trained, position(3))
  restored = make_model(seed=1)
  found = store.newest()
  found.restore(restored)
  found.restore_metrics(restored)
  train(restored, EPISODES[3:])
  whole = train(make_model(), EPISODES)
  for mine, other in zip(everything(restored), everything(whole), strict=True):
    np.testing.assert_allclose(mine, other, rtol=1e-6, atol=1e-7)


def test_seeds_of_dropout_are_in_it(trained, tmp_path):
  path = checkpoints.Checkpoints(tmp_path).save(trained, position(3))
  state = trained.confidence_model.dropout.seed_generator.state.numpy()
  arrays = np.load(path)
  held = [arrays[name] for name in arrays if arrays[name].dtype == state.dtype]
  assert any(np.array_equal(state, array) for array in held)


@pytest.mark.parametrize('damage', [
    lambda content: content[:len(content) // 2],
    lambda content: b'',
    lambda content: b'no zip file at all',
    lambda content: content[:2000] + bytes([content[2000] ^ 1]) + content[2001:],
])
def test_a_damaged_checkpoint_is_left_out_for_the_one_before_it(
    damage, trained, tmp_path):
  store = checkpoints.Checkpoints(tmp_path)
  store.save(trained, position(3))
  newest = store.save(trained, position(4))
  newest.write_bytes(damage(newest.read_bytes()))
  with pytest.warns(UserWarning, match='step-000000004.npz is damaged'):
    assert store.newest().position.step == 3
  # It is not in the way of the checkpoints to come.
  store.save(trained, position(4))
  assert store.newest().position.step == 4


def test_without_any_there_is_none(tmp_path):
  assert checkpoints.Checkpoints(tmp_path / 'nothing').newest() is None


def test_the_last_two_are_kept(trained, tmp_path):
  store = checkpoints.Checkpoints(tmp_path)
  for step in (8, 9, 10):
    store.save(trained, position(step))
  assert [path.name for path in store.paths()] == [
      'step-000000009.npz', 'step-000000010.npz']
  store.remove()
  assert not tmp_path.exists()


def test_behind_validation_takes_the_place_of_before_it(trained, tmp_path):
  store = checkpoints.Checkpoints(tmp_path)
  store.save(trained, checkpoints.Position(0, 10, 10, logs={'loss': 0.5}))
  assert store.newest().position.logs == {'loss': 0.5}
  store.save(trained, checkpoints.Position(1, 0, 10))
  path, = store.paths()
  assert store.newest().position[:2] == (1, 0)


def test_non_finite_weights_are_never_saved(tmp_path):
  model = make_model()
  store = checkpoints.Checkpoints(tmp_path)
  store.save(model, position(3))
  kernel = model.encoder.trainable_variables[0]
  kernel.assign(tf.where(kernel == kernel[0, 0], np.nan, kernel))
  with pytest.raises(checkpoints.NotFinite):
    store.save(model, position(4))
  assert [path.name for path in store.paths()] == ['step-000000003.npz']


@pytest.mark.parametrize('code', [errno.ENOSPC, errno.EROFS])
def test_what_was_there_stays_when_writing_fails(code, trained, tmp_path, monkeypatch):
  store = checkpoints.Checkpoints(tmp_path)
  store.save(trained, position(3))
  path_type = type(store.directory)
  whole = path_type.write_bytes

  def fail(path, content):
    whole(path, bytes(content)[:1000])
    raise OSError(code, 'It cannot be')

  monkeypatch.setattr(path_type, 'write_bytes', fail)
  with pytest.raises(UserError, match='after step 4 cannot be.*step-000000003.npz is'):
    store.save(trained, position(4))
  assert [path.name for path in tmp_path.iterdir()] == ['step-000000003.npz']
  assert store.newest().position.step == 3


def test_checkpoints_of_other_settings_are_refused(trained, tmp_path):
  checkpoints.Checkpoints(tmp_path, '--seed=1').save(trained, position(3))
  with pytest.raises(UserError, match='other settings'):
    checkpoints.Checkpoints(tmp_path, '--seed=2').newest()
  assert list(tmp_path.iterdir())


def test_a_checkpoint_of_another_version_is_refused_and_kept(tmp_path):
  np.savez(tmp_path / 'step-000000003.npz', weights=np.zeros(3))
  with pytest.raises(UserError, match='another version'):
    checkpoints.Checkpoints(tmp_path).newest()
  assert list(tmp_path.iterdir())


def test_a_checkpoint_of_another_model_changes_nothing(trained, tmp_path):
  store = checkpoints.Checkpoints(tmp_path)
  store.save(trained, position(3))
  other = make_model(dim=7)
  before = everything(other)
  with pytest.raises(UserError, match='of another model'):
    store.newest().restore(other)
  for mine, expected in zip(everything(other), before):
    np.testing.assert_array_equal(mine, expected)


def test_a_model_under_a_strategy_is_saved_and_restored(tmp_path):
  strategy = tf.distribute.MirroredStrategy(['CPU:0'])
  with strategy.scope():
    model, other = make_model(), make_model(seed=1)
  model.fit(tf.data.Dataset.from_tensor_slices(EPISODES[:3]), verbose=0)
  store = checkpoints.Checkpoints(tmp_path)
  store.save(model, position(3))
  store.newest().restore(other)
  store.newest().restore_metrics(other)
  assert isinstance(other.centers.value, tf.distribute.DistributedValues)
  for mine, expected in zip(everything(other), everything(model), strict=True):
    np.testing.assert_array_equal(mine, expected)


def test_a_file_is_a_plain_archive_of_arrays(trained, tmp_path):
  path = checkpoints.Checkpoints(tmp_path, '--seed=1').save(trained, position(3))
  assert zipfile.ZipFile(io.BytesIO(path.read_bytes())).testzip() is None
  with np.load(path) as file:
    assert json.loads(str(file['facts']))['settings'] == '--seed=1'
    assert int(file['optimizer/0']) == 3  # Its iterations.
