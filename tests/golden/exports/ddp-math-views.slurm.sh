#!/bin/bash
# gpt2: stack pytorch, 2 GPUs, ZeRO 0, bf16-mixed, 1024 tokens x 4 x 1
# train.py is your script: --to transformers writes its arguments, --to deepspeed and --to
#   accelerate its configuration
# partition, account, time limit and memory are your cluster's: sbatch takes them as options, too
#SBATCH --job-name=gpt2
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --exclusive
set -euo pipefail
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes=1 --nproc-per-node=2 --rdzv-id="$SLURM_JOB_ID" \
  --rdzv-backend=c10d --rdzv-endpoint="$first:29500" train.py "$@"
