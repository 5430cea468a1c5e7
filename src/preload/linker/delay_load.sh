#!/bin/sh
# delay_load.sh OUT LIBRARY... [--late LIBRARY...] -- ARCHIVE...: writes delay.def (see delay_load.cc): the libraries' sonames, and the functions of theirs
# that the archives ask for; and the unwinder's, which the C++ runtime asks for: a thread that is cancelled in one of our calls is unwound
# by the process's libgcc_s, whose state a second, static copy does not understand. NM and OBJDUMP are the programs for the machine that it is built for.
set -eu
out=$1; shift
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
: > "$work/offered"; : > "$out.new"
kind=DELAY_LIBRARY; library=0
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  [ "$1" != --late ] || { kind=LATE_LIBRARY; shift; continue; }
  soname=$("$OBJDUMP" -p "$1" | awk '$1 == "SONAME" {print $2}')
  echo "$kind(\"$soname\")" >> "$out.new"
  "$NM" -D --defined-only "$1" | awk -v library=$library '
    $2 ~ /[TWi]/ {sub(/@.*/, "", $3); print $3, "function", library} $2 ~ /[BDRV]/ {sub(/@.*/, "", $3); print $3, "data", library}' |
    case $soname in  # the rest of libgcc is linked statically
      libgcc_s.*) grep '^_Unwind_' ;;
      *) cat ;;
    esac >> "$work/offered"
  library=$((library + 1)); shift
done
[ $# -eq 0 ] || shift
if [ $# -gt 0 ]; then "$NM" -u "$@" 2>/dev/null | awk '$1 == "U" {print $2}' | sort -u > "$work/asked"; else : > "$work/asked"; fi
sort -u "$work/offered" | awk -v asked="$work/asked" -v out="$out.new" '
  BEGIN { while ((getline name < asked) > 0) want[name] = 1 }
  !($1 in want) && $1 !~ /^_Unwind_/ { next }
  $2 == "data" { print "delay_load.sh: " $1 " is data, which cannot be loaded late" > "/dev/stderr"; exit 1 }
  !($1 in seen) { seen[$1] = 1; print "DELAYED(" $1 ", " $3 ")" >> out }'
mv "$out.new" "$out"
