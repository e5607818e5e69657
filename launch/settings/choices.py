"""The names that flags offer, known without importing the library.

A test compares them with what the library has.
"""

from typing import NamedTuple

DATASETS = ('digits', 'mnist', 'fashion_mnist', 'cifar10', 'cifar100', 'tiny_imagenet')
ENCODERS = ('mlp', 'vgg11', 'thin_resnet', 'resnet50')
SCHEDULES = ('step', 'cosine')
EPISODES = ('support_query', 'leave_one_out')
CONFIDENCE_TRAINING = ('errors', 'all')
SCALINGS = ('fitted', 'none')
DTYPE_POLICIES = ('float32', 'mixed_bfloat16', 'mixed_float16')
STRATEGIES = ('auto', 'none', 'mirrored', 'tpu')
JIT_COMPILE = ('auto', 'true', 'false')


class Method(NamedTuple):
  """What flags need to know of a method.

  Attributes:
    base: the method that trains the same networks, whose finished runs can replace
      this one's training.
    num_bases: the flag with the number of such runs, of different seeds; one if None.
    own_flags: flags that matter only to the methods that list them.
  """

  base: str | None = None
  num_bases: str | None = None
  own_flags: tuple[str, ...] = ()


_THETA_FLAGS = ('episode', 'squared_scale', 'episode_smoothing')
_PHI_FLAGS = ('confidence_learning_rate', 'num_samples')

METHODS = {
    'vanilla': Method(),
    'mc_dropout': Method(own_flags=('dropout', 'num_samples')),
    'temperature_scaling': Method(base='vanilla'),
    'label_smoothing': Method(own_flags=('label_smoothing',)),
    'mixup': Method(own_flags=('mixup_alpha',)),
    'trust_score': Method(base='vanilla', own_flags=('sparse_share',)),
    'deep_ensemble': Method(
        base='vanilla', num_bases='ensemble_size', own_flags=('ensemble_size',)),
    'vanilla_errors': Method(own_flags=_PHI_FLAGS),
    'prototypical': Method(own_flags=_THETA_FLAGS),
    'dble': Method(own_flags=(
        *_THETA_FLAGS, 'confidence_training', 'scaling', *_PHI_FLAGS)),
}
