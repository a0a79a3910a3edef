package ring

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// seals fix the size. If the creator could shrink the memory, an access by this process would raise SIGBUS.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// ErrRefused means that the memory is not that of a ring.
var ErrRefused = errors.New("not the memory of a ring")

// Memory is the mapped memory of two rings.
type Memory struct {
	data  []byte
	bytes int // of each ring
}

// Bytes returns the memory of two rings of each bytes.
func Bytes(each int) int { return pageBytes + 2*each }

// Fit returns the size of a ring of at least n bytes, within MinBytes and MaxBytes.
func Fit(n int) int {
	n = min(max(n, MinBytes), MaxBytes)
	return 1 << bits.Len(uint(n-1))
}

// New creates and maps memory for two rings of each bytes, a size returned by Fit. The caller owns the memory, and the
// file to pass to the peer.
func New(each int) (*Memory, *os.File, error) {
	fd, err := memfdCreate()
	if err != nil {
		return nil, nil, os.NewSyscallError("memfd_create", err)
	}
	file := os.NewFile(uintptr(fd), "ring")
	// The peer receives the descriptor. Other users cannot open the file.
	err = os.NewSyscallError("fchmod", unix.Fchmod(fd, 0o600))
	if err == nil {
		err = os.NewSyscallError("ftruncate", unix.Ftruncate(fd, int64(Bytes(each))))
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals|unix.F_SEAL_SEAL)
		err = os.NewSyscallError("fcntl F_ADD_SEALS", err)
	}
	var m *Memory
	if err == nil {
		m, err = mapMemory(fd, each)
	}
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	return m, file, nil
}

// memfdCreate returns a memfd that is not executable and cannot become so. Some systems refuse all others
// (vm.memfd_noexec).
func memfdCreate() (int, error) {
	const name, flags = "sharedtensor-ring", unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, flags)
	}
	return fd, err
}

// Open maps memory created by a peer. It borrows the descriptor. It returns ErrRefused if the size is not that of two
// rings or is not sealed, and the system's error if mapping fails.
func Open(fd int) (*Memory, error) {
	have, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: it has no seals: %w", ErrRefused, os.NewSyscallError("fcntl F_GET_SEALS", err))
	}
	if have&seals != seals {
		return nil, fmt.Errorf("%w: it is not sealed against shrinking and growing", ErrRefused)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	each := (stat.Size - pageBytes) / 2
	if each < MinBytes || each > MaxBytes || stat.Size != int64(Bytes(int(each))) || each&(each-1) != 0 {
		return nil, fmt.Errorf("%w: it has %d bytes", ErrRefused, stat.Size)
	}
	return mapMemory(fd, int(each))
}

func mapMemory(fd, each int) (*Memory, error) {
	data, err := unix.Mmap(fd, 0, Bytes(each), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return &Memory{data: data, bytes: each}, nil
}

// Close unmaps the memory. Its producers and consumers must not be used afterwards.
func (m *Memory) Close() error {
	data := m.data
	m.data = nil
	if data == nil {
		return nil
	}
	return os.NewSyscallError("munmap", unix.Munmap(data))
}

// Producer returns the writer of one ring.
func (m *Memory) Producer(which Which) *Producer { return &Producer{shared: m.at(which)} }

// Consumer returns the reader of one ring.
func (m *Memory) Consumer(which Which) *Consumer { return &Consumer{shared: m.at(which)} }

// at returns a ring's part of the memory. The mapping starts at a page, so the indices are aligned.
func (m *Memory) at(which Which) shared {
	words := unsafe.Pointer(&m.data[int(which)*indexBytes])
	begin := pageBytes + int(which)*m.bytes
	return shared{
		tail:   (*atomic.Uint64)(unsafe.Add(words, tailOffset)),
		head:   (*atomic.Uint64)(unsafe.Add(words, headOffset)),
		asleep: (*atomic.Uint32)(unsafe.Add(words, asleepOffset)),
		data:   m.data[begin : begin+m.bytes : begin+m.bytes],
	}
}
