#!/bin/bash -eu
# Builds every fuzz target of the root module. The seeds of a target are the files of its corpus in testdata/fuzz. The image has
# compile_native_go_fuzzer_v2, which also compiles the test files that a target uses; COMPILE replaces it.
cd "$SRC/sharedtensor"
compile=${COMPILE:-compile_native_go_fuzzer_v2}
[[ -n ${COMPILE:-} ]] || go get github.com/AdamKorcz/go-118-fuzz-build/testing@fc5dc53b9db8
go list -f '{{.Dir}} {{.ImportPath}}' ./... | grep -v /internal/command | while read -r dir package; do
	name=$(echo "${package#*/*/sharedtensor}" | sed 's|^/||; s|/|_|g')
	(grep -ho '^func Fuzz[A-Za-z0-9_]*' "$dir"/*_test.go 2>/dev/null || true) | sed 's/^func //' | while read -r target; do
		"$compile" "$package" "$target" "${name}_$target"
		if [[ -d $dir/testdata/fuzz/$target ]]; then
			zip -jq "$OUT/${name}_${target}_seed_corpus.zip" "$dir/testdata/fuzz/$target"/*
		fi
	done
done
