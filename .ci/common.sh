# Functions for .ci/run, .ci/soak and .ci/remote, which source this file from the root of the repository with $tmp set.

. "$(dirname "${BASH_SOURCE[0]}")/repeat.sh"

# SHAREDTENSOR_REQUIRE lists the capabilities of this machine. A test that needs one of them fails instead of skipping; see
# driver/drivertest.Needs.
SHAREDTENSOR_REQUIRE=
[[ $(uname) != Linux ]] || SHAREDTENSOR_REQUIRE+=memfd,
((EUID != 0)) || SHAREDTENSOR_REQUIRE+=root,
[[ $(nproc 2>/dev/null || echo 1) == 1 ]] || SHAREDTENSOR_REQUIRE+=processors,
! grep -qs '^VmHWM:' /proc/self/status || SHAREDTENSOR_REQUIRE+=procfs,
case $(stat -f -c %T "${TMPDIR:-/tmp}" 2>/dev/null) in # file systems that evict files from the page cache on request
ext2/ext3 | xfs) SHAREDTENSOR_REQUIRE+=pagecache, ;;
esac
for group in /sys/fs/cgroup/memory /sys/fs/cgroup; do # requires a writable control group that limits memory
	mkdir "$group/ci-$$" 2>/dev/null || continue
	[[ ! -e $group/ci-$$/memory.max && ! -e $group/ci-$$/memory.limit_in_bytes ]] || SHAREDTENSOR_REQUIRE+=cgroup,
	rmdir "$group/ci-$$"
done
export SHAREDTENSOR_REQUIRE

failed=0
summary=()

# step NAME TITLE: runs the function step_NAME if $only is empty or contains NAME. Status 0 means ok, 77 skipped (with the
# reason in $tmp/skip), any other status failed.
step() {
	local name=$1 title=$2 start status result copy tee i
	if ((${#only[@]})) && [[ " ${only[*]} " != *" $name "* ]]; then return; fi
	printf '\n==> %s: %s\n' "$name" "$title"
	start=$EPOCHREALTIME
	exec {copy}> >(exec tee "$tmp/output")
	tee=$!
	"step_$name" >&"$copy" 2>&1 # in this shell, because steps set variables
	status=$?
	exec {copy}>&-
	for ((i = 0; i < 50; i++)); do # a process that the step left behind may keep tee running
		kill -0 "$tee" 2>/dev/null || break
		sleep 0.05
	done
	local seconds
	seconds=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
	case $status in
	0) result=ok ;;
	77) result="skipped ($(cat "$tmp/skip"))" ;;
	*) result=FAILED failed=1; failures "$name" <"$tmp/output" >>"$tmp/failures" ;;
	esac
	grep '^unstable: ' "$tmp/output" | sort -u >>"$tmp/unstable"
	printf '<== %s: %s, %s s\n' "$name" "$result" "$seconds"
	summary+=("$(printf '%-10s %7s s  %s' "$name" "$seconds" "$result")")
}

# failures NAME: reads the output of a step, and writes the names of failed tests with the lines that follow. The summary shows
# them, because logs of runs are long and may be cut in the middle.
failures() {
	grep -E -A 8 -- '--- FAIL|^(panic|fatal error|FAILED|ERROR|E  ) |DATA RACE|^[^ ]*\.go:[0-9]+:[0-9]+:|^test timed out' |
		cut -c 1-240 | awk -v step="$1" 'NR <= 80 { print "  " step ": " $0 } END { if (NR > 80) print "  " step ": and " NR - 80 " lines more" }'
}

# summarize BEGIN: prints what failed, the unstable tests, and the result of each step. BEGIN is the value of SECONDS at the
# start.
summarize() {
	[[ ! -s $tmp/failures ]] || { printf '\nfailures\n' && cat "$tmp/failures"; }
	[[ ! -s $tmp/unstable ]] || { printf '\ntests that failed once and then passed three times alone: correct them\n' && cat "$tmp/unstable"; }
	printf '\nsummary\n'
	printf '  %s\n' "${summary[@]}"
	printf '  %-10s %5d s\n' total $((SECONDS - $1))
}

# must_be_steps NAME...: exits with status 2 if a name is not a step.
must_be_steps() {
	local name
	for name; do
		declare -F "step_$name" >/dev/null || { echo "$name is not a step" >&2; exit 2; }
	done
}

skip() {
	echo "$*" >"$tmp/skip"
	return 77
}

have() { command -v "$1" >/dev/null; }

# packages: writes the folder and import path of every package to $tmp/packages.
packages() { go list -f '{{.Dir}} {{.ImportPath}}' ./... >"$tmp/packages"; }

# fuzz_targets: writes the import path and name of every fuzz target to $tmp/targets.
fuzz_targets() {
	local dir path name
	packages || return 1
	: >"$tmp/targets"
	while read -r dir path; do
		grep -qs '^func Fuzz' "$dir"/*_test.go || continue
		go test -list '^Fuzz' "$path" >"$tmp/names" || { cat "$tmp/names"; return 1; }
		while read -r name; do echo "$path $name" >>"$tmp/targets"; done < <(grep '^Fuzz' "$tmp/names")
	done <"$tmp/packages"
}

# fuzz_one PATH NAME SECONDS LOG FLAGS...: runs a fuzz target, and prints the number of executions or the failure.
fuzz_one() {
	local path=$1 name=$2 seconds=$3 log=$4
	shift 4
	# A large input is made smaller for up to a minute by default, and nothing else is tried meanwhile.
	# If a worker is busy when the time is over, go test reports the deadline as a failure without a failing input. Such a
	# failure is ignored.
	if go test -run '^$' -fuzz "^$name\$" -fuzztime "${seconds}s" -fuzzminimizetime 2s "$@" "$path" >"$log" 2>&1 ||
		{ grep -qx ' *context deadline exceeded' "$log" && ! grep -qE 'Failing input|panic|_test\.go:' "$log"; }; then
		printf '  %-24s %s: %s\n' "$name" "$path" "$(grep -oE 'execs: [0-9]+' "$log" | tail -n 1)"
	else
		cat "$log"
		return 1
	fi
}

# product are the packages whose tests run the whole product: owners and clients in several processes.
product=(./endpoint ./endpoint/node)
for dir in session transport client engine transfer offering server; do product+=(./endpoint/internal/$dir); done

# without FLAGS...: runs tests of endpoint and wire with the race detector, once without rings and once without pooled or
# kept memory. Peers may lack either feature, and every guarantee must hold without them.
without() {
	local status=0
	echo "  without rings"
	SHARED_TENSOR_RING=off go_test -race -timeout 20m "$@" "${product[@]}" ./wire ./endpoint/internal/chaos || status=1
	echo "  without pooled memory"
	SHAREDTENSOR_TEST_WITHOUT=pool,keep go_test -race -timeout 20m "$@" "${product[@]}" || status=1
	return $status
}
