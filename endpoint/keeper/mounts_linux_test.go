package keeper_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/keeper"
)

// mount mounts a file system until the end of the test, or skips the test.
func mount(t testing.TB, kind, path, options string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(path, 0o700))
	if err := unix.Mount("none", path, kind, 0, options); err != nil {
		drivertest.Needs(t, "mount", false, fmt.Sprintf("no %s here: %v", kind, err))
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
}

// A store without room refuses publications, records withdrawals, and has room again afterwards.
func TestFullDirectory(t *testing.T) {
	dir := t.TempDir()
	mount(t, "tmpfs", dir+"/small", "size=1m")
	path := dir + "/small/kept"
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	serve := func() *endpoint.Server {
		store, err := keeper.OpenDirectory(path)
		require.NoError(t, err)
		s, err := endpoint.NewServer(endpoint.ServerOptions{Socket: dir + "/s.sock", Devices: []driver.Device{dev}, Keep: store})
		require.NoError(t, err)
		return s
	}
	s := serve()
	size := func() int {
		info, err := os.Stat(path + "/sharedtensor.j1")
		require.NoError(t, err)
		return int(info.Size())
	}
	// The journal must end right before the end of a page, so that the next entry needs another one.
	const page, room = 4096, 30
	var names []string
	for length, entry := 10, 0; page-size()%page > room; {
		before := size()
		name := fmt.Sprintf("%0*d", length, len(names))
		mustPublish(t, s, dev, name, 1)
		names = append(names, name)
		entry = size() - before - length // without the name
		length = 10
		if left := page - size()%page - entry; left > 10 && left < 250 {
			length = left - room/2
		}
		require.Less(t, len(names), 40)
	}
	rest := filepath.Join(dir, "small", "rest") // the last bytes
	f, err := os.Create(rest)
	require.NoError(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 512))
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	require.NoError(t, f.Close())
	for _, name := range names[1:] {
		require.NoError(t, s.Withdraw(t.Context(), name), "%s", name)
	}
	require.NoError(t, s.Close())
	require.NoError(t, os.Remove(rest))
	s = serve()
	defer s.Close()
	require.Len(t, s.Adopted(), 1)
	require.Equal(t, names[0], s.Adopted()[0].Name)
	mustPublish(t, s, dev, "again", 1)
}

// A directory on overlayfs works like one on its upper file system.
func TestDirectoryOnOverlay(t *testing.T) {
	dir := t.TempDir()
	mount(t, "tmpfs", dir+"/t", "size=16m")
	mount(t, "tmpfs", dir+"/t/lower", "size=16m") // another file system
	for _, name := range []string{"upper", "work"} {
		require.NoError(t, os.Mkdir(dir+"/t/"+name, 0o700))
	}
	at := dir + "/t/"
	mount(t, "overlay", dir+"/o", "lowerdir="+at+"lower,upperdir="+at+"upper,workdir="+at+"work")
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	for round := range 3 {
		store, err := keeper.OpenDirectory(dir + "/o/kept")
		if errors.Is(err, errors.ErrUnsupported) {
			require.ErrorContains(t, err, "O_TMPFILE")
			drivertest.Needs(t, "mount", false, err.Error())
		}
		require.NoError(t, err)
		s, err := newServer(dir+"/s.sock", dev, store)
		require.NoError(t, err)
		require.Len(t, s.Adopted(), round)
		mustPublish(t, s, dev, fmt.Sprint("m", round), round)
		require.NoError(t, s.Close())
	}
}
