package main

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

const childKind = "TRAIN_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childKind) {
	case "":
		os.Exit(m.Run())
	case "train":
		main()
	}
}

func child(t *testing.T, args ...string) (*exec.Cmd, io.Reader) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), childKind+"=train")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, out
}

// Training with three workers completes although one worker is killed and restarted and later all others are killed.
func TestTrain(t *testing.T) {
	server, err := natslink.Start(natslink.ServerOptions{Store: t.TempDir(), Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer server.Close()
	dev, err := host.Open()
	require.NoError(t, err)
	socket := filepath.Join(t.TempDir(), "owner.sock")
	owner, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: []driver.Device{dev}})
	require.NoError(t, err)
	go func() { _ = owner.Serve(context.Background()) }()
	defer owner.Close()

	args := func(role, name string) []string {
		return []string{role, "--nats", server.URL(), "--owner", socket, "--name", name}
	}
	var workers []*exec.Cmd
	for _, name := range []string{"a", "b", "c"} {
		w, _ := child(t, args("worker", name)...)
		workers = append(workers, w)
	}
	trainer, out := child(t, args("trainer", "trainer")...)
	var last string
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		last = lines.Text()
		t.Log(last)
		if strings.HasPrefix(last, "version 20,") {
			for i, w := range workers {
				require.NoError(t, w.Process.Kill())
				if i == 0 {
					child(t, args("worker", "a")...)
					time.Sleep(100 * time.Millisecond)
				}
			}
		}
	}
	require.NoError(t, trainer.Wait())
	require.True(t, strings.HasPrefix(last, "learned in "), last)
}
