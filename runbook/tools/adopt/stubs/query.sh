#!/bin/bash -p
# Programs that query a YAML or JSON file. Plain keys of an available file are answered; any other answer is marked as known only on the job's machine.
# programs: yq jq
kind=query
. /adopt/stubs/record.sh
record quiet "$#" "$@"
for path in /usr/bin /bin; do
  [ "$name" != jq ] || [ ! -x "$path/jq" ] || exec "$path/jq" "$@"
done
query=
file=
for word in "$@"; do
  case "$word" in
    eval | e | -*) ;;
    *) if [ -z "$query" ]; then query=$word; else file=${file:-$word}; fi ;;
  esac
done
if [ "$query" = . ]; then
  exec cat ${file:+"$file"}
fi
[ -z "$file" ] || [ -f "$file" ] || file=${ADOPT_FOLDER-}/${file##*/}
answer=
if [[ $name == yq && -f $file && $query =~ ^(\.[A-Za-z_][A-Za-z0-9_-]*)+$ ]]; then
  # first[d]: the indentation of the keys that are children of the keys before the d-th of the query
  answer=$(awk -v query="${query#.}" '
    BEGIN { last = split(query, keys, "."); depth = 1; first[1] = -1 }
    /^[[:space:]]*(#|$)/ || /^---/ { next }
    {
      match($0, /^ */)
      width = RLENGTH
      while (depth > 1 && width <= place[depth - 1]) depth--
      if (first[depth] < 0) first[depth] = width
      text = substr($0, width + 1)
      key = text
      sub(/[[:space:]]*:.*/, "", key)
      if (width != first[depth] || key != keys[depth]) next
      if (depth == last) {
        sub(/^[^:]*:[[:space:]]*/, "", text)
        sub(/[[:space:]]+#.*$/, "", text)
        gsub(/^["\047]|["\047][[:space:]]*$/, "", text)
        found = 1
        print text
        exit
      }
      place[depth] = width
      depth++
      first[depth] = -1
    }
    END { if (!found) print "null" }' "$file")
fi
case "$answer" in
  "" | [\&\*\|\>\{\[]*) key=${query//[^A-Za-z0-9]/_} && echo "__NOT_SET_${key#_}__" ;;
  *) echo "$answer" ;;
esac
