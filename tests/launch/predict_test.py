import csv
import io
import json
import os
import subprocess
import types

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import flagsaver

from dble_tf.serving import client
from dble_tf import data as datasets
from dble_tf.errors import UserError
from launch import predict
from launch import stand_in_server


@pytest.fixture(scope='module')
def digits():
  return datasets.load('digits', validation_size=200)


@pytest.fixture(scope='module')
def folder(digits, tmp_path_factory):
  """Three digits as PNG, in two folders, and what is none."""
  path = tmp_path_factory.mktemp('images')
  (path / 'inner').mkdir()
  for name, image in zip(('a.png', 'b.PNG', 'inner/c.png'), digits.test.images):
    (path / name).write_bytes(tf.io.encode_png(image).numpy())
  (path / 'notes.txt').write_text('not an image')
  return path


def test_a_folder_is_labelled_by_an_export_and_other_files_are_reported(
    finished, folder, launch):
  workdir, _ = finished
  done = launch('predict', f'--saved_model={workdir}/export/digits/1', folder,
                folder / 'notes.txt')
  assert done.returncode == predict.SKIPPED == 2
  assert 'Traceback' not in done.stderr
  skipped, = [line for line in done.stderr.splitlines() if line.startswith('skipped')]
  assert f'{folder}/notes.txt' in skipped and 'no PNG or JPEG image' in skipped
  header, *lines = map(str.split, done.stdout.splitlines())
  assert header == ['file', 'label', 'confidence', 'accept']
  expected = np.load(workdir / 'predictions.npz')
  assert lines == [
      [str(folder / name), str(label), f'{confidence:.4f}', 'yes']
      for name, label, confidence in zip(
          ('a.png', 'b.PNG', 'inner/c.png'), expected['label'], expected['confidence'])]


def test_a_server_is_asked_over_grpc(finished, folder, launch):
  workdir, _ = finished
  servable = stand_in_server.Servable(workdir / 'export' / 'digits' / '1')
  with stand_in_server.serving({'digits': servable}) as address:
    done = launch('predict', f'--server={address}', '--format=json', folder / 'a.png')
  assert done.returncode == 0, done.stderr
  answer, = json.loads(done.stdout)
  expected = np.load(workdir / 'predictions.npz')
  assert answer == {
      'file': str(folder / 'a.png'), 'label': str(expected['label'][0]),
      'label_id': expected['label'][0],
      'confidence': pytest.approx(expected['confidence'][0], rel=1e-4), 'accept': True}


def test_names_of_files_need_not_be_utf_8(finished, folder, command, tmp_path):
  path = tmp_path / os.fsdecode(b'caf\xe9.png')
  path.write_bytes((folder / 'a.png').read_bytes())
  process = command(
      'predict', f'--saved_model={finished[0]}/export/digits/1', '--format=csv', path)
  done = subprocess.run(**{**process, 'text': False}, capture_output=True)
  assert done.returncode == 0, done.stderr
  assert b'caf\xe9.png,' in done.stdout


@pytest.fixture
def run(monkeypatch, capsys):
  """(arguments, **flags) -> exit code, output and errors, with a client of the test."""
  predict.FLAGS.mark_as_parsed()

  def run(ask, arguments, **values):
    monkeypatch.setattr(client, 'over_rest', lambda *address: ask)
    with flagsaver.flagsaver(server='localhost:1', rest=True, **values):
      code = predict.main([str(argument) for argument in arguments])
    return types.SimpleNamespace(code=code, **capsys.readouterr()._asdict())

  return run


def lengths(files):
  """A model whose label is a file's length; it takes none that begins with x."""
  if any(file.startswith(b'x') for file in files):
    raise client.Refused('begins with x')
  sizes = np.array([len(file) for file in files])
  return {'label': sizes, 'label_name': np.array([f'{size} bytes' for size in sizes]),
          'confidence': 1 / sizes, 'accept': sizes < 3}


@pytest.fixture
def files(tmp_path):
  for name, content in (('1.png', 'a'), ('2.png', 'bb'), ('bad.png', 'xx'),
                        ('4.png', 'cccc')):
    (tmp_path / name).write_text(content)
  return tmp_path


def test_one_bad_file_does_not_cost_the_others_their_answers(run, files):
  done = run(lengths, [files], format='csv')
  assert done.code == predict.SKIPPED
  assert list(csv.DictReader(io.StringIO(done.out))) == [
      {'file': str(files / '1.png'), 'label': '1 bytes', 'confidence': '1.0',
       'accept': 'True'},
      {'file': str(files / '2.png'), 'label': '2 bytes', 'confidence': '0.5',
       'accept': 'True'},
      {'file': str(files / '4.png'), 'label': '4 bytes', 'confidence': '0.25',
       'accept': 'False'}]
  assert done.err == f'skipped {files}/bad.png: begins with x\n'


def test_a_file_that_cannot_be_read_is_reported(run, files, monkeypatch):
  read = predict.pathlib.Path.read_bytes
  monkeypatch.setattr(
      predict.pathlib.Path, 'read_bytes', lambda path: read(path.with_name('gone'))
      if path.name == '2.png' else read(path))
  done = run(lengths, [files / '2.png', files / '1.png'], format='json')
  assert done.code == predict.SKIPPED
  assert [row['file'] for row in json.loads(done.out)] == [str(files / '1.png')]
  assert 'skipped' in done.err and '2.png: ' in done.err


def test_many_files_go_in_several_requests_with_progress(run, tmp_path):
  sizes = []
  for number in range(50):
    (tmp_path / f'{number:02}.jpg').write_text('a')

  def ask(files):
    sizes.append(len(files))
    return lengths(files)

  done = run(ask, [tmp_path], files_per_request=4)
  assert sizes == 12 * [4] + [2] and done.code == 0
  assert len(done.out.splitlines()) == 51
  lines = done.err.splitlines()
  assert len(lines) == 10 and lines[-1] == '50 of 50 files'
  assert not run(lengths, [tmp_path], files_per_request=50).err


def test_large_files_go_in_requests_of_their_own(monkeypatch, files):
  monkeypatch.setattr(predict, '_REQUEST_BYTES', 3)
  assert [[path.name for path, _ in batch] for batch in predict.batches(
      [files / name for name in ('1.png', '2.png', '4.png', '1.png')], 9)] == [
          ['1.png', '2.png'], ['4.png'], ['1.png']]


def test_answers_of_before_the_server_went_away_are_shown(run, files, capsys):
  def ask(contents):
    if b'bb' in contents:
      raise UserError('gone')
    return lengths(contents)

  with pytest.raises(UserError, match='gone'):
    run(ask, [files / '1.png', files / '2.png'], files_per_request=1)
  assert '1 bytes' in capsys.readouterr().out


@pytest.mark.parametrize('flags, message', [
    ({}, 'one of them'), ({'server': 'a:1', 'saved_model': 'b'}, 'one of them')])
def test_a_server_or_a_saved_model_is_required(flags, message):
  predict.FLAGS.mark_as_parsed()
  with flagsaver.flagsaver(**flags), pytest.raises(UserError, match=message):
    predict.make_client()


def test_files_must_be_named_and_be_there(tmp_path):
  with pytest.raises(UserError, match='Name image files'):
    predict.find_files([])
  with pytest.raises(UserError, match='Name image files'):
    predict.find_files([str(tmp_path)])
  with pytest.raises(UserError, match='no file or folder .*missing.png'):
    predict.find_files([str(tmp_path / 'missing.png')])


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
