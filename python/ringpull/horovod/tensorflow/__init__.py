"""``horovod.tensorflow.keras`` is :mod:`ringpull.horovod.keras`. Of TensorFlow without Keras there is nothing here: every name is an error
that says what to do."""
