"""The rules of who imports whom, read from the source."""

import ast
import graphlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# As in `--epochs` and `python -m launch.train`.
COMMAND_LINE = re.compile(r'(?<![\w-])--[a-z]\w*|\blaunch\b')


def module_name(path):
  parts = path.relative_to(ROOT).with_suffix('').parts
  return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def parse(folder):
  """Module name -> syntax tree of its file."""
  return {module_name(path): ast.parse(path.read_text(), path)
          for path in sorted((ROOT / folder).rglob('*.py'))}


LIBRARY, LAUNCH, TESTS = parse('dble_tf'), parse('launch'), parse('tests')
MODULES = {*LIBRARY, *LAUNCH, *TESTS}
PACKAGES = {module_name(path) for path in ROOT.glob('*/**/__init__.py')}
# The modules in launch/ itself, beside the packages behind them.
COMMANDS = {
    f'launch.{path.stem}' for path in (ROOT / 'launch').glob('[!_]*.py')}


def imported(name, tree):
  """Names of the modules that a module imports, anywhere in it."""
  found = set()
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      base = node.module or ''
      if node.level:
        package = name.split('.') if name in PACKAGES else name.split('.')[:-1]
        parents = package[:len(package) - node.level + 1]
        base = '.'.join([*parents, *filter(None, [node.module])])
      for alias in node.names:
        member = f'{base}.{alias.name}'
        found.add(member if member in MODULES else base)
  return found


IMPORTS = {name: imported(name, tree)
           for name, tree in {**LIBRARY, **LAUNCH, **TESTS}.items()}


def is_in(name, *rooms):
  """Whether a module is one of these, or in a package that is."""
  return any(name == room or name.startswith(f'{room}.') for room in rooms)


def reached(room):
  """All of our modules that the modules of a room import, directly or not."""
  found, todo = set(), [name for name in IMPORTS if is_in(name, room)]
  while todo:
    for name in (IMPORTS[todo.pop()] & MODULES) - found:
      found.add(name)
      todo.append(name)
  return found


def test_the_source_is_read():
  # Or the rules below would hold of nothing.
  assert len(LIBRARY) > 30 and 'dble_tf.model' in IMPORTS['dble_tf']
  assert 'dble_tf.data.tfds_arrays' in IMPORTS['dble_tf.data']  # In a function.
  assert 'launch.cli.entry' in IMPORTS['launch.train']  # Relative.
  assert {'launch.train', 'launch.predict'} <= COMMANDS


@pytest.mark.parametrize('room', ['data', 'encoders', 'metrics', 'comparisons'])
def test_data_encoders_metrics_and_comparisons_import_only_errors_and_files(room):
  allowed = ('dble_tf.errors', 'dble_tf.files', f'dble_tf.{room}')
  others = {name for name in reached(f'dble_tf.{room}') if not is_in(name, *allowed)}
  assert others == set()


@pytest.mark.parametrize('room, other', [
    ('model', 'baselines'), ('baselines', 'model'), ('classifier', 'model'),
    ('classifier', 'baselines'), ('serving', 'training'), ('training', 'serving')])
def test_rooms_that_do_not_import_each_other(room, other):
  assert not any(is_in(name, f'dble_tf.{other}') for name in reached(f'dble_tf.{room}'))


@pytest.mark.parametrize('room', ['model', 'baselines'])
def test_every_method_imports_the_classifier(room):
  assert 'dble_tf.classifier' in reached(f'dble_tf.{room}')


@pytest.mark.parametrize('stranger', ['absl', 'launch', 'tests'])
def test_the_library_knows_neither_flags_nor_commands_nor_tests(stranger):
  assert [name for name in LIBRARY
          if any(is_in(one, stranger) for one in IMPORTS[name])] == []


def test_the_library_does_not_print():
  calls = [
      f'{name}:{node.lineno}' for name, tree in LIBRARY.items()
      for node in ast.walk(tree)
      if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
      and node.func.id == 'print']
  assert calls == []


def test_the_library_names_no_flag_and_no_command():
  assert COMMAND_LINE.search('raise --epochs, or')
  assert COMMAND_LINE.search('run launch.train')
  assert not COMMAND_LINE.search('a--b ---- -- c')
  texts = [
      f'{name}:{node.lineno}: {node.value}' for name, tree in LIBRARY.items()
      for node in ast.walk(tree)
      if isinstance(node, ast.Constant) and isinstance(node.value, str)
      and COMMAND_LINE.search(node.value)]
  assert texts == []


def test_nothing_imports_a_command_but_its_own_test():
  importers = {
      (name, command) for name, modules in IMPORTS.items()
      for command in modules & COMMANDS
      if name != f'tests.{command}_test'}
  assert importers == set()


def test_launch_imports_itself_relatively():
  # Installed, it has another name.
  absolute = [
      f'{name}:{node.lineno}' for name, tree in LAUNCH.items()
      for node in ast.walk(tree)
      for imported_name in (
          [alias.name for alias in node.names] if isinstance(node, ast.Import)
          else [node.module] if isinstance(node, ast.ImportFrom) and not node.level
          else [])
      if is_in(imported_name, 'launch')]
  assert absolute == []


@pytest.mark.parametrize('folder', ['dble_tf', 'launch'])
def test_no_imports_form_a_cycle(folder):
  graph = {name: modules & MODULES for name, modules in IMPORTS.items()
           if is_in(name, folder)}
  graphlib.TopologicalSorter(graph).prepare()
