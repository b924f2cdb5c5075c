# SPDX-License-Identifier: MIT
# Sourced by tools/compare: the systems, how they are compiled and how they are started. Uses its
# build, here, pin, device, gid_index and launch_as.
# shellcheck shell=bash disable=SC2154

all_peers="openmpi openmpi-nocma openmpi-sm openmpi-ucx mpich"

peer_known() { # NAME
    [[ " $all_peers " == *" $1 "* ]]
}

# Which MPI a peer is made of.
mpi_of() { # NAME
    printf '%s\n' "${1%%-*}"
}

# Compile our program for it, unless that has been done; false if it is not installed.
peer_build() { # NAME
    local mpi compiler program source
    mpi=$(mpi_of "$1")
    program=$build/compare-$mpi
    compiler=$(command -v "mpicc.$mpi" || command -v mpicc) || return 1
    if [ "$compiler" = "$(command -v mpicc || true)" ]; then # the one MPI that is here: is it this one?
        "$compiler" -show 2>/dev/null | grep -qi "$mpi" || return 1
    fi
    for source in "$here"/peers/*.[ch]; do
        if [ ! -x "$program" ] || [ "$source" -nt "$program" ]; then
            "$compiler" -std=gnu17 -O2 -D_GNU_SOURCE -Wall -Wextra -pthread -o "$program" \
                "$here"/peers/{method,machine,peer_mpi}.c || return 1
            break
        fi
    done
}

starter_of() { # MPI
    command -v "mpirun.$1" || printf 'mpirun\n'
}

# Words of the variables for UCX over --device, as `env` takes them.
ucx_environment() {
    printf '%s\n' "UCX_TLS=rc_verbs,ud_verbs,self" "UCX_IB_GID_INDEX=$gid_index" "UCX_UD_VERBS_ETH_DGID_CHECK=n"
}

openmpi_words() { # NAME RANKS
    local variable
    printf '%s\n' env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "$(starter_of openmpi)" -n "$2" --bind-to none --oversubscribe
    # It yields by itself only where it counts the slots.
    [ "$2" -le "$(nproc)" ] || printf '%s\n' --mca mpi_yield_when_idle 1
    if [ -n "$device" ]; then
        printf '%s\n' --mca pml ucx --mca btl ^openib --mca osc ^rdma
        for variable in $(ucx_environment); do printf '%s\n' -x "$variable"; done
        return
    fi
    case $1 in
        openmpi) printf '%s\n' --mca pml ob1 --mca btl vader,self ;;
        openmpi-nocma) printf '%s\n' --mca pml ob1 --mca btl vader,self --mca btl_vader_single_copy_mechanism none ;;
        openmpi-sm) printf '%s\n' --mca pml ob1 --mca btl vader,self --mca coll_sm_priority 100 ;;
        openmpi-ucx) printf '%s\n' --mca pml ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any -x UCX_TLS=posix,cma,self ;;
    esac
}

mpich_words() { # RANKS
    if [ -n "$device" ]; then
        printf '%s\n' env MPIR_CVAR_NOLOCAL=1
        ucx_environment
    fi
    printf '%s\n' "$(starter_of mpich)" -n "$1"
}

sstar_words() { # RANKS
    [ -z "$device" ] || printf '%s\n' env "SSTAR_IB_HCA=$device"
    printf '%s\n' "$build/sstar" run -n "$1"
    [ -z "$device" ] || printf '%s\n' -r 1
    printf '%s\n' --
}

# A word a line.
system_command() { # NAME RANKS
    local word
    if [ -n "${launch_as[$1]:-}" ]; then
        for word in ${launch_as[$1]}; do printf '%s\n' "$word"; done
    else
        case $1 in
            sstar) sstar_words "$2" ;;
            mpich) mpich_words "$2" ;;
            *) openmpi_words "$1" "$2" ;;
        esac
    fi
    [ -z "$device" ] || [ "$1" = sstar ] || printf '%s\n' "$here/peers/ucx-device" "$device"
    printf '%s\n' "$(readlink -f "$build/compare-$(mpi_of "$1")")"
    [ -z "$pin" ] || printf '%s\n' "$pin"
}
