#!/usr/bin/env python3
"""The GPU catalog and the overhead entries keep what their README promises.

Run with: python3 -m unittest discover -s tests/python
"""

import json
import pathlib
import re
import unittest

SPECS = pathlib.Path(__file__).resolve().parents[2] / "models" / "specs"
MIB = 1 << 20
GIB = 1 << 30
GPU_KEYS = [
    "id", "name", "aliases", "vendor", "family", "cc", "nominal_bytes", "smi_bytes", "smi_src",
    "cuda_bytes", "cuda_precision_bytes", "cuda_basis", "cuda_src", "cuda_driver", "peak_flops",
    "peak_src", "memory_bytes_per_second", "link", "link_bytes_per_second", "host",
    "host_bytes_per_second", "tdp_watts", "sms", "src", "note",
]
OVERHEAD_KEYS = [
    "name", "stack", "family", "torch", "low", "typical", "high", "per", "where", "basis", "src",
    "formula", "note",
]
DTYPES = ["fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4"]


def refuse_duplicates(pairs):
    keys = [key for key, _ in pairs]
    repeated = {key for key in keys if keys.count(key) > 1}
    if repeated:
        raise ValueError(f"repeated keys: {sorted(repeated)}")
    return dict(pairs)


def read(name):
    return json.loads((SPECS / name).read_text(encoding="ascii"),
                      object_pairs_hook=refuse_duplicates)


class GpuCatalog(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.document = read("gpus.json")
        cls.gpus = cls.document["gpus"]
        cls.by_id = {gpu["id"]: gpu for gpu in cls.gpus}

    def test_every_record_has_the_same_keys_in_the_same_order(self):
        for gpu in self.gpus:
            with self.subTest(gpu=gpu["id"]):
                self.assertEqual(list(gpu), GPU_KEYS)
                self.assertEqual(list(gpu["peak_flops"]), DTYPES)

    def test_at_least_fifty_gpus_of_every_promised_generation(self):
        self.assertGreaterEqual(len(self.gpus), 50)
        families = {gpu["family"] for gpu in self.gpus}
        self.assertEqual(families, {
            "volta", "turing", "ampere", "ada", "hopper", "blackwell", "blackwell-rtx", "cdna2",
            "cdna3", "cdna4"})

    def test_ids_and_aliases_are_lower_case_and_name_one_gpu(self):
        names = [name for gpu in self.gpus for name in [gpu["id"], *gpu["aliases"]]]
        repeated = sorted({name for name in names if names.count(name) > 1})
        self.assertEqual(repeated, [])
        for name in names:
            self.assertRegex(name, r"^[a-z0-9]+(-[a-z0-9]+)*$")

    def test_common_aliases_reach_the_card_a_user_means(self):
        owner = {alias: gpu["id"] for gpu in self.gpus for alias in gpu["aliases"]}
        for alias, gpu in {
                "h100": "h100-sxm-80gb", "h200": "h200-sxm-141gb", "a100": "a100-sxm-80gb",
                "a100-80gb": "a100-sxm-80gb", "a100-40gb": "a100-sxm-40gb", "4090": "rtx-4090",
                "rtx4090": "rtx-4090", "3090": "rtx-3090", "5090": "rtx-5090",
                "v100-32gb": "v100-sxm-32gb", "v100-16gb": "v100-sxm-16gb", "a6000": "rtx-a6000",
                "b200": "b200-sxm-180gb", "gb200": "gb200-186gb", "b300": "b300-sxm-288gb",
                "h20": "h20-sxm-96gb", "gh200": "gh200-96gb", "mi300": "mi300x"}.items():
            self.assertEqual(owner.get(alias), gpu)

    def test_every_source_id_exists_and_every_source_is_used(self):
        used = {gpu[key] for gpu in self.gpus
                for key in ("smi_src", "cuda_src", "peak_src", "src") if gpu[key] is not None}
        self.assertEqual(used, set(self.document["sources"]))
        for gpu in self.gpus:
            with self.subTest(gpu=gpu["id"]):
                self.assertEqual(gpu["smi_bytes"] is None, gpu["smi_src"] is None)
                self.assertIsNotNone(gpu["cuda_src"])
                self.assertIsNotNone(gpu["src"])

    def test_nothing_reports_more_memory_than_the_layer_below_it(self):
        for gpu in self.gpus:
            with self.subTest(gpu=gpu["id"]):
                self.assertEqual(gpu["nominal_bytes"] % GIB, 0)
                self.assertLessEqual(gpu["cuda_bytes"], gpu["nominal_bytes"])
                if gpu["smi_bytes"] is not None:
                    self.assertEqual(gpu["smi_bytes"] % MIB, 0)
                    self.assertLessEqual(gpu["smi_bytes"], gpu["nominal_bytes"])
                    self.assertLessEqual(gpu["cuda_bytes"], gpu["smi_bytes"])
                    # ECC on GDDR takes a sixteenth (6.25 %), B300 hides 6.7 %: nothing hides 12 %
                    self.assertGreaterEqual(gpu["smi_bytes"], 0.88 * gpu["nominal_bytes"])
                    # the driver keeps up to 1.1 GiB for itself, and 6 % of a 10 GB card
                    self.assertLess(gpu["smi_bytes"] - gpu["cuda_bytes"], 2 * GIB)
                    self.assertGreaterEqual(gpu["cuda_bytes"], 0.92 * gpu["smi_bytes"])

    def test_an_assumed_capacity_names_what_it_was_assumed_from(self):
        for gpu in self.gpus:
            with self.subTest(gpu=gpu["id"]):
                self.assertIn(gpu["cuda_basis"], {"measured", "published", "assumed"})
                assumed = gpu["cuda_basis"] == "assumed"
                self.assertEqual(assumed, gpu["cuda_src"] == "assumed")
                self.assertEqual(assumed, gpu["cuda_precision_bytes"] is None)
                named = re.search(r"reserve of ([a-z0-9-]+)", gpu["note"])
                if named:
                    other = self.by_id[named.group(1)]
                    self.assertNotEqual(other["cuda_basis"], "assumed")
                    reserve = -(-(other["smi_bytes"] - other["cuda_bytes"]) // MIB)
                    self.assertEqual(gpu["cuda_bytes"], gpu["smi_bytes"] - reserve * MIB)

    def test_sourced_totals_have_the_precision_of_their_source(self):
        for gpu in self.gpus:
            with self.subTest(gpu=gpu["id"]):
                if gpu["cuda_src"] == "device-query":
                    self.assertEqual(gpu["cuda_precision_bytes"], 0)
                if gpu["cuda_src"] in ("torch-oom", "ml-eng-oom"):
                    # two decimals of a GiB, rounded down to a byte
                    hundredths = gpu["cuda_bytes"] * 100 / GIB
                    self.assertAlmostEqual(hundredths, round(hundredths), places=6)
                    self.assertEqual(gpu["cuda_precision_bytes"], GIB // 200)

    def test_peaks_rise_from_wide_to_narrow_types_by_factors_of_two(self):
        for gpu in self.gpus:
            with self.subTest(gpu=gpu["id"]):
                peak = gpu["peak_flops"]
                self.assertIsNotNone(peak["fp32"])
                self.assertIsNotNone(peak["fp16"])
                ladder = [peak[key] for key in ("tf32", "bf16", "fp8", "fp4")
                          if peak[key] is not None]
                self.assertEqual(ladder, sorted(ladder))
                if peak["bf16"] is not None:
                    self.assertEqual(peak["bf16"], peak["fp16"])
                for wide, narrow in (("tf32", "bf16"), ("bf16", "fp8")):
                    if peak[wide] is not None and peak[narrow] is not None:
                        self.assertAlmostEqual(peak[narrow] / peak[wide], 2, delta=0.03)

    def test_types_are_absent_where_the_silicon_lacks_them(self):
        for gpu in self.gpus:
            with self.subTest(gpu=gpu["id"]):
                peak, family = gpu["peak_flops"], gpu["family"]
                self.assertEqual(peak["bf16"] is None, family in ("volta", "turing"))
                self.assertEqual(peak["fp8"] is None,
                                 family in ("volta", "turing", "ampere", "cdna2"))
                self.assertEqual(peak["fp4"] is not None,
                                 family in ("blackwell", "blackwell-rtx", "cdna4"))
                self.assertEqual(peak["tf32"] is None,
                                 family in ("volta", "turing", "cdna2", "cdna4"))

    def test_tensor_peaks_are_sms_times_a_boost_clock_a_card_can_have(self):
        # bf16 (fp16) FLOP per clock and SM, fp32 accumulate: architecture white papers
        rate = {("volta", "7.0"): 1024, ("ampere", "8.0"): 2048, ("hopper", "9.0"): 4096,
                ("blackwell", "10.0"): 8192, ("blackwell", "10.3"): 8192, ("cdna2", "gfx90a"): 1024,
                ("cdna3", "gfx942"): 2048, ("cdna4", "gfx950"): 4096}
        for gpu in self.gpus:
            with self.subTest(gpu=gpu["id"]):
                per_clock = rate.get((gpu["family"], gpu["cc"]))
                # the export card runs a cut-down tensor rate
                if per_clock is None or gpu["sms"] is None or gpu["id"] == "h20-sxm-96gb":
                    continue
                clock = gpu["peak_flops"]["fp16"] / (gpu["sms"] * per_clock)
                self.assertGreater(clock, 1.3e9)
                self.assertLess(clock, 2.5e9)

    def test_links_and_bandwidths_are_one_direction(self):
        # NVLink generations 2 to 5 of a whole SXM module: 150, 300, 450, 900 GB/s one way
        ceiling = {"nvlink2": 150e9, "nvlink3": 300e9, "nvlink4": 450e9, "nvlink5": 900e9}
        host = {"pcie3": 16e9, "pcie4": 32e9, "pcie4x8": 16e9, "pcie5": 64e9, "pcie6": 128e9}
        for gpu in self.gpus:
            with self.subTest(gpu=gpu["id"]):
                self.assertEqual(gpu["link"] is None, gpu["link_bytes_per_second"] is None)
                if gpu["link"] and gpu["link"].startswith("nvlink"):
                    self.assertLessEqual(gpu["link_bytes_per_second"], ceiling[gpu["link"][:7]])
                if gpu["host"] in host:
                    self.assertEqual(gpu["host_bytes_per_second"], host[gpu["host"]])
                self.assertGreater(gpu["memory_bytes_per_second"], 250e9)
                self.assertLessEqual(gpu["memory_bytes_per_second"], 8e12)
                self.assertGreaterEqual(gpu["tdp_watts"], 70)

    def test_known_values(self):
        # H100 SXM: 132 SMs x 1830 MHz x 4096 = 989.4e12; data sheet 3.35 TB/s, NVLink 900 both ways
        h100 = self.by_id["h100-sxm-80gb"]
        self.assertEqual(h100["peak_flops"]["bf16"], 989.4e12)
        self.assertEqual(h100["memory_bytes_per_second"], 3350e9)
        self.assertEqual(h100["link_bytes_per_second"], 450e9)
        self.assertEqual(h100["smi_bytes"], 81559 * 1048576)
        # A100: 108 SMs x 1410 MHz x 2048 = 312e12
        self.assertEqual(self.by_id["a100-sxm-80gb"]["peak_flops"]["bf16"], 312e12)
        # H200: 143771 MiB in nvidia-smi, 139.80 GiB in PyTorch's messages
        h200 = self.by_id["h200-sxm-141gb"]
        self.assertEqual(h200["smi_bytes"], 150754820096)
        self.assertEqual(f"{h200['cuda_bytes'] / 2**30:.2f}", "139.80")
        # RTX 4090: 23.52 GiB in PyTorch's messages; 128 SMs x 2520 MHz x 512 = 165.2e12
        rtx4090 = self.by_id["rtx-4090"]
        self.assertEqual(f"{rtx4090['cuda_bytes'] / 2**30:.2f}", "23.52")
        self.assertEqual(rtx4090["peak_flops"]["bf16"], 165.2e12)
        # MI300X: 304 CUs x 2100 MHz x 2048 = 1307.4e12
        self.assertEqual(self.by_id["mi300x"]["peak_flops"]["bf16"], 1307.4e12)


class Overheads(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.document = read("overheads.json")
        cls.entries = cls.document["entries"]
        cls.families = {gpu["family"] for gpu in read("gpus.json")["gpus"]}

    @staticmethod
    def label(entry):
        return (entry["name"], entry["stack"], entry["family"], entry["torch"])

    def one(self, name, stack, family):
        found = [e for e in self.entries
                 if (e["name"], e["stack"], e["family"]) == (name, stack, family)]
        return found[0]

    def test_every_entry_has_the_same_keys_in_the_same_order(self):
        for entry in self.entries:
            with self.subTest(entry=self.label(entry)):
                self.assertEqual(list(entry), OVERHEAD_KEYS)

    def test_entries_are_unique(self):
        keys = [self.label(entry) for entry in self.entries]
        self.assertEqual(len(keys), len(set(keys)))

    def test_every_entry_is_a_range_with_a_basis_and_an_existing_source(self):
        self.assertEqual({e["src"] for e in self.entries}, set(self.document["sources"]))
        for entry in self.entries:
            with self.subTest(entry=self.label(entry)):
                self.assertIn(entry["basis"], {"derived", "measured", "assumed"})
                self.assertIn(entry["where"], {"device", "allocator", "count"})
                self.assertIn(entry["family"], self.families | {"nvidia", "amd", "any"})
                self.assertIn(entry["stack"], {"pytorch", "deepspeed", "plimsoll", "any"})
                bounds = [entry["low"], entry["typical"], entry["high"]]
                if entry["typical"] is None:
                    self.assertEqual(bounds, [None, None, None])
                    self.assertTrue(entry["formula"])
                else:
                    self.assertEqual(bounds, sorted(bounds))
                    self.assertGreaterEqual(bounds[0], 0)

    def test_every_family_has_a_context_under_pytorch_and_nvidia_also_under_our_runtime(self):
        def families(stack):
            return {e["family"] for e in self.entries
                    if e["name"] == "context" and e["stack"] == stack}
        self.assertEqual(families("pytorch"), self.families)
        self.assertEqual(families("plimsoll"),
                         {f for f in self.families if not f.startswith("cdna")})

    def test_our_runtime_needs_no_more_context_than_pytorch(self):
        for family in sorted(self.families):
            if family.startswith("cdna"):
                continue
            with self.subTest(family=family):
                self.assertLessEqual(self.one("context", "plimsoll", family)["typical"],
                                     self.one("context", "pytorch", family)["typical"])

    def test_cublas_workspaces_are_torchs_defaults(self):
        # CUBLAS_WORKSPACE_CONFIG :4096:2:16:8 = 4096 KiB * 2 + 16 KiB * 8; Hopper 4096 KiB * 8
        for family in ("volta", "turing", "ampere", "ada", "blackwell", "blackwell-rtx"):
            self.assertEqual(self.one("cublas_workspace", "pytorch", family)["typical"], 8519680)
        self.assertEqual(self.one("cublas_workspace", "pytorch", "hopper")["typical"], 33554432)
        self.assertEqual(self.one("cublaslt_workspace", "pytorch", "nvidia")["typical"], 1048576)

    def test_nccl_sizes_follow_from_its_buffer_sizes(self):
        # LL 524288 + LL128 4915200 + SIMPLE 4194304 = 9633792 B, in 2 MiB pages: 10 MiB; the
        # sender's page: 2 MiB
        pages = -(-(524288 + 4915200 + 4194304) // (2 * MIB))
        self.assertEqual(self.one("nccl_connection", "any", "nvidia")["typical"],
                         (pages + 1) * 2 * MIB)
        # 16 channels * 2 (reduce, broadcast) * 8 steps * 128 KiB
        self.assertEqual(self.one("nccl_nvls", "any", "hopper")["typical"], 32 * MIB)
        # the formula for 8 ranks with a ring, a tree and NVLS lies inside the measured range
        channels = self.one("nccl_channels", "any", "hopper")["typical"]
        connections = self.one("nccl_connections", "any", "nvidia")["typical"]
        formula = channels * connections * 12 * MIB + 8 * 32 * MIB
        envelope = self.one("nccl_communicator", "any", "hopper")
        self.assertLess(envelope["low"], formula)
        self.assertLess(formula, envelope["high"])


class Size(unittest.TestCase):
    def test_both_files_stay_small_enough_to_parse_at_every_start(self):
        total = sum((SPECS / name).stat().st_size for name in ("gpus.json", "overheads.json"))
        self.assertLess(total, 60_000)


if __name__ == "__main__":
    unittest.main()
