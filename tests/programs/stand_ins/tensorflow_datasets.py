"""In place of tensorflow_datasets: the notebooks load their data by tf.data."""


def disable_progress_bar():
    pass
