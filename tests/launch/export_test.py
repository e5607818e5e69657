import json
import shutil

import numpy as np
import pytest

from dble_tf.data import load
from launch.benchmarks import stand_in_server
from tests import in_process


def test_a_finished_run_is_exported_again_with_a_threshold(finished, launch, tmp_path):
  workdir = shutil.copytree(finished[0], tmp_path / 'run')
  # What a killed export leaves.
  (workdir / 'export' / 'digits' / '.incomplete-0-2').mkdir()
  done = launch('export', f'--workdir={workdir}', '--target_coverage=0.8')
  assert done.returncode == 0, done.stderr
  assert f'SavedModel {workdir}/export/digits/2' in done.stdout
  assert 'a coverage of 80 %' in done.stdout
  assert sorted(path.name for path in (workdir / 'export' / 'digits').iterdir()) == [
      '1', '2']
  manifest = json.loads((workdir / 'export/digits/2/manifest.json').read_text())
  assert manifest['abstention']['target'] == {'coverage': 0.8}
  assert manifest['abstention']['threshold']['coverage'] == pytest.approx(0.8)
  assert manifest['metrics']['test'] == pytest.approx(
      json.loads((workdir / 'metrics.json').read_text())['test'], rel=1e-4)
  assert '--experiment=digits' in manifest['flags'] and manifest['seed'] == 0
  # The export accepts and errs on test images as it says.
  test = load('digits').test
  answers = stand_in_server.Servable(workdir / 'export' / 'digits' / '2').run(
      'serving_default', {'images': test.images})
  judged = manifest['abstention']['test']
  assert answers['accept'].mean() == pytest.approx(judged['coverage'])
  assert 0.5 < judged['coverage'] < 1 and judged['images'] == len(test)
  is_wrong = answers['label'] != test.class_ids
  assert is_wrong[answers['accept']].mean() == pytest.approx(judged['risk'])
  np.testing.assert_array_equal(
      answers['accept'], answers['confidence'] >= np.float32(manifest['threshold']))


def test_a_directory_without_a_run_is_named(tmp_path):
  done = in_process.export(f'--workdir={tmp_path}')
  assert done.returncode == 1
  assert f'There is no trained model in {tmp_path}' in done.stderr
  assert not list(tmp_path.iterdir())
