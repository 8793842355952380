# snapshot_of.sh CASE: its plan and its snapshot, as CASE.json and CASE.pickle (tests/golden/snapshots).
set -e
runs=project/tests/golden/snapshots
gunzip -c "$runs/$1.pickle.gz" > "$1.pickle"
python3 - "$1" > "$1.words" <<'PYTHON'
import json, sys
run = next(r for r in json.load(open("project/tests/golden/snapshots/runs.json"))["runs"] if r["case"] == sys.argv[1])
json.dump(run["model"], open(sys.argv[1] + ".config.json", "w"))
print(run["words"])
PYTHON
plimsoll fit "$1.config.json" --gpu h100 $(cat "$1.words") --detail --quiet --json "$1.json"
