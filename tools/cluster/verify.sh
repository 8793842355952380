#!/bin/sh
# One rank of a verification: every launcher here starts it once for each GPU. Each rank plans the
# same question for as many GPUs as there are ranks; rank 0 leaves one measurement in $OUT.
#
#   PLIMSOLL   the built plimsoll, plimsoll-run beside it        (plimsoll)
#   WORKLOAD   a model and options of `plimsoll run`             (llama-3.2-1b --zero 3 --seq-len 2048)
#   OUT        the folder for the measurement                    (.)
#   STEPS      optimizer steps                                   (6)
#   DEVICE     cuda, or cpu: ranks of MPI without GPUs           (cuda)
set -eu
plimsoll=${PLIMSOLL:-plimsoll}
workload=${WORKLOAD:-llama-3.2-1b --zero 3 --seq-len 2048}
out=${OUT:-.}
if ! command -v "$plimsoll" >/dev/null; then
  echo "verify.sh: no program '$plimsoll' on $(hostname): set PLIMSOLL to the built one" >&2
  exit 2
fi
mkdir -p "$out"
# A rank writes where it is, so that a job that dies before its first step says on which host.
echo "verify.sh: $(hostname) rank ${RANK:-${OMPI_COMM_WORLD_RANK:-${SLURM_PROCID:-0}}}" >&2
# Split into words: a model and its options.
# shellcheck disable=SC2086
exec "$plimsoll" run $workload --device "${DEVICE:-cuda}" --steps "${STEPS:-6}" --data synthetic --quiet \
  --json "$out/measurement-${SLURM_JOB_ID:-${JOB_NAME:-plimsoll}}.json"
