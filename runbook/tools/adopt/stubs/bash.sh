#!/bin/bash -p
# Shells: starts the real bash, which finds the job's own scripts from whatever folder the job has changed to.
# programs: bash sh
words=("$@")
for place in "${!words[@]}"; do
  word=${words[place]}
  case "$word" in
    -c) break ;;
    -*) ;;
    *)
      for name in "$word" "${word##*/}"; do
        if [ ! -e "${words[place]}" ] && [ -f "${ADOPT_FOLDER-}/$name" ]; then
          words[place]=$ADOPT_FOLDER/$name
        fi
      done
      break ;;
  esac
done
exec /bin/bash "${words[@]}"
