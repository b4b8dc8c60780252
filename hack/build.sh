#!/usr/bin/env bash
# Runs "go build", and shows how many of the packages that have to be compiled are done and how long the others take at
# the rate so far:
#
#	build.sh NAME GO-BUILD-FLAG... PACKAGE
set -euo pipefail
export GOGC=400 # less garbage collection in the compiler saves a tenth of its time
name=$1
shift
listed=() # everything except -o FILE, which go list does not have
for ((i = 1; i <= $#; i++)); do
	if [ "${!i}" = -o ]; then i=$((i + 1)); else listed+=("${!i}"); fi
done
total=$(go list -deps -f '{{if .Stale}}{{.ImportPath}}{{end}}' "${listed[@]}" | wc -l)
if [ -t 1 ]; then terminal=1; else terminal=0; fi
if [ "$total" -gt 50 ]; then echo "$name: compiling $total packages"; fi
# -v prints a line for each package that is compiled. Other lines are errors and downloads.
go build -v "$@" 2>&1 | awk -v name="$name" -v total="$total" -v terminal=$terminal '
	function left(  seconds) {
		seconds = systime() - began
		if (seconds < 10 || done == total) return ""
		seconds = seconds * (total - done) / done
		return seconds < 90 ? sprintf(", about %d s left", seconds) : sprintf(", about %d minutes left", seconds / 60 + 1)
	}
	BEGIN { began = systime() }
	/^[^ #:]+$/ {
		done++
		if (total < done) total = done
		if (terminal) printf "\r%s: %d of %d packages%s   ", name, done, total, left()
		else if (done % 100 == 0 || done == total) printf "%s: %d of %d packages%s\n", name, done, total, left()
		fflush()
		next
	}
	{ if (terminal && done) printf "\r\033[K"; print }
	END { if (terminal && done) printf "\n" }'
