"""The step of a Kubeflow pipeline: kfp compiles it, and its container creates the job and follows it."""

import http.server
import json
import threading

import pytest

from ringpull import kubeflow

COMPONENT_TEXT = """
name: train
inputs: [{name: epochs, type: Integer}]
implementation:
  container: {image: a, command: [sh, -ec, 'python3 -c "$0" "$@"'], args: ['print(1)', --epochs, {inputValue: epochs}]}
"""


def test_the_guides_call_compiles(tmp_path):
    kfp = pytest.importorskip("kfp", reason="kfp is not installed: scripts/setup --python")
    yaml = pytest.importorskip("yaml")

    @kfp.dsl.pipeline(name="guide")
    def pipeline():
        kubeflow.train_comp(
            train_specification="python3 train.py",
            train_parameters={"epochs": "3"},
            distribution_specification={"distribution_type": "MPI", "number_of_workers": 3},
        )

    path = tmp_path / "pipeline.yaml"
    kfp.compiler.Compiler().compile(pipeline, str(path))
    compiled = yaml.safe_load(path.read_text())
    (executor,) = compiled["deploymentSpec"]["executors"].values()
    assert executor["container"]["command"] == ["python3", "-u", "-m", "ringpull.kubeflow"]
    (task,) = compiled["root"]["dag"]["tasks"].values()
    given = task["inputs"]["parameters"]["distribution_specification"]["runtimeValue"]["constant"]
    assert given == {"distribution_type": "MPI", "number_of_workers": 3}


def test_a_specification_is_a_command_or_the_text_of_a_component():
    assert kubeflow.train_command("python3 'my train.py'", {"epochs": 3}) == ["python3", "my train.py", "--epochs", "3"]
    pytest.importorskip("yaml")
    words = kubeflow.train_command(COMPONENT_TEXT, {"epochs": "3"})
    assert words == ["sh", "-ec", 'python3 -c "$0" "$@"', "print(1)", "--epochs", "3"]
    with pytest.raises(ValueError, match="epochs"):
        kubeflow.train_command(COMPONENT_TEXT, {})


class Api(http.server.BaseHTTPRequestHandler):
    """Kubernetes' API as far as the step uses it: a job runs for one question and then ends."""

    end = "Succeeded"
    created: list = []
    asked = 0

    def answer(self, code, body):
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.headers["Authorization"] == "Bearer secret"
        Api.created.append((self.path, body["kind"]))
        self.answer(201, body)

    def do_GET(self):
        Api.asked += 1
        types = ["Created", "Running"] if Api.asked == 1 else ["Created", Api.end]
        self.answer(200, {"status": {"conditions": [{"type": it, "status": "True", "message": "why"} for it in types]}})

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(("end", "code"), [("Succeeded", 0), ("Failed", 1)])
def test_the_job_is_created_and_followed_to_its_end(tmp_path, capsys, end, code):
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "namespace").write_text("team")
    Api.end, Api.created, Api.asked = end, [], 0
    server = http.server.HTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        cluster = kubeflow.Cluster(f"http://127.0.0.1:{server.server_port}", tmp_path)
        job = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "a"}}
        assert kubeflow.run([job], cluster, every=0.01) == code
    finally:
        server.shutdown()
    assert Api.created == [("/apis/kubeflow.org/v2beta1/namespaces/team/mpijobs", "MPIJob")]
    printed = capsys.readouterr()
    assert "Created, Running" in printed.out and ("why" in printed.err) == (code == 1)
