"""The snippets of the README's section on serving work with an export."""

import json
import pathlib
import re
import subprocess
import urllib.request

import numpy as np
import pytest

from dble_tf.serving.export import export
from launch.benchmarks import stand_in_server
from tests import rest_server
from tests import tiny

ROOT = pathlib.Path(__file__).parents[2]
README = next(
    section for path in (ROOT / 'launch' / 'README.md', ROOT / 'README.md')
    if path.exists() and (section := path.read_text().partition('## Serving')[2]))
FILE = tiny.as_png(tiny.IMAGES)[0]


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
  path = tmp_path_factory.mktemp('run') / 'export'
  return export(tiny.model(), path, name='digits', class_names=tiny.CLASS_NAMES)


@pytest.fixture(scope='module')
def servable(exported):
  return stand_in_server.Servable(exported)


@pytest.fixture(scope='module')
def expected(servable):
  return servable.run('serving_default', {'images': tiny.IMAGES[:1]})


def test_the_server_is_given_files_of_the_export(exported):
  command, = re.findall(r'^docker run .*', README, re.M)
  mounted, = re.findall(r'-v "\$PWD/runs/digits/export:(\S+)"', command)
  flags = re.findall(r'--\w+_file=(\S+?)[`\s]', README)
  assert len(flags) == 3 and command.count('_file=') == 2
  for flag in flags:
    assert (exported.parents[1] / pathlib.Path(flag).relative_to(mounted)).exists()
  assert f'base_path: "{mounted}/digits"' in (
      exported.parents[1] / 'models.config').read_text()


@pytest.mark.parametrize('size', [0, 500_000])  # No argument may be as long as that.
def test_the_rest_request_is_answered(size, servable, expected, tmp_path):
  # What follows an image's end does not count.
  (tmp_path / 'image.png').write_bytes(FILE + bytes(size))
  (make_body, url), = re.findall(r'^(\(printf .*\)) \| curl (\S+) -d @-$', README, re.M)
  body = subprocess.run(
      ['bash', '-c', make_body], cwd=tmp_path, capture_output=True, check=True,
      text=True).stdout
  with rest_server.serving({'digits': servable}) as address:
    with urllib.request.urlopen(
        url.replace('localhost:8501', address), body.encode()) as response:
      answer, = json.load(response)['predictions']
  assert answer['label_name'] == expected['label_name'][0].decode()
  assert answer['confidence'] == pytest.approx(expected['confidence'][0], rel=1e-5)


def test_the_grpc_request_is_answered(servable, expected, tmp_path):
  (tmp_path / 'image.png').write_bytes(FILE)
  program, = re.findall(r'```python\n(import grpc\n.*?)```', README, re.S)
  with stand_in_server.serving({'digits': servable}) as address:
    program = program.replace('localhost:8500', address).replace(
        'image.png', str(tmp_path / 'image.png'))
    names = {}
    exec(program, names)
    names['channel'].close()
  assert set(names['answer']) == set(expected)
  for name, value in names['answer'].items():
    if expected[name].dtype.kind == 'f':
      np.testing.assert_allclose(value, expected[name][0], rtol=1e-5)
    else:
      assert value == expected[name][0]
