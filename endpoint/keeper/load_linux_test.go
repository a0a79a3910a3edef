package keeper_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// follow is a reader of a load test: it follows a name until its standard input ends, checks every element of every
// version, and that versions and values never decrease.
func follow(socket, name string) error {
	dev, err := host.Open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1)) // ends with the test
		cancel()
	}()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}, Wait: true})
	if err != nil {
		return err
	}
	m, err := c.Follow(ctx, name, endpoint.FollowOptions{})
	if err != nil {
		return err
	}
	defer m.Close()
	version, last := uint64(0), 0
	for ctx.Err() == nil {
		changed := m.Changed()
		err := m.Use(func(v endpoint.ModelVersion) error {
			got, err := valueOf(v.StateDict)
			if err == nil && (v.Version < version || got < last || v.Version == version && got != last && last != 0) {
				err = fmt.Errorf("version %d has value %d after version %d with %d", v.Version, got, version, last)
			}
			version, last = v.Version, got
			return err
		})
		if err != nil {
			return err
		}
		select {
		case <-changed:
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return nil
}

// reader is a process that follows a model.
type reader struct {
	cmd *exec.Cmd
	log *strings.Builder
}

func startReader(t testing.TB, socket string, stdin *os.File) *reader {
	r := &reader{cmd: exec.Command(os.Args[0], "follow", socket), log: new(strings.Builder)}
	r.cmd.Stdin, r.cmd.Stderr = stdin, r.log
	require.NoError(t, r.cmd.Start())
	return r
}

// Versions are published at 20 per second to readers in many processes. Some are killed. No reader sees a mixed
// or freed version, and the memory of the owner and the keeper stays flat. The variable SHAREDTENSOR_LOAD sets the
// duration; a long run has 50 readers.
func TestVersionsUnderLoad(t *testing.T) {
	t.Parallel()
	during, readers := 1500*time.Millisecond, 4
	if d, err := time.ParseDuration(os.Getenv("SHAREDTENSOR_LOAD")); err == nil {
		during, readers = d, 50
	}
	p := start(t)
	u := newUser(t, p)
	store, err := connectKeeper(keeperOf(p.Socket, nil))
	require.NoError(t, err)
	defer store.Close()
	pool := host.NewPool(u.dev, host.PoolOptions{})
	defer pool.Close()
	next := 1
	publish := func() {
		sd, err := modelOf(pool, next)
		require.NoError(t, err)
		defer sd.Close()
		version, err := u.Publish(t.Context(), "m", sd, endpoint.PublishOptions{Retain: &endpoint.Retention{Versions: 3}})
		require.NoError(t, err)
		require.EqualValues(t, next, version)
		next++
	}
	publish()
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	defer write.Close()
	list := make([]*reader, readers)
	for i := range list {
		list[i] = startReader(t, p.Socket, read)
	}
	pace := time.NewTicker(time.Second / 20)
	defer pace.Stop()
	var bytes, descriptors, resident []int
	killed := 0
	begin := time.Now()
	for time.Since(begin) < during {
		<-pace.C
		publish()
		if next%20 == 0 { // one of the readers each second
			i := rand.IntN(readers)
			require.NoError(t, list[i].cmd.Process.Kill())
			_ = list[i].cmd.Wait() // it was killed
			require.Empty(t, list[i].log.String(), "reader %d", i)
			list[i] = startReader(t, p.Socket, read)
			killed++
		}
		if next%100 == 0 {
			info, err := u.ServerInfo(t.Context())
			require.NoError(t, err)
			bytes, descriptors = append(bytes, int(info.Stats.BytesOwned)), append(descriptors, descriptorsOf(t, store.PID()))
			resident = append(resident, anonymousKilobytes(t, p.PID()))
		}
	}
	took := time.Since(begin)
	write.Close()
	for i, r := range list {
		require.NoError(t, r.cmd.Wait(), "reader %d: %s", i, r.log)
	}
	t.Logf("%d versions in %v (%.1f/s), %d readers, %d killed", next-1, took, float64(next-2)/took.Seconds(), readers, killed)
	require.Eventually(t, func() bool { // the leases of readers end with their connections
		info, err := u.Info(t.Context(), "m")
		return err == nil && len(info.Versions) == 4
	}, 20*time.Second, 10*time.Millisecond, "three superseded versions are retained")
	if n := len(bytes); n > 4 { // a long run
		t.Logf("owner: %d to %d bytes of versions, %d to %d KiB resident; keeper: %d to %d descriptors", bytes[1], bytes[n-1], resident[1], resident[n-1],
			descriptors[1], descriptors[n-1])
		limit := 20 * (64*32 + 32) * 4
		require.Less(t, bytes[n-1], bytes[1]+limit)
		require.Less(t, resident[n-1], resident[1]+16<<10)
		require.Less(t, descriptors[n-1], descriptors[1]+20)
	}
}

// descriptorsOf returns the number of open descriptors of a process.
func descriptorsOf(t testing.TB, pid int) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	require.NoError(t, err)
	return len(list)
}

// anonymousKilobytes returns the memory of a process without shared memory.
func anonymousKilobytes(t testing.TB, pid int) (kilobytes int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	_, anonymous, found := strings.Cut(string(status), "RssAnon:")
	require.True(t, found)
	_, err = fmt.Sscan(anonymous, &kilobytes)
	require.NoError(t, err)
	return kilobytes
}

// runActor runs a client or a publisher of a test. It returns false in other processes.
func runActor(args []string) bool {
	var err error
	switch {
	case len(args) == 3 && args[1] == "act":
		err = act(args[2])
	case len(args) == 3 && args[1] == "follow":
		err = follow(args[2], "m")
	default:
		return false
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}
