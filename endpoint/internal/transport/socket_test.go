package transport_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
)

func TestSocketPath(t *testing.T) {
	t.Setenv("SHARED_TENSOR_BASE_PATH", "/run/x/base")
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/7")
	path, err := endpoint.SocketPath("", 2)
	require.NoError(t, err)
	require.Equal(t, "/run/x/base-2.sock", path)
	path, err = endpoint.SocketPath("/explicit", 0)
	require.NoError(t, err)
	require.Equal(t, "/explicit-0.sock", path, "an explicit base goes before the environment")

	t.Setenv("SHARED_TENSOR_BASE_PATH", "")
	path, err = endpoint.SocketPath("", 0)
	require.NoError(t, err)
	require.Equal(t, "/run/user/7/shared-tensor-0.sock", path)

	t.Setenv("XDG_RUNTIME_DIR", "")
	path, err = endpoint.SocketPath("", 0)
	require.NoError(t, err)
	require.Regexp(t, `/shared-tensor-\d+/shared-tensor-0\.sock$`, path)

	for _, base := range []string{"@abstract", "/" + strings.Repeat("x", 120)} {
		_, err = endpoint.SocketPath(base, 0)
		require.ErrorIs(t, err, endpoint.ErrInvalid)
	}
	_, err = endpoint.SocketPath("", -1)
	require.ErrorIs(t, err, endpoint.ErrInvalid)
}

// The directory of a GPU claim is used if every rule of PROTOCOL.md holds. The tests of the Python client read the same table.
func TestSocketPathOfClaim(t *testing.T) {
	text, err := os.ReadFile("testdata/claims.json")
	require.NoError(t, err)
	var rows []struct {
		Name, Kind, Mode, Base, Want string
		Value, Runtime               *string // of the environment variables; by default the directory, and /run/user/7
		UID, Fill                    int
		Root                         bool
	}
	require.NoError(t, json.Unmarshal(text, &rows))
	require.Greater(t, len(rows), 15)
	for _, row := range rows {
		t.Run(row.Name, func(t *testing.T) {
			if row.Root {
				fixture.NeedsRoot(t)
			}
			temp, err := os.MkdirTemp("/tmp", "st") // the names of t.TempDir are too long
			require.NoError(t, err)
			t.Cleanup(func() { _ = os.RemoveAll(temp) })
			expand := strings.NewReplacer("$T", temp, "$UID", strconv.Itoa(os.Geteuid())).Replace
			end := expand("/shared-tensor-$UID/shared-tensor")
			claim := filepath.Join(temp, "claim")
			if row.Fill > 0 {
				claim += strings.Repeat("x", row.Fill-len(claim+end))
			}
			target := claim
			if row.Kind == "link" {
				target = filepath.Join(temp, "target")
				require.NoError(t, os.Symlink(target, claim))
			}
			if row.Mode != "" {
				if row.Kind == "file" {
					require.NoError(t, os.WriteFile(target, nil, 0o600))
				} else {
					require.NoError(t, os.Mkdir(target, 0o700))
				}
				mode, err := strconv.ParseUint(row.Mode, 8, 32)
				require.NoError(t, err)
				require.NoError(t, syscall.Chmod(target, uint32(mode)))
			}
			if row.UID != 0 {
				require.NoError(t, os.Chown(target, row.UID, row.UID))
			}
			t.Setenv("SHARED_TENSOR_BASE_PATH", expand(row.Base))
			t.Setenv("XDG_RUNTIME_DIR", "/run/user/7")
			if row.Runtime != nil {
				t.Setenv("XDG_RUNTIME_DIR", *row.Runtime)
			}
			switch {
			case row.Value != nil:
				t.Setenv("NVIDIA_DRA_LOCAL_IPC_DIR", expand(*row.Value))
			case row.Mode != "":
				t.Setenv("NVIDIA_DRA_LOCAL_IPC_DIR", claim)
			}
			want := expand(row.Want)
			switch row.Want {
			case "claim":
				want = claim + end + "-0.sock"
			case "xdg":
				want = "/run/user/7/shared-tensor-0.sock"
			}
			got, err := endpoint.SocketPath("", 0)
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

// An owner in the directory of a claim, which all users may write, is in a private directory.
func TestSocketDirectoryOfClaim(t *testing.T) {
	drivertest.Leaks(t)
	claim, err := os.MkdirTemp("/tmp", "st")
	require.NoError(t, err)
	defer os.RemoveAll(claim)
	require.NoError(t, syscall.Chmod(claim, 0o1777))
	t.Setenv("SHARED_TENSOR_BASE_PATH", "")
	t.Setenv("NVIDIA_DRA_LOCAL_IPC_DIR", claim+"/")
	try := func() error {
		s, err := endpoint.NewServer(endpoint.ServerOptions{})
		if err == nil {
			require.True(t, strings.HasPrefix(s.Socket(), claim), s.Socket())
			require.NoError(t, s.Close())
		}
		return err
	}
	require.NoError(t, try())
	private := filepath.Join(claim, fmt.Sprintf("shared-tensor-%d", os.Geteuid()))
	info, err := os.Lstat(private)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	require.NoError(t, os.Chmod(private, 0o755))
	require.ErrorIs(t, try(), endpoint.ErrPermission)
	fixture.NeedsRoot(t)
	require.NoError(t, os.Chmod(private, 0o700))
	require.NoError(t, os.Chown(private, 4321, 4321)) // another user of the claim was first
	require.ErrorContains(t, try(), "belongs to uid 4321")
}

func TestSocketPermissions(t *testing.T) {
	t.Parallel()
	_, socket := fixture.Owner(t)
	info, err := os.Stat(socket)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

func TestSocketSecondOwner(t *testing.T) {
	t.Parallel()
	o, socket := fixture.Owner(t)
	o.Publish(fixture.Model{Name: "m", Seed: 1})
	c := fixture.Client(t, socket)
	second := fixture.Start(t)
	err := second.ServeError(socket)
	require.ErrorIs(t, err, endpoint.ErrInUse)
	require.ErrorContains(t, err, "process ", "the error says who serves")
	c.Ping()
	fixture.Client(t, socket).Acquire(fixture.Acquisition{Name: "m", Key: "h"})

	// Of many that start at once, one serves.
	o.Shutdown(fixture.WaitLimit)
	results := make(chan error)
	for range 6 {
		p := fixture.Start(t)
		go func() { results <- fixture.Attempt(p, fixture.ServeOp, fixture.Service{Socket: socket}) }()
	}
	served := 0
	for range 6 {
		if err := <-results; err == nil {
			served++
		} else {
			require.ErrorIs(t, err, endpoint.ErrInUse)
		}
	}
	require.Equal(t, 1, served)
}

func TestSocketListenerWithoutLock(t *testing.T) {
	t.Parallel()
	socket := proctest.SocketPath(t)
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer l.Close()
	_, err = endpoint.NewServer(endpoint.ServerOptions{Socket: socket})
	require.ErrorIs(t, err, endpoint.ErrInUse)
	require.FileExists(t, socket)
}

func TestSocketStale(t *testing.T) {
	t.Parallel()
	o, socket := fixture.Owner(t)
	o.Kill()
	require.FileExists(t, socket)
	o2 := fixture.Start(t)
	o2.Serve(socket)
	fixture.Client(t, socket).Ping()
	o2.Shutdown(fixture.WaitLimit)
	require.NoFileExists(t, socket)
}

func TestSocketRemovesItsOwn(t *testing.T) {
	t.Parallel()
	o, socket := fixture.Owner(t)
	require.NoError(t, os.Remove(socket))
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer l.Close()
	o.Shutdown(fixture.WaitLimit)
	require.FileExists(t, socket)
}

func TestSocketRefused(t *testing.T) {
	drivertest.Leaks(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "file.sock")
	require.NoError(t, os.WriteFile(file, []byte("mine"), 0o600))
	open := filepath.Join(dir, "open")
	require.NoError(t, os.Mkdir(open, 0o700))
	require.NoError(t, os.Chmod(open, 0o777))
	shared := filepath.Join(dir, "shared")
	require.NoError(t, os.Mkdir(shared, 0o700))
	require.NoError(t, os.Chmod(shared, 0o777|os.ModeSticky))
	for _, c := range []struct {
		name, path string
		is         error
		says       string
	}{
		{"a directory such as /tmp", filepath.Join(shared, "s.sock"), endpoint.ErrPermission, "make a directory of your own"},
		{"a file", file, endpoint.ErrInvalid, "not a socket"},
		{"a directory that others may write", filepath.Join(open, "s.sock"), endpoint.ErrPermission, "chmod go-w"},
		{"no directory", filepath.Join(dir, "a", "b", "s.sock"), os.ErrNotExist, "socket directory"},
		{"an abstract name", "@x", endpoint.ErrInvalid, "abstract"},
		{"a long path", filepath.Join(dir, strings.Repeat("x", 120)), endpoint.ErrInvalid, "at most 107"},
	} {
		_, err := endpoint.NewServer(endpoint.ServerOptions{Socket: c.path})
		require.ErrorIs(t, err, c.is, c.name)
		require.ErrorContains(t, err, c.says, c.name)
		require.Equal(t, c.says == "chmod go-w", strings.Contains(err.Error(), "chmod"), c.name)
	}
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "mine", string(content))
}

func TestSocketDirectory(t *testing.T) {
	drivertest.Leaks(t)
	temp := t.TempDir()
	t.Setenv("TMPDIR", filepath.Join(temp, "unused")) // owner and clients often have different ones
	defer func(before string) { transport.SharedDirectory = before }(transport.SharedDirectory)
	transport.SharedDirectory = temp
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("SHARED_TENSOR_BASE_PATH", "")
	try := func(socket string) error {
		s, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket})
		if err == nil {
			require.NoError(t, s.Close())
		}
		return err
	}
	require.NoError(t, try(""))
	path, err := endpoint.SocketPath("", 0)
	require.NoError(t, err)
	private := filepath.Dir(path)
	require.Equal(t, filepath.Join(temp, fmt.Sprintf("shared-tensor-%d", os.Geteuid())), private)
	info, err := os.Lstat(private)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	require.NoError(t, os.Chmod(private, 0o755))
	require.ErrorIs(t, try(""), endpoint.ErrPermission, "it is ours alone")
	require.ErrorContains(t, try(""), "chmod 700")
	chosen := filepath.Join(temp, "chosen")
	require.NoError(t, os.Mkdir(chosen, 0o755))
	require.NoError(t, try(filepath.Join(chosen, "s.sock")), "others may see a socket where the user wants it")

	// A link may point elsewhere at any time.
	link := filepath.Join(temp, "link")
	require.NoError(t, os.Symlink(chosen, link))
	require.NoError(t, try(filepath.Join(link, "s.sock")))
	require.NoError(t, os.RemoveAll(private))
	require.NoError(t, os.Mkdir(filepath.Join(temp, "own"), 0o700))
	require.NoError(t, os.Symlink(filepath.Join(temp, "own"), private))
	require.NoError(t, try(""))
	fixture.NeedsRoot(t)
	for _, l := range []string{link, private} {
		require.NoError(t, os.Lchown(l, 65534, 65534))
		err := try(filepath.Join(l, "s.sock"))
		require.ErrorIs(t, err, endpoint.ErrPermission)
		require.ErrorContains(t, err, "uid 65534")
	}
}

func TestSocketOtherUser(t *testing.T) {
	t.Parallel()
	fixture.NeedsRoot(t)
	fixture.HostOnly(t, "the other user cannot read the stand-in for the driver")
	o, socket := fixture.Owner(t)
	nobody := fixture.AsUser(t, 65534)
	stranger := fixture.Start(t, nobody)
	require.ErrorIs(t, stranger.DialError(fixture.Dialing{Socket: socket}), endpoint.ErrPermission)

	// If the directory is open to others, both sides still verify the peer's uid.
	require.NoError(t, os.Chmod(filepath.Dir(socket), 0o755))
	require.NoError(t, os.Chmod(socket, 0o666))
	require.ErrorIs(t, stranger.DialError(fixture.Dialing{Socket: socket}), endpoint.ErrPermission)
	squat := filepath.Join(fixture.CopyDir(t), "squat.sock")
	stranger.Serve(squat)
	err := fixture.Start(t).DialError(fixture.Dialing{Socket: squat})
	require.ErrorIs(t, err, endpoint.ErrPermission)
	require.ErrorContains(t, err, "uid 65534")
	o.Models()
}

// An owner and a client of two users allow each other.
func TestSocketAllowUIDs(t *testing.T) {
	t.Parallel()
	fixture.NeedsRoot(t)
	fixture.HostOnly(t, "the other user cannot read the stand-in for the driver")
	const guest, stranger = 65534, 65533
	socket := proctest.SocketPath(t)
	o := fixture.Start(t)
	o.ServeWith(fixture.Service{Socket: socket, UIDs: []uint32{guest}})
	o.Publish(fixture.Model{Name: "m", Seed: 1})
	require.NoError(t, os.Chmod(filepath.Dir(socket), 0o711)) // the user opens the directory; the server sets the socket's mode
	as := func(uid uint32) *fixture.Child { return fixture.Start(t, fixture.AsUser(t, uid)) }
	g := as(guest)
	require.ErrorIs(t, g.DialError(fixture.Dialing{Socket: socket}), endpoint.ErrPermission, "it has to allow the owner too")
	g.DialWith(fixture.Dialing{Socket: socket, UIDs: []uint32{0}})
	g.Acquire(fixture.Acquisition{Name: "m", Key: "h"})
	g.Check("h", fixture.Model{Seed: 1})
	g.Publish(fixture.Model{Name: "n", Seed: 2})
	holders := o.Models()[0].Versions[0].Holders
	require.Len(t, holders, 1)
	require.EqualValues(t, guest, holders[0].UID)
	err := as(stranger).DialError(fixture.Dialing{Socket: socket, UIDs: []uint32{0}})
	require.ErrorIs(t, err, endpoint.ErrPermission)
	require.ErrorContains(t, err, "uid 65533")
}

// An owner that shuts down in order leaves no lock file. Only one owner holds the lock.
func TestSocketLockFile(t *testing.T) {
	t.Parallel()
	dev := fixture.Device(t)
	socket := proctest.SocketPath(t)
	var serving, most atomic.Int32
	var owners sync.WaitGroup
	for range 8 {
		owners.Go(func() {
			for range 40 {
				s, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: []driver.Device{dev}, Logger: fixture.Discard()})
				if err != nil {
					assert.ErrorIs(t, err, endpoint.ErrInUse)
					continue
				}
				most.Store(max(most.Load(), serving.Add(1)))
				serving.Add(-1)
				assert.NoError(t, s.Close())
			}
		})
	}
	owners.Wait()
	require.EqualValues(t, 1, most.Load())
	require.NoFileExists(t, socket)
	require.NoFileExists(t, socket+".lock")
}
