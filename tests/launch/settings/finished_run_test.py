import pytest
from absl import flags

from launch.settings import finished_run


def test_a_directory_is_required():
  values = flags.FlagValues()
  finished_run.define_flags(values)
  with pytest.raises(flags.IllegalFlagValueError, match='--workdir=runs/digits'):
    values(['test'])
  values(['test', '--workdir=here'])
  assert (values.workdir, values.data_dir) == ('here', None)
