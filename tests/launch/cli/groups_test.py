from absl import flags

from launch.cli import groups


def test_flags_are_described_by_group_in_the_order_of_definition():
  values = flags.FlagValues()
  with groups.group('data', values):
    flags.DEFINE_enum('size', None, ['small', 'large'], 'Size.', flag_values=values)
  with groups.group('model', values):
    flags.DEFINE_integer('units', 3, 'Units.', lower_bound=1, flag_values=values)
  with groups.group('data', values):
    flags.DEFINE_list('at', ['a', 'b'], 'Where.', flag_values=values)
    flags.DEFINE_bool('all', False, 'All of it.', flag_values=values)
  assert groups.describe(values) == """\
data:
  --size
      <small | large>: Size.
  --at  (a comma separated list; default: a,b)
      Where.
  --[no]all  (default: false)
      All of it.

model:
  --units  (a positive integer; default: 3)
      Units.
"""


def test_long_descriptions_are_wrapped():
  values = flags.FlagValues()
  with groups.group('data', values):
    flags.DEFINE_enum('one', None, [f'choice_{i}' for i in range(30)], 40 * 'word ',
                      flag_values=values)
  lines = groups.describe(values).splitlines()
  assert len(lines) > 5 and max(map(len, lines)) <= 88
  assert all(f'choice_{i}' in ' '.join(lines) for i in range(30))


def test_groups_belong_to_their_flags():
  first, second = flags.FlagValues(), flags.FlagValues()
  with groups.group('data', first):
    flags.DEFINE_string('path', None, 'Path.', flag_values=first)
  assert groups.describe(second) == ''
