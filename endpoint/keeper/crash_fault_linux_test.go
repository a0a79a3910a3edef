package keeper_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// A fault is a condition under which an owner is restarted. The file "fault" in the directory of a crash test has its text.
const (
	noDevice  = "no device"  // the owner has no device
	openFiles = "open files" // and the number of descriptors that the owner may open
	failCall  = "fail"       // the name of a call, which of its executions fails, from 0, and the error's number
)

// fault returns the text of the fault that this process has.
func fault() string {
	text, _ := os.ReadFile(filepath.Join(os.Getenv(crashDir), "fault")) // without one the process has none
	return string(text)
}

// beginFault makes calls of this process fail, if its fault says so.
func beginFault() error {
	text := fault()
	if n, is := strings.CutPrefix(text, openFiles+" "); is {
		more, err := strconv.ParseUint(n, 10, 32)
		if err != nil {
			return err
		}
		open, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return err
		}
		limit := uint64(len(open)) + more
		return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: limit})
	}
	if call, is := strings.CutPrefix(text, failCall+" "); is {
		words := strings.Split(call, ", ")
		which, _ := strconv.Atoi(words[1])
		errno, _ := strconv.Atoi(words[2])
		executed := 0
		status.Fault = func(name string) error {
			if name == words[0] {
				if executed++; executed-1 == which || which < 0 {
					return syscall.Errno(errno)
				}
			}
			return nil
		}
	}
	return nil
}

// restartFaults are the faults of the matrix.
func restartFaults() (list []string) {
	list = append(list, noDevice)
	for n := range 12 {
		list = append(list, fmt.Sprintf("%s %d", openFiles, 2*n))
	}
	for _, errno := range []syscall.Errno{unix.ENOMEM, unix.EMFILE} {
		for which := -1; which < 3; which++ {
			list = append(list, fmt.Sprintf("%s adopt map, %d, %d", failCall, which, errno))
		}
	}
	for which := range 9 {
		list = append(list, fmt.Sprintf("%s journal read, %d, %d", failCall, which, unix.EIO))
	}
	return list
}

// someFaults returns all faults, or in a short run some at random and a missing device.
func someFaults() []string {
	list := restartFaults()
	if os.Getenv("SHAREDTENSOR_CRASH_CYCLES") != "" {
		return list
	}
	rand.Shuffle(len(list)-1, func(i, j int) { list[i+1], list[j+1] = list[j+1], list[i+1] })
	return list[:6]
}

// An owner is killed and restarted under a fault. It fails to start, or it lists each version that it has not adopted. The
// restart without the fault has everything that was acknowledged.
func TestCrashMatrixFaults(t *testing.T) {
	t.Parallel()
	for _, store := range []string{"keeper", "directory"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			var args []string
			if store == "directory" {
				_, path := directoryOf(t)
				args = []string{directory + path}
			}
			c := newCrashTest(t, args...)
			served := 0
			for _, text := range someFaults() {
				if c.restartWith(text) {
					served++
				}
			}
			require.NotZero(t, served, "owners that have not adopted all versions")
		})
	}
}

// restartWith performs one cell. It reports whether the owner served without some versions.
func (c *crashTest) restartWith(text string) bool {
	t := c.t
	c.ownerPID()
	for _, name := range []string{"m", "m", "n"} {
		c.mustAsk("publish "+name, c.next)
		c.next++
	}
	c.killOwner()
	file := filepath.Join(c.dir, "fault")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	missing := c.serveFaulty(text)
	require.NoError(t, os.Remove(file))
	c.verify(cell{operation: "restart", step: text})
	for name, version := range missing {
		require.Contains(t, c.versions(name), version, "%s: version %d of %s that was not adopted", text, version, name)
	}
	return len(missing) > 0
}

// killOwner kills the owner and waits until it has ended.
func (c *crashTest) killOwner() {
	owner := c.ownerPID()
	_ = syscall.Kill(owner, syscall.SIGKILL)
	require.Eventually(c.t, func() bool { return ended(owner) }, 20*time.Second, time.Millisecond)
}

// serveFaulty starts an owner with a fault, and kills it if it serves. It returns the versions that the owner has listed as
// not adopted, by name.
func (c *crashTest) serveFaulty(text string) map[string]uint64 {
	t := c.t
	cmd := c.command(c.args...)
	cmd.Env = append(cmd.Env, "SHARED_TENSOR_TEST_OWNER="+c.socket)
	cmd.Stdin = c.stdin
	require.NoError(t, cmd.Start())
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	defer func() {
		_ = cmd.Process.Kill() // fails if it has ended
		<-exited
	}()
	u := c.dialOr(exited)
	if u == nil {
		return nil
	}
	defer u.Close()
	list, err := u.List(t.Context())
	require.NoError(t, err, text)
	listed, missing := map[string]map[uint64]bool{}, map[string]uint64{}
	for _, m := range list {
		listed[m.Name] = map[uint64]bool{}
		for _, v := range m.Versions {
			listed[m.Name][v.Version] = true
		}
		for _, v := range m.NotAdopted {
			require.NotEmpty(t, v.Reason)
			listed[m.Name][v.Version] = true
			missing[m.Name] = v.Version
		}
	}
	for name, want := range c.acknowledged {
		require.True(t, want.version == 0 || listed[name][want.version], "%s: version %d of %s is neither there nor listed as not adopted: %v",
			text, want.version, name, list)
	}
	info, err := u.ServerInfo(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(info.NotAdopted), len(missing))
	return missing
}

// dialOr connects to an owner that was started. It returns nil if the owner exits, or has too few descriptors to accept a
// client: its log has the reason.
func (c *crashTest) dialOr(exited chan error) *endpoint.Client {
	for range 100 {
		select {
		case err := <-exited:
			exited <- err
			return nil
		default:
		}
		ctx, cancel := context.WithTimeout(c.t.Context(), 300*time.Millisecond)
		u, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: c.socket})
		cancel()
		if err == nil {
			return u
		}
		if text, _ := os.ReadFile(c.log.Name()); strings.Contains(string(text), "cannot accept clients for now") && errors.Is(err, context.DeadlineExceeded) {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	require.Fail(c.t, "the owner neither serves nor exits")
	return nil
}

// versions returns the versions of a name that the owner has.
func (c *crashTest) versions(name string) (list []uint64) {
	u, err := endpoint.Dial(c.t.Context(), endpoint.ClientOptions{Socket: c.socket})
	require.NoError(c.t, err)
	defer u.Close()
	info, err := u.Info(c.t.Context(), name)
	require.NoError(c.t, err)
	for _, v := range info.Versions {
		list = append(list, v.Version)
	}
	return list
}

// A version that is not adopted keeps its number. A name with only such versions can be published and withdrawn.
func TestPublishBesideVersionThatIsNotAdopted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store := connect(t, dir)
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	publish := func(s *endpoint.Server, name string) uint64 {
		sd, err := modelOf(dev, 1)
		require.NoError(t, err)
		defer sd.Close()
		v, err := s.Publish(t.Context(), name, sd, endpoint.PublishOptions{})
		require.NoError(t, err)
		return v
	}
	options := endpoint.ServerOptions{Socket: dir + "/s.sock", Keep: store}
	with := options
	with.Devices = []driver.Device{dev}
	s, err := endpoint.NewServer(with)
	require.NoError(t, err)
	for _, name := range []string{"a", "b", "b"} {
		publish(s, name)
	}
	require.NoError(t, s.Close())

	s, err = endpoint.NewServer(options)
	require.NoError(t, err)
	require.Empty(t, s.Adopted())
	require.EqualValues(t, 2, publish(s, "a"), "the number is not used twice")
	require.NoError(t, s.Withdraw(t.Context(), "b"))
	list, err := s.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.EqualValues(t, 1, list[0].NotAdopted[0].Version)
	require.EqualValues(t, 2, list[0].Current)
	require.EqualValues(t, 3, publish(s, "b"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.Error(t, s.Handover(ctx, endpoint.HandoverOptions{}))
	require.NoError(t, s.Close())

	s, err = endpoint.NewServer(with)
	require.NoError(t, err)
	defer s.Close()
	var got []string
	for _, a := range s.Adopted() {
		got = append(got, fmt.Sprint(a.Name, a.Version, " ", a.Current))
	}
	require.Equal(t, []string{"a1 false", "a2 true", "b3 true"}, got)
}

// smallImports is a device that has no memory for imports of more than 1 MiB.
type smallImports struct{ driver.Device }

func (d smallImports) Import(h driver.Handle, opts driver.ImportOptions) (driver.Memory, error) {
	if h.Bytes > 1<<20 {
		return nil, driver.ErrOutOfMemory
	}
	return d.Device.Import(h, opts)
}

// If the newest version is not adopted, a reader gets an older one only by its number.
func TestNewestVersionThatIsNotAdopted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store := connect(t, dir)
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	publish := func(s *endpoint.Server, elements int64) uint64 {
		x, err := tensor.Zeros(dev, tensor.Float32, tensor.Shape{elements})
		require.NoError(t, err)
		sd := module.NewStateDict()
		defer sd.Close()
		require.NoError(t, sd.Set("x", x))
		v, err := s.Publish(t.Context(), "m", sd, endpoint.PublishOptions{})
		require.NoError(t, err)
		return v
	}
	options := endpoint.ServerOptions{Socket: dir + "/s.sock", Keep: store, Devices: []driver.Device{dev}, Retain: endpoint.Retention{Versions: 2}}
	s, err := endpoint.NewServer(options)
	require.NoError(t, err)
	publish(s, 1)
	publish(s, 1<<20)
	require.NoError(t, s.Close())

	short := options
	short.Devices = []driver.Device{smallImports{dev}}
	s, err = endpoint.NewServer(short)
	require.NoError(t, err)
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(context.Background()) }()
	c, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: options.Socket, OverSocket: true, Devices: options.Devices})
	require.NoError(t, err)
	newest := map[string]func() error{
		"acquire":  func() error { _, err := c.Acquire(t.Context(), "m", endpoint.AcquireOptions{}); return err },
		"manifest": func() error { _, err := c.Manifest(t.Context(), "m", 0); return err },
		"digests":  func() error { _, err := c.Digests(t.Context(), "m", 0); return err },
	}
	for name, request := range newest {
		err := request()
		require.ErrorIs(t, err, endpoint.ErrNotFound, name)
		require.ErrorContains(t, err, `the newest version 2 of "m" is kept but not adopted: `, name)
		require.ErrorContains(t, err, "acquire version 1 by its number", name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = c.Follow(ctx, "m", endpoint.FollowOptions{})
	require.Error(t, err, "a follower waits for a newer version")
	h, err := c.Acquire(t.Context(), "m", endpoint.AcquireOptions{Version: 1})
	require.NoError(t, err)
	require.NoError(t, h.Close())
	require.EqualValues(t, 3, publish(s, 2))
	h, err = c.Acquire(t.Context(), "m", endpoint.AcquireOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 3, h.Version())
	require.NoError(t, h.Close())
	require.NoError(t, c.Close())
	require.NoError(t, s.Close())
	<-served

	s, err = endpoint.NewServer(options)
	require.NoError(t, err)
	defer s.Close()
	require.Len(t, s.Adopted(), 3, "the version is there once there is memory for it")
}
