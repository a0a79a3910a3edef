package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Settings from all sources are printed without their credentials, even if they are invalid.
func TestConfigCheckHidesCredentials(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	require.NoError(t, os.WriteFile(file, []byte("nats: nats://user:s3cret@cluster:4222\n"), 0o600))
	store := t.TempDir()
	for name, args := range map[string][]string{
		"password":  {"--nats", "nats://user:s3cret@cluster:4222"},
		"token":     {"--nats", "nats://s3cret@other:4222,nats://s3cret@cluster:4222"},
		"json":      {"--nats", "nats://user:s3cret@cluster:4222", "--json"},
		"file":      {"--config", file},
		"slash":     {"--nats", "nats://user:s3/s3cret@cluster:4222"},
		"comma":     {"--nats", "nats://user:s3cret,@cluster:4222"},
		"no scheme": {"--nats", "user:s3cret@cluster:4222"},
		"component": {"--mirror", "https://user:s3cret@cluster/m@3"},
	} {
		t.Run(name, func(t *testing.T) {
			out, errs, _ := runProcess(t, append([]string{"config", "check", "--store", store}, args...)...)
			require.Contains(t, out, "***@cluster")
			require.NotContains(t, out+errs, "s3cret")
		})
	}
	out, _, _ := runProcess(t, "config", "check", "--store", store, "--mirror", "https://gpu7:2537/llm@3")
	require.Contains(t, out, "https://gpu7:2537/llm@3")
}

// The command line overrides the environment, and the environment overrides the file.
func TestCommandLineOverridesEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	require.NoError(t, os.WriteFile(file, []byte("drain: 5s\nstall: 6s\nlog-level: error\n"), 0o600))
	cmd := command(t, "config", "check", "--store", t.TempDir(), "--config", file, "--drain", "1s")
	cmd.Env = append(cmd.Env, "SHAREDTENSOR_DRAIN=2s", "SHAREDTENSOR_STALL=3s")
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Regexp(t, `(?m)^drain +1s +flag$`, string(out))
	require.Regexp(t, `(?m)^stall +3s +environment$`, string(out))
	require.Regexp(t, `(?m)^log-level +error +file$`, string(out))
}
