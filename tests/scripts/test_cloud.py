"""scripts/cloud: the launchers' scripts with stand-ins for the launchers, and the fields of the YAML files."""

import os
import re
import shutil
import subprocess
import unittest

import program

CLOUD = os.path.join(os.path.dirname(__file__), "..", "..", "scripts", "cloud")
SCRIPTS = ["mpirun", "slurm", "torchrun"]

# Fields of the CRDs at the depths that the templates use: Kubeflow Trainer 2.3 (v1alpha1), MPI Operator 0.8 (v2beta1).
# A container's are those of Kubernetes' core/v1.
CONTAINER = {"name": None, "image": None, "command": None, "args": None, "env": None,
             "resources": {"requests": None, "limits": None}, "volumeMounts": [{"name": None, "mountPath": None}],
             "securityContext": {"capabilities": {"add": None}}}
POD = {"spec": {"containers": [CONTAINER], "terminationGracePeriodSeconds": None,
                "volumes": [{"name": None, "persistentVolumeClaim": {"claimName": None}, "emptyDir": {"medium": None}}]}}
REPLICAS = {"replicas": None, "restartPolicy": None, "template": POD}
FIELDS = {
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): {
        "activeDeadlineSeconds": None, "initializer": None, "managedBy": None, "runtimePatches": None, "suspend": None,
        "runtimeRef": {"apiGroup": None, "kind": None, "name": None},
        "trainer": {"args": None, "command": None, "env": None, "image": None, "numNodes": None, "numProcPerNode": None,
                    "resourcesPerNode": {"requests": None, "limits": None, "claims": None}}},
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): {
        "mlPolicy": {"numNodes": None, "torch": {}}, "podGroupPolicy": None,
        "template": {"spec": {"replicatedJobs": [{"name": None, "template": {
            "metadata": {"labels": None}, "spec": {"template": POD}}}]}}},
    ("kubeflow.org/v2beta1", "MPIJob"): {
        "launcherCreationPolicy": None, "mpiImplementation": None, "slotsPerWorker": None, "sshAuthMountPath": None,
        "runLauncherAsWorker": None, "mpiReplicaSpecs": {"Launcher": REPLICAS, "Worker": REPLICAS},
        "runPolicy": {"activeDeadlineSeconds": None, "backoffLimit": None, "cleanPodPolicy": None, "managedBy": None,
                      "schedulingPolicy": None, "suspend": None, "ttlSecondsAfterFinished": None}},
}


def unknown_fields(value, fields, path=""):
    """Paths of the fields that the schema does not have. None in the schema: anything."""
    if fields is None:
        return []
    if isinstance(fields, list):
        return [fault for i, item in enumerate(value) for fault in unknown_fields(item, fields[0], f"{path}[{i}]")]
    return [fault for key, item in value.items()
            for fault in (unknown_fields(item, fields[key], f"{path}.{key}") if key in fields else [f"{path}.{key}"])]


class Scripts(program.ProgramTest):
    def run_script(self, script, launcher, *words, code=0, **env):
        """Runs a script with a stand-in for its launcher, which prints its arguments. Returns them."""
        folder = self.path("bin-" + script)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, launcher), "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        os.chmod(file.name, 0o755)
        done = subprocess.run([os.path.join(CLOUD, script), *words], capture_output=True, text=True, timeout=60,
                              env=dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}", **env))
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout.splitlines() if code == 0 else done.stderr

    def test_torchrun(self):
        words = self.run_script("torchrun", "torchrun", "--data", "a b.jsonl", HOST="a", HOSTS="2")
        self.assertEqual(words[words.index("--no-python"):], ["--no-python", "offload-train", "--data", "a b.jsonl"])
        self.assertEqual(words[words.index("--nnodes") + 1], "2")
        self.assertEqual(words[words.index("--rdzv-endpoint") + 1], "a:29500")
        self.assertIn("HOST", self.run_script("torchrun", "torchrun", code=1))

    def test_slurm(self):
        words = self.run_script("slurm", "srun", "--data", "a b.jsonl", SLURM_CPUS_PER_TASK="7")
        self.assertEqual(words[-3:], ["offload-train", "--data", "a b.jsonl"])
        self.assertEqual(words[words.index("--cpus-per-task") + 1], "7")

    def test_mpirun(self):
        hosts = self.path("hosts")
        with open(hosts, "w", encoding="utf-8") as file:
            file.write("# all of them\n\nnode-a slots=2\nnode-b:2 # the last\n")
        words = self.run_script("mpirun", "mpirun", hosts, "--data", "a b.jsonl", GPUS="2")
        self.assertEqual(words[-5:], ["offload-train", "--data", "a b.jsonl", "--master", "node-a"])
        self.assertEqual(words[words.index("-n") + 1], "4")
        self.assertEqual(words[words.index("--map-by") + 1], "ppr:2:node")
        self.assertIn("usage", self.run_script("mpirun", "mpirun", "/nowhere/hosts", code=2))

    def test_shellcheck(self):
        if not shutil.which("shellcheck"):
            self.skipTest("shellcheck is not installed: the scripts are not checked")
        done = subprocess.run(["shellcheck", *(os.path.join(CLOUD, name) for name in SCRIPTS)], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)


class Yaml(program.ProgramTest):
    def documents(self, name):
        try:
            import yaml  # no part of the standard library
        except ImportError:
            self.skipTest("PyYAML is not installed: the YAML files are not checked")
        with open(os.path.join(CLOUD, name), encoding="utf-8") as file:
            return {item["kind"]: item for item in yaml.safe_load_all(file)}

    def check_command(self, words):
        """The options exist."""
        known = set(re.findall(r"--[a-z-]+", program.run("--help", "all").out))
        options = [word for word in words if word.startswith("--")]
        self.assertGreater(len(options), 2)
        self.assertEqual([word for word in options if word not in known], [])

    def test_fields(self):
        kinds = []
        for name in ("trainjob.yaml", "mpijob.yaml"):
            for item in self.documents(name).values():
                kinds.append(item["kind"])
                self.assertEqual(unknown_fields(item["spec"], FIELDS[item["apiVersion"], item["kind"]]), [])
                self.assertEqual(item["metadata"]["name"], "offload-train")
        self.assertEqual(sorted(kinds), ["MPIJob", "TrainJob", "TrainingRuntime"])

    def test_the_test_sees_unknown_fields(self):
        fields = {"a": {"b": None}, "c": [{"d": None}]}
        self.assertEqual(unknown_fields({"a": {"b": {"x": 1}, "y": 2}, "c": [{"d": 1}, {"z": 3}]}, fields), [".a.y", ".c[1].z"])

    def test_trainjob(self):
        documents = self.documents("trainjob.yaml")
        job, runtime = documents["TrainJob"]["spec"], documents["TrainingRuntime"]
        self.assertEqual(job["runtimeRef"]["name"], runtime["metadata"]["name"])
        self.assertEqual(job["trainer"]["numNodes"], 4)
        node = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]
        self.assertEqual(node["template"]["metadata"]["labels"], {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"})
        self.assertEqual(node["template"]["spec"]["template"]["spec"]["containers"][0]["name"], "node")
        self.assertEqual(job["trainer"]["command"], ["offload-train"])
        self.check_command(job["trainer"]["args"])

    def test_mpijob(self):
        job = self.documents("mpijob.yaml")["MPIJob"]
        launcher, worker = (job["spec"]["mpiReplicaSpecs"][kind] for kind in ("Launcher", "Worker"))
        words = launcher["template"]["spec"]["containers"][0]["args"]
        self.assertEqual(words[words.index("-n") + 1], str(worker["replicas"]))
        self.assertEqual(words[words.index("--master") + 1], "{0}-worker-0.{0}".format(job["metadata"]["name"]))
        self.check_command(words[words.index("offload-train"):])


if __name__ == "__main__":
    program.main()
