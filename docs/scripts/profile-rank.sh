#!/bin/sh
# Profile the ranks of a job, one report each, whatever launcher starts them:
#   srun ./profile-rank.sh ./app                                         (Slurm)
#   mpirun -n 8 ./profile-rank.sh ./app                                  (Open MPI, MPICH, Intel MPI)
#   torchrun --no-python --nproc-per-node 8 ./profile-rank.sh python train.py     (PyTorch, Megatron)
#   deepspeed --no_python ./profile-rank.sh python train.py              (DeepSpeed)
#   for rank in 0 1; do RANK=$rank ./profile-rank.sh ./app & done; wait  (no launcher)
# NSYS_RANKS="0 1 8 9"   profile only these ranks (default: all)
# NSYS_FOLDER=run        folder of the reports, on a file system that all nodes share
# NSYS_OPTIONS="..."     replace the options of nsys profile
# NSYS_MORE="..."        add options of nsys profile, such as --delay=60 --duration=10; no value may contain blanks
# NSYS_STAGGER=0.8       start the ranks of a node so many seconds apart (default: 0)
set -eu
# Slurm's number is the last choice: other launchers inherit it, with one value for a job or a node.
rank=${RANK:-${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${PMI_RANK:-${MV2_COMM_WORLD_RANK:-${PALS_RANKID:-}}}}}}
rank=${rank:-${SLURM_PROCID:-}}
if [ -z "$rank" ]; then
    echo "profile-rank.sh: no variable of a launcher gives the rank; set RANK" >&2
    exit 2
fi
case " ${NSYS_RANKS:-$rank} " in
*" $rank "*) ;;
*) exec "$@" ;;
esac
# nsys has to know the MPI. mpirun of MPICH and Intel MPI sets PMI_RANK and MPI_LOCALRANKID, with Slurm or
# without it. srun --mpi=pmi2 also sets PMI_RANK, with any MPI.
trace=cuda,nvtx,osrt,mpi
mpi=
if [ -n "${OMPI_COMM_WORLD_RANK:-}" ]; then
    mpi=--mpi-impl=openmpi
elif [ -n "${PMI_RANK:-}" ] && { [ -n "${MPI_LOCALRANKID:-}" ] || [ -z "${SLURM_STEP_ID:-}" ]; }; then
    mpi=--mpi-impl=mpich
elif [ -n "${RANK:-}" ] && [ -z "${PMI_RANK:-${PMIX_RANK:-}}" ]; then
    trace=cuda,nvtx,osrt
fi
options="${NSYS_OPTIONS:---trace=$trace --cuda-graph-trace=node} ${NSYS_MORE:-}"
case $options in
*--mpi-impl*) mpi= ;;
*mpi*) ;;
*) mpi= ;;    # MPI is not traced
esac
folder=${NSYS_FOLDER:-run}
mkdir -p "$folder"
local=${LOCAL_RANK:-${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-${SLURM_LOCALID:-$rank}}}}
[ -z "${NSYS_STAGGER:-}" ] || sleep "$(awk "BEGIN { print $local * $NSYS_STAGGER }")"
# exec: signals of the launcher reach nsys itself.
# shellcheck disable=SC2086  # options are several words
exec nsys profile $options $mpi --output="$folder/rank$rank" "$@"
