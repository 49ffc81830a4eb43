#!/bin/bash -p
# Shells: the real bash, which finds the job's own scripts wherever the job has changed to.
# programs: bash sh
words=("$@")
for place in "${!words[@]}"; do
  word=${words[place]}
  case "$word" in
    -c) break ;;
    -*) ;;
    *)
      if [ ! -e "$word" ] && [ -f "${ADOPT_FOLDER-}/${word##*/}" ]; then
        words[place]=$ADOPT_FOLDER/${word##*/}
      fi
      break ;;
  esac
done
exec /bin/bash "${words[@]}"
