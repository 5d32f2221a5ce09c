"""Tests of `offload-train plan`: each asks for the same answer as text and as JSON."""

import program


class PlanTest(program.ProgramTest):
    known = {}  # answers about described machines, which are always the same

    def succeed(self, *words, **more):
        """Uses a cache folder of its own, so that no measurement exists before."""
        if words in self.known:
            return self.known[words]
        result = super().succeed(*words, env={"XDG_CACHE_HOME": self.path("cache")}, **more)
        if "--gpu" in words and "--trace" not in words and not more:
            self.known[words] = result
        return result

    def plan(self, *words):
        """Returns the answer as text and as JSON. stderr may have progress only."""
        text = self.succeed(*words)
        answer = self.succeed(*words, "--json").json()
        self.assertRegex(text.err, r"^planned \d+ plans tried in \S+\n$")
        return text.out, answer

    def answer(self, *words):
        return self.succeed(*words, "--json").json()
