"""src/options/embed-topics makes a C file of the help topics, and refuses a text that it would misread.

Usage: test_topics.py EMBED_TOPICS TOPIC.txt... commands/COMMAND.txt...
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

EMBED, *TOPICS = sys.argv[1:]
del sys.argv[1:]


class Topics(unittest.TestCase):
    def embed(self, text, room="topics"):
        """Returns the exit code, and the C file or the message."""
        with tempfile.TemporaryDirectory() as base:
            folder = os.path.join(base, room)
            os.mkdir(folder)
            path, out = os.path.join(folder, "tides.txt"), os.path.join(folder, "out.c")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            done = subprocess.run([EMBED, out, path], capture_output=True, text=True)
            if done.returncode:
                return done.returncode, done.stderr.replace(folder + "/", "")
            with open(out, encoding="utf-8") as file:
                return 0, file.read()

    def test_every_text_in_the_folder_is_a_topic(self):
        """The build lists the files by name, so a new file could be forgotten."""
        root = os.path.dirname(EMBED)
        found = [os.path.join(root, folder, name) for folder in ("commands", "topics") for name in os.listdir(os.path.join(root, folder))]
        self.assertEqual(sorted(found), sorted(TOPICS))

    def test_blocks(self):
        code, c = self.embed('Tides\n\nTwo lines,\none "paragraph".\n\nspring\n    High,\n    at new moon.\nneap\n    Low.\n\n'
                             '    cmd \\\n      -x\n\n    more\n\nEnd.\n')
        self.assertEqual(code, 0, c)
        found = re.findall(r"^    \{(.*)\},$", c, re.MULTILINE)
        self.assertEqual(found, [r'NULL, "Two lines, one \"paragraph\"."', '"spring", "High, at new moon."', '"neap", "Low."',
                                 r'"", "cmd \\\n  -x\n\nmore"', 'NULL, "End."', '"tides", "Tides", blocks_0, 5'])

    def test_faults_are_refused_with_their_line(self):
        for text, message in (("Tides\n\nA caf\u00e9.\n", ":3: a line is printable ASCII"), ("Tides\n\nA\tb.\n", ":3: a line is"),
                              ("Tides\n\nText. \n", ":3: a line is"), ("Tides\n\nterm\n  text\n", ":4: a line is"),
                              ("Tides\nText.\n", ":1: a topic is a title"), ("\n\nText.\n", ":1: a topic"), ("Tides\n", ":1: a topic"),
                              ("Tides\n\nText.", ":1: a topic is"), ("Tides\n\nText.\n\n\nMore.\n", ":5: one empty line is enough"),
                              ("Tides\n\nText.\n\nterm\n    text\nParagraph.\n", ":5: these are not items"),
                              ("Tides\n\nParagraph\nterm\n    text\n", ":3: these are not"), ("Tides\n\n    x\nterm\n    t\n", ":3: these")):
            code, said = self.embed(text)
            self.assertEqual(code, 1, text)
            self.assertTrue(said.startswith("tides.txt" + message), f"{text!r}: {said}")

    def test_the_help_of_a_command_has_examples_and_options(self):
        code, c = self.embed("tides DIR\n\nTells\nthe tides.\n\n    tides a\n    tides b\n\nname\n    what\n", "commands")
        self.assertEqual(code, 0, c)
        table = c.split("ot_command_texts[] = {\n")[1].split("};")[0]
        self.assertEqual(table.strip(), '{"tides", "tides DIR", blocks_0, 3},')
        for text in ("tides DIR\n\nTells.\n", "tides DIR\n\nTells.\n\n    tides a\n\nMore.\n"):
            self.assertEqual(self.embed(text, "commands"),
                             (1, "tides.txt:3: the help of a command is a paragraph, literal lines and items\n"))

    def test_what_options_do_and_answers_to_foreign_ones_are_items(self):
        for folder, table in (("elsewhere", "ot_elsewhere"), ("help", "ot_option_texts")):
            code, c = self.embed("Options\n\na b\n    Use --c.\n", folder)
            self.assertEqual(code, 0, c)
            self.assertIn(f'{table}[] = {{\n    {{"tides", "Options", blocks_0, 1}},\n}};', c)
            self.assertEqual(self.embed("Options\n\nText.\n", folder), (1, f"tides.txt:3: a text of {folder} has items alone\n"))


if __name__ == "__main__":
    unittest.main()
