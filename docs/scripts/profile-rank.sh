#!/bin/sh
# Profile the ranks of a job, one report each, whatever launcher starts them:
#   srun ./profile-rank.sh ./app                                         (Slurm)
#   mpirun -n 8 ./profile-rank.sh ./app                                  (Open MPI, MPICH, Intel MPI)
#   torchrun --no-python --nproc-per-node 8 ./profile-rank.sh python train.py     (PyTorch, Megatron)
#   deepspeed --no_python ./profile-rank.sh python train.py              (DeepSpeed)
# NSYS_RANKS="0 1 8 9"   profile these ranks only (default: all)
# NSYS_FOLDER=run        folder of the reports, on a file system that all nodes share
# NSYS_OPTIONS="..."     options of nsys profile
set -eu
rank=${RANK:-${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${PMI_RANK:-${SLURM_PROCID:-}}}}}
if [ -z "$rank" ]; then
    echo "profile-rank.sh: no variable of a launcher says which rank this is" >&2
    exit 2
fi
case " ${NSYS_RANKS:-$rank} " in
*" $rank "*) ;;
*) exec "$@" ;;
esac
folder=${NSYS_FOLDER:-run}
mkdir -p "$folder"
# exec: signals of the launcher reach nsys itself.
# shellcheck disable=SC2086  # options are several words
exec nsys profile ${NSYS_OPTIONS:---trace=cuda,nvtx,osrt,mpi --cuda-graph-trace=node} --output="$folder/rank$rank" "$@"
