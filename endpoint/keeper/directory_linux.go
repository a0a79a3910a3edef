package keeper

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/internal/userns"
)

// Directory is a store of files in a directory that no other program uses. It needs no process, so it also works in a
// container whose end kills all its processes.
//
// It copies memory, because the kernel seals only memory without a path: a reader could not check that a file keeps its
// size and its bytes. Put writes a copy into the directory, and Stored copies files back into new sealed memory. In a
// tmpfs each version is in memory twice; on a disk, the versions survive a restart of the host. Its methods are safe for
// concurrent use.
type Directory struct {
	path   string
	device uint64 // of the directory's files
}

// OpenDirectory opens the directory at the path, and creates it if its parent exists. It fails if other users can enter
// the directory, or if its file system has no unnamed files (O_TMPFILE: tmpfs, ext4, xfs and btrfs have them).
func OpenDirectory(path string) (*Directory, error) {
	path, err := filepath.Abs(path)
	if err == nil {
		if err = os.Mkdir(path, 0o700); err == nil {
			err = syncDirectory(filepath.Dir(path))
		}
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return nil, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return nil, &os.PathError{Op: "open", Path: path, Err: unix.ENOTDIR}
	case !userns.Self(st.Uid) || st.Mode&0o077 != 0:
		return nil, fmt.Errorf("%w: %s belongs to uid %d with mode %#o; use a directory of uid %d with mode 0700",
			os.ErrPermission, path, st.Uid, st.Mode&0o777, os.Geteuid())
	}
	d := &Directory{path: path}
	f, err := d.Create()
	if err != nil {
		return nil, err
	}
	// On overlayfs, files have another device than their directory.
	err = unix.Fstat(int(f.Fd()), &st)
	d.device = uint64(st.Dev)
	return d, errors.Join(err, f.Close())
}

// Create returns a new file that is not in the store. Put adds it under a name, with all bytes that are written into it
// later. The caller owns it.
func (d *Directory) Create() (*os.File, error) { return d.create(unix.O_DSYNC) }

func (d *Directory) create(flags int) (*os.File, error) {
	fd, err := unix.Open(d.path, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC|flags, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		err = fmt.Errorf("the file system has no unnamed files (O_TMPFILE): use tmpfs, ext4, xfs or btrfs: %w", err)
	}
	if err != nil {
		return nil, &os.PathError{Op: "create a file in", Path: d.path, Err: err}
	}
	return os.NewFile(uintptr(fd), d.path), nil
}

// file returns the path of the file of a name.
func (d *Directory) file(name string) string { return filepath.Join(d.path, fdPrefix+name) }

// Put stores a copy of the memory of f, or f itself if Create has returned it. It borrows f. It fails with
// [errors.ErrUnsupported] if f is no host memory.
func (d *Directory) Put(name string, f *os.File) error {
	if err := checkName(name); err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !d.created(info) {
		file, err := d.copyOf(f, info)
		if err != nil {
			return fmt.Errorf("copy %s into %s: %w", name, d.path, err)
		}
		defer file.Close()
		f = file
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, d.file(name), unix.AT_SYMLINK_FOLLOW)
	}); err != nil {
		return err
	}
	if failed != nil {
		return &os.PathError{Op: "link", Path: d.file(name), Err: failed}
	}
	return syncDirectory(d.path)
}

// created reports whether a file was returned by Create and has no name yet.
func (d *Directory) created(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && uint64(st.Dev) == d.device && st.Nlink == 0 && info.Mode().IsRegular()
}

// copyOf returns a new file with the bytes of sealed memory. The caller owns it.
func (d *Directory) copyOf(memory *os.File, info os.FileInfo) (_ *os.File, err error) {
	const sizes = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	if seals, err := control(memory, unix.F_GET_SEALS, 0); err != nil || seals&sizes != sizes || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: a directory keeps only sealed host memory", errors.ErrUnsupported)
	}
	file, err := d.create(0)
	if err != nil {
		return nil, err
	}
	if err = copyBytes(file, memory, info.Size()); err == nil {
		err = file.Sync()
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// syncDirectory writes the names in a directory to its disk.
func syncDirectory(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Remove removes the files of the names. Unknown names are no error.
func (d *Directory) Remove(names ...string) error {
	var failed []error
	for _, name := range names {
		err := checkName(name)
		if err == nil {
			err = os.Remove(d.file(name))
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// Names returns the names of all files of the store. Other files in the directory are left alone.
func (d *Directory) Names() ([]string, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if name, ours := strings.CutPrefix(e.Name(), fdPrefix); ours && checkName(name) == nil {
			names = append(names, name)
		}
	}
	return names, nil
}

// Has reports whether f is the file of the name, not a copy of it.
func (d *Directory) Has(name string, f *os.File) bool {
	stored, err := os.Lstat(d.file(name))
	if err != nil {
		return false
	}
	info, err := f.Stat()
	return err == nil && os.SameFile(stored, info)
}

// Stored is Open for all names.
func (d *Directory) Stored() (map[string]*os.File, error) {
	names, err := d.Names()
	if err != nil {
		return nil, err
	}
	return d.Open(names...)
}

// Open returns, by name, the files that are written in place, whose names begin with j, and sealed copies of all others.
// The caller owns them. It fails with [endpoint.ErrInUse] if another process has locked one of the former, and with
// [os.ErrPermission] if another user may have written a file.
func (d *Directory) Open(names ...string) (map[string]*os.File, error) {
	opened := map[string]*os.File{}
	fail := func(err error) (map[string]*os.File, error) {
		for _, f := range opened {
			f.Close()
		}
		return nil, err
	}
	var memory []string
	for _, name := range names {
		if err := checkName(name); err != nil {
			return fail(err)
		}
		if !strings.HasPrefix(name, "j") {
			memory = append(memory, name)
			continue
		}
		f, err := d.open(name, os.O_RDWR|unix.O_DSYNC)
		if err != nil {
			return fail(err)
		}
		opened[name] = f
		if err := inUse(f); err != nil {
			return fail(err)
		}
	}
	var failed error
	for i, r := range copyAll(memory, d.sealedCopy) {
		if r.file != nil {
			opened[memory[i]] = r.file
		}
		failed = errors.Join(failed, r.err)
	}
	if failed != nil {
		return fail(failed)
	}
	return opened, nil
}

// open opens a file of the store. It refuses a file that another user may have written: one of another owner, one that
// others can open, and one with a second name.
func (d *Directory) open(name string, flags int) (_ *os.File, err error) {
	path := d.file(name)
	refused := fmt.Errorf("%w: %s is no private file of uid %d with mode 0600 and one name; remove it to continue without its version",
		os.ErrPermission, path, os.Geteuid())
	f, err := os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, refused
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() || uint64(st.Dev) != d.device || !userns.Self(st.Uid) || st.Mode&0o077 != 0 || st.Nlink != 1 {
		return nil, refused
	}
	return f, nil
}

// Close does nothing: the files stay.
func (d *Directory) Close() error { return nil }

// inUse returns an error if another process has locked a file.
func inUse(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	holder := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = unix.FcntlFlock(fd, unix.F_GETLK, &holder) }); err != nil {
		return err
	}
	if failed == nil && holder.Type != unix.F_UNLCK {
		return fmt.Errorf("%w: process %d uses %s", status.ErrInUse, holder.Pid, f.Name())
	}
	return os.NewSyscallError("look up a lock", failed)
}
