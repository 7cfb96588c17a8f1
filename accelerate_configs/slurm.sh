#!/bin/bash
# GRPO on two machines with eight GPUs each, under Slurm; the words after the file go to rookworld grpo:
#   sbatch accelerate_configs/slurm.sh --config recipes/grpo_mixed.yaml
# Five minutes before its time is over the run saves a checkpoint and ends; the same command then goes on.
#SBATCH --job-name=rookworld
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@300
export MAIN=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export ALL_GPUS=$((SLURM_NNODES * SLURM_GPUS_PER_NODE))
srun --kill-on-bad-exit=1 bash -c 'exec rookworld grpo --accelerate_config multi_node \
    --num_machines $SLURM_NNODES --num_processes $ALL_GPUS --machine_rank $SLURM_NODEID \
    --main_process_ip $MAIN --main_process_port 29500 "$@"' rookworld "$@"
