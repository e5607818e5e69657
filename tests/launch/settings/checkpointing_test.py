import pytest
from absl import flags

from launch.settings import checkpointing


def parse(*arguments):
  values = flags.FlagValues()
  checkpointing.define_flags(values)
  values(['test', *arguments])
  return values


@pytest.mark.parametrize('text, expected', [
    ('10min', (None, 600)), ('500steps', (500, None)), ('0.5min,20steps', (20, 30)),
    ('', (None, None))])
def test_intervals_are_steps_and_seconds(text, expected):
  values = parse(f'--checkpoint_every={text}')
  assert checkpointing.every(values.checkpoint_every) == expected


def test_a_checkpoint_is_saved_every_ten_minutes_unless_told_otherwise():
  assert checkpointing.every(parse().checkpoint_every) == (None, 600)


@pytest.mark.parametrize('argument', [
    '--checkpoint_every=10', '--checkpoint_every=-1min', '--checkpoint_every=0min',
    '--checkpoint_every=0steps',
    '--profile_steps=3', '--profile_steps=5,3', '--profile_steps=0,3'])
def test_nonsense_values_are_rejected(argument):
  with pytest.raises(flags.IllegalFlagValueError):
    parse(argument)


def test_steps_to_profile_are_two_numbers():
  assert parse('--profile_steps=10,20').profile_steps == ['10', '20']
