package keeper_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/keeper"
)

// A keeper whose files are removed binds its socket again, so that the next owner finds it.
func TestRemovedKeeperSocket(t *testing.T) {
	t.Parallel()
	for _, files := range [][]string{{""}, {".lock"}, {"", ".lock"}} {
		t.Run(strings.Join(files, " and "), func(t *testing.T) {
			t.Parallel()
			p := start(t)
			u := newUser(t, p)
			u.mustPublish("m", 3)
			store, err := connectKeeper(keeperOf(p.Socket, nil))
			require.NoError(t, err)
			pid := store.PID()
			require.NoError(t, store.Close())
			for _, f := range files {
				require.NoError(t, os.Remove(keeperOf(p.Socket, nil)+f))
			}
			if files[0] == "" {
				require.Eventually(t, func() bool {
					_, err := os.Lstat(keeperOf(p.Socket, nil))
					return err == nil
				}, 10*time.Second, time.Millisecond)
			}
			p.Kill()
			p.Restart()
			require.Equal(t, 3, value(t, newUser(t, p).acquire("m", 0).StateDict()))
			again, err := connectKeeper(keeperOf(p.Socket, nil))
			require.NoError(t, err)
			defer again.Close()
			require.Equal(t, pid, again.PID())
		})
	}
}

// A keeper that no owner can reach ends after the documented time, but not while an owner is connected.
func TestOrphanedKeeperEnds(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "d")
	require.NoError(t, os.Mkdir(dir, 0o700))
	socket := filepath.Join(dir, "k.sock")
	ended := make(chan error, 1)
	go func() {
		ended <- keeper.Serve(t.Context(), keeper.Config{Socket: socket, Orphan: 300 * time.Millisecond})
	}()
	p, err := keeper.Connect(keeper.Options{Socket: socket, ConnectOnly: true, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	require.NoError(t, p.Put("v1.0", memory(t, "x")))
	require.NoError(t, os.Rename(dir, dir+".moved"))
	require.NoError(t, os.WriteFile(dir, nil, 0o600)) // the directory cannot be created again
	time.Sleep(700 * time.Millisecond)
	require.Len(t, contents(t, p), 1)
	require.NoError(t, p.Close())
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(20 * time.Second):
		require.Fail(t, "the keeper does not end")
	}
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A store that only connects never starts a keeper. A keeper that is started again by others gets everything, and a loss is
// reported although both keepers have the same process id in their namespaces.
func TestConnectOnly(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		drivertest.Needs(t, "namespaces", false, "PID namespaces need root")
	}
	dir := t.TempDir()
	socket := filepath.Join(dir, "k.sock")
	var log lines
	opts := keeper.Options{Socket: socket, ConnectOnly: true, Command: []string{"touch", socket + ".started"}, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	serve := func() *exec.Cmd { // process 1 of its namespace
		cmd := exec.Command(os.Args[0], "keep", socket)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		if err := cmd.Start(); err != nil {
			drivertest.Needs(t, "namespaces", false, "no PID namespaces: "+err.Error())
		}
		return cmd
	}
	kill := func(cmd *exec.Cmd) {
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
	}
	first := serve()
	p, err := keeper.Connect(opts)
	require.NoError(t, err)
	require.Zero(t, p.LostPID())
	for i := range 450 {
		require.NoError(t, p.Put(fmt.Sprint("v", i), memory(t, fmt.Sprint("text ", i))))
	}
	kill(first)
	time.Sleep(1200 * time.Millisecond) // some attempts to connect
	require.Equal(t, 1, strings.Count(log.String(), "no keeper"), "the same error is logged once: %s", log.String())
	second := serve()
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "holds everything again") }, 5*time.Second, 10*time.Millisecond, &log)
	require.Len(t, contents(t, p), 450)
	require.NoError(t, p.Close())
	kill(second)
	third := serve()
	defer kill(third)
	p, err = keeper.Connect(opts)
	require.NoError(t, err)
	defer p.Close()
	require.NotZero(t, p.LostPID())
	require.Contains(t, log.String(), "the versions that it held are lost")
	require.NoFileExists(t, socket+".started")
}

// A keeper does not hold descriptors that its owner has inherited.
func TestKeeperInheritsNothing(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "k.sock")
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	// A descriptor without O_CLOEXEC reaches the keeper as one that a shell has passed to the owner.
	cmd := exec.Command("sh", "-c", `exec "$0" keep "$1" 9>&3`, os.Args[0], socket)
	cmd.ExtraFiles = []*os.File{write}
	cmd.Env = append(os.Environ(), "SHARED_TENSOR_KEEPER=1")
	require.NoError(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	require.NoError(t, write.Close())
	p, err := keeper.Connect(keeper.Options{Socket: socket, ConnectOnly: true})
	require.NoError(t, err)
	defer p.Close()
	require.NoError(t, read.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err = read.Read(make([]byte, 1))
	require.ErrorContains(t, err, "EOF", "nothing else has the pipe")
}

// A path that is too long for the keeper's socket is refused with its length.
func TestLongKeeperSocket(t *testing.T) {
	t.Parallel()
	_, err := keeper.Connect(keeper.Options{Socket: "/tmp/" + strings.Repeat("x", 103), Command: []string{"false"}})
	require.ErrorIs(t, err, endpoint.ErrInvalid)
	require.ErrorContains(t, err, "108 bytes")
}

// A store lists and fetches at one moment: an owner that replaces its journal in between is still found.
func TestJournalReplacedBetweenListAndFetch(t *testing.T) {
	dir := t.TempDir()
	p := connect(t, dir)
	other, err := tryConnect(dir)
	require.NoError(t, err)
	defer other.Close()
	require.NoError(t, p.PutNew("j1", memory(t, "first")))
	replaced := 1
	defer func(f func(string)) { status.Reach = f }(status.Reach)
	status.Reach = func(step string) {
		if step == "store listed" && replaced < 4 {
			replaced++
			require.NoError(t, p.Put(fmt.Sprint("j", replaced), memory(t, fmt.Sprint(replaced))))
			require.NoError(t, p.Remove(fmt.Sprint("j", replaced-1)))
			_, err := p.Names() // after both
			require.NoError(t, err)
		}
	}
	require.Equal(t, map[string]string{"j4": "4"}, contents(t, other))
	require.NoError(t, other.PutNew("j5", memory(t, "five")))
	require.ErrorIs(t, p.PutNew("j5", memory(t, "other")), endpoint.ErrInUse)
}

// A process that has not adopted a store, or has handed it over, does not hold what others free.
func TestFreedMemoryIsNotHeld(t *testing.T) {
	p := start(t)
	u := newUser(t, p)
	u.mustPublish("m", 1)
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	store, err := connectKeeper(keeperOf(p.Socket, nil))
	require.NoError(t, err)
	defer store.Close()
	_, err = newServer(p.Socket+".2", dev, store)
	require.ErrorIs(t, err, endpoint.ErrInUse)
	u.mustPublish("m", 2)
	end(t, store.PID()) // both owners connect to a new one
	u.mustPublish("m", 3)
	require.Eventually(t, func() bool {
		names, err := store.Names()
		require.NoError(t, err)
		return len(names) == 2
	}, 10*time.Second, 10*time.Millisecond, "a journal and one version")
	time.Sleep(500 * time.Millisecond)
	names, err := store.Names()
	require.NoError(t, err)
	require.Len(t, names, 2)
}

// The memory files of a keeper cannot be executed.
func TestKeeperMemoryIsNotExecutable(t *testing.T) {
	fd, err := unix.MemfdCreate("probe", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if err != nil {
		drivertest.Needs(t, "noexec", false, "before Linux 6.3: "+err.Error())
	}
	unix.Close(fd)
	dir := t.TempDir()
	p := connect(t, dir)
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.PID()))
	require.NoError(t, err)
	found := 0
	for _, link := range links {
		if to, _ := os.Readlink(link); strings.HasPrefix(to, "/memfd:") {
			info, err := os.Stat(link)
			require.NoError(t, err)
			require.Zero(t, info.Mode()&0o111, to)
			found++
		}
	}
	require.Positive(t, found)
}
