"""A program on a pseudo-terminal, and what the terminal would show. It knows the few control sequences that
offload-train watch writes, and refuses all others, and text beyond the last column. Standard library only."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unicodedata

SEQUENCE = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])")


class Terminal:
    def __init__(self, words, rows, columns, env=None, cwd=None):
        self.master, self.slave = pty.openpty()
        self.resize(rows, columns, None)
        self.before = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(words, stdin=self.slave, stdout=self.slave, stderr=subprocess.PIPE, cwd=cwd,
                                        env={**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", **(env or {})},
                                        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.pending, self.raw, self.styles = b"", b"", set()
        self.is_other, self.wraps, self.has_cursor = False, True, True
        self.normal = ""  # what was written to the normal screen

    def resize(self, rows, columns, number=signal.SIGWINCH):
        self.rows, self.columns = rows, columns
        self.grid = [[" "] * columns for _ in range(rows)]
        self.row = self.column = 0
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def keys(self, text):
        os.write(self.master, text.encode())

    def lines(self):
        return ["".join(line).rstrip() for line in self.grid]

    def text(self):
        return "\n".join(self.lines())

    def read(self, seconds=0.2):
        """Takes what the program writes, until it pauses. Returns False if the program has ended."""
        while select.select([self.master], [], [], seconds)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return False
            self.raw += data
            self.take(data)
            seconds = 0.03
        return self.process.poll() is None

    def until(self, phrase, seconds=10):
        end = time.monotonic() + seconds
        while phrase not in self.text() and phrase not in self.normal:
            assert time.monotonic() < end and (self.read(0.05) or phrase in self.normal or phrase in self.text()), \
                f"no {phrase!r} in:\n{self.text()}\n{self.normal}"
        return self

    def end(self, seconds=10):
        """Waits for the end of the program. Returns its exit code."""
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.05)
        self.read(0)
        assert self.process.poll() is not None, self.text()
        return self.process.returncode

    def is_restored(self):
        return not self.is_other and self.wraps and self.has_cursor and termios.tcgetattr(self.slave) == self.before

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stderr.close()
        os.close(self.master)
        os.close(self.slave)

    # ---- the terminal ----

    def take(self, data):
        self.pending += data
        try:
            text, self.pending = self.pending.decode(), b""
        except UnicodeDecodeError as error:  # a character that is not whole yet
            text, self.pending = self.pending[:error.start].decode(), self.pending[error.start:]
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                match = SEQUENCE.match(text, at)
                if not match:
                    assert len(text) - at < 12, repr(text[at:at + 20])
                    self.pending = text[at:].encode() + self.pending
                    return
                self.control(*match.groups())
                at = match.end()
                continue
            self.put(text[at])
            at += 1

    def put(self, character):
        if not self.is_other:
            self.normal += character
            return
        assert character >= " ", repr(character)
        width = 2 if unicodedata.east_asian_width(character) in "WF" else 1
        assert self.row < self.rows and self.column + width <= self.columns, f"{self.row}, {self.column}: {character!r}"
        self.grid[self.row][self.column:self.column + width] = [character, ""][:width]
        self.column += width

    def control(self, private, numbers, letter):
        if private:
            value, on = int(numbers), letter == "h"
            assert value in (1049, 25, 7) and letter in "hl", (numbers, letter)
            if value == 1049:
                self.is_other = on
                self.grid = [[" "] * self.columns for _ in range(self.rows)]
            elif value == 7:
                self.wraps = on
            else:
                self.has_cursor = on
        elif letter == "H":
            row, column = (int(n) for n in numbers.split(";"))
            assert 1 <= row <= self.rows and column == 1, numbers
            self.row, self.column = row - 1, 0
        elif letter == "K" and not numbers:
            self.grid[self.row][self.column:] = [" "] * (self.columns - self.column)
        elif (numbers, letter) == ("2", "J"):
            self.grid = [[" "] * self.columns for _ in range(self.rows)]
        elif letter == "m":
            self.styles.add(numbers)
        else:
            raise AssertionError(f"unknown control sequence {numbers}{letter}")
