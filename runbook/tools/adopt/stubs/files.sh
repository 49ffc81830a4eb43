#!/bin/bash -p
# Programs that look at files. If the job's data is missing, the answer is marked as known only on the job's machine.
# programs: find ls cat
name=${0##*/}
for word in "$@"; do
  case "$word" in
    -*) ;;
    *)
      if [ ! -e "$word" ]; then
        pattern=
        [ "$name" != find ] || pattern=$(printf '%s\n' "$@" | sed -n '/^-i\?name$/{n;s/[*?]//g;p;q}')
        case "$name" in find) echo "$word/__NOT_SET_files__$pattern" && exit 0 ;; cat) echo "__NOT_SET_text__" && exit 1 ;; esac
      fi
      break ;;
  esac
done
for path in /usr/bin /bin; do
  [ ! -x "$path/$name" ] || exec "$path/$name" "$@"
done
exit 127
