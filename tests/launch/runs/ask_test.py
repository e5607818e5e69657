import csv
import io
import json
import pathlib
import types

import numpy as np
import pytest

from dble_tf.errors import UserError
from dble_tf.serving import client
from launch.runs import ask


@pytest.fixture
def run(monkeypatch, capsys):
  """(client, arguments, **flags) -> exit code, output and errors."""
  def run(answer, arguments, **values):
    monkeypatch.setattr(client, 'over_rest', lambda *address: answer)
    values = types.SimpleNamespace(**{
        'server': 'localhost:1', 'model': 'digits', 'rest': True, 'timeout': 1,
        'saved_model': None, 'format': 'table', 'files_per_request': 32, **values})
    code = ask.run(values, [str(argument) for argument in arguments])
    return types.SimpleNamespace(code=code, **capsys.readouterr()._asdict())

  return run


def lengths(files):
  """A model whose label is a file's length; it refuses files that begin with x."""
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
  assert done.code == ask.SKIPPED == 2
  assert list(csv.DictReader(io.StringIO(done.out))) == [
      {'file': str(files / '1.png'), 'label': '1 bytes', 'confidence': '1.0',
       'accept': 'True'},
      {'file': str(files / '2.png'), 'label': '2 bytes', 'confidence': '0.5',
       'accept': 'True'},
      {'file': str(files / '4.png'), 'label': '4 bytes', 'confidence': '0.25',
       'accept': 'False'}]
  assert done.err == f'skipped {files}/bad.png: begins with x\n'


def test_a_file_that_cannot_be_read_is_reported(run, files, monkeypatch):
  read = pathlib.Path.read_bytes
  monkeypatch.setattr(
      pathlib.Path, 'read_bytes', lambda path: read(path.with_name('gone'))
      if path.name == '2.png' else read(path))
  done = run(lengths, [files / '2.png', files / '1.png'], format='json')
  assert done.code == ask.SKIPPED
  assert [row['file'] for row in json.loads(done.out)] == [str(files / '1.png')]
  assert 'skipped' in done.err and '2.png: ' in done.err


def test_many_files_go_in_several_requests_with_progress(run, tmp_path):
  sizes = []
  for number in range(50):
    (tmp_path / f'{number:02}.jpg').write_text('a')

  def answer(files):
    sizes.append(len(files))
    return lengths(files)

  done = run(answer, [tmp_path], files_per_request=4)
  assert sizes == 12 * [4] + [2] and done.code == 0
  assert len(done.out.splitlines()) == 51
  lines = done.err.splitlines()
  assert len(lines) == 10 and lines[-1] == '50 of 50 files'
  assert not run(lengths, [tmp_path], files_per_request=50).err


def test_large_files_go_in_requests_of_their_own(monkeypatch, files):
  monkeypatch.setattr(ask, '_REQUEST_BYTES', 3)
  assert [[path.name for path, _ in batch] for batch in ask.batches(
      [files / name for name in ('1.png', '2.png', '4.png', '1.png')], 9)] == [
          ['1.png', '2.png'], ['4.png'], ['1.png']]


def test_answers_from_before_the_server_went_away_are_shown(run, files, capsys):
  def answer(contents):
    if b'bb' in contents:
      raise UserError('gone')
    return lengths(contents)

  with pytest.raises(UserError, match='gone'):
    run(answer, [files / '1.png', files / '2.png'], files_per_request=1)
  assert '1 bytes' in capsys.readouterr().out


def test_flags_choose_the_client(monkeypatch):
  for name in ('of_saved_model', 'over_grpc', 'over_rest'):
    monkeypatch.setattr(client, name, lambda *about, name=name: (name, *about))
  make = lambda **values: ask.make_client(types.SimpleNamespace(**{
      'saved_model': None, 'server': 'a:1', 'model': 'm', 'timeout': 3, 'rest': False,
      **values}))
  assert make() == ('over_grpc', 'a:1', 'm', 3)
  assert make(rest=True) == ('over_rest', 'a:1', 'm', 3)
  assert make(saved_model='export/1', server=None) == ('of_saved_model', 'export/1')


def test_files_must_be_named_and_exist(tmp_path):
  with pytest.raises(UserError, match='Give image files'):
    ask.find_files([])
  with pytest.raises(UserError, match='Give image files'):
    ask.find_files([str(tmp_path)])
  with pytest.raises(UserError, match=r'No file or folder .*missing\.png'):
    ask.find_files([str(tmp_path / 'missing.png')])
