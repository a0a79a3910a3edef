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

// seals keep the size: memory that its maker could shrink would end this process with SIGBUS at the next access.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// ErrRefused is memory that was passed and cannot be what it should be.
var ErrRefused = errors.New("not the memory of a ring")

// Memory is the memory of two rings, mapped.
type Memory struct {
	data  []byte
	bytes int // of each ring
}

// Bytes is how much memory rings take of so many bytes each.
func Bytes(each int) int { return pageBytes + 2*each }

// Fit is the size of a ring of at least n bytes, within what there may be.
func Fit(n int) int {
	n = min(max(n, MinBytes), MaxBytes)
	return 1 << bits.Len(uint(n-1))
}

// New makes and maps memory for rings of so many bytes each, a size by Fit. The caller closes the memory, and the file,
// which is what the peer is passed.
func New(each int) (*Memory, *os.File, error) {
	fd, err := unix.MemfdCreate("sharedtensor-ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, os.NewSyscallError("memfd_create", err)
	}
	file := os.NewFile(uintptr(fd), "ring")
	err = os.NewSyscallError("ftruncate", unix.Ftruncate(fd, int64(Bytes(each))))
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

// Open maps memory that a peer made. It borrows the descriptor. It returns ErrRefused if the size is not that of a ring
// or can still change, and the system's error if the memory cannot be mapped.
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

// Close unmaps the memory. Its producers and consumers must not be used any more.
func (m *Memory) Close() error {
	data := m.data
	m.data = nil
	if data == nil {
		return nil
	}
	return os.NewSyscallError("munmap", unix.Munmap(data))
}

// Producer writes one of the rings.
func (m *Memory) Producer(which Which) *Producer { return &Producer{shared: m.at(which)} }

// Consumer reads one of the rings.
func (m *Memory) Consumer(which Which) *Consumer { return &Consumer{shared: m.at(which)} }

// at finds a ring. The mapping begins at a page, so that the words are aligned.
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
