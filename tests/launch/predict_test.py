import json
import os
import subprocess

import numpy as np
import pytest
import tensorflow as tf

from dble_tf import data
from launch.benchmarks import stand_in_server


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Three digits as PNG files, in two folders, and a file of another kind."""
  path = tmp_path_factory.mktemp('images')
  (path / 'inner').mkdir()
  images = data.load('digits', validation_size=200).test.images
  for name, image in zip(('a.png', 'b.PNG', 'inner/c.png'), images):
    (path / name).write_bytes(tf.io.encode_png(image).numpy())
  (path / 'notes.txt').write_text('not an image')
  return path


def test_a_folder_is_labelled_by_an_export_and_other_files_are_reported(
    finished, folder, launch):
  workdir, _ = finished
  done = launch('predict', f'--saved_model={workdir}/export/digits/1', folder,
                folder / 'notes.txt')
  assert done.returncode == 2
  assert 'Traceback' not in done.stderr
  skipped, = [line for line in done.stderr.splitlines() if line.startswith('skipped')]
  assert f'{folder}/notes.txt' in skipped and 'PNG or JPEG' in skipped
  header, *lines = map(str.split, done.stdout.splitlines())
  assert header == ['file', 'label', 'confidence', 'accept']
  expected = np.load(workdir / 'predictions.npz')
  assert lines == [
      [str(folder / name), str(label), f'{confidence:.4f}', 'yes']
      for name, label, confidence in zip(
          ('a.png', 'b.PNG', 'inner/c.png'), expected['test_label'],
          expected['test_confidence'])]


def test_a_server_is_asked_over_grpc(finished, folder, launch):
  workdir, _ = finished
  servable = stand_in_server.Servable(workdir / 'export' / 'digits' / '1')
  with stand_in_server.serving({'digits': servable}) as address:
    done = launch('predict', f'--server={address}', '--model=digits', '--format=json',
                  folder / 'a.png')
  assert done.returncode == 0, done.stderr
  answer, = json.loads(done.stdout)
  expected = np.load(workdir / 'predictions.npz')
  label, confidence = (expected[f'test_{name}'][0] for name in ('label', 'confidence'))
  assert answer == {
      'file': str(folder / 'a.png'), 'label': str(label), 'label_id': label,
      'confidence': pytest.approx(confidence, rel=1e-4), 'accept': True}


def test_names_of_files_need_not_be_utf_8(finished, folder, command, tmp_path):
  path = tmp_path / os.fsdecode(b'caf\xe9.png')
  path.write_bytes((folder / 'a.png').read_bytes())
  process = command(
      'predict', f'--saved_model={finished[0]}/export/digits/1', '--format=csv', path)
  done = subprocess.run(**{**process, 'text': False}, capture_output=True)
  assert done.returncode == 0, done.stderr
  assert b'caf\xe9.png,' in done.stdout


@pytest.mark.parametrize('arguments, message', [
    ([], 'either --saved_model=DIRECTORY or --server=HOST:PORT'),
    (['--server=a:1', '--model=b', '--saved_model=c'], 'either --saved_model'),
    (['--server=a:1'], "give --model, the model's name on the server")])
def test_a_saved_model_or_a_model_on_a_server_is_required(arguments, message, launch):
  done = launch('predict', *arguments, 'image.png')
  assert done.returncode == 1
  assert message in done.stderr and 'Traceback' not in done.stderr
