"""scripts/cloud: the launchers' scripts with stand-ins for the launchers, and the fields of the YAML files."""

import os
import re
import shutil
import signal
import subprocess
import time
import unittest

import program

CLOUD = os.path.join(os.path.dirname(__file__), "..", "..", "scripts", "cloud")
SCRIPTS = ["mpirun", "pod", "slurm", "slurm-array", "torchrun", "../package"]

NO_RESTART = [2, 3, 4, 7]  # codes after which options or files must change first (help exit-codes)

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

    def start_run(self, name, script, *words, **env):
        """Starts a script whose program notes its calls in NAME.calls: it fails twice, or runs until SIGTERM."""
        folder = self.path("bin-" + name)
        os.makedirs(folder, exist_ok=True)
        for tool, lines in (("offload-train", ['printf "%s\\n" "$*" >>"$CALLS"',
                                               "trap 'echo saved >>\"$CALLS\"; exit 10' TERM",
                                               '[ "$MODE" != wrong ] || { echo "error: bad" >&2; exit 2; }',
                                               '[ "$MODE" != long ] || while :; do sleep 0.05; done',
                                               '[ "$(wc -l <"$CALLS")" -ge 3 ] || exit 5']),
                            ("scontrol", ['printf "scontrol %s\\n" "$*" >>"$CALLS"'])):
            with open(os.path.join(folder, tool), "w", encoding="utf-8") as file:
                file.write("#!/bin/bash\n" + "\n".join(lines) + "\n")
            os.chmod(file.name, 0o755)
        calls = self.path(name + ".calls")
        env = dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}", CALLS=calls, PAUSE="0", **env)
        return subprocess.Popen([os.path.join(CLOUD, script), *words], env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
                                text=True), calls

    def stop(self, started, calls):
        while not os.path.exists(calls):
            time.sleep(0.02)
        time.sleep(0.2)  # the stand-in sets its trap
        started.send_signal(signal.SIGTERM)
        started.communicate(timeout=60)
        with open(calls, encoding="utf-8") as file:
            return file.read().splitlines()

    def test_pod(self):
        out = self.path("volume/a run")
        started, calls = self.start_run("flaky", "pod", "--out", out, "--lr", "1", MODE="flaky")
        self.assertIn("is complete", started.communicate(timeout=60)[0])
        self.assertEqual(started.returncode, 0)
        with open(calls, encoding="utf-8") as file:
            self.assertEqual(file.read().splitlines(), [f"--out {out} --lr 1 --grace 30s"] * 3)
        started, _ = self.start_run("wrong", "pod", f"--out={out}", "--grace", "9s", MODE="wrong")
        self.assertIn("error: bad", started.communicate(timeout=60)[1])
        self.assertEqual(started.returncode, 2)
        started, calls = self.start_run("long", "pod", "--out", out, MODE="long", GRACE="7s")
        self.assertEqual(self.stop(started, calls), [f"--out {out} --grace 7s", "saved"])
        self.assertEqual(started.returncode, 10)
        started, _ = self.start_run("none", "pod", "--lr", "1")
        self.assertIn("name the output", started.communicate(timeout=60)[1])

    def test_slurm_array(self):
        runs = self.path("runs.txt")
        with open(runs, "w", encoding="utf-8") as file:
            file.write("--lr 1\n--lr 2 --out b\n")
        ids = {"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "2"}
        started, calls = self.start_run("array", "slurm-array", runs, "--model", "m", MODE="long", **ids)
        self.assertEqual(self.stop(started, calls), ["--model m --lr 2 --out b --grace 4m", "saved", "scontrol requeue 77_2"])
        started, _ = self.start_run("array-end", "slurm-array", runs, MODE="long", **{**ids, "SLURM_ARRAY_TASK_ID": "3"})
        self.assertIn("has no line 3", started.communicate(timeout=60)[1])

    def test_shellcheck(self):
        if not shutil.which("shellcheck"):
            self.skipTest("shellcheck is not installed: the scripts are not checked")
        done = subprocess.run(["shellcheck", *(os.path.join(CLOUD, name) for name in SCRIPTS)], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)


class Files(program.ProgramTest):
    def read(self, name):
        with open(os.path.join(CLOUD, name), encoding="utf-8") as file:
            return file.read()

    def test_service(self):
        text = self.read("offload-train.service")
        self.assertEqual([int(code) for code in re.search("RestartPreventExitStatus=(.*)", text)[1].split()], NO_RESTART)
        self.assertIn(f"SuccessExitStatus={program.STOPPED}\n", text)
        known = program.run("--help", "all").out
        for option in re.findall("--[a-z-]+", re.search("ExecStart=(.*)", text)[1]):
            self.assertIn(option, known)

    def test_dockerfile(self):
        text = re.sub(r"^#.*\n", "", self.read("Dockerfile"), flags=re.M).replace("\\\n", " ")
        lines = [line.split(None, 1) for line in text.splitlines() if line.strip()]
        self.assertLessEqual({word for word, _ in lines}, {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "USER", "STOPSIGNAL", "ENTRYPOINT"})
        self.assertNotIn(dict(lines)["USER"].split(":")[0], ("0", "root"))
        self.assertEqual(dict(lines)["ENTRYPOINT"], '["offload-train"]')
        self.assertTrue(os.path.exists(os.path.join(CLOUD, "..", "install-packages")))


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

    def test_job(self):
        job = self.documents("job.yaml")["Job"]
        pod = job["spec"]["template"]["spec"]
        container = pod["containers"][0]
        self.check_command(container["args"])
        self.assertEqual(job["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"], NO_RESTART)
        self.assertEqual(job["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"]["containerName"], container["name"])
        grace = container["args"][container["args"].index("--grace") + 1]
        self.assertLess(int(grace.rstrip("s")), pod["terminationGracePeriodSeconds"])
        self.assertEqual({mount["name"] for mount in container["volumeMounts"]}, {volume["name"] for volume in pod["volumes"]})

    def test_skypilot(self):
        import yaml
        with open(os.path.join(CLOUD, "skypilot.yaml"), encoding="utf-8") as file:
            task = yaml.safe_load(file)
        self.assertEqual(set(task), {"name", "resources", "file_mounts", "run"})
        self.check_command(task["run"].split())

    def test_mpijob(self):
        job = self.documents("mpijob.yaml")["MPIJob"]
        launcher, worker = (job["spec"]["mpiReplicaSpecs"][kind] for kind in ("Launcher", "Worker"))
        words = launcher["template"]["spec"]["containers"][0]["args"]
        self.assertEqual(words[words.index("-n") + 1], str(worker["replicas"]))
        self.assertEqual(words[words.index("--master") + 1], "{0}-worker-0.{0}".format(job["metadata"]["name"]))
        self.check_command(words[words.index("offload-train"):])


if __name__ == "__main__":
    program.main()
