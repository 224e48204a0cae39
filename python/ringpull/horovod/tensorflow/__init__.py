"""``horovod.tensorflow.keras`` is :mod:`ringpull.horovod.keras`. TensorFlow without Keras is not supported: every name of
``horovod.tensorflow`` is an error with a hint."""
