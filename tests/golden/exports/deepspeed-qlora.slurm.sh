#!/bin/bash
# llama-3.1-8b: stack deepspeed, 8 GPUs, ZeRO 2, bf16-mixed, 4096 tokens x 1 x 1
# train.py is your script: --to transformers writes its arguments, --to deepspeed and --to
#   accelerate its configuration
# partition, account, time limit and memory are your cluster's: sbatch takes them as options, too
#SBATCH --job-name=llama-3.1-8b
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
set -euo pipefail
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes=1 --nproc-per-node=8 --rdzv-id="$SLURM_JOB_ID" \
  --rdzv-backend=c10d --rdzv-endpoint="$first:29500" train.py "$@"
