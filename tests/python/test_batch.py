#!/usr/bin/env python3
"""Many questions: what comes back, in which order, and how it looks."""
import csv
import io
import json
import subprocess
import unittest

from case import TINY, Case
from program import PLIMSOLL, plimsoll


class Batch(Case):
    def answers(self, text, *words):
        result = plimsoll("batch", "-", *words, stdin=text)
        return result, [json.loads(line) for line in result.stdout.splitlines()]

    def test_answers_stand_in_the_order_of_the_questions_and_bad_lines_stop_nothing(self):
        lines = ['{"params": 1e9, "precision": "fp32", "gpu": "h100"}',
                 "nonsense",
                 '{"params": "7.5e9", "gpus": 64, "zero": 3, "gpu": "h100"}',
                 '{"model": "gpt2", "zero": 9}',
                 '{"params": 2e9, "gpu": "h100"}']
        result, answers = self.answers("\n".join(lines) + "\n")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr, "plimsoll: 2 of 5 lines got an error\n")
        self.assertEqual([sum(a["states"].values()) for a in answers if "states" in a],
                         [16e9, 1.875e9, 32e9])
        self.assertEqual(answers[1]["line"], 2)
        self.assertEqual(answers[3]["line"], 4)
        self.assertEqual(answers[3]["error"]["kind"], "bad_input")
        self.assertIn("--zero 9", answers[3]["error"]["message"])

    def test_all_answered_is_success(self):
        result, answers = self.answers('{"params": 1e9, "gpu": "h100"}')
        self.assertEqual((result.returncode, result.stderr, len(answers)), (0, "", 1))

    def test_keys_are_options_with_either_dash(self):
        for key in ["shard_group", "shard-group"]:
            line = json.dumps({"params": 1e9, "zero": 3, "gpus": 8, key: 4, "gpu": "h100"})
            self.assertEqual(self.answers(line)[1][0]["workload"]["strategy"]["shard_group"], 4)
        self.assertIn("did you mean \"shard-group\"",
                      self.answers('{"params": 1, "shardgroup": 4}')[1][0]["error"]["message"])

    def test_hostile_lines_are_answered_one_by_one(self):
        lines = ["[" * 100_000, '{"a":' * 50_000, '{"params": {"a": 1}}', '{"model": 7}',
                 '{"model": ["gpt2"]}', '{"compile": "yes"}', "\x00", '{"params": 1e400}',
                 '{"params": 1e9}\x00', '{"id": [1], "params": 1e9}']
        result, answers = self.answers("\n".join(lines))
        self.assertEqual(len(answers), len(lines))
        self.assertTrue(all(a["error"]["kind"] == "bad_input" for a in answers))

    def test_blank_lines_ask_nothing_and_are_counted(self):
        result, answers = self.answers('\n  \t\r\n{"params": 1e9, "gpu": "h100"}\n\nnonsense\n')
        self.assertEqual(len(answers), 2)
        self.assertEqual(answers[1]["line"], 5)
        self.assertIn("1 of 2 lines got an error", result.stderr)
        self.assertEqual(result.returncode, 2)  # one is enough

    def test_an_id_comes_back_with_the_answer_and_with_an_error(self):
        for given in ("a \"b\"", "\u00e9", 7, 1.5):
            for rest in ({"params": 1e9, "gpu": "h100"}, {"model": "gpt2", "zero": 9}):
                answer = self.answers(json.dumps({**rest, "id": given}))[1][0]
                self.assertEqual((next(iter(answer)), answer["id"]), ("id", given))
        self.assertNotIn("id", self.answers('{"params": 1e9, "id": null}')[1][0])
        # Also where the rest cannot be understood.
        self.assertEqual(self.answers('{"modle": "gpt2", "id": "x"}')[1][0]["id"], "x")

    def test_a_key_that_is_there_twice_is_an_error(self):
        for line in ('{"params": 1e9, "gpus": 1, "gpus": 2}', '{"model": "gpt2", "model": "gpt2"}',
                     '{"params": 1e9, "zero": 3, "gpus": 8, "shard-group": 2, "shard_group": 4}',
                     '{"params": 1e9, "id": 1, "id": 2}'):
            self.assertIn("is there twice", self.answers(line)[1][0]["error"]["message"], line)
        self.answers('{"params": 1e9, "model": null}')  # once each

    FIELDS = "verdict,peak_bytes,model.parameters,ranks.0.count,workload.model.config.n_layer"

    def test_fields_are_those_of_the_plan_in_the_order_that_was_asked(self):
        path = self.write("config.json", json.dumps(TINY))
        line = json.dumps({"model": str(path), "gpu": "h100", "gpus": 2})
        whole = self.answers(line)[1][0]
        result, answers = self.answers(line + "\nnonsense\n" + line[:-1] + ', "id": "b"}',
                                       "--fields", self.FIELDS)
        expected = [("verdict", "fits"), ("peak_bytes", whole["peak_bytes"]),
                    ("model.parameters", whole["model"]["parameters"]), ("ranks.0.count", 2),
                    ("workload.model.config.n_layer", 2)]
        self.assertEqual(list(answers[0].items()), expected)
        self.assertEqual(answers[1]["line"], 2)
        self.assertEqual(list(answers[2].items()), [("id", "b"), *expected])
        # What a plan does not have is null: --params has no peak.
        self.assertEqual(self.answers('{"params": 1e9, "gpu": "h100"}', "--fields",
                                      "peak.phase,peak_bytes,workload.model.config.n_layer")[1],
                         [{"peak.phase": None, "peak_bytes": None,
                           "workload.model.config.n_layer": None}])

    def test_unknown_fields_are_refused_before_anything_is_answered(self):
        for fields, part in (("peak_byte", "did you mean 'peak_bytes'?"),
                             ("verdict,step_seconds", "did you mean 'time.step_seconds'?"),
                             ("time.seconds", "time."), ("ranks.peak_bytes", "ranks"),
                             ("verdict.x", "no field"), ("verdict.", "no field"), ("", "value"),
                             ("verdict,,fits", "missing"), ("fits,fits", "twice"),
                             ("%%%%%%%%%%%%%%%%%%%", "no field")):
            result = plimsoll("batch", "-", "--fields", fields, stdin='{"params": 1e9}')
            self.assert_refused(result, part)

    def test_csv_is_a_table_that_programs_read(self):
        folder = 'a, "b"\n'
        path = self.write(folder + "/config.json", json.dumps(TINY))
        lines = [json.dumps({"model": str(path), "gpu": "h100", "id": "1,2"}), "", "nonsense",
                 '{"params": 1e9, "gpu": "h100"}']
        result = plimsoll("batch", "-", "--csv", "--fields", "model.name,peak_bytes,fits",
                          stdin="\n".join(lines))
        self.assertEqual(result.returncode, 2)
        rows = list(csv.reader(io.StringIO(result.stdout, newline="")))
        self.assertEqual(rows[0], ["line", "id", "model.name", "peak_bytes", "fits", "error"])
        self.assertEqual((rows[1][:3], rows[1][4:]), (["1", "1,2", str(path)], ["true", ""]))
        self.assertGreater(int(rows[1][3]), 0)
        self.assertEqual(rows[2], ["3", "", "", "", "", "not JSON"])
        self.assertEqual(rows[3], ["4", "", "", "", "", ""])
        self.assertEqual(len(rows), 4)
        usual = list(csv.reader(io.StringIO(plimsoll("batch", "-", "--csv", stdin="").stdout)))
        self.assertEqual(usual[0][:4], ["line", "id", "verdict", "peak_bytes"])
        self.assert_refused(plimsoll("batch", "-", "--csv", "--json", "x"), "--csv with --json")

    def test_a_table_of_questions_is_answered_as_its_lines_are(self):
        table = ('\ufeffid,model,gpu,micro_batch,compile,lora_targets,lora_rank\r\n'
                 'a,gpt2,4090,8,no,,\r\n'
                 '"b ""1"", x",gpt2,h100,,,"c_attn,c_proj",8\r\n'
                 'c,gpt2,h100\r\n"d\r\ne,gpt2,"h100"x,,,,\r\nf,gpt2,h100,8,perhaps,,\r\n')
        result, answers = self.answers(table, "--fields", "peak_bytes")
        lines = [{"id": "a", "model": "gpt2", "gpu": "4090", "micro_batch": 8},
                 {"id": 'b "1", x', "model": "gpt2", "gpu": "h100", "lora_rank": 8,
                  "lora_targets": ["c_attn", "c_proj"]}]
        self.assertEqual(answers[:2],
                         self.answers("\n".join(map(json.dumps, lines)), "--fields", "peak_bytes")[1])
        self.assertEqual([(a["line"], a["error"]["kind"]) for a in answers[2:]],
                         [(line, "bad_input") for line in (4, 5, 6, 7)])
        self.assertIn("3 cells, and the first row has 7", answers[2]["error"]["message"])
        # A first line that is no such row is a question like any other.
        for first in ("model", "model,gpux", "gpu,zero", "nonsense"):
            self.assertEqual(len(self.answers(first + "\n")[1]), 0 if first == "model" else 1, first)

    def test_answers_are_the_same_on_any_number_of_threads(self):
        path = self.write("config.json", json.dumps(TINY))
        lines = [json.dumps({"id": i, "model": str(path), "gpu": "h100", "micro_batch": 1 + i % 7})
                 if i % 11 else "nonsense" for i in range(700)]
        texts = [plimsoll("batch", "-", "--threads", n, stdin="\n".join(lines)).stdout
                 for n in (1, 2, 5)]
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(texts[0], texts[2])
        self.assertEqual([json.loads(line).get("id", "x") for line in texts[0].splitlines()][:13],
                         ["x", *range(1, 11), "x", 12])

    def test_markdown_and_html_have_the_same_cells(self):
        path = self.write("a|b`<i>/config.json", json.dumps(TINY))
        lines = json.dumps({"model": str(path), "gpu": "h100", "id": "<b>"}) + "\nnonsense\n"
        fields = ("--fields", "model.name,peak_bytes,fits")
        peak = self.answers(lines, *fields)[1][0]["peak_bytes"]
        rows = plimsoll("batch", "-", "--markdown", *fields, stdin=lines).stdout.splitlines()
        self.assertEqual(rows[0], "| line | id | model.name | peak_bytes | fits | error |")
        self.assertIn(f"| {peak} | true |  |", rows[2])
        self.assertIn("a\\|b\\`\\<i>", rows[2])
        self.assertEqual(rows[3], "| 2 |  |  |  |  | not JSON |")
        target = self.folder / "page.html"
        self.assertEqual(plimsoll("batch", "-", "--html", target, *fields, stdin=lines).stdout, "")
        page = target.read_text()
        self.assertIn(f'<data value="{peak}"', page)
        self.assertNotIn("<i>", page)
        self.assertNotIn("<b>", page)
        for two in (("--csv", "--markdown"), ("--html", "x", "--csv"), ("--json", "x", "--html", "y")):
            self.assert_refused(plimsoll("batch", "-", *two, stdin=lines), "give one")

    def test_an_answer_comes_before_the_next_question(self):
        with subprocess.Popen([PLIMSOLL, "batch", "-"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True) as process:
            for count in (1, 2):
                process.stdin.write(json.dumps({"params": count * 1e9, "gpu": "h100"}) + "\n")
                process.stdin.flush()
                answer = json.loads(process.stdout.readline())
                self.assertEqual(answer["model"]["parameters"], count * 10**9)
            process.stdin.close()
            self.assertEqual(process.wait(timeout=10), 0)

    def test_a_file_of_answers_appears_whole(self):
        queries = self.write("queries.jsonl", '{"params": 1e9, "gpu": "h100"}\n' * 3)
        target = self.folder / "answers.jsonl"
        result = plimsoll("batch", queries, "--json", target)
        self.assertEqual((result.returncode, result.stdout), (0, ""))
        self.assertEqual(len(target.read_text().splitlines()), 3)


if __name__ == "__main__":
    unittest.main()
