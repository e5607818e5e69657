"""BUILD names every source file once, with the dependencies its imports show."""

import ast
import collections
import pathlib
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
SOURCES = sorted(
    path for folder in ('dble_tf', 'launch', 'tests')
    for path in (ROOT / folder).rglob('*.py'))


def module_name(path):
  parts = path.relative_to(ROOT).with_suffix('').parts
  return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


MODULES = {module_name(path): path for path in SOURCES}


def targets():
  """rule, name, srcs and deps of each rule; Starlark is read as Python."""
  Target = collections.namedtuple('Target', 'rule name srcs deps')
  for statement in ast.parse((ROOT / 'BUILD').read_text()).body:
    call = statement.value
    if isinstance(call, ast.Call) and call.func.id.startswith('py_'):
      values = {keyword.arg: keyword.value for keyword in call.keywords}
      literal = lambda name: ast.literal_eval(values[name]) if name in values else []
      yield Target(call.func.id, literal('name'), literal('srcs'), literal('deps'))


def imported_modules(path):
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      names = [f'{node.module}.{alias.name}' for alias in node.names]
      # A name that is no module of its own comes from the module before it.
      names = [name if name in MODULES else node.module for name in names]
    else:
      continue
    yield from (name for name in names if name in MODULES)


def test_every_source_file_is_in_exactly_one_target():
  counts = collections.Counter(src for target in targets() for src in target.srcs)
  assert counts == {str(path.relative_to(ROOT)): 1 for path in SOURCES}


def test_targets_are_named_after_their_module():
  for target in targets():
    src, = target.srcs
    assert target.name == module_name(ROOT / src).replace('.', '_')


def test_dependencies_are_the_imports():
  for target in targets():
    path = ROOT / target.srcs[0]
    modules = set(imported_modules(path))
    if path.name.endswith('_test.py') and (path.parent / 'conftest.py') in SOURCES:
      modules.add(module_name(path.parent / 'conftest.py'))
    expected = {':' + name.replace('.', '_') for name in modules}
    assert set(target.deps) == expected, target.name
    assert target.deps == sorted(target.deps), target.name


def test_rules_fit_what_the_files_are():
  for target in targets():
    src = target.srcs[0]
    runs = "\nif __name__ == '__main__':" in (ROOT / src).read_text()
    if src.endswith('_test.py'):
      expected = 'py_test'
      assert runs, f'{src} would pass under Bazel without running a test'
    elif runs:
      expected = 'py_binary'
    else:
      expected = 'py_library'
    assert target.rule == expected, src


def test_all_packages_are_installed():
  settings = tomllib.loads((ROOT / 'pyproject.toml').read_text())
  packages = [module_name(path) for path in SOURCES
              if path.name == '__init__.py' and 'tests' not in path.parts]
  assert settings['tool']['setuptools']['packages'] == packages


def test_every_module_has_a_test_of_its_own():
  for path in SOURCES:
    package, *rest = path.relative_to(ROOT).parts
    if package == 'tests' or path.name == '__init__.py':
      continue
    folder = ['launch'] if package == 'launch' else []
    test = pathlib.Path(*folder, *rest).with_name(f'{path.stem}_test.py')
    assert ROOT / 'tests' / test in SOURCES, path


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
