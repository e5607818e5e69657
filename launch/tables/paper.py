"""The figures of the paper's tables, to be shown beside measured ones."""

# Table 1, by data set and encoder, then by line: accuracy and ECE as fractions, NLL.
_TABLE_1 = {
    ('mnist', 'mlp'): {
        'vanilla': (0.9832, 0.0173, 0.29),
        'mc_dropout': (0.9832, 0.0171, 0.34),
        'vanilla+T': (0.9514, 0.0132, 0.17),
        'label_smoothing': (0.9877, 0.0168, 0.30),
        'mixup': (0.9883, 0.0174, 0.24),
        'trust_score': (0.9832, 0.0214, 0.26),
        'dble_as_printed': (0.9869, 0.0097, 0.12),
        'deep_ensemble': (0.9936, 0.0099, 0.08),
    },
    ('cifar10', 'vgg11'): {
        'vanilla': (0.9048, 0.063, 0.43),
        'mc_dropout': (0.9048, 0.039, 0.47),
        'vanilla+T': (0.8983, 0.031, 0.33),
        'label_smoothing': (0.9071, 0.027, 0.38),
        'mixup': (0.9059, 0.033, 0.37),
        'trust_score': (0.9048, 0.053, 0.40),
        'dble_as_printed': (0.9092, 0.015, 0.29),
        'deep_ensemble': (0.924, 0.018, 0.26),
    },
    ('cifar100', 'resnet50'): {
        'vanilla': (0.7157, 0.191, 1.58),
        'mc_dropout': (0.7157, 0.097, 1.48),
        'vanilla+T': (0.6984, 0.025, 1.23),
        'label_smoothing': (0.7192, 0.033, 1.39),
        'mixup': (0.7185, 0.029, 1.44),
        'trust_score': (0.7157, 0.109, 1.43),
        'dble_as_printed': (0.7103, 0.011, 1.09),
        'deep_ensemble': (0.7358, 0.013, 0.82),
    },
    ('tiny_imagenet', 'resnet50'): {
        'vanilla': (0.4671, 0.252, 2.95),
        'mc_dropout': (0.4672, 0.174, 3.17),
        'vanilla+T': (0.4503, 0.048, 2.59),
        'label_smoothing': (0.4719, 0.056, 2.93),
        'mixup': (0.4689, 0.068, 2.66),
        'trust_score': (0.4671, 0.192, 2.75),
        'dble_as_printed': (0.4645, 0.036, 2.38),
        'deep_ensemble': (0.5128, 0.024, 1.81),
    },
}

# Table 2: ECE and NLL of the lines that are not in Table 1.
_TABLE_2 = {
    ('cifar100', 'resnet50'): {
        'vanilla_errors': (0.183, 1.43),
        'dble_all': (0.189, 1.54),
    },
    ('tiny_imagenet', 'resnet50'): {
        'vanilla_errors': (0.209, 2.61),
        'dble_all': (0.248, 2.87),
    },
}


# The released code has a thin ResNet where the paper names ResNet-50.
_NAMES_IN_PAPER = {'thin_resnet': 'resnet50'}


def figures(dataset: str, encoder: str) -> dict[str, dict[str, float]]:
  """The paper's figures: line -> accuracy, ECE and NLL, as far as it reports them."""
  experiment = (dataset, _NAMES_IN_PAPER.get(encoder, encoder))
  return {
      **{line: dict(zip(('accuracy', 'ece', 'nll'), values))
         for line, values in _TABLE_1.get(experiment, {}).items()},
      **{line: dict(zip(('ece', 'nll'), values))
         for line, values in _TABLE_2.get(experiment, {}).items()},
  }
