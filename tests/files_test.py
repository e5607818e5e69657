import pytest
from etils import epath

from dble_tf import files


def test_a_file_appears_under_its_name_only_when_complete(tmp_path):
  target = tmp_path / 'new' / 'metrics.json'
  with files.replacing(target) as temporary:
    temporary.write_text('whole')
    assert not target.exists()
  assert target.read_text() == 'whole'
  assert list(target.parent.iterdir()) == [target]


def test_a_directory_appears_under_its_name_only_when_complete(tmp_path):
  target = tmp_path / 'export' / '1'
  with files.replacing(target) as temporary:
    temporary.mkdir()
    (temporary / 'part').write_text('whole')
    assert not target.exists()
  assert (target / 'part').read_text() == 'whole'
  assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize('error', [OSError, KeyboardInterrupt, SystemExit])
def test_the_old_file_survives_any_interruption(tmp_path, error):
  target = tmp_path / 'metrics.json'
  target.write_text('old')
  with pytest.raises(error):
    with files.replacing(target) as temporary:
      temporary.write_text('half')
      raise error
  assert target.read_text() == 'old'
  assert list(tmp_path.iterdir()) == [target]


def test_leftovers_of_killed_writers_are_kept_apart_and_removed(tmp_path):
  target = tmp_path / '1'
  killed = files.replacing(target)
  left = killed.__enter__()  # Never exited, as if killed.
  left.mkdir()
  (left / 'stale').write_text('half')
  with files.replacing(target) as temporary:
    temporary.mkdir()
    (temporary / 'fresh').write_text('whole')
  assert [path.name for path in target.iterdir()] == ['fresh']
  assert files.is_incomplete(left) and not files.is_incomplete(epath.Path(target))
  files.remove_incomplete(epath.Path(tmp_path))
  assert list(tmp_path.iterdir()) == [target]


def test_two_writers_never_touch_each_others_file(tmp_path):
  target = tmp_path / 'metrics.json'
  with files.replacing(target) as first:
    first.write_text('first, whole')
    with files.replacing(target) as second:
      second.write_text('second, whole')
    assert target.read_text() == 'second, whole'
  assert target.read_text() == 'first, whole'
