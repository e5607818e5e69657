import keras
import numpy as np
import pytest
import tensorflow as tf

from dble_tf.baselines import deep_ensemble
from dble_tf.baselines import DeepEnsemble
from dble_tf.baselines import Vanilla
from dble_tf.errors import UserError


@pytest.fixture
def ensemble(make_encoder):
  model = DeepEnsemble(
      [Vanilla(make_encoder(), 4, weight_decay=0.1) for _ in range(3)])
  model.compile(keras.optimizers.SGD(0.5, momentum=0.9, clipnorm=1.0))
  return model


@pytest.fixture
def member_data(some_data):
  """A batch for each of three members: [20, 3, 2, 2, 1] and [20, 3]."""
  each = [some_data(seed=seed) for seed in range(3)]
  return [np.stack(parts, axis=1) for parts in zip(*each)]


def of_each(member_data):
  """Members -> their own images and class ids."""
  return [np.moveaxis(parts, 1, 0) for parts in member_data]


def test_probabilities_are_the_members_average(ensemble, some_data):
  images, _ = some_data()
  each = [member.predict(images, verbose=0)['probabilities']
          for member in ensemble.members]
  assert not np.allclose(each[0], each[1])  # Members start from weights of their own.
  expected = np.mean(each, axis=0)
  answers = ensemble.predict(images, verbose=0)
  np.testing.assert_allclose(answers['probabilities'], expected, rtol=1e-5)
  np.testing.assert_array_equal(answers['label'], expected.argmax(axis=1))
  np.testing.assert_allclose(answers['confidence'], expected.max(axis=1), rtol=1e-5)


def test_members_learn_as_if_each_were_trained_alone(
    ensemble, member_data, make_encoder):
  alone = []
  for member in ensemble.members:
    model = Vanilla(make_encoder(), 4, weight_decay=0.1)
    model.compile(keras.optimizers.SGD(0.5, momentum=0.9, clipnorm=1.0))
    model.take_trained(member)
    alone.append(model)
  for _ in range(3):
    logs = ensemble.train_on_batch(*member_data, return_dict=True)
    losses = [model.train_on_batch(images, class_ids, return_dict=True)['loss']
              for model, images, class_ids in zip(alone, *of_each(member_data))]
  assert logs['loss'] == pytest.approx(np.mean(losses), rel=1e-4)
  for member, model in zip(ensemble.members, alone):
    np.testing.assert_allclose(member.linear.kernel, model.linear.kernel, rtol=1e-4)
    np.testing.assert_allclose(
        member.encoder.get_weights()[0], model.encoder.get_weights()[0], rtol=1e-4)


def test_each_epochs_loss_is_the_members_mean_over_its_own_steps(
    ensemble, member_data, make_encoder):
  histories = []
  for member, images, class_ids in zip(ensemble.members, *of_each(member_data)):
    alone = Vanilla(make_encoder(), 4, weight_decay=0.1)
    alone.compile(keras.optimizers.SGD(0.5, momentum=0.9, clipnorm=1.0))
    alone.take_trained(member)
    data = tf.data.Dataset.from_tensors((images, class_ids)).repeat(4)
    history = alone.fit(data, epochs=2, shuffle=False, verbose=0).history
    histories.append(history['loss'])
  data = tf.data.Dataset.from_tensors(tuple(member_data)).repeat(4)
  history = ensemble.fit(data, epochs=2, shuffle=False, verbose=0).history['loss']
  np.testing.assert_allclose(history, np.mean(histories, axis=0), rtol=1e-4)


def test_a_batch_for_each_member_comes_from_its_own_stream():
  streams = [tf.data.Dataset.from_tensors(
      (tf.fill([5, 2, 2, 1], i), tf.fill([5], i))) for i in range(3)]
  images, class_ids = next(iter(deep_ensemble.member_batches(streams)))
  assert images.shape == [5, 3, 2, 2, 1] and class_ids.shape == [5, 3]
  np.testing.assert_array_equal(images[0, :, 0, 0, 0], [0, 1, 2])
  np.testing.assert_array_equal(class_ids[0], [0, 1, 2])


def test_callbacks_reach_the_optimizer_of_all_members(ensemble, member_data):
  before = [variable.numpy() for variable in ensemble.theta]
  data = tf.data.Dataset.from_tensors(tuple(member_data))
  still = keras.callbacks.LearningRateScheduler(lambda epoch: 0.0)
  ensemble.fit(data, shuffle=False, verbose=0, callbacks=[still])
  for variable, value in zip(ensemble.theta, before):
    np.testing.assert_array_equal(variable, value)


def test_batches_of_another_number_of_members_are_refused(ensemble, member_data):
  images, class_ids = member_data
  with pytest.raises(UserError, match='3 members need a batch each'):
    ensemble.train_on_batch(images[:, :2], class_ids[:, :2])


def test_sample_weights_are_refused(ensemble, member_data):
  with pytest.raises(UserError, match='no sample weights'):
    ensemble.train_on_batch(*member_data, np.ones(20))


def test_trained_networks_are_taken_one_for_each_member(
    ensemble, make_encoder, some_data):
  images, _ = some_data()
  others = [Vanilla(make_encoder(), 4) for _ in range(3)]
  ensemble.take_trained(*others)
  for member, other in zip(ensemble.members, others):
    np.testing.assert_array_equal(member.predict(images, verbose=0)['probabilities'],
                                  other.predict(images, verbose=0)['probabilities'])
  with pytest.raises(UserError, match='3 members .* these are 2'):
    ensemble.take_trained(*others[:2])


def test_all_members_are_counted_and_represented(ensemble, some_data):
  assert len(ensemble.inference_variables) == 3 * 3
  images, _ = some_data()
  expected = [member.encoder.predict(images, verbose=0) for member in ensemble.members]
  np.testing.assert_allclose(
      ensemble.embed(images), np.concatenate(expected, axis=1), rtol=1e-5)


def test_an_ensemble_of_none_is_refused():
  with pytest.raises(UserError, match='at least one member'):
    DeepEnsemble([])


def test_it_survives_saving(ensemble, member_data, some_data, check_roundtrip):
  ensemble.train_on_batch(*member_data)
  loaded = check_roundtrip(ensemble, member_data, some_data(seed=1)[0])
  assert len(loaded.members) == 3
