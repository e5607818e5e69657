import io
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image
from tensorflow_serving.apis import prediction_log_pb2

from dble_tf.data import from_arrays
from dble_tf.errors import UserError
from dble_tf.serving import export
from dble_tf.serving import manifest
from dble_tf.serving import warm_up
from tests import c_loader
from tests import tiny

SHAPE = tiny.IMAGES.shape[1:]


@pytest.fixture(scope='module')
def model():
  return tiny.model()


@pytest.fixture(scope='module')
def threshold(model):
  return tiny.median_confidence(model)


@pytest.fixture(scope='module')
def expected(model, threshold):
  return tiny.expected_answers(model, threshold)


@pytest.fixture(scope='module')
def saved_model(model, threshold, tmp_path_factory):
  return export.export(
      model, tmp_path_factory.mktemp('export'), name='tiny',
      class_names=tiny.CLASS_NAMES, threshold=threshold, examples=tiny.IMAGES[:5],
      facts={'seed': 4})


@pytest.fixture(scope='module')
def loaded(saved_model):
  """The export, loaded as TF Serving loads it."""
  return c_loader.Loaded(saved_model)


def test_tf_servings_loader_finds_the_signatures(loaded):
  assert {'serving_default', 'serving_bytes', 'embed'} == {
      name for name in loaded.signatures if not name.startswith('__')}
  for name in ('serving_default', 'serving_bytes', 'embed'):
    signature = loaded.signatures[name]
    assert signature.method_name == 'tensorflow/serving/predict'
    for tensor in [*signature.inputs.values(), *signature.outputs.values()]:
      assert tensor.tensor_shape.dim[0].size == -1


@pytest.mark.parametrize('rows', [slice(0, 1), slice(3, 5), slice(None), slice(0, 0)])
def test_tf_servings_loader_gives_the_models_answers_for_any_batch(
    rows, model, loaded, expected):
  images = tiny.IMAGES[rows]
  tiny.assert_same(loaded.run('serving_default', images=images), expected, rows)
  files = np.array(tiny.as_png(images), object)
  tiny.assert_same(loaded.run('serving_bytes', image_bytes=files), expected, rows)
  np.testing.assert_allclose(
      loaded.run('embed', images=images)['representation'],
      model.encoder.predict(tiny.IMAGES, verbose=0)[rows], rtol=1e-4, atol=1e-5)


def test_answers_do_not_depend_on_the_batch_around_an_image(loaded):
  together = loaded.run('serving_default', images=tiny.IMAGES)['confidence']
  again = loaded.run('serving_default', images=tiny.IMAGES)['confidence']
  alone = [loaded.run('serving_default', images=tiny.IMAGES[i:i + 1])['confidence'][0]
           for i in range(9)]
  np.testing.assert_array_equal(together, again)
  np.testing.assert_allclose(together, alone, rtol=1e-5)


def test_a_session_without_keras_or_this_package_runs_every_signature(
    saved_model, loaded, tmp_path):
  np.savez(tmp_path / 'inputs.npz', images=tiny.IMAGES,
           image_bytes=np.array(tiny.as_png(tiny.IMAGES), object))
  program = '''
import sys
sys.modules['keras'] = sys.modules['tf_keras'] = sys.modules['dble_tf'] = None
import numpy as np
import tensorflow.compat.v1 as tf
inputs = np.load(sys.argv[2], allow_pickle=True)
results = {}
with tf.Session(graph=tf.Graph()) as session:
  graph = tf.saved_model.load(session, ['serve'], sys.argv[1])
  for name, signature in graph.signature_def.items():
    for key, tensor in signature.inputs.items():
      outputs = {f'{name}/{output}': info.name
                 for output, info in signature.outputs.items()}
      results.update(session.run(outputs, {tensor.name: inputs[key]}))
np.savez(sys.argv[3], **results)
'''
  subprocess.run(
      [sys.executable, '-c', program, saved_model, tmp_path / 'inputs.npz',
       tmp_path / 'outputs.npz'], check=True)
  outputs = np.load(tmp_path / 'outputs.npz', allow_pickle=True)
  assert len(outputs.files) == 7 + 7 + 1
  for name in outputs.files:
    signature, output = name.split('/')
    key = 'image_bytes' if signature == 'serving_bytes' else 'images'
    expected = loaded.run(signature, **{key: {
        'images': tiny.IMAGES,
        'image_bytes': np.array(tiny.as_png(tiny.IMAGES), object)}[key]})[output]
    if expected.dtype.kind == 'f':
      np.testing.assert_allclose(outputs[name], expected, rtol=1e-5, atol=1e-6)
    else:
      np.testing.assert_array_equal(outputs[name], expected)


def test_saved_model_cli_runs_it(saved_model, expected, tmp_path):
  np.save(tmp_path / 'images.npy', tiny.IMAGES)
  subprocess.run(
      [pathlib.Path(sys.executable).with_name('saved_model_cli'), 'run',
       '--dir', saved_model, '--tag_set', 'serve', '--signature_def', 'serving_default',
       '--inputs', f'images={tmp_path}/images.npy', '--outdir', tmp_path / 'answers'],
      check=True, capture_output=True)
  tiny.assert_same(
      {path.stem: np.load(path, allow_pickle=True)
       for path in (tmp_path / 'answers').iterdir()}, expected)


def test_every_warm_up_request_runs(saved_model, loaded):
  path = str(saved_model / 'assets.extra' / 'tf_serving_warmup_requests')
  asked = []
  for record in tf.compat.v1.io.tf_record_iterator(path):
    request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
    assert request.model_spec.name == 'tiny'
    inputs = {name: tf.make_ndarray(tensor) for name, tensor in request.inputs.items()}
    outputs = loaded.run(request.model_spec.signature_name, **inputs)
    size, = {len(values) for values in [*inputs.values(), *outputs.values()]}
    asked.append((request.model_spec.signature_name, size))
  assert sorted(asked) == sorted(
      (name, size) for name in ('serving_default', 'serving_bytes', 'embed')
      for size in (1, 8))


# Bad requests

BAD_SHAPES = st.lists(st.integers(0, 6), max_size=5).map(tuple).filter(
    lambda shape: shape[1:] != SHAPE)


@settings(max_examples=60, deadline=None)
@example((2, 16)).via('as many numbers as an image has')
@example((4, 2, 2, 1)).via('a whole number of images')
@example((4, 4, 1)).via('no batch')
@example((0,)).via('nothing')
@given(BAD_SHAPES)
def test_images_of_another_shape_are_refused(loaded, shape):
  for name in ('serving_default', 'embed'):
    with pytest.raises(c_loader.Error, match='images.* is not compatible with expected '
                       r'shape \[\?,4,4,1\]'):
      loaded.run(name, images=np.zeros(shape, np.uint8))


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([np.float32, np.float64, np.int32, np.int64, np.bool_, object]))
def test_images_of_another_type_are_refused(loaded, dtype):
  images = np.full([2, *SHAPE], b'x' if dtype is object else 1, dtype)
  for name in ('serving_default', 'embed'):
    with pytest.raises(c_loader.Error, match='to be uint8 but'):
      loaded.run(name, images=images)


@settings(max_examples=60, deadline=None)
@given(arrays.arrays(np.uint8, st.tuples(st.integers(0, 5), *map(st.just, SHAPE))))
def test_any_pixels_get_finite_answers(loaded, images):
  outputs = loaded.run('serving_default', images=images)
  assert {len(values) for values in outputs.values()} == {len(images)}
  for values in [*outputs.values(), *loaded.run('embed', images=images).values()]:
    assert values.dtype.kind != 'f' or np.isfinite(values).all()
  assert ((0 <= outputs['confidence']) & (outputs['confidence'] <= 1 + 1e-6)).all()


@settings(max_examples=60, deadline=None)
@example([b'']).via('an empty file')
@example([tiny.as_png(tiny.IMAGES)[0][:-5]]).via('a truncated file')
@given(st.lists(st.binary(max_size=50), min_size=1, max_size=4))
def test_bytes_that_are_not_an_image_fail_their_request_and_nothing_else(
    loaded, expected, files):
  good = tiny.as_png(tiny.IMAGES[:1])
  with pytest.raises(c_loader.Error, match='PNG|JPEG'):
    loaded.run('serving_bytes', image_bytes=np.array([*good, *files], object))
  tiny.assert_same(
      loaded.run('serving_bytes', image_bytes=np.array(good, object)), expected,
      slice(0, 1))


@st.composite
def pictures(draw):
  """Image files of any kind, each with its pixels if these are known exactly."""
  pixels = draw(arrays.arrays(np.uint8, SHAPE))
  mode = draw(st.sampled_from(['1', 'P', 'L', 'LA', 'RGB', 'RGBA', 'I;16', 'CMYK']))
  picture = Image.fromarray(pixels[..., 0])
  if mode == 'I;16':
    picture = Image.fromarray(257 * pixels[..., 0].astype(np.uint16))
  elif mode == 'CMYK':
    picture = picture.convert('RGB').convert(mode)
    pixels = None  # JPEG rounds.
  else:
    picture = picture.convert(mode, dither=Image.Dither.NONE)
    pixels = np.where(pixels < 128, 0, 255).astype(np.uint8) if mode == '1' else pixels
  buffer = io.BytesIO()
  picture.save(buffer, 'JPEG' if mode == 'CMYK' else 'PNG')
  return buffer.getvalue(), pixels


@settings(max_examples=80, deadline=None)
@given(pictures())
def test_a_picture_of_any_kind_gets_the_answer_for_its_pixels(loaded, picture):
  file, pixels = picture
  outputs = loaded.run('serving_bytes', image_bytes=np.array([file], object))
  assert np.isfinite(outputs['probabilities']).all()
  if pixels is not None:
    tiny.assert_same(
        outputs, loaded.run('serving_default', images=pixels[np.newaxis]))


@pytest.mark.parametrize('files, message', [
    (np.array(b'abc', object), r'image_bytes.* is not compatible .* \[\?\]'),
    (np.array([[b'abc']], object), r'image_bytes.* is not compatible .* \[\?\]'),
    (np.zeros([3], np.uint8), 'to be string but uint8'),
    (np.zeros([3], np.float32), 'to be string but float')])
def test_anything_but_a_list_of_files_is_refused(loaded, files, message):
  with pytest.raises(c_loader.Error, match=message):
    loaded.run('serving_bytes', image_bytes=files)


# Versions

def test_a_version_says_what_it_is(saved_model, threshold):
  content = json.loads((saved_model / 'manifest.json').read_text())
  assert (content['model'], content['version'], content['seed']) == ('tiny', 1, 4)
  assert content['class_names'] == list(tiny.CLASS_NAMES)
  assert content['threshold'] == threshold and content['warm_up_requests'] == 6
  assert (saved_model / 'README.md').read_text().startswith('# tiny, version 1\n')
  assert {path.name for path in saved_model.parents[1].iterdir()} == {
      'tiny', 'models.config', 'batching_parameters.txt', 'monitoring.txt'}


def test_each_export_is_a_new_version_whatever_its_name(model, tmp_path):
  (tmp_path / 'tiny' / '7').mkdir(parents=True)
  (tmp_path / 'tiny' / 'notes').mkdir()
  first = export.export(model, tmp_path, name='tiny')
  second = export.export(model, tmp_path, name='renamed')
  assert (first, second) == (tmp_path / 'tiny' / '8', tmp_path / 'renamed' / '9')
  config = (tmp_path / 'models.config').read_text()
  assert '/models/tiny"' in config and '/models/renamed"' in config


def test_a_new_version_leaves_the_server_configuration_as_it_is(model, tmp_path):
  export.export(model, tmp_path, name='tiny')
  config = tmp_path / 'models.config'
  tuned = config.read_text().replace(
      'platform: "tensorflow"',
      'platform: "tensorflow"  model_version_policy { specific { versions: 1 } }')
  config.write_text(tuned)
  export.export(model, tmp_path, name='tiny')
  assert config.read_text() == tuned
  export.export(model, tmp_path, name='other')
  assert config.read_text().startswith(tuned.removesuffix('}\n'))
  assert '/models/other"' in config.read_text()


def test_a_lost_server_configuration_lists_all_models_again(model, tmp_path):
  export.export(model, tmp_path, name='tiny')
  (tmp_path / 'models.config').unlink()
  export.export(model, tmp_path, name='other')
  config = (tmp_path / 'models.config').read_text()
  assert '/models/tiny"' in config and '/models/other"' in config


def data_of(images):
  class_ids = np.arange(len(images)) % 3
  return from_arrays((images, class_ids), (images, class_ids), tiny.CLASS_NAMES)


def warm_up_images(path):
  """The images of an export's largest request for `serving_default`."""
  records = tf.compat.v1.io.tf_record_iterator(str(path / warm_up.PATH))
  requests = [prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
              for record in records]
  return max((tf.make_ndarray(request.inputs['images']) for request in requests
              if request.model_spec.signature_name == 'serving_default'), key=len)


def test_class_names_and_warm_up_examples_come_from_the_data(model, tmp_path):
  path = export.export(model, tmp_path, data_of(tiny.IMAGES))
  content = json.loads((path / 'manifest.json').read_text())
  assert content['class_names'] == list(tiny.CLASS_NAMES)
  np.testing.assert_array_equal(warm_up_images(path), tiny.IMAGES[:8])


def test_given_class_names_and_examples_go_before_those_of_the_data(model, tmp_path):
  path = export.export(model, tmp_path, data_of(tiny.IMAGES), class_names='abc',
                       examples=tiny.IMAGES[8:])
  content = json.loads((path / 'manifest.json').read_text())
  assert content['class_names'] == ['a', 'b', 'c']
  np.testing.assert_array_equal(
      warm_up_images(path), np.repeat(tiny.IMAGES[8:], 8, axis=0))


def test_data_that_the_model_cannot_take_is_refused(model, tmp_path):
  for images, shape in ((np.zeros([9, 8, 8, 1], np.uint8), r'\(8, 8, 1\)'),
                        (np.zeros([9, 4, 4, 3], np.uint8), r'\(4, 4, 3\)')):
    with pytest.raises(UserError, match=rf'\(4, 4, 1\), but the examples .*{shape}'):
      export.export(model, tmp_path / 'export', data_of(images))
  assert not (tmp_path / 'export').exists()


def test_a_confidence_model_that_is_not_used_is_not_exported(model, tmp_path):
  unused = tiny.model()
  unused.sigma_scale.assign(0.0)
  paths = [export.export(model, tmp_path, name='used'),
           export.export(unused, tmp_path, name='unused')]
  sizes = [sum(np.prod(shape, dtype=int) for _, shape in tf.train.list_variables(
      str(path / 'variables' / 'variables'))) for path in paths]
  assert sizes[0] - sizes[1] >= unused.confidence_model.count_params() > 0
  answers = c_loader.Loaded(paths[1]).run('serving_default', images=tiny.IMAGES)
  np.testing.assert_allclose(
      answers['confidence'], unused.predict(tiny.IMAGES, verbose=0)['confidence'],
      rtol=1e-4)


def test_versions_are_the_numbers_in_their_order(tmp_path):
  assert export.versions(tmp_path / 'missing') == []
  for name in ('a/10', 'b/2', 'a/notes', '3'):
    (tmp_path / name).mkdir(parents=True)
  assert [path.name for path in export.versions(tmp_path)] == ['2', '10']


@pytest.mark.parametrize('text, name', [
    ('cifar10_10000', 'cifar10_10000'), ('my model/2', 'my_model_2'),
    ('..', 'model'), ('.hidden', 'hidden'), ('été', '_t_')])
def test_names_fit_into_paths_and_urls(text, name):
  assert export.model_name(text) == name


@pytest.mark.parametrize('broken', ['warm_up', 'manifest'])
def test_a_failed_export_leaves_no_version(model, tmp_path, monkeypatch, broken):
  def fail(*args, **kwargs):
    incomplete, = (tmp_path / 'model').iterdir()
    assert not incomplete.name.isdigit() and (incomplete / 'saved_model.pb').exists()
    raise OSError('disk full')

  place, name = {
      'warm_up': (warm_up, 'write'), 'manifest': (manifest, 'readme')}[broken]
  monkeypatch.setattr(place, name, fail)
  with pytest.raises(OSError, match='disk full'):
    export.export(model, tmp_path)
  assert not list((tmp_path / 'model').iterdir())
  assert not (tmp_path / 'models.config').exists()


def test_without_the_serving_api_an_export_has_no_warm_up_and_says_so(
    model, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'tensorflow_serving', None)
  path = export.export(model, tmp_path)
  assert not (path / 'assets.extra').exists()
  assert 'no warm-up requests' in (path / 'README.md').read_text()
  answers = c_loader.Loaded(path).run('serving_default', images=tiny.IMAGES)
  # No names and no threshold were given.
  assert [int(name) for name in answers['label_name']] == answers['label'].tolist()
  assert answers['accept'].all()


def test_an_export_without_centers_is_refused(tmp_path):
  with pytest.raises(UserError, match='no class centers'):
    export.export(tiny.unfitted_model(), tmp_path / 'export')
  assert not (tmp_path / 'export').exists()


def test_keras_own_export_works_too(model, tmp_path):
  model.export(tmp_path / 'keras', verbose=False)
  serve = tf.saved_model.load(str(tmp_path / 'keras')).signatures['serving_default']
  np.testing.assert_allclose(
      serve(tf.constant(tiny.IMAGES))['confidence'],
      model.predict(tiny.IMAGES, verbose=0)['confidence'], rtol=1e-4)
