# What .ci/run and .ci/soak have in common. It is sourced by both from the root of the repository, with $tmp set.

# What this machine has, so that tests which need it fail instead of being skipped: see driver/drivertest.Needs.
SHAREDTENSOR_REQUIRE=
[[ $(uname) != Linux ]] || SHAREDTENSOR_REQUIRE+=memfd,
((EUID != 0)) || SHAREDTENSOR_REQUIRE+=root,
[[ $(nproc 2>/dev/null || echo 1) == 1 ]] || SHAREDTENSOR_REQUIRE+=processors,
! grep -qs '^VmHWM:' /proc/self/status || SHAREDTENSOR_REQUIRE+=procfs,
case $(stat -f -c %T "${TMPDIR:-/tmp}" 2>/dev/null) in # a file system whose files leave the page cache when told to
ext2/ext3 | xfs) SHAREDTENSOR_REQUIRE+=pagecache, ;;
esac
for group in /sys/fs/cgroup/memory /sys/fs/cgroup; do # a control group of one's own that limits memory
	mkdir "$group/ci-$$" 2>/dev/null || continue
	[[ ! -e $group/ci-$$/memory.max && ! -e $group/ci-$$/memory.limit_in_bytes ]] || SHAREDTENSOR_REQUIRE+=cgroup,
	rmdir "$group/ci-$$"
done
export SHAREDTENSOR_REQUIRE

failed=0
summary=()

# step NAME TITLE: runs the function step_NAME unless $only names others. Status 0 is ok, 77 is skipped (the reason is in
# $tmp/skip), others are failures.
step() {
	local name=$1 title=$2 start status result
	if ((${#only[@]})) && [[ " ${only[*]} " != *" $name "* ]]; then return; fi
	printf '\n==> %s: %s\n' "$name" "$title"
	start=$EPOCHREALTIME
	"step_$name"
	status=$?
	local seconds
	seconds=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
	case $status in
	0) result=ok ;;
	77) result="skipped ($(cat "$tmp/skip"))" ;;
	*) result=FAILED failed=1 ;;
	esac
	printf '<== %s: %s, %s s\n' "$name" "$result" "$seconds"
	summary+=("$(printf '%-10s %7s s  %s' "$name" "$seconds" "$result")")
}

# summarize BEGIN: lists the steps and what became of them. BEGIN is the value of SECONDS when they began.
summarize() {
	printf '\nsummary\n'
	printf '  %s\n' "${summary[@]}"
	printf '  %-10s %5d s\n' total $((SECONDS - $1))
}

# must_be_steps NAME...: ends the script with status 2 at a name that is no step.
must_be_steps() {
	local name
	for name; do
		declare -F "step_$name" >/dev/null || { echo "no step $name" >&2; exit 2; }
	done
}

skip() {
	echo "$*" >"$tmp/skip"
	return 77
}

have() { command -v "$1" >/dev/null; }

# packages: leaves the folder and import path of every package in $tmp/packages.
packages() { go list -f '{{.Dir}} {{.ImportPath}}' ./... >"$tmp/packages"; }

# fuzz_targets: leaves the import path and name of every fuzz target in $tmp/targets.
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

# fuzz_one PATH NAME SECONDS LOG FLAGS...: searches for a while, and prints how often the target ran, or what was found.
fuzz_one() {
	local path=$1 name=$2 seconds=$3 log=$4
	shift 4
	# A worker that is busy when the time is over makes go test report the deadline as a failure of the target, without a
	# failing input. That is no finding.
	if go test -run '^$' -fuzz "^$name\$" -fuzztime "${seconds}s" "$@" "$path" >"$log" 2>&1 ||
		{ grep -qx ' *context deadline exceeded' "$log" && ! grep -qE 'Failing input|panic|_test\.go:' "$log"; }; then
		printf '  %-24s %s: %s\n' "$name" "$path" "$(grep -oE 'execs: [0-9]+' "$log" | tail -n 1)"
	else
		cat "$log"
		return 1
	fi
}

# without FLAGS...: runs tests of endpoint and wire with the race detector, once without rings and once without memory
# that is used again or kept. A peer may lack either, and what is promised holds all the same.
without() {
	local status=0
	echo "  without rings"
	SHARED_TENSOR_RING=off go test -race -timeout 20m "$@" ./endpoint ./wire ./endpoint/internal/chaos || status=1
	echo "  without memory that is used again"
	SHAREDTENSOR_TEST_WITHOUT=pool,keep go test -race -timeout 20m "$@" ./endpoint || status=1
	return $status
}
