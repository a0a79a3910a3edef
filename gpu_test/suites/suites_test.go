//go:build linux

package main

import (
	"archive/zip"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const logOfTests = `=== RUN   TestGood
--- PASS: TestGood (0.00s)
=== RUN   TestKinds
=== RUN   TestKinds/cuda-fabric
    main_test.go:24: the device does not support handles of kind cuda-fabric
--- PASS: TestKinds (0.00s)
    --- SKIP: TestKinds/cuda-fabric (0.00s)
=== RUN   TestSkipped
    gate_test.go:50: not on this machine, WSL: no | pipe

FACT load: 3 GiB/s
--- SKIP: TestSkipped (0.00s)
=== RUN   TestBad
=== PAUSE TestBad
=== CONT  TestBad
    x_test.go:9: wrong
    x_test.go:10: more
--- FAIL: TestBad (0.00s)
FAIL
`

func TestParseLog(t *testing.T) {
	t.Parallel()
	r := result{suite: suites[0], err: errors.New("exit status 1")}
	r.parse(logOfTests)
	require.Equal(t, []int{2, 1, 1}, []int{r.count(testPassed), r.count(testSkipped), r.count(testFailed)}, "without parts of tests")
	require.Equal(t, []string{"load: 3 GiB/s"}, r.facts)
	text := report{started: time.Unix(0, 0), built: "commit 1\ngo1\n", results: []result{r}}.markdown()
	for _, want := range []string{
		"1970-01-01 00:00 UTC. commit 1; go1.", "| `gpu_test` | `TestKinds/cuda-fabric` | the device does not support handles of kind cuda-fabric |",
		"| not on this machine, WSL: no / pipe |", "### gpu_test: TestBad\n\n```\n    x_test.go:9: wrong\n", "| `load` | 3 GiB/s |", "| IMEX |",
	} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "stand-in")
}

// A suite that ends without the end of a test is quoted with its last lines.
func TestReportOfCrash(t *testing.T) {
	t.Parallel()
	r := result{suite: suites[1], err: errors.New("signal: segmentation fault")}
	r.parse(strings.Repeat("=== RUN   TestCrash\nfatal error: unexpected signal\n", tailLines))
	text := report{fake: true, results: []result{r}}.markdown()
	require.Contains(t, text, "### endpoint: signal: segmentation fault")
	require.Contains(t, text, "fatal error: unexpected signal")
	require.Contains(t, text, "used the stand-in")
	require.True(t, report{results: []result{r}}.failed())
	require.True(t, report{}.failed(), "no suite ran")
}

func TestArguments(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	require.Equal(t, 2, run([]string{"nonsense"}, &stdout, &stderr))
	require.Contains(t, stderr.String(), `unknown suite "nonsense" (have: gpu_test, endpoint`)
	stderr.Reset()
	require.Equal(t, 2, run([]string{"-out", t.TempDir()}, &stdout, &stderr))
	require.Contains(t, stderr.String(), "gpu_test/build")
	require.Equal(t, 0, run([]string{"-h"}, &stdout, &stderr))
}

// Files that are packed behind a program can be unpacked from it and started.
func TestPackAndUnpack(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(folder, "sub"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "sub", "program"), []byte("#!/bin/sh\necho started\n"), 0o600))
	program := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(program, bytes.Repeat([]byte{1}, 12345), 0o600))
	require.NoError(t, pack(folder, program))

	archive, err := zip.OpenReader(program)
	require.NoError(t, err)
	defer archive.Close()
	dir, err := unpackInto(t.TempDir(), &archive.Reader)
	require.NoError(t, err)
	out, err := exec.Command(filepath.Join(dir, "sub", "program")).Output()
	require.NoError(t, err)
	require.Equal(t, "started\n", string(out))
	require.Error(t, pack(folder, filepath.Join(t.TempDir(), "none")))
}
