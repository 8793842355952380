"""What tests of the program share: a folder, a tiny model, what a refusal looks like."""
import pathlib
import tempfile
import unittest

TINY = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_embd": 16,
        "n_head": 4, "n_positions": 64, "vocab_size": 32}


class Case(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def assert_refused(self, result, *parts, status=2):
        """One short message on standard error, nothing on standard output."""
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertTrue(result.stderr.startswith("plimsoll: "), result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertLess(len(result.stderr), 600, result.stderr[:2000])
        for part in parts:
            self.assertIn(part, result.stderr)
