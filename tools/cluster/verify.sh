#!/bin/sh
# One rank of a verification: every launcher here starts it once for each GPU. It runs the plan that
# rank 0's host finds in $PLAN, and rank 0 leaves one measurement in $OUT.
#
#   PLIMSOLL_RUN  the built plimsoll-run       (plimsoll-run)
#   PLAN          what `plimsoll fit … --stack plimsoll --detail --json` wrote  (plan.json)
#   OUT           the folder for the measurement                                (.)
#   STEPS         optimizer steps                                               (6)
set -eu
run=${PLIMSOLL_RUN:-plimsoll-run}
plan=${PLAN:-plan.json}
out=${OUT:-.}
if ! [ -r "$plan" ]; then
  echo "verify.sh: no plan at '$plan': make it with" >&2
  echo "  plimsoll fit llama-3.2-1b --stack plimsoll --gpus 8 --zero 3 --seq-len 2048 --detail --json plan.json" >&2
  exit 2
fi
mkdir -p "$out"
# A rank writes where it is, so that a job that dies before its first step says on which host.
echo "verify.sh: $(hostname) rank ${RANK:-${OMPI_COMM_WORLD_RANK:-${SLURM_PROCID:-0}}}" >&2
exec "$run" "$plan" --steps "${STEPS:-6}" --data synthetic --quiet \
  --json "$out/measurement-${SLURM_JOB_ID:-${JOB_NAME:-$(basename "$plan" .json)}}.json"
