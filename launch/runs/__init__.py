"""A run, from its flags to its report: data and model, training, export, figures."""
