#!/bin/bash -p
# timeout: runs the real program. If the script's limit is not set (timeout "${LIMIT}m" srun ...), it uses another limit.
# programs: timeout
words=("$@")
skip=0
for place in "${!words[@]}"; do
  word=${words[place]}
  if [ "$skip" -gt 0 ]; then
    skip=0
  elif [[ $word == -k || $word == -s || $word == --kill-after || $word == --signal ]]; then
    skip=1
  elif [[ $word != -* ]]; then
    [[ $word =~ ^[0-9]+([.][0-9]*)?[smhd]?$ ]] || words[place]=10
    break
  fi
done
exec /usr/bin/timeout "${words[@]}"
