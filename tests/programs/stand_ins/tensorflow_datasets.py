"""Replaces tensorflow_datasets. The notebooks load their data by tf.data."""


def disable_progress_bar():
    pass
