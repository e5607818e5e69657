"""Description of an export: manifest.json for programs, README.md for people."""

import hashlib
import json
from collections.abc import Mapping

import tensorflow as tf
from etils import epath
from tensorflow.core.protobuf import saved_model_pb2

NAME = 'manifest.json'


def write(directory: epath.Path, facts: Mapping) -> None:
  """Writes both files, with a SavedModel's signatures and the SHA-256 of its files.

  Args:
    directory: of the SavedModel.
    facts: model, version, class_names, threshold and warm_up_requests; optionally
      dataset, method, seed, flags, versions, metrics, abstention and others.
  """
  content = {
      **facts,
      'signatures': signatures(directory),
      'sha256': {
          str(path.relative_to(directory)): _sha256(path)
          for path in (directory / 'saved_model.pb',
                       *sorted((directory / 'variables').iterdir()))},
  }
  (directory / NAME).write_text(json.dumps(content, indent=2) + '\n')
  (directory / 'README.md').write_text(readme(content))


def signatures(directory: epath.Path) -> dict[str, dict]:
  """Reads types and shapes of inputs and outputs of a SavedModel's signatures."""
  saved_model = saved_model_pb2.SavedModel.FromString(
      (directory / 'saved_model.pb').read_bytes())
  graph, = saved_model.meta_graphs
  return {
      name: {'inputs': _tensors(signature.inputs),
             'outputs': _tensors(signature.outputs)}
      for name, signature in sorted(graph.signature_def.items())
      if not name.startswith('__')}


def readme(content: Mapping) -> str:
  """Formats the manifest as Markdown."""
  lines = [f'# {content["model"]}, version {content["version"]}', '']
  known = [(title, content[key]) for title, key in (
      ('data', 'dataset'), ('method', 'method'), ('seed', 'seed')) if key in content]
  if known:
    lines += [', '.join(f'{title} {value}' for title, value in known) + '.', '']
  lines += [f'Classes: {", ".join(content["class_names"])}.', '',
            '## Signatures', '',
            'B is the batch size, which may be any.', '']
  for name, signature in content['signatures'].items():
    takes, gives = (
        ', '.join(f'`{key}` {tensor["dtype"]} {_shape(tensor["shape"])}'
                  for key, tensor in signature[side].items())
        for side in ('inputs', 'outputs'))
    lines += [f'- `{name}`: {takes} -> {gives}']
  lines += ['', '## Accepted answers', '', *_abstention(content)]
  if 'metrics' in content:
    lines += ['', '## Metrics', '', *_metrics(content['metrics'])]
  requests = content['warm_up_requests']
  lines += ['', '## Files', '',
            f'TF Serving runs {requests} warm-up requests as it loads the model.'
            if requests else 'There are no warm-up requests: tensorflow-serving-api '
            'was not installed.',
            f'`{NAME}` holds all of this and the SHA-256 of the weights, and training '
            'flags and package versions if known.']
  return '\n'.join(lines) + '\n'


def _abstention(content):
  abstention = content.get('abstention')
  if not content['threshold']:
    reason = 'the target is met by all' if abstention else 'no target was set'
    yield f'`accept` is true for every answer: {reason}.'
  else:
    yield f'`accept` is true if `confidence` is at least {content["threshold"]:.6g}.'
  if abstention:
    (kind, target), = abstention['target'].items()
    yield (f'This was chosen on the threshold images for a {kind} of {100 * target:g} %'
           + ('.' if abstention['is_met'] else
              ', which no threshold reaches: nothing is accepted.'))
    yield ''
    yield '| images | accepted (coverage) | wrong among accepted (risk) |'
    yield '|---|---|---|'
    for split in ('threshold', 'validation', 'test'):
      if split in abstention:
        judged = abstention[split]
        risk = ('–' if judged['risk'] is None else f'{100 * judged["risk"]:.2f} %')
        yield (f'| {split}, {judged["images"]:,} | {100 * judged["coverage"]:.2f} % '
               f'| {risk} |')


def _metrics(metrics):
  names = list(next(iter(metrics.values())))
  yield f'| images | {" | ".join(names)} |'
  yield '|---' * (len(names) + 1) + '|'
  for split, figures in metrics.items():
    cells = ('–' if figures[name] is None else f'{figures[name]:.4f}' for name in names)
    yield f'| {split} | {" | ".join(cells)} |'


def _tensors(infos):
  return {
      name: {'dtype': tf.as_dtype(info.dtype).name,
             'shape': [None if dim.size < 0 else dim.size
                       for dim in info.tensor_shape.dim]}
      for name, info in sorted(infos.items())}


def _shape(shape):
  return f'[{", ".join("B" if size is None else str(size) for size in shape)}]'


def _sha256(path):
  return hashlib.sha256(path.read_bytes()).hexdigest()
