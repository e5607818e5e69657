import keras
import numpy as np
from scipy import special

from dble_tf.baselines import MCDropout
from dble_tf.baselines import Vanilla


def make_model(encoder, **arguments):
  model = MCDropout(encoder, 4, weight_decay=0.0, **arguments)
  model.compile(keras.optimizers.SGD(0.1))
  return model


def test_probabilities_are_averaged_over_the_passes(make_encoder, some_data):
  model = make_model(make_encoder(), dropout=0.4, num_samples=7)
  images, _ = some_data()
  h = images.reshape(-1, 4) * 0.01 @ model.encoder.get_weights()[0]
  kernel, bias = model.linear.get_weights()
  passes = [special.softmax(h * mask / 0.6 @ kernel + bias, axis=1)
            for mask in model.masks.numpy()]
  expected = np.mean(passes, axis=0)
  answers = model.predict(images, verbose=0)
  np.testing.assert_allclose(answers['probabilities'], expected, rtol=1e-4)
  np.testing.assert_array_equal(answers['label'], expected.argmax(axis=1))
  np.testing.assert_allclose(answers['confidence'], expected.max(axis=1), rtol=1e-4)


def test_masks_drop_the_share_that_was_asked_for(make_encoder):
  masks = make_model(make_encoder(), dropout=0.2, num_samples=3000).masks.numpy()
  assert set(np.unique(masks)) == {0.0, 1.0}
  np.testing.assert_allclose(masks.mean(axis=0), 0.8, atol=0.05)


def test_masks_belong_to_the_seed(make_encoder):
  masks = [make_model(make_encoder(), num_samples=50, seed=seed).masks.numpy()
           for seed in (0, 0, 1)]
  np.testing.assert_array_equal(masks[0], masks[1])
  assert not np.array_equal(masks[0], masks[2])


def test_an_image_gets_the_same_confidence_in_any_batch(make_encoder, some_data):
  model, (images, _) = make_model(make_encoder()), some_data()
  together = model.predict(images, verbose=0)['confidence']
  alone = np.concatenate(
      [model.predict(image[np.newaxis], verbose=0)['confidence'] for image in images])
  np.testing.assert_allclose(alone, together, rtol=1e-5)


def test_training_drops_units_anew_at_each_step(make_encoder, some_data):
  model, (images, _) = make_model(make_encoder(), dropout=0.5), some_data()
  h = model.encode(images)
  first, second = (model.logits(h, training=True) for _ in range(2))
  assert not np.allclose(first, second)
  np.testing.assert_array_equal(model.logits(h), model.linear(h))


def test_a_step_descends_the_cross_entropy_behind_a_dropout_mask(
    make_encoder, some_data):
  model, (images, class_ids) = make_model(make_encoder(), dropout=0.5), some_data()
  h = images.reshape(-1, 4) * 0.01 @ model.encoder.get_weights()[0]
  kernel, bias = model.linear.get_weights()
  generator = model.dropout_layer.seed_generator
  before = generator.state.numpy()
  kept = model.dropout_layer(np.ones_like(h), training=True).numpy()  # 0 or 2.
  assert set(np.unique(kept)) == {0.0, 2.0}
  generator.state.assign(before)
  error = (special.softmax((h * kept) @ kernel + bias, axis=1)
           - np.eye(4)[class_ids]) / len(images)
  model.train_on_batch(images, class_ids)
  np.testing.assert_allclose(
      model.linear.get_weights()[0], kernel - 0.1 * (h * kept).T @ error, atol=1e-5)


def test_without_dropout_it_is_plain_training(make_encoder, some_data):
  model = make_model(make_encoder(), dropout=0.0, num_samples=2)
  plain = Vanilla(make_encoder(), 4)
  plain.take_trained(model)
  images, _ = some_data()
  np.testing.assert_allclose(
      model.predict(images, verbose=0)['probabilities'],
      plain.predict(images, verbose=0)['probabilities'], rtol=1e-4)


def test_it_survives_saving(make_encoder, some_data, check_roundtrip):
  # Keras does not save where dropout's random numbers were, so none are dropped here.
  model = make_model(make_encoder(), dropout=0.0, num_samples=5, seed=2)
  model.train_on_batch(*some_data())
  check_roundtrip(model, some_data(), some_data(seed=1)[0])


def test_masks_and_rate_survive_saving(make_encoder, some_data, tmp_path):
  model = make_model(make_encoder(), dropout=0.4, num_samples=5, seed=2)
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  assert (loaded.dropout, loaded.num_samples, loaded.seed) == (0.4, 5, 2)
  images, _ = some_data()
  np.testing.assert_allclose(
      loaded.predict(images, verbose=0)['probabilities'],
      model.predict(images, verbose=0)['probabilities'], rtol=1e-6)
