# Shared by all stubs. A record is: kind, path, id, parent, folder, own words, all words, environment, files.
# Separators are control characters 036 (begin), 037 (field), 034 (part), 035 (end); the reader is runbook/tools/adopt/sandbox_trace.py.
name=${0##*/}
id=$$-${EPOCHREALTIME//[.,]/}

record() {  # record KIND OWN_WORDS WORD...: record this call; the first OWN_WORDS words belong to this program
  local kind=$1 own=$2 file
  shift 2
  { true >&199; } 2> /dev/null || exec 199> /trace  # Python closes file descriptors that it did not open
  exec {lock}< "${BASH_SOURCE[0]}"
  flock "$lock"
  {
    printf '\036%s\037%s\037%s\037%s\037%s\037%s\034' "$kind" "$0" "$id" "${ADOPT_PARENT-}" "$PWD" "$own"
    [ "$#" -eq 0 ] || printf '%s\037' "$@"
    printf '\034'
    env -0 | tr '\0' '\037'
    printf '\034'
    for file in "$@"; do
      file=${file#--*=}
      if [[ $file == *.json && -f $file && $(stat -c %s "$file") -lt 65536 ]]; then
        printf '%s\037%s\037' "$file" "$(< "$file")"
      fi
    done
    printf '\035\n'
  } >&199 2> /dev/null
  exec {lock}<&-
}

values_of() {  # print how many of the words after this option belong to it
  case "$name $1" in
    *" --"*=*) return 0 ;;
    uv\ --extra | uv\ --with* | uv\ --python | uv\ --group | uv\ --only-group | uv\ --project | uv\ --directory | uv\ --package | \
      uv\ --index | uv\ --index-url | uv\ --env-file) return 1 ;;
    conda\ --cwd | mamba\ --cwd | conda\ --prefix | mamba\ --prefix | micromamba\ --prefix) return 1 ;;
    conda\ -v | mamba\ -v | conda\ -s) return 0 ;;
    flux\ --cores-* | flux\ --tasks-* | flux\ --setattr | flux\ --queue | flux\ --time-limit | flux\ --env | flux\ --nslots) return 1 ;;
    deepspeed\ -i | deepspeed\ -H) return 1 ;;
    srun\ -u | srun\ -v | srun\ -s | srun\ -H) return 0 ;;  # unbuffered, verbose, oversubscribe, hold
  esac
  case "$1" in
    -mca | --mca | -gmca | --gmca | -genv | -env | --prtemca | --pmixmca) return 2 ;;
    -np | -npernode | -hostfile | -machinefile | -host | -hosts | -ppn | -iface | -rmk | -bootstrap | -f | -wdir | \
      -genvlist | -map-by | -bind-to | -rank-by | -npersocket | -perhost | -rf | -cpus-per-proc) return 1 ;;
    -[NnpAtJwxcoeiqCmdDGMSWHBvuasrgb]) return 1 ;;
    # srun
    --job-name | --nodes | --ntasks | --ntasks-per-* | --partition | --account | --time | --nodelist | --exclude | \
      --cpus-per-task | --output | --error | --input | --gpus | --gpus-per-* | --gres | --mem | --mpi | --distribution | \
      --cpu-bind | --gpu-bind | --mem-bind | --export | --chdir | --qos | --jobid | --network | --hint | --constraint | \
      --reservation | --open-mode | --threads-per-core | --relative | --container-image | --container-mounts | \
      --container-name | --container-workdir | --container-env | --container-save | --container-mount) return 1 ;;
    --comment | --wckey | --mail-type | --mail-user | --signal | --dependency | --licenses | --switches | --nodefile | \
      --mem-per-* | --tres-per-* | --tres-bind | --cores-per-socket | --sockets-per-node | --het-group | \
      --cpu-freq | --propagate | --task-prolog | --task-epilog | --prolog | --epilog | --acctg-freq | --bcast | --begin | \
      --deadline | --export-file | --core-spec | --cluster-constraint | --clusters | --priority | --tmp | --uid | --gid | \
      --wait | --time-min | --gpu-freq | --environment | --accel-bind) return 1 ;;
    # deepspeed and torchrun where they start a command: --no_python
    --num_nodes | --num_gpus | --master_addr | --master_port | --launcher | --launcher_args | --include | \
      --bind_core_list | --nnodes | --nproc_per_node | --nproc-per-node | --node_rank | --node-rank | --rdzv_* | --rdzv-* | \
      --max_restarts | --max-restarts | --monitor_interval | --monitor-interval | --start_method | --start-method | \
      --role | --log_dir | --log-dir | --redirects | --tee | --master-addr | --master-port | --local_addr | \
      --local-addr | --ssh_port) return 1 ;;
    # containers
    --bind | --env | --pwd | --home | --overlay | --mount | --volume | --workdir | --name | --hostname | --shm-size | \
      --ipc | --ulimit | --user | --runtime | --device | --security-opt | --cap-add | --env-file | --entrypoint | \
      --memory | --cpus | --scratch | --image) return 1 ;;
    # mpiexec, jsrun, numactl, nsys
    --ppn | --np | --npernode | --npersocket | --nperhost | --wdir | --rank-by | --cpus-per-proc | --cpus-per-rank | \
      --output-filename | --prefix | --machinefile | --envlist | --timeout | --hostfile | --map-by | --bind-to | --host | --depth | --rankfile | --nrs | --tasks_per_rs | \
      --cpu_per_rs | --gpu_per_rs | --rs_per_host | --trace | --sample | --cpunodebind | --membind | --physcpubind | \
      --interleave | --preferred) return 1 ;;
    *) return 0 ;;
  esac
}

is_long_option() {  # succeed if a word is an option of several letters with a value, such as -hostfile
  [[ $1 == -[a-z][a-z]* ]] && ! values_of "$1"
}

is_at_hand() {  # succeed if a word names a program or a script that exists here
  [ -e "$1" ] || [ -f "${ADOPT_FOLDER-}/${1##*/}" ] || [ -x "/adopt/bin/${1##*/}" ] || type -P -- "$1" > /dev/null
}

more_at_hand() {  # succeed if one of the next words that are not options names a program that exists here
  local word
  for word in "$@"; do
    [[ $word == -* ]] || ! is_at_hand "$word" || return 0
  done
  return 1
}

own_words() {  # print the number of words before the command that this program starts; all words if it starts none
  local count=0 skip=0 word before=
  own=$#
  for word in "$@"; do
    count=$((count + 1))
    if [ "$skip" -eq 0 ] && [[ $before == -* && $before != *=* && $word != -* ]] && ! is_at_hand "$word" && more_at_hand "${@:$((count + 1))}"; then
      before=  # the value of an unknown option
      continue
    fi
    before=
    if [[ $skip -gt 0 && $word != --* ]] && ! is_long_option "$word"; then
      skip=$((skip - 1))
    elif [[ $word == -- ]]; then
      own=$count
      return
    elif [[ $word == -* ]]; then
      skip=0  # an option after an option: the first one's value was an empty variable
      values_of "$word" || skip=$?
      before=$word
      [ "$skip" -eq 0 ] || before=
    elif [[ $word =~ ^__NOT_SET_[A-Za-z0-9_]*(ARGS|ARGUMENTS|OPTS|OPTIONS|FLAGS)__$ ]]; then
      :  # launcher options in a variable that is not set: srun $SRUN_ARGS python train.py
    elif [[ $kind != step && $word =~ ^(run|exec|start|shell|launch|profile|record|submit)$ ]]; then
      :
    elif [[ $kind != container || $word == */*.sh ]] || type -P -- "$word" > /dev/null || [ -x "/adopt/bin/${word##*/}" ]; then
      own=$((count - 1))
      return
    fi
  done
}

start() {  # become the given command; a command that does not exist here is only recorded
  [ "$#" -gt 0 ] || exit 0
  export ADOPT_PARENT=$id
  local program=$1
  shift
  if [[ $program == *.py && $kind == wrapper ]]; then  # coverage run train.py
    exec /adopt/bin/python "$program" "$@"
  elif [ ! -e "$program" ] && [ -f "${ADOPT_FOLDER-}/${program##*/}" ]; then
    exec bash "$ADOPT_FOLDER/${program##*/}" "$@"
  elif [ -x "/adopt/bin/${program##*/}" ]; then
    exec "/adopt/bin/${program##*/}" "$@"
  elif [[ -f $program && ! -x $program ]]; then
    exec bash "$program" "$@"
  elif type -P -- "$program" > /dev/null; then
    exec "$program" "$@"
  elif [ -f "$program" ]; then  # mpirun finds a bare name in its working folder
    exec bash "$program" "$@"
  fi
  exec /adopt/bin/unknown-program "$program" "$@"
}
