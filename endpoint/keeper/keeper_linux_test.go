package keeper_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/endpointtest"
	"github.com/sharedtensor/sharedtensor/endpoint/keeper"
	"github.com/sharedtensor/sharedtensor/wire"
)

func TestMain(m *testing.M) {
	armSteps()
	if runActor(os.Args) {
		os.Exit(0)
	}
	if len(os.Args) == 3 && os.Args[1] == "keep" {
		if err := keeper.Serve(context.Background(), keeper.Config{Socket: os.Args[2], Idle: 300 * time.Millisecond}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	endpointtest.RunOwner(owner)
	os.Exit(m.Run())
}

// connect connects to a keeper process in the directory, which the first caller starts.
func connect(t testing.TB, dir string) *keeper.Process {
	t.Helper()
	p, err := tryConnect(dir)
	require.NoError(t, err)
	t.Cleanup(func() {
		p.Close()
		if pid := p.PID(); syscall.Kill(pid, syscall.SIGKILL) == nil {
			require.Eventually(t, func() bool { return syscall.Kill(pid, 0) != nil }, 10*time.Second, time.Millisecond)
		}
	})
	return p
}

func tryConnect(dir string) (*keeper.Process, error) {
	socket := filepath.Join(dir, "k.sock")
	return keeper.Connect(keeper.Options{Socket: socket, Command: []string{os.Args[0], "keep", socket}})
}

// end kills the keeper and waits until it has ended.
func end(t testing.TB, pid int) {
	t.Helper()
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	require.Eventually(t, func() bool { return syscall.Kill(pid, 0) != nil }, 10*time.Second, time.Millisecond)
}

func memory(t testing.TB, text string) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "test")
	t.Cleanup(func() { f.Close() })
	_, err = f.WriteString(text)
	require.NoError(t, err)
	return f
}

// contents returns what is stored, by name.
func contents(t testing.TB, p interface {
	Stored() (map[string]*os.File, error)
}) map[string]string {
	t.Helper()
	stored, err := p.Stored()
	require.NoError(t, err)
	out := map[string]string{}
	for name, f := range stored {
		b, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<20))
		require.NoError(t, err)
		out[name] = string(b)
		require.NoError(t, f.Close())
	}
	return out
}

func TestDescriptorsOutliveTheirOwner(t *testing.T) {
	drivertest.Leaks(t)
	dir := t.TempDir()
	first := connect(t, dir)
	for i := range 450 { // more than fit one request
		f := memory(t, fmt.Sprint("text ", i))
		require.NoError(t, first.Put(fmt.Sprint("v", i), f))
		f.Close()
	}
	require.NoError(t, first.Remove("v3", "v4", "unknown"))
	require.NoError(t, first.Close())

	second := connect(t, dir)
	require.Equal(t, first.PID(), second.PID())
	got := contents(t, second)
	require.Len(t, got, 448)
	require.Equal(t, "text 449", got["v449"])
	require.NotContains(t, got, "v3")
	var all []string
	for name := range got {
		all = append(all, name)
	}
	require.NoError(t, second.Remove(all...))
	require.Empty(t, contents(t, second))
	pid := second.PID()
	require.NoError(t, second.Close())
	require.Eventually(t, func() bool { return syscall.Kill(pid, 0) != nil }, 10*time.Second, 10*time.Millisecond, "an idle keeper ends")
}

// A descriptor that was stored while the keeper did not run survives its owner.
func TestStoppedKeeperReceivesDescriptors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := connect(t, dir)
	pid := first.PID()
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	for i := range 5 {
		require.NoError(t, first.Put(fmt.Sprint("v", i), memory(t, fmt.Sprint("text ", i))))
	}
	require.NoError(t, first.Close())
	require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
	second := connect(t, dir)
	require.Equal(t, pid, second.PID())
	require.Len(t, contents(t, second), 5)
}

// A full keeper refuses further descriptors and keeps those it has accepted.
func TestFullKeeper(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "k.sock")
	p, err := keeper.Connect(keeper.Options{Socket: socket, Command: []string{"sh", "-c", `ulimit -n 256; exec "$@"`, "sh", os.Args[0], "keep", socket}})
	require.NoError(t, err)
	defer endStore(p)
	stored := 0
	for ; err == nil; stored++ {
		require.Less(t, stored, 256)
		err = p.Put(fmt.Sprint("v", stored), memory(t, "x"))
	}
	require.ErrorContains(t, err, "limit of open files")
	require.Len(t, contents(t, p), stored-1)
	require.NoError(t, p.Remove("v0"))
	require.NoError(t, p.Put("again", memory(t, "x")))
}

func TestKilledKeeperIsReplaced(t *testing.T) {
	dir := t.TempDir()
	p := connect(t, dir)
	require.NoError(t, p.Put("a", memory(t, "before")))
	for i, wait := range []bool{true, false} {
		pid := p.PID()
		end(t, pid)
		if wait { // without a request
			require.Eventually(t, func() bool { return p.PID() != pid }, 10*time.Second, 5*time.Millisecond)
		}
		require.NoError(t, p.Put(fmt.Sprint("b", i), memory(t, "after")))
		require.NotEqual(t, pid, p.PID())
	}
	require.NoError(t, p.Close())
	require.Equal(t, map[string]string{"a": "before", "b0": "after", "b1": "after"}, contents(t, connect(t, dir)))
}

// What an owner has read from the keeper is stored again as well.
func TestAdoptedDescriptorsAreStoredAgain(t *testing.T) {
	dir := t.TempDir()
	first := connect(t, dir)
	require.NoError(t, first.Put("a", memory(t, "text")))
	require.NoError(t, first.Close())
	second := connect(t, dir)
	contents(t, second)
	end(t, second.PID())
	require.Equal(t, map[string]string{"a": "text"}, contents(t, second))
}

func TestOwnersThatStartTogetherShareAKeeper(t *testing.T) {
	dir, err := os.MkdirTemp("", "keeper")
	require.NoError(t, err)
	defer func() { _ = os.RemoveAll(dir) }() // a keeper that came too late may still create its lock file
	var group sync.WaitGroup
	pids := make([]int, 6)
	for i := range pids {
		group.Go(func() {
			p, err := tryConnect(dir)
			if err != nil {
				t.Error(err)
				return
			}
			defer p.Close()
			pids[i] = p.PID()
			if err := p.Put(fmt.Sprint("n", i), memory(t, "x")); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	store := connect(t, dir) // kills the keeper at the end, also of a failed test
	for _, pid := range pids {
		require.Equal(t, store.PID(), pid)
	}
	require.Len(t, contents(t, store), len(pids))
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	p := connect(t, dir)
	require.ErrorContains(t, p.Put("../a", memory(t, "x")), "letters, digits")
	require.ErrorContains(t, p.Put("", memory(t, "x")), "0 bytes")
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	defer write.Close()
	require.ErrorContains(t, p.Put("pipe", read), "not memory")
	pid := p.PID()
	require.NoError(t, p.Put("a", memory(t, "x")), "a refusal does not end the connection")
	require.Equal(t, pid, p.PID())

	err = keeper.Serve(t.Context(), keeper.Config{Socket: filepath.Join(dir, "k.sock")})
	require.ErrorIs(t, err, endpoint.ErrInUse)
	_, err = keeper.Connect(keeper.Options{Socket: filepath.Join(dir, "other.sock"), Command: []string{"/nonexistent/keeper"}})
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = keeper.Connect(keeper.Options{Socket: filepath.Join(dir, "other.sock"), Command: []string{"false"}})
	require.ErrorContains(t, err, "false ended")
}

// A keeper survives any bytes, and holds nothing of a connection that ends within a request.
func TestHostileClients(t *testing.T) {
	dir := t.TempDir()
	p := connect(t, dir)
	require.NoError(t, p.Put("a", memory(t, "x")))
	for _, bytes := range []string{"", "x", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "\x00\x00\x00\x01\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\xa0"} {
		c, err := net.Dial("unix", filepath.Join(dir, "k.sock"))
		require.NoError(t, err)
		_, err = io.WriteString(c, bytes)
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	socket, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, "k.sock"), Net: "unix"})
	require.NoError(t, err)
	c, err := wire.NewConn(socket, wire.Limits{})
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.Send(wire.KindRequest, 1, []byte{0xa2, 1, 1, 2, 23})) // an unknown operation
	f, err := c.Receive()
	require.NoError(t, err)
	require.Contains(t, string(f.Body), "operation 23")
	require.NoError(t, c.Send(wire.KindRequest, 2, []byte{0xa2, 1, 7, 2, 3})) // another protocol
	f, err = c.Receive()
	require.NoError(t, err)
	require.Contains(t, string(f.Body), "protocol 7")
	pid := p.PID()
	require.Equal(t, map[string]string{"a": "x"}, contents(t, p))
	require.Equal(t, pid, p.PID())
}

// The memory of a keeper: a store of descriptors needs no more than its runtime.
func TestKeeperUsesLittleMemory(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector needs memory of its own")
	}
	p := connect(t, t.TempDir())
	for i := range 1000 {
		f := memory(t, "x")
		require.NoError(t, p.Put(fmt.Sprint("v", i), f))
		f.Close()
	}
	kilobytes := anonymousKilobytes(t, p.PID())
	t.Logf("%d KiB with 1,000 descriptors", kilobytes)
	require.Less(t, kilobytes, 5<<10)
}
