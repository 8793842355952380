"""measured.py PLAN.json [KEY=DIFFERENCE…]: the measurement of a run that did what the plan says, but for figures of
rank 1 that are off by so many bytes; tensor=NAME leaves that tensor out."""
import json
import sys

sys.path.insert(0, "project/tests/python")
from test_compare import perfect  # noqa: E402

document = perfect(json.load(open(sys.argv[1])))
for word in sys.argv[2:]:
    key, value = word.split("=")
    rank = document["ranks"][1]
    if key == "tensor":
        rank["ledgers"][0]["tensors"] = [t for t in rank["ledgers"][0]["tensors"] if t["name"] != value]
    else:
        rank[key] += int(value)
json.dump(document, sys.stdout)
