#!/usr/bin/env python3
"""Models of the hub, from a server of our own: what is asked, what is followed, what is refused."""
import contextlib
import http.server
import json
import struct
import threading
import time
import unittest

from case import TINY, Case
from program import plimsoll

CONFIG = json.dumps(TINY).encode()


def shapes():
    """The tensors of TINY's checkpoint: GPT-2 with n_embd 16, 2 layers, 64 positions, 32 words."""
    out = {"wte.weight": [32, 16], "wpe.weight": [64, 16], "ln_f.weight": [16], "ln_f.bias": [16]}
    for i in range(2):
        for name, shape in {"ln_1.weight": [16], "ln_1.bias": [16], "ln_2.weight": [16],
                            "ln_2.bias": [16], "attn.c_attn.weight": [16, 48],
                            "attn.c_attn.bias": [48], "attn.c_proj.weight": [16, 16],
                            "attn.c_proj.bias": [16], "mlp.c_fc.weight": [16, 64],
                            "mlp.c_fc.bias": [64], "mlp.c_proj.weight": [64, 16],
                            "mlp.c_proj.bias": [16]}.items():
            out[f"h.{i}.{name}"] = shape
    return out


def safetensors(tensors, padding=0):
    header, at = {}, 0
    for name, shape in tensors.items():
        size = 4
        for axis in shape:
            size *= axis
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode() + b" " * padding
    return struct.pack("<Q", len(text)) + text + bytes(at)


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers from `server.files`: bytes, or a function of the handler."""
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.asked.append((self.path, self.headers.get("Range"),
                                  self.headers.get("Authorization")))
        content = self.server.files.get(self.path)
        if callable(content):
            return content(self)
        if content is None:
            return self.answer(404, b"Entry not found")
        span = self.headers.get("Range")
        if span and self.server.ranges:
            begin, end = (int(x) for x in span.split("=")[1].split("-"))
            part = content[begin:end + 1]
            return self.answer(206, part, {
                "Content-Range": f"bytes {begin}-{begin + len(part) - 1}/{len(content)}"})
        return self.answer(200, content)

    def answer(self, status, body, headers=None):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """A client that has read enough goes."""


def refusing(status, headers=None):
    return lambda handler: handler.answer(status, b"no", headers)


class Hub(Case):
    def serve(self, files, ranges=True):
        server = Server(("127.0.0.1", 0), Handler)
        server.files, server.asked, server.ranges = dict(files), [], ranges
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        server.address = f"http://127.0.0.1:{server.server_port}"
        return server

    def fit(self, server, *words, model="org/tiny", **environment):
        endpoint = server if isinstance(server, str) else server.address
        return plimsoll("fit", model, "--gpu", "h100", *words, HF_HUB_OFFLINE="0",
                        HF_ENDPOINT=endpoint, HF_HOME=str(self.folder), **environment)

    def at(self, file, model="org/tiny"):
        return f"/{model}/resolve/main/{file}"

    def test_a_config_and_one_header_of_range_requests_are_enough(self):
        weights = safetensors(shapes())
        server = self.serve({self.at("config.json"): CONFIG,
                             self.at("model.safetensors"): weights})
        result = self.fit(server, "--json", "-")
        self.assertEqual(result.returncode, 0, result.stderr)
        path = self.write("here/config.json", CONFIG)
        here = plimsoll("fit", str(path.parent), "--gpu", "h100", "--json", "-")
        there, local = json.loads(result.stdout), json.loads(here.stdout)
        self.assertEqual(there["peak_bytes"], local["peak_bytes"])
        self.assertEqual(there["workload"]["model"]["name"], "org/tiny")
        self.assertEqual([entry[0] for entry in server.asked],
                         [self.at("config.json"), self.at("model.safetensors.index.json"),
                          self.at("model.safetensors")])
        self.assertEqual(server.asked[2][1], "bytes=0-99999")
        self.assertIn(f"org/tiny: config.json and the weights' headers read from {server.address}",
                      result.stderr)
        # The weights agree with the config, so no note says otherwise; an altered one is told.
        self.assertNotIn("does not hold", result.stdout)
        tensors = shapes()
        tensors["wte.weight"] = [33, 16]
        server.files[self.at("model.safetensors")] = safetensors(tensors)
        self.assertIn("wte.weight: another shape than the config gives", self.fit(server).stdout)

    def test_shards_are_read_by_the_index_and_long_headers_in_two_requests(self):
        tensors = shapes()
        names = sorted(tensors)
        halves = {"a.safetensors": names[:10], "b.safetensors": names[10:]}
        index = {"metadata": {"total_size": 1},
                 "weight_map": {n: f for f, part in halves.items() for n in part}}
        files = {self.at("config.json"): CONFIG,
                 self.at("model.safetensors.index.json"): json.dumps(index).encode()}
        for file, part in halves.items():
            files[self.at(file)] = safetensors({n: tensors[n] for n in part}, padding=150_000)
        for ranges in (True, False):
            server = self.serve(files, ranges)
            result = self.fit(server)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertNotIn("does not hold", result.stdout)
            asked = [span for path, span, _ in server.asked if path == self.at("a.safetensors")]
            self.assertEqual(asked[0], "bytes=0-99999")
            self.assertTrue(asked[1].startswith("bytes=100000-"), asked)
            self.assertEqual(len(asked), 2 if ranges else 3)
        del files[self.at("b.safetensors")]
        self.assert_refused(self.fit(self.serve(files), "--quiet"), "b.safetensors: not there")

    def test_the_token_goes_to_the_hub_and_not_to_where_it_sends_one(self):
        store = self.serve({"/blob": CONFIG})
        server = self.serve({self.at("config.json"):
                             refusing(302, {"Location": store.address + "/blob"})})
        result = self.fit(server, HF_TOKEN="hf_secret")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(server.asked[0][2], "Bearer hf_secret")
        self.assertEqual(store.asked, [("/blob", None, None)])
        # A renamed model: a redirect without a host. The file that `hf auth login` leaves.
        self.write("token", "hf_of_file\n")
        renamed = self.serve({self.at("config.json"):
                              refusing(307, {"Location": self.at("config.json", "new/tiny")}),
                              self.at("config.json", "new/tiny"): CONFIG})
        self.assertEqual(self.fit(renamed).returncode, 0)
        self.assertEqual(renamed.asked[1][2], "Bearer hf_of_file")
        loop = self.serve({self.at("config.json"):
                           refusing(302, {"Location": self.at("config.json")})})
        self.assert_refused(self.fit(loop), "redirect", status=3)
        away = self.serve({self.at("config.json"):
                           refusing(302, {"Location": "file:///etc/hostname"})})
        self.assert_refused(self.fit(away), "rotocol", status=3)

    def test_what_the_hub_refuses_is_said_with_what_helps(self):
        for status in (401, 403):
            server = self.serve({self.at("config.json"): refusing(status)})
            self.assert_refused(self.fit(server), "model 'org/tiny'", f"answers {status}",
                                "HF_TOKEN says who asks")
            self.assert_refused(self.fit(server, HF_TOKEN="t"), "is not allowed to read it")
        self.assert_refused(self.fit(self.serve({})), "has no such model, or it has no config.json")

    def test_a_busy_hub_is_asked_again_after_the_time_that_it_says(self):
        answers = [(429, "1"), (503, "0")]

        def busy(handler):
            if not answers:
                return handler.answer(200, CONFIG)
            status, wait = answers.pop(0)
            return handler.answer(status, b"busy", {"Retry-After": wait})
        server = self.serve({self.at("config.json"): busy})
        began = time.monotonic()
        self.assertEqual(self.fit(server).returncode, 0)
        self.assertGreaterEqual(time.monotonic() - began, 1)
        self.assertEqual([p for p, _, _ in server.asked].count(self.at("config.json")), 3)
        late = self.serve({self.at("config.json"): refusing(429, {"Retry-After": "600"})})
        self.assert_refused(self.fit(late), "429 (too many requests); again in 600 s", status=3)
        self.assertEqual(len(late.asked), 1)
        down = self.serve({self.at("config.json"): refusing(500, {"Retry-After": "0"})})
        self.assert_refused(self.fit(down), "the hub answers 500", status=3)
        self.assertEqual(len(down.asked), 3)

    def test_silence_and_answers_that_end_too_early_are_errors(self):
        def silent(handler):
            time.sleep(5)

        def short(handler):
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(CONFIG) + 5))
            handler.end_headers()
            handler.wfile.write(CONFIG)
            handler.close_connection = True
        server = self.serve({self.at("config.json"): silent})
        began = time.monotonic()
        self.assert_refused(self.fit(server, HF_HUB_DOWNLOAD_TIMEOUT="1"), "config.json", status=3)
        self.assertLess(time.monotonic() - began, 4)
        self.assert_refused(self.fit(self.serve({self.at("config.json"): short})), "config.json",
                            status=3)
        closed = self.serve({})
        closed.shutdown()
        closed.server_close()
        self.assert_refused(self.fit(closed), "config.json", status=3)
        cut = self.serve({self.at("config.json"): CONFIG,
                          self.at("model.safetensors"): safetensors(shapes())[:400]})
        self.assert_refused(self.fit(cut), "model.safetensors: truncated: a header of")
        for junk in (b"", b"<html>", b"\xff" * 16, struct.pack("<Q", 1 << 40) + b"{}"):
            server = self.serve({self.at("config.json"): CONFIG,
                                 self.at("model.safetensors"): junk or b"x"})
            self.assert_refused(self.fit(server), "model.safetensors")
        self.assert_refused(self.fit(self.serve({self.at("config.json"): b"<html>"})), "not JSON")

    def test_what_is_here_is_not_asked_for(self):
        server = self.serve({self.at("config.json"): CONFIG})
        self.assertEqual(self.fit(server, "--seq-len", "64", model="openai-community/gpt2").returncode,
                         0)
        self.write("hub/models--org--tiny/refs/main", "abc")
        self.write("hub/models--org--tiny/snapshots/abc/config.json", CONFIG)
        self.assertEqual(self.fit(server).returncode, 0)
        self.assertEqual(server.asked, [])
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            result = plimsoll("fit", "org/other", "--gpu", "h100", HF_ENDPOINT=server.address,
                              **{"HF_HUB_OFFLINE": "0", name: "1"})
            self.assert_refused(result, "not in the Hugging Face cache")
        self.assertEqual(server.asked, [])
        before = sorted(self.folder.rglob("*"))
        self.assertEqual(self.fit(server, model="org/tiny2").returncode, 2)
        self.assertEqual(sorted(self.folder.rglob("*")), before)  # nothing is written

    def test_a_batch_asks_once_about_a_model_that_is_not_there(self):
        server = self.serve({})
        lines = "".join(json.dumps({"model": "org/gone", "gpu": "h100", "seq_len": n}) + "\n" for n in range(1, 5))
        result = plimsoll("batch", "-", "--threads", "1", stdin=lines, HF_HUB_OFFLINE="0", HF_HOME=str(self.folder),
                          HF_ENDPOINT=server.address)
        self.assertEqual(result.stdout.count("has no such model"), 4)
        self.assertEqual(len(server.asked), 1)

    def test_variables_that_mean_nothing_are_errors(self):
        for endpoint in ("ftp://x", "hub", "https://a b", "http://x\n"):
            self.assert_refused(self.fit(endpoint), "HF_ENDPOINT")
        server = self.serve({self.at("config.json"): CONFIG})
        self.assert_refused(self.fit(server, HF_TOKEN="a\r\nX-Evil: 1"), "HF_TOKEN holds blanks")
        for seconds in ("0", "soon", "-1", "nan"):
            self.assert_refused(self.fit(server, HF_HUB_DOWNLOAD_TIMEOUT=seconds),
                                "HF_HUB_DOWNLOAD_TIMEOUT")
        self.assertEqual(server.asked, [])


if __name__ == "__main__":
    unittest.main()
