package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// workerEnv makes this test binary run as a worker.
const workerEnv = "SHAREDTENSOR_BENCH_TEST_WORKER"

// killedEnv makes this test binary run a benchmark, to be killed, with this directory for its file.
const killedEnv = "SHAREDTENSOR_BENCH_TEST_KILLED"

func TestMain(m *testing.M) {
	if dir := os.Getenv(killedEnv); dir != "" {
		_, err := Load(context.Background(), Options{Worker: again, Effort: Quick, Dir: dir})
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if os.Getenv(workerEnv) == "" {
		os.Exit(m.Run())
	}
	if err := Work(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// again returns a command that starts this test binary as a worker.
func again(ctx context.Context) (*exec.Cmd, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), workerEnv+"=1", killedEnv+"=")
	return cmd, nil
}

// BenchmarkAll runs every benchmark once at quick effort; -bench BenchmarkAll/ping selects one. It does not report
// ns/op, which has no meaning here.
func BenchmarkAll(b *testing.B) {
	for _, group := range All() {
		b.Run(group.Name, func(b *testing.B) {
			var results []Result
			for b.Loop() {
				var err error
				if results, err = group.Run(b.Context(), Options{Worker: again, Effort: Quick, Dir: b.TempDir(), Note: func(text string) { b.Log(text) }}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(0, "ns/op")
			for _, r := range results {
				b.ReportMetric(r.Value, r.Name+"-"+r.Unit)
				if r.Ratio != nil {
					b.ReportMetric(*r.Ratio, r.Name+"-ratio")
				}
			}
		})
	}
}
