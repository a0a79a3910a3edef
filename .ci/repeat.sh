# Functions that run tests and repeat the ones that failed, for .ci/common.sh and .ci/python, which set $tmp. A test whose
# result depends on the load of the machine delays every change of everybody. So it does not fail a run, but it is named at the
# end of the run until it is corrected.

# go_test ARGUMENTS...: runs go test. If at most three tests fail, each must pass three times alone, and is reported as unstable.
# Nothing is repeated after a data race, a panic, a timeout or a failed build. Packages in the arguments begin with ./ or are
# import paths of this repository.
go_test() {
	local log=$tmp/go-test flags=() argument path name status=0
	go test "$@" 2>&1 | tee "$log"
	((PIPESTATUS[0] != 0)) || return 0
	! grep -qE 'DATA RACE|^panic:|^fatal error:|^SIG|test timed out|\[(build|setup) failed\]' "$log" || return 1
	for argument; do [[ $argument == ./* || $argument == github.com/sharedtensor/* ]] || flags+=("$argument"); done
	# The lines of a package end with "FAIL", tab and its path.
	awk '/^--- FAIL: /{ tests = tests $3 "|"; n++ }
		/^FAIL\t/{ if (tests == "") bad = 1; print $2, substr(tests, 1, length(tests) - 1); tests = "" }
		/^ok/{ tests = "" }
		END { exit bad || n == 0 || n > 3 }' "$log" >"$tmp/failed-tests" || return 1
	while read -r path name; do
		echo "again, three times: $name in $path"
		if go test "${flags[@]}" -count=3 -run "^($name)\$" "$path" </dev/null; then
			echo "unstable: $name in $path"
		else
			status=1
		fi
	done <"$tmp/failed-tests"
	return $status
}

# pytest_in FOLDER PYTHON ARGUMENTS...: runs pytest in a folder. It repeats failed tests as go_test does.
pytest_in() {
	local folder=$1 python=$2 cache log=$tmp/pytest try status
	shift 2
	cache=$(mktemp -d "$tmp/pytest-cache.XXXXXX") || return 1
	(cd "$folder" && "$python" -m pytest -q -o cache_dir="$cache" -rfEs "$@" 2>&1) | tee "$log"
	status=${PIPESTATUS[0]}
	((status != 0)) || return 0
	((status == 1 && $(grep -cE '^(FAILED|ERROR) ' "$log") <= 3)) && grep -qE '^FAILED ' "$log" || return 1
	for try in 1 2 3; do
		echo "failed tests again, $try of 3"
		# Only the first run decides which tests are repeated.
		cp -r "$cache" "$cache.$try" && (cd "$folder" && "$python" -m pytest -q -o cache_dir="$cache.$try" --last-failed --last-failed-no-failures none -rfE "$@" 2>&1) || return 1
	done
	sed -n 's/^FAILED \([^ ]*\).*/unstable: \1/p' "$log"
}
