#!/usr/bin/env bash
# Runs "go build" and shows how many of the packages that have to be compiled are done:
#
#	build.sh NAME GO-BUILD-FLAG... PACKAGE
set -euo pipefail
name=$1
shift
listed=() # everything except -o FILE, which go list does not have
for ((i = 1; i <= $#; i++)); do
	if [ "${!i}" = -o ]; then i=$((i + 1)); else listed+=("${!i}"); fi
done
total=$(go list -deps -f '{{if .Stale}}{{.ImportPath}}{{end}}' "${listed[@]}" | wc -l)
if [ -t 1 ]; then terminal=1; else terminal=0; fi
# -v prints a line for each package that is compiled. Other lines are errors and downloads.
go build -v "$@" 2>&1 | awk -v name="$name" -v total="$total" -v terminal=$terminal '
	/^[^ #:]+$/ {
		done++
		if (total < done) total = done
		if (terminal) printf "\r%s: %d of %d packages", name, done, total
		else if (done % 100 == 0 || done == total) printf "%s: %d of %d packages\n", name, done, total
		fflush()
		next
	}
	{ if (terminal && done) printf "\r\033[K"; print }
	END { if (terminal && done) printf "\n" }'
