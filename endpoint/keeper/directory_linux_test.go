package keeper_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/persist"
	"github.com/sharedtensor/sharedtensor/endpoint/keeper"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// directory is the prefix of an owner's argument that names a directory.
const directory = "dir:"

// directoryOf returns an empty store in memory, and its path.
func directoryOf(t testing.TB) (*keeper.Directory, string) {
	t.Helper()
	path, err := os.MkdirTemp("/dev/shm", "keep")
	if err != nil {
		path = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(path) })
	path = filepath.Join(path, "d")
	d, err := keeper.OpenDirectory(path)
	require.NoError(t, err)
	return d, path
}

// sealed returns sealed memory.
func sealed(t testing.TB, text string) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "test")
	t.Cleanup(func() { f.Close() })
	_, err = f.WriteString(text)
	require.NoError(t, err)
	_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	require.NoError(t, err)
	return f
}

func TestDirectoryHasCopies(t *testing.T) {
	t.Parallel()
	d, path := directoryOf(t)
	require.NoError(t, d.Put("v1.0", sealed(t, "first")))
	require.NoError(t, d.Put("v2.0", sealed(t, "second")))
	require.ErrorIs(t, d.Put("v2.0", sealed(t, "other")), os.ErrExist)
	require.NoError(t, d.Remove("v2.0", "unknown"))
	require.Error(t, d.Remove("../v1.0"))
	journal, err := d.Create()
	require.NoError(t, err)
	require.NoError(t, d.Put("j1", journal))
	require.True(t, d.Has("j1", journal))
	_, err = journal.WriteString("written later") // also after Put
	require.NoError(t, err)
	require.NoError(t, journal.Close())
	require.NoError(t, os.WriteFile(filepath.Join(path, "notes"), nil, 0o600))

	again, err := keeper.OpenDirectory(path)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"v1.0": "first", "j1": "written later"}, contents(t, again))
	stored, err := again.Stored()
	require.NoError(t, err)
	defer stored["j1"].Close()
	defer stored["v1.0"].Close()
	require.False(t, again.Has("v1.0", stored["v1.0"]), "a copy")
	_, err = stored["v1.0"].WriteAt([]byte("x"), 0)
	require.ErrorIs(t, err, unix.EPERM)
	require.ErrorIs(t, stored["v1.0"].Truncate(0), unix.EPERM)
	require.FileExists(t, filepath.Join(path, "notes"))
}

func TestDirectoryRefusals(t *testing.T) {
	t.Parallel()
	d, path := directoryOf(t)
	require.ErrorIs(t, d.Put("v1.0", memory(t, "not sealed")), errors.ErrUnsupported)
	device, err := os.Open("/dev/zero")
	require.NoError(t, err)
	defer device.Close()
	require.ErrorIs(t, d.Put("v1.0", device), errors.ErrUnsupported)
	require.Error(t, d.Put("../v1.0", sealed(t, "x")))
	require.Empty(t, contents(t, d))
	require.NoError(t, os.Chmod(path, 0o750))
	_, err = keeper.OpenDirectory(path)
	require.ErrorIs(t, err, os.ErrPermission)
	require.NoError(t, os.Chmod(path, 0o700))
	require.NoError(t, os.Symlink(path, path+"2"))
	_, err = keeper.OpenDirectory(path + "2")
	require.ErrorIs(t, err, unix.ENOTDIR)
	_, err = keeper.OpenDirectory("/proc")
	require.Error(t, err)
}

// Files that another user may have written are refused, if a version needs them. Others are removed without being read.
func TestDirectoryRefusesFilesOfOthers(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(path string) error{
		"mode":      func(path string) error { return os.Chmod(path, 0o640) },
		"hard link": func(path string) error { return os.Link(path, path+"-2") },
		"symbolic link": func(path string) error {
			return errors.Join(os.Rename(path, path+"-2"), os.Symlink(path+"-2", path))
		},
		"owner": func(path string) error {
			if os.Geteuid() != 0 { // only root can give a file away
				return os.Chmod(path, 0o604)
			}
			return os.Chown(path, 1, -1)
		},
	} {
		for _, file := range []string{"j1", "v1.0", "v2.0"} { // no version refers to the last one
			t.Run(what+" "+file, func(t *testing.T) {
				d, path := directoryOf(t)
				k, _, _, err := persist.Open(d, slog.Default())
				require.NoError(t, err)
				id, err := k.Put([]*os.File{sealed(t, "text")})
				require.NoError(t, err)
				require.NoError(t, k.Published(id, persist.Version{Name: "a", Number: 1, Manifest: []byte{0xa0}}, 1))
				_, err = k.Put([]*os.File{sealed(t, "an unfinished publication")})
				require.NoError(t, err)
				require.NoError(t, k.Close())
				require.NoError(t, change(filepath.Join(path, "sharedtensor."+file)))

				again, adopted, _, err := persist.Open(d, slog.Default())
				if file != "v2.0" {
					require.ErrorIs(t, err, os.ErrPermission)
					require.ErrorContains(t, err, file)
					return
				}
				require.NoError(t, err)
				require.Len(t, adopted, 1)
				adopted[0].Files[0].Close()
				require.NoError(t, again.Close())
				names, err := d.Names()
				require.NoError(t, err)
				require.NotContains(t, names, file)
			})
		}
	}
}

// Only the directory has the memory when the next owner starts. It serves the same versions from new memory. Readers of the
// previous owner keep theirs.
func TestKilledOwnerWithDirectory(t *testing.T) {
	t.Parallel()
	d, path := directoryOf(t)
	p, u := startUpgradable(t, directory+path)
	u.mustPublish("m", 1)
	old := u.acquire("m", 1)
	u.mustPublish("m", 2)
	current := u.acquire("m", 0)
	u.mustPublish("gone", 3)
	require.NoError(t, u.Withdraw(t.Context(), "gone"))
	file := inode(t, current.StateDict())

	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	_, err = endpoint.NewServer(endpoint.ServerOptions{Socket: p.Socket + ".2", Devices: []driver.Device{dev}, Keep: d})
	require.ErrorIs(t, err, endpoint.ErrInUse)
	require.ErrorContains(t, err, strconv.Itoa(p.PID()))

	for range 2 {
		restart(t, p, u, old, current)
		require.Equal(t, endpoint.Superseded, old.State())
		require.Equal(t, endpoint.Current, current.State())
		again := newUser(t, p).acquire("m", 0)
		require.Equal(t, uint64(2), again.Version())
		require.Equal(t, 2, value(t, again.StateDict()))
		require.NotEqual(t, file, inode(t, again.StateDict()))
	}
	require.Equal(t, uint64(2), u.mustPublish("gone", 4))

	upgradeOwner(t, u, true) // the successor has the same directory
	leased(t, old, current)
	require.NoError(t, os.WriteFile(brokenFile(p.Socket), []byte("adopted"), 0o600))
	require.NoError(t, syscall.Kill(ownerPID(t, u), syscall.SIGUSR2)) // a successor that fails
	require.Eventually(t, func() bool {
		_, err := os.Stat(p.Socket + ".failed")
		return err == nil
	}, 20*time.Second, time.Millisecond)
	require.Eventually(t, func() bool {
		names, err := d.Names()
		return err == nil && len(names) == 4
	}, 20*time.Second, time.Millisecond, "a journal and three versions, without second copies")
	require.NoError(t, os.Remove(brokenFile(p.Socket)))
	require.Equal(t, uint64(3), u.mustPublish("m", 5))
	before := u.ServerID()
	require.NoError(t, syscall.Kill(ownerPID(t, u), syscall.SIGKILL))
	p.Restart()
	require.Eventually(t, func() bool { return u.ServerID() != before }, 20*time.Second, time.Millisecond)
	leased(t, old, current)
	require.Equal(t, 5, value(t, newUser(t, p).acquire("m", 0).StateDict()))
	require.Equal(t, 4, value(t, newUser(t, p).acquire("gone", 0).StateDict()))
}

// A successor with a directory replaces an owner with another store.
func TestHandedToDirectory(t *testing.T) {
	t.Parallel()
	d, path := directoryOf(t)
	require.NoError(t, d.Put("v9.0", sealed(t, "of an earlier owner")))
	before := new(persist.Files)
	defer before.Close()
	first, _, _, err := persist.Open(before, slog.Default())
	require.NoError(t, err)
	publish := func(k *persist.Versions, text string) {
		id, err := k.Put([]*os.File{sealed(t, text)})
		require.NoError(t, err)
		manifest, err := message.Marshal(text)
		require.NoError(t, err)
		require.NoError(t, k.Published(id, persist.Version{Name: text, Number: 1, Manifest: manifest}, 1))
	}
	publish(first, "a")
	_, journal, err := first.Release()
	require.NoError(t, err)
	defer journal.Close()
	files, err := before.Stored()
	require.NoError(t, err)
	second, adopted, _, err := persist.Open(&persist.Handed{Own: d, Files: files}, slog.Default())
	require.NoError(t, err)
	require.Len(t, adopted, 1)
	adopted[0].Files[0].Close()
	publish(second, "b")
	require.NoError(t, second.Close())

	again, err := keeper.OpenDirectory(path)
	require.NoError(t, err)
	third, adopted, _, err := persist.Open(again, slog.Default())
	require.NoError(t, err)
	defer third.Close()
	require.Len(t, adopted, 2)
	for i, text := range []string{"a", "b"} {
		require.Equal(t, text, adopted[i].Name)
		require.Equal(t, first.Catalog(), third.Catalog())
		b := make([]byte, 1)
		_, err := adopted[i].Files[0].ReadAt(b, 0)
		require.NoError(t, err)
		require.Equal(t, text, string(b))
		adopted[i].Files[0].Close()
	}
}
