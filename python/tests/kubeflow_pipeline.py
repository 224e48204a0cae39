"""Compiles a pipeline that calls the component as published notebooks do, with the installed kfp.

    python kubeflow_pipeline.py KUBEFLOW.PY PIPELINE.YAML

The first argument is the file of the module, so that an environment that has only kfp can run it. The pipeline passes its
parameters in a dictionary, data sets and the model from task to task, and the first arguments by position.
"""

import importlib.util
import sys

import kfp
from kfp import dsl

IS_V1 = kfp.__version__.startswith("1.")

SPECIFICATION = """
name: Train
inputs:
- {name: train_dataset_dir, type: String}
- {name: validation_dataset_dir, type: String}
- {name: epochs, type: Integer, default: '100', optional: true}
outputs: [{name: model_dir, type: String}]
implementation:
  container:
    image: python:3.7
    command: [sh, -ec, 'python3 -u -c "$0" "$@"', 'print(1)']
    args:
    - --train-dataset-dir
    - {inputPath: train_dataset_dir}
    - --validation-dataset-dir
    - {inputPath: validation_dataset_dir}
    - if: {cond: {isPresent: epochs}, then: [--epochs, {inputValue: epochs}]}
    - --model-dir
    - {outputPath: model_dir}
"""

#: The tasks before and after the training. Their data are folders.
PREPARE = """
name: Prepare
outputs: [{name: train_dataset_dir}, {name: validation_dataset_dir}, {name: address, type: String}]
implementation:
  container:
    image: python:3.12
    command: [prepare, {outputPath: train_dataset_dir}, {outputPath: validation_dataset_dir}, {outputPath: address}]
"""
EVALUATE = """
name: Evaluate
inputs: [{name: model_dir}]
implementation: {container: {image: 'python:3.12', command: [evaluate, {inputPath: model_dir}]}}
"""


def load(path):
    """Loads a file as a module, without its package."""
    spec = importlib.util.spec_from_file_location("kubeflow", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_pipeline(kubeflow, path):
    """Writes the compiled pipeline."""
    prepare = kfp.components.load_component_from_text(PREPARE)
    evaluate = kfp.components.load_component_from_text(EVALUATE)
    parameters = {name: name for name in ("train_dataset_dir", "validation_dataset_dir", "model_dir")}

    @dsl.pipeline(name="classification", description="Trains and evaluates.")
    def pipeline(model_name: str, secret: str, training_gpus: int, number_of_workers: int, distribution_type: str, selector: str):
        prepared = prepare()
        distribution = {"distribution_type": distribution_type, "number_of_workers": number_of_workers}
        trained = kubeflow.train_comp(
            prepared.outputs["train_dataset_dir"],
            prepared.outputs["validation_dataset_dir"],
            SPECIFICATION,
            parameters,
            model_name=model_name,
            gpus=training_gpus,
            node_selector=selector,
            tensorboard_s3_address=prepared.outputs["address"],
            cluster_configuration_secret=secret,
            distribution_specification=distribution,
        )
        evaluate(model_dir=trained.outputs["model_dir"])
        # The first call has no data sets, the second has the path of one, and the third has a task's output as a parameter.
        kubeflow.train_comp(train_specification="train", pvc_name="data", distribution_specification={"distribution_type": "MPI"})
        kubeflow.train_comp("/train/data", prepared.outputs["address"], "train", {"data": "train_dataset_dir"})
        kubeflow.train_comp(train_dataset_dir=selector, train_specification="train")
        # The component's file is loaded by itself, as a catalog loads it.
        component = kfp.components.load_component_from_file(str(kubeflow.COMPONENT))
        data = {name: prepared.outputs[name] for name in kubeflow.DATA_SETS}
        component(*data.values(), "train") if IS_V1 else component(**data, train_specification="train")

    kfp.compiler.Compiler().compile(pipeline, str(path))


if __name__ == "__main__":
    compile_pipeline(load(sys.argv[1]), sys.argv[2])
