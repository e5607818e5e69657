"""BUILD files name every source and the libraries that its imports need."""

import ast
import dataclasses
import functools
import pathlib
import re
import tomllib
import types

# Under Bazel sources are links to the checkout, which has the BUILD files as well.
ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCES = sorted(
    path for folder in ('dble_tf', 'launch', 'tests')
    for path in (ROOT / folder).rglob('*.py'))
FOLDERS = sorted({path.parent for path in SOURCES})


@dataclasses.dataclass
class Rule:
  """A rule of a BUILD file, with files and labels as `//folder:name`."""
  kind: str
  label: str
  srcs: list[str]
  data: list[str]
  deps: list[str]


def full_label(label, folder):
  """`//folder:name`, for labels such as `:name`, `name` and `//folder`."""
  if not label.startswith('//'):
    return f'//{folder}:{label.removeprefix(":")}'
  return label if ':' in label else f'{label}:{label.rpartition("/")[2]}'


def read_build(folder):
  """Rules and exported files of a folder: Starlark runs as Python."""
  folder = '' if folder == ROOT else str(folder.relative_to(ROOT))
  rules, exported = [], set()

  def glob(include, exclude=(), allow_empty=False):
    files = sorted(
        path.name for path in (ROOT / folder).iterdir()
        if any(path.match(pattern) for pattern in include)
        and not any(path.match(pattern) for pattern in exclude))
    assert files or allow_empty, f'{folder} has no {include}'
    return files

  def add(kind, *, name, srcs=(), data=(), deps=(), **_):
    lists = [[full_label(label, folder) for label in labels]
             for labels in (srcs, data, deps)]
    rules.append(Rule(kind, f'//{folder}:{name}', *lists))

  names = {
      kind: functools.partial(add, kind)
      for kind in ('filegroup', 'py_library', 'py_binary', 'py_test')}
  names |= {
      'exports_files': lambda files: exported.update(
          full_label(file, folder) for file in files),
      'glob': glob, 'native': types.SimpleNamespace(glob=glob),
      'licenses': lambda kinds: None, 'load': lambda *_: None,
      'package': lambda **_: None}
  for path in (ROOT / 'tests' / 'pytest_tests.bzl', ROOT / folder / 'BUILD'):
    exec(path.read_text(), names)
  return rules, exported


@functools.cache
def read_builds():
  """All rules by label, and all exported files."""
  rules, exported = {}, set()
  for folder in (ROOT, *FOLDERS):
    new_rules, new_exported = read_build(folder)
    assert not rules.keys() & {rule.label for rule in new_rules}
    rules |= {rule.label: rule for rule in new_rules}
    exported |= new_exported
  return rules, exported


def file_label(path):
  return f'//{path.parent.relative_to(ROOT)}:{path.name}'


def module_name(path):
  parts = path.relative_to(ROOT).with_suffix('').parts
  return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


MODULES = {module_name(path): file_label(path) for path in SOURCES}


def imported_modules(path):
  """Modules of the repository that a file imports, anywhere in it."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      parts = [node.module] if node.module else []
      if node.level:
        parts = [*path.relative_to(ROOT).parts[:-node.level], *parts]
      module = '.'.join(parts)
      # A name that is no module of its own comes from the module before it.
      names = [f'{module}.{alias.name}' for alias in node.names]
      names = [name if name in MODULES else module for name in names]
    else:
      continue
    for name in names:
      if name.partition('.')[0] in ('dble_tf', 'launch', 'tests'):
        assert name in MODULES, f'{path} imports {name}, which does not exist'
        yield name


@functools.cache
def provided_files(label):
  """Sources of a rule and of its dependencies; a cycle of them ends in an error."""
  rule = read_builds()[0][label]
  return set(rule.srcs).union(*map(provided_files, rule.deps))


def test_every_source_is_in_one_rule():
  rules, _ = read_builds()
  for path in SOURCES:
    holders = [rule for rule in rules.values() if file_label(path) in rule.srcs]
    assert holders, f'{path} is in no rule'
    libraries = [rule.label for rule in holders if rule.kind == 'py_library']
    assert len(libraries) <= 1, path
    if path.name.endswith('_test.py'):
      assert [rule.kind for rule in holders] == ['py_test'], path


def test_labels_exist():
  rules, exported = read_builds()
  for rule in rules.values():
    for dep in rule.deps:
      assert rules[dep].kind == 'py_library', f'{rule.label}: {dep}'
    for label in (*rule.srcs, *rule.data):
      folder, name = label.removeprefix('//').split(':')
      if folder != rule.label.removeprefix('//').partition(':')[0]:
        assert label in rules or label in exported, f'{rule.label}: {label}'
      assert label in rules or (ROOT / folder / name).is_file(), label


def test_imports_are_dependencies():
  rules, _ = read_builds()
  missing, unused = {}, {}
  for label, rule in rules.items():
    needed = {
        MODULES[name] for src in rule.srcs if src.endswith('.py')
        for name in imported_modules(ROOT / src.removeprefix('//').replace(':', '/'))}
    missing[label] = needed - provided_files(label)
    if rule.kind == 'py_library' and not label.startswith('//tests'):
      unused[label] = [dep for dep in rule.deps if not needed & set(rules[dep].srcs)]
  assert not {label: files for label, files in missing.items() if files}
  assert not {label: deps for label, deps in unused.items() if deps}


def test_dependencies_are_sorted_and_name_folders_in_short():
  for folder in FOLDERS:
    text = (folder / 'BUILD').read_text()
    for dependencies in re.findall(r'deps = \[(.*?)\]', text, re.S):
      labels = re.findall(r'"(.*?)"', dependencies)
      order = [(label.startswith('//'), label.replace(':', '!')) for label in labels]
      assert order == sorted(order), folder
      assert not any(re.search(r'/(\w+):\1$', label) for label in labels), folder


def test_commands_are_binaries_and_scripts():
  rules, _ = read_builds()
  binaries = {
      rule.label.partition(':')[2] for rule in rules.values()
      if rule.kind == 'py_binary'}
  commands = {
      path.stem for path in (ROOT / 'launch').glob('*.py')
      if not path.stem.startswith('__')}
  settings = tomllib.loads((ROOT / 'pyproject.toml').read_text())
  assert binaries == commands
  assert settings['project']['scripts'] == {
      f'dble-{name.replace("_", "-")}': f'dble_launch.{name}:command'
      for name in commands}


def test_all_packages_are_installed():
  settings = tomllib.loads((ROOT / 'pyproject.toml').read_text())
  packages = {
      re.sub('^launch', 'dble_launch', module_name(path)) for path in SOURCES
      if path.name == '__init__.py'}
  assert set(settings['tool']['setuptools']['packages']) == packages


def test_pins_are_of_the_packages_that_are_installed():
  def names(lines):
    return {re.match(r'[\w-]+', line)[0] for line in lines}

  settings = tomllib.loads((ROOT / 'pyproject.toml').read_text())
  pins = (ROOT / 'requirements.txt').read_text().splitlines()
  pinned = names(line for line in pins if line and not line.startswith('#'))
  assert names(settings['project']['dependencies']) <= pinned


def test_every_module_has_a_test_of_its_own():
  for path in SOURCES:
    package, *rest = path.relative_to(ROOT).parts
    if package == 'tests' or path.name.startswith('__'):
      continue
    folder = ['launch'] if package == 'launch' else []
    test = pathlib.Path(*folder, *rest).with_name(f'{path.stem}_test.py')
    assert ROOT / 'tests' / test in SOURCES, f'{path} has no tests/{test}'
