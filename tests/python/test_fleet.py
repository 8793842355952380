#!/usr/bin/env python3
"""`plimsoll batch --fleet`: fleets that are solved by hand, and by trying everything."""
import itertools
import json
import random
import unittest

from case import Case
from program import plimsoll
from test_schema import SCHEMA_CHECK, complaint, jsonschema

# 1e9 parameters in fp32 need 4 + 4 + 8 bytes each: 16 GB on one GPU, 16 GB / n under ZeRO 3.
SMALL = {"params": 1e9, "precision": "fp32"}
HAS_SOLVER = "solver CBC" not in plimsoll(
    "batch", "--fleet", "/dev/stdin",
    stdin=json.dumps({"pools": [{"gpu": "h100", "count": 1}], "jobs": [{"name": "a", **SMALL}]})).stderr


def pool(name, count, node, memory="20GB", **more):
    return {"name": name, "gpu": "h100", "gpu_memory": memory, "count": count, "gpus_per_node": node, **more}


def job(name, count=1, gpus=1, **more):
    return {"name": name, "count": count, "gpus": gpus, **SMALL, **more}


class Fleet(Case):
    def ask(self, pools, jobs, *words, **more):
        path = self.write("fleet.json", json.dumps({"pools": pools, "jobs": jobs, **more}))
        result = plimsoll("batch", "--fleet", path, "--json", "-", *words)
        self.assertIn(result.returncode, (0, 1), result.stderr)
        document = json.loads(result.stdout)
        self.assertEqual(result.returncode, 0 if document["fits"] else 1)
        if SCHEMA_CHECK or jsonschema:
            self.assertEqual(complaint("fleet", [document]), "")
        return document

    def refused(self, fleet, *parts):
        path = self.write("fleet.json", fleet if isinstance(fleet, str) else json.dumps(fleet))
        self.assert_refused(plimsoll("batch", "--fleet", path), *parts)


@unittest.skipUnless(HAS_SOLVER, "the solver CBC is not here")
class SolvedByHand(Fleet):
    def test_a_job_stays_within_a_node(self):
        # Six GPUs in nodes of three: two of the three jobs on two GPUs, one GPU of each node is left.
        answer = self.ask([pool("a", 6, 3)], [job("pair", 3, 2)])
        self.assertEqual(answer["owned"]["placed"], 2)
        self.assertTrue(answer["owned"]["optimal"])
        self.assertEqual(answer["owned"]["left"], [{"job": "pair", "count": 1}])
        # In one node of six all three have a place.
        self.assertTrue(self.ask([pool("a", 6, 6)], [job("pair", 3, 2)])["fits"])

    def test_a_bare_count_runs_on_a_pool_whose_links_and_host_it_says_nothing_of(self):
        rich = pool("a", 4, 4, host_memory="1TB", intra_node_bandwidth=100, inter_node_bandwidth=10)
        self.assertTrue(self.ask([rich], [job("pair", 2, 2)])["fits"])

    def test_what_is_left_of_a_pool_is_a_smaller_node(self):
        # Five GPUs in nodes of four: 4 + 1.
        answer = self.ask([pool("a", 5, 4)], [job("pair", 3, 2), job("one")])
        self.assertEqual([(p["job"], p["count"]) for p in answer["owned"]["placements"]],
                         [("pair", 2), ("one", 1)])

    def test_a_large_job_takes_whole_nodes(self):
        # Three nodes of two: a job of four GPUs takes two of them, and two single ones the third.
        jobs = [job("wide", 1, 4, zero=3), job("one", 3)]
        answer = self.ask([pool("a", 6, 2)], jobs)
        self.assertEqual(answer["owned"]["placed"], 3)  # three "one" alone would be as many …
        self.assertEqual(answer["owned"]["pools"][0]["used_gpus"], 3)  # … on fewer GPUs
        wide = self.ask([pool("a", 6, 2)], [{**jobs[0], "priority": 3}, jobs[1]])
        self.assertEqual({p["job"]: p["count"] for p in wide["owned"]["placements"]},
                         {"wide": 1, "one": 2})
        self.assertEqual(wide["owned"]["priority"], 5)

    def test_the_cheapest_purchase_is_a_mixture(self):
        # Three jobs. A node of two for 6 and one of one for 4: 10. By the price of a GPU alone it would be two
        # nodes of two, 12; single ones alone cost 12 too.
        answer = self.ask([pool("a", 0, 2, price=3), pool("b", 0, 1, price=4)], [job("one", 3)],
                          currency="EUR")
        self.assertEqual(answer["owned"]["placed"], 0)
        bought = answer["purchase"]
        self.assertEqual((bought["placed"], bought["cost"], bought["cost_bound"], bought["optimal"]),
                         (3, 10, 10, True))
        self.assertEqual([p["bought_gpus"] for p in bought["pools"]], [2, 1])

    def test_no_more_is_bought_than_can_be_had(self):
        answer = self.ask([pool("a", 1, 1, price=5, most_count=3)], [job("one", 9)])
        self.assertEqual((answer["owned"]["placed"], answer["purchase"]["placed"],
                          answer["purchase"]["cost"]), (1, 3, 10))
        self.assertIsNone(self.ask([pool("a", 1, 1)], [job("one", 9)])["purchase"])

    def test_nothing_is_bought_that_brings_nothing(self):
        # 16 GB on a card of 10 GB, however many: no ZeRO.
        answer = self.ask([pool("a", 1, 1, "10GB", price=5)], [job("one")])
        self.assertIsNone(answer["purchase"])
        self.assertFalse(answer["fits"])
        option, = answer["jobs"][0]["options"]
        self.assertEqual((option["fits"], option["why"]), (False, "lacks 5.59 GiB on 1 GPU"))

    def test_sizes_are_alternatives(self):
        # 16 GB / n on cards of 6 GB: three GPUs at least; two GPUs are not enough, four would be too many.
        answer = self.ask([pool("a", 4, 4, "6GB")], [job("one", 1, [1, 2, 3, 4], zero=3)])
        self.assertEqual([o["possible"] for o in answer["jobs"][0]["options"]],
                         [False, False, True, True])
        self.assertEqual(answer["owned"]["placements"][0]["gpus"], 3)

    def test_usual_sizes_double_within_a_node_and_then_in_nodes(self):
        job_ = {"name": "x", **SMALL, "zero": 3}
        sizes = [o["gpus"] for o in self.ask([pool("a", 48, 6)], [job_])["jobs"][0]["options"]]
        self.assertEqual(sizes, [1, 2, 4, 6, 12, 24, 48])

    def test_a_job_that_must_be_fast_says_so(self):
        real = {"name": "gpt2", "model": "gpt2", "seq_len": 512, "gpus": 1}
        pools = [{"gpu": "h100", "count": 1, "gpus_per_node": 1}]
        self.assertTrue(self.ask(pools, [{**real, "min_tokens_per_second": 10}])["fits"])
        slow = self.ask(pools, [{**real, "min_tokens_per_second": 1e9}])
        option, = slow["jobs"][0]["options"]
        self.assertTrue(option["fits"] and not option["possible"])
        self.assertIn("fewer than 1000000000", option["why"])

    def test_jobs_come_from_queries_too(self):
        queries = self.write("jobs.jsonl", json.dumps({"id": "x", **SMALL, "gpus": 1}) + "\n\n" +
                             json.dumps({**SMALL, "gpus": 1, "pools": ["b"]}) + "\n")
        fleet = self.write("f.json", json.dumps({"pools": [pool("a", 1, 1), pool("b", 1, 1)]}))
        document = json.loads(plimsoll("batch", queries, "--fleet", fleet, "--json", "-").stdout)
        self.assertEqual([j["name"] for j in document["jobs"]], ["x", "line 3"])
        self.assertEqual([p["pool"] for p in document["owned"]["placements"]], ["a", "b"])

    def test_the_table_keeps_to_80_columns_and_runs_no_markup(self):
        fleet = self.write("f.json", json.dumps(
            {"pools": [pool("<script>" * 12, 1, 1, price=123456.78)],
             "jobs": [job("j\u001b[31m" + "é" * 80, 3), job("b" * 90, 1, 3)]}))
        result = plimsoll("batch", "--fleet", fleet)
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), 80)
        self.assertNotIn("\u001b", result.stdout)
        page = plimsoll("batch", "--fleet", fleet, "--html", "-").stdout
        self.assertNotIn("<script><script>", page)
        self.assertIn("BUY for", page)

    def test_a_pool_that_a_job_does_not_name_was_not_asked(self):
        fleet = self.write("f.json", json.dumps(
            {"pools": [pool("a", 1, 1), pool("b", 1, 1)], "jobs": [dict(job("j"), pools=["a"])]}))
        page = plimsoll("batch", "--fleet", fleet, "--html", "-").stdout
        self.assertIn('<span class="faint">not asked</span>', page)
        self.assertNotIn('<span class="not">no</span>', page)

    def test_assignments_are_as_good_as_trying_everything(self):
        draw = random.Random(5)
        for number in range(16):
            pools = [pool(f"p{i}", draw.randint(0, 4), draw.choice((1, 2, 3)),
                          price=draw.randint(1, 9), most_count=6)
                     for i in range(draw.randint(1, 2))]
            jobs = [job(f"j{i}", draw.randint(1, 2), draw.choice((1, 2, [1, 2], 3, 4)), zero=3,
                        priority=draw.choice((1, 1, 2)))
                    for i in range(draw.randint(1, 3))]
            with self.subTest(number, pools=pools, jobs=jobs):
                self.check_against_all(self.ask(pools, jobs))

    def check_against_all(self, answer):
        for key, may_buy in (("owned", False), ("purchase", True)):
            solution = answer[key]
            if solution is None:
                best = all_assignments(answer, may_buy)
                self.assertEqual(best[0], -answer["owned"]["priority"])
                continue
            self.assertTrue(solution["optimal"])
            self.assertEqual((-solution["priority"], solution["cost"],
                              sum(p["used_gpus"] + p["bought_gpus"] for p in solution["pools"])),
                             all_assignments(answer, may_buy))


def packs(sizes, nodes):
    """Whether jobs go into nodes (their free GPUs): by trying."""
    if not sizes:
        return True
    for index, free in enumerate(nodes):
        if free >= sizes[0] and (index == 0 or nodes[index - 1] != free):
            if packs(sizes[1:], sorted(nodes[:index] + [free - sizes[0]] + nodes[index + 1:])):
                return True
    return False


def nodes_wanted(sizes, pool_):
    """The fewest nodes to buy, None: too many."""
    node = pool_["gpus_per_node"]
    whole = sum(size // node for size in sizes if size > node)
    small = sorted((size for size in sizes if size <= node), reverse=True)
    owned, rest = divmod(pool_["count"], node)
    for more in range((pool_["most_count"] - pool_["count"]) // node + 1 if pool_["most_count"] >= pool_["count"] else 1):
        full = owned + more - whole
        if full >= 0 and packs(small, sorted([node] * full + ([rest] if rest else []))):
            return more
    return None


def all_assignments(answer, may_buy):
    """(-priority, cost, GPUs in use or bought) of the best of all assignments."""
    pools = {p["name"]: p for p in answer["pools"]}
    each = []
    for one in answer["jobs"]:
        ways = [None] + [o for o in one["options"] if o["possible"]]
        each += [(one["priority"], ways)] * one["count"]
    best = (0, 0, 0)
    for chosen in itertools.product(*(ways for _, ways in each)):
        priority = sum(p for (p, _), way in zip(each, chosen) if way)
        cost = used = 0
        for name, pool_ in pools.items():
            sizes = [way["gpus"] for way in chosen if way and way["pool"] == name]
            more = nodes_wanted(sizes, pool_)
            if more is None or (more and not may_buy):
                break
            cost += more * pool_["gpus_per_node"] * pool_["price"]
            used += sum(sizes) + more * pool_["gpus_per_node"]
        else:
            best = min(best, (-priority, cost, used))
    return best


class Hostile(Fleet):
    def test_what_is_wrong_is_named(self):
        good = {"pools": [pool("a", 1, 1)], "jobs": [job("x")]}

        def changed(kind, **more):
            return {**good, kind: [{**good[kind][0], **more}]}
        for fleet, parts in (
                ("[]", ["\"pools\" and \"jobs\""]), ("{", ["JSON"]), ({}, ["\"pools\" is missing"]),
                ("[" * 100_000, []), ({**good, "jobz": 1}, ["did you mean \"jobs\""]),
                ({"pools": 3}, ["must be a list"]), ({"pools": [3]}, ["pool 1", "object"]),
                ({**good, "jobs": []}, ["no jobs"]),
                ({**good, "pools": good["pools"] * 2}, ["two pools 'a'"]),
                ({**good, "jobs": good["jobs"] * 2}, ["two jobs 'x'"]),
                (changed("pools", count=-1), ["pool 'a'", "\"count\" -1"]),
                (changed("pools", count=1.5), ["\"count\" 1.5"]),
                (changed("pools", count=2**63), ["\"count\""]),
                (changed("pools", price=-1), ["\"price\" -1"]),
                (changed("pools", price="free"), ["\"price\""]),
                (changed("pools", most_count=0, price=1), ["\"most_count\" 0"]),
                (changed("pools", most_count=9), ["without \"price\""]),
                (changed("pools", gpus_per_node=0), ["\"gpus_per_node\" 0"]),
                (changed("pools", gpu="h1000"), ["h1000"]),
                (changed("pools", gpu=7), ["\"gpu\" 7"]),
                (changed("pools", zero=3), ["unknown key \"zero\""]),
                (changed("pools", gpu_memory="no"), ["gpu-memory"]),
                (changed("jobs", count=0), ["job 'x'", "\"count\" 0"]),
                (changed("jobs", gpus=0), ["\"gpus\" 0"]), (changed("jobs", gpus=[]), ["\"gpus\""]),
                (changed("jobs", gpus={"a": 1}), ["\"gpus\""]),
                (changed("jobs", gpu="h100"), ["\"gpu\": a pool says that"]),
                (changed("jobs", pools=["b"]), ["no pool 'b'"]),
                (changed("jobs", pools=[]), ["\"pools\""]),
                (changed("jobs", priority=0), ["\"priority\" 0"]),
                (changed("jobs", zero=9), ["job 'x'", "--zero 9"]),
                (changed("jobs", params=None), ["\"model\" is missing"]),
                (changed("jobs", zzero=3), ["unknown key \"zzero\""]),
                (changed("jobs", params=None, model="lama"), ["lama"])):
            with self.subTest(fleet=str(fleet)[:80]):
                if not HAS_SOLVER and ("h1000" in str(fleet) or "zero=9" in str(fleet)):
                    continue
                self.refused(fleet, *parts)
        self.refused('{"pools": [{"gpu": "h100", "count": 1, "price": 1e400}]}', "JSON")

    def test_options_of_answers_to_queries_do_not_go_with_a_fleet(self):
        path = self.write("fleet.json", json.dumps({"pools": [pool("a", 1, 1)], "jobs": [job("x")]}))
        for option in (("--csv",), ("--markdown",), ("--fields", "fits")):
            self.assert_refused(plimsoll("batch", "--fleet", path, *option), option[0])
        self.assert_refused(plimsoll("batch", "-", "--solver-seconds", 3), "--solver-seconds")
        self.assert_refused(plimsoll("batch", "--fleet", path, "--json", path), "is an input")

    def test_without_the_solver_it_says_what_is_missing(self):
        path = self.write("fleet.json", json.dumps({"pools": [pool("a", 1, 1)], "jobs": [job("x")]}))
        for name in ("libCbcSolver.so.3", "libCbcSolver.so"):  # what the loader finds first is none
            self.write(name, "no library")
        self.assert_refused(plimsoll("batch", "--fleet", path, LD_LIBRARY_PATH=str(self.folder)),
                            "CBC", "coinor-cbc")


if __name__ == "__main__":
    unittest.main()
