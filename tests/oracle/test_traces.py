"""How a trace is made of the allocator's history, and that the committed ones are sound."""
import json
import unittest

from oracle import TRACES, torch_measure as tm, trace


def entry(action, address, size, tag, stream=0):
    return {"action": action, "addr": address, "size": size, "user_metadata": tag,
            "stream": stream}


def mark(address=9):
    return [entry("alloc", address, 1, "mark"), entry("free_requested", address, 1, "mark"),
            entry("free_completed", address, 1, "mark")]


class History(unittest.TestCase):
    #    events: 0 +100 (op 0), 1 +700 (op 1), | 2 -100 after op 1, 3 +50 (op 2), 4 -700 in op 2
    ENTRIES = [entry("segment_alloc", 100, 2 << 20, "0"), entry("alloc", 100, 100, "0"),
               entry("alloc", 1000, 700, "1"), *mark(), entry("free_requested", 100, 100, "1+"),
               entry("free_completed", 100, 100, "1+"), entry("alloc", 100, 50, "2"),
               entry("free_requested", 1000, 700, "2"), entry("free_completed", 1000, 700, "2")]

    def test_allocations_and_releases_are_numbered_in_order_and_marks_are_not(self):
        rows, marks = tm.intervals(self.ENTRIES)
        self.assertEqual([(r["born"], r["dies"], r["bytes"]) for r in rows],
                         [(0, 2, 100), (1, 4, 700), (3, None, 50)])
        self.assertEqual(marks, [2, 5])

    def test_phases_hold_begin_peak_and_end(self):
        rows, marks = tm.intervals(mark(8) + self.ENTRIES)
        table = tm.phase_table(rows, marks, [(1, "forward"), (1, "backward")])
        # forward: 0 -> 100 -> 800; backward: 800 -> 700 -> 750 -> 50. Blocks of 512: 100 -> 512,
        # 700 -> 1024, 50 -> 512.
        self.assertEqual([(p["begin_bytes"], p["peak_bytes"], p["peak_at"], p["end_bytes"])
                          for p in table], [(0, 800, 1, 800), (800, 800, 2, 50)])
        self.assertEqual([p["peak_block_bytes"] for p in table], [1536, 1536])

    def test_blocks_that_were_live_before_count_from_the_start(self):
        rows, marks = tm.intervals(
            mark(8) + self.ENTRIES,
            [{"born": -1, "dies": None, "bytes": 5000, "address": 5, "asked": "",
              "released": None}])
        table = tm.phase_table(rows, marks, [(1, "forward"), (1, "backward")])
        self.assertEqual([p["peak_bytes"] for p in table], [5800, 5800])

    def test_releases_without_an_order_are_put_in_order_of_birth(self):
        def history(order):
            return [entry("alloc", a, 8 * a, "0") for a in (1, 2, 3)] + \
                [entry("free_requested", a, 8 * a, "0+") for a in order]
        for order in ((1, 2, 3), (3, 1, 2), (2, 3, 1)):
            rows, _ = tm.intervals(history(order))
            self.assertEqual([r["dies"] for r in rows], [3, 4, 5])

    def test_releases_with_something_between_keep_their_order(self):
        rows, _ = tm.intervals([entry("alloc", 1, 8, "0"), entry("alloc", 2, 8, "0"),
                                entry("free_requested", 2, 8, "0+"), entry("alloc", 3, 8, "1"),
                                entry("free_requested", 1, 8, "1+")])
        self.assertEqual([r["dies"] for r in rows], [4, 2, None])
        rows, _ = tm.intervals([entry("alloc", 1, 8, "0"), entry("alloc", 2, 8, "0"),
                                entry("free_requested", 2, 8, "0+"),
                                entry("free_requested", 1, 8, "1")])   # another operator
        self.assertEqual([r["dies"] for r in rows], [3, 2])

    def test_an_address_inside_a_block_owns_the_block(self):
        rows, marks = tm.intervals(mark(8) + self.ENTRIES + mark())
        tm.assign_owners(rows, marks, [(1, 1300, "gradient", "w", "fp32", [4]),
                                       (1, 1500, "gradient", "b", "fp32", [2]),
                                       (1, 100, "parameter", "p", "fp32", [1])])
        # At mark 1 (event 2) the block 1000..1700 is live; address 100 at the end is the 50 bytes.
        self.assertEqual([(r.get("role"), r.get("label")) for r in rows],
                         [(None, None), ("gradient", "w, b"), ("parameter", "p")])

    def test_blocks_are_multiples_of_512(self):
        self.assertEqual([tm.block_bytes(n) for n in (1, 512, 513, 1 << 20, (1 << 20) + 1)],
                         [512, 512, 1024, 1 << 20, 1049088])


class Text(unittest.TestCase):
    def test_the_text_is_json_with_a_row_on_each_line(self):
        document = {"schema": "x", "rows": [[1, None], [2, "a"]], "none": [], "o": {"k": [1]}}
        text = tm.to_text(document)
        self.assertEqual(json.loads(text), document)
        self.assertIn("\n[1,null],\n[2,\"a\"]\n", text)


class Committed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.documents = {path.stem: json.loads(path.read_text())
                         for path in sorted(TRACES.glob("*.json"))}

    def test_each_case_has_its_file_and_each_file_its_case(self):
        self.assertEqual(sorted(tm.trace_cases()), sorted(self.documents))

    def test_each_file_records_the_workload_of_its_case(self):
        for name, wanted in tm.trace_cases().items():
            with self.subTest(name):
                self.assertEqual(self.documents[name]["workload"], wanted)

    def test_the_summary_is_that_of_the_files(self):
        rows = [tm.trace_summary(self.documents[name]) for name in sorted(self.documents)]
        text = (TRACES / "SUMMARY.md").read_text()
        for row in rows:
            line = "| " + " | ".join(row) + " |\n"
            self.assertTrue(line in text, line)

    def test_phases_follow_from_the_rows(self):
        for name, document in self.documents.items():
            with self.subTest(name):
                self.check_phases(document)

    def check_phases(self, document):
        last = max(p["step"] for p in document["phases"])
        phases = [p for p in document["phases"] if p["step"] == last]
        change = {}
        for dies, size, *_ in document["initial"]:
            if dies is not None:
                change[dies] = -size
        for born, dies, size, *_ in document["allocations"]:
            self.assertNotIn(born, change)
            change[born] = size
            if dies is not None:
                self.assertGreater(dies, born)
                self.assertNotIn(dies, change)
                change[dies] = -size
        live = sum(row[1] for row in document["initial"])
        for phase in phases:
            self.assertEqual(phase["begin_bytes"], live)
            peak = live
            for position in range(phase["begin"], phase["end"]):
                live += change.pop(position)
                peak = max(peak, live)
            self.assertEqual((phase["peak_bytes"], phase["end_bytes"]), (peak, live))
        self.assertEqual(change, {})

    def test_what_is_saved_is_alive_when_it_was_read(self):
        for name, document in self.documents.items():
            at = next(p["begin"] for p in document["phases"] if p["phase"] == "saved")
            rows = document["allocations"]
            for _, _, field, row, state, size, _, _ in document["saved"]:
                if row is None:
                    continue
                born, dies, bytes_ = rows[row][:3]
                self.assertTrue(born < at <= dies, f"{name} {field}")
                self.assertEqual(bytes_, size)

    def test_gradients_are_as_large_as_their_parameters(self):
        document = trace("llama-a-bf16")
        parameters = {row[5]: row[1] for row in document["initial"] if row[4] == "parameter"}
        gradients = {row[9]: row[2] for row in document["allocations"] if row[8] == "gradient"}
        self.assertEqual(parameters, gradients)

    def test_a_llama_layer_saves_what_its_operators_need(self):
        # bf16 weights and residual, flash attention, per token: each RMSNorm 4h (x in fp32) + 2h
        # (normalised) + 2h (output) + 4 (rsqrt); q 2h, k and v 2kv each; attention's output 2h,
        # logsumexp 4a; gate, silu(gate), up and their product 2f each:
        # 20h + 4kv + 8f + 4a + 8. llama-a: h 256, kv 4*32, f 704, a 8 -> 11304.
        # Once per layer: FlashAttention's seed and offset, 16 bytes, and 8 unused: 24 for 128
        # tokens.
        row = tm.trace_summary(trace("llama-a-bf16"))
        self.assertEqual(row[1], f"{11304 + 24 / 128:,.1f}")
        # llama-b: h 384, kv 2*64, f 1000, a 6 -> 16224; 264 tokens.
        self.assertEqual(tm.trace_summary(trace("llama-b-bf16"))[1], f"{16224 + 24 / 264:,.1f}")

    def test_foreach_adamw_needs_one_more_copy_of_the_parameters(self):
        # The square root of all second moments at once (torch/optim/adamw.py, _multi_tensor_adam):
        # the optimizer's peak is parameters + gradients + two moments + one = 5 x 2 bytes in bf16,
        # and 4 with the fused kernel, beside what is there anyway.
        for name, copies in (("llama-a-bf16", 5), ("llama-a-bf16-fused", 4)):
            document = trace(name)
            parameters = sum(r[1] for r in document["initial"] if r[4] == "parameter")
            others = sum(r[1] for r in document["initial"]
                         if r[4] in ("buffer", "input") or r[4].startswith("scratch"))
            steps = sum(r[1] for r in document["initial"] if r[5].startswith("step "))
            last = max(p["step"] for p in document["phases"])
            peak = next(p["peak_bytes"] for p in document["phases"]
                        if p["step"] == last and p["phase"] == "optimizer")
            loss = 4
            self.assertEqual(peak, copies * parameters + others + steps + loss, name)

    def test_ddp_keeps_buckets_beside_the_gradients_unless_they_are_views(self):
        plain, ddp, view = (trace(f"llama-a-{n}") for n in ("mixed", "ddp-w8", "ddp-w8-view"))

        def resident(document):
            last = max(p["step"] for p in document["phases"])
            return next(p["begin_bytes"] for p in document["phases"] if p["step"] == last)

        gradients = sum(r[2] for r in plain["allocations"] if r[8] == "gradient")
        self.assertEqual(resident(ddp) - resident(plain), gradients)
        self.assertEqual(resident(view) - resident(plain), gradients)
        kept = [row for row in view["initial"] if row[4] == "gradient"]
        self.assertEqual(sum(row[1] for row in kept), gradients)


if __name__ == "__main__":
    unittest.main()
