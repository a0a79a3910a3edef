package host

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// openPool returns a pool that keeps memory during the test.
func openPool(t *testing.T, opts PoolOptions) *Pool {
	t.Helper()
	if opts.Idle == 0 {
		opts.Idle = time.Hour
	}
	p := NewPool(open(t).(*Device), opts)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	require.NoError(t, p.Reuses())
	return p
}

// allocPool allocates memory filled with one value.
func allocPool(t *testing.T, p *Pool, size int64, fill byte) *memory {
	t.Helper()
	mem, err := p.AllocUninitialized(size)
	require.NoError(t, err)
	m := mem.(*memory)
	data := m.Data()
	for i := range data {
		data[i] = fill
	}
	return m
}

// handOver freezes and exports memory like a publication, and returns the descriptor.
func handOver(t *testing.T, m *memory) *os.File {
	t.Helper()
	require.NoError(t, m.Freeze())
	h, err := m.Export()
	require.NoError(t, err)
	return h.File
}

func address(m *memory) *byte { return &m.backing.mapping[0] }

func TestPoolMemoryComesBack(t *testing.T) {
	drivertest.Leaks(t)
	p := openPool(t, PoolOptions{})
	page := int64(os.Getpagesize())
	before := driver.Pools()
	first := allocPool(t, p, 3*page-100, 7)
	at := address(first)
	handed := handOver(t, first)
	require.NoError(t, handed.Close())
	require.NoError(t, first.Close())

	second, err := p.AllocUninitialized(2*page + 1)
	require.NoError(t, err)
	m := second.(*memory)
	require.Same(t, at, address(m), "as many pages: the same mapping")
	require.True(t, bytes.Equal(m.data, bytes.Repeat([]byte{7}, len(m.data))), "as it was left")
	require.Zero(t, bytes.Count(m.backing.mapping[len(m.data):], []byte{7}), "but for the bytes that go along with it")
	require.True(t, m.Writable())
	require.ErrorIs(t, m.Seal(), driver.ErrReadOnly, "it is frozen still")
	require.NoError(t, second.Close())

	third, err := p.Alloc(3 * page)
	require.NoError(t, err)
	require.Same(t, at, address(third.(*memory)))
	require.Equal(t, make([]byte, 3*page), third.(*memory).Data(), "zeroed")
	other, err := p.Alloc(2 * page)
	require.NoError(t, err)
	require.NotSame(t, at, address(other.(*memory)))
	require.NoError(t, other.Close())
	require.NoError(t, third.Close())
	after := driver.Pools()
	require.EqualValues(t, 2, after.Reused-before.Reused)
	require.EqualValues(t, 2, after.Fresh-before.Fresh)
	require.EqualValues(t, 2, after.Slabs-before.Slabs)
	require.Equal(t, 5*page, after.Bytes-before.Bytes)
	require.NoError(t, p.Close())
	require.Equal(t, before.Bytes, driver.Pools().Bytes)
	plain, err := p.Alloc(3 * page)
	require.NoError(t, err, "a closed pool allocates as its device does")
	require.NoError(t, plain.Close())
}

// Memory is not reused until the last process that can see it has released it, for every way to hold it.
func TestPoolMemoryStaysWithThoseThatHaveIt(t *testing.T) {
	drivertest.Leaks(t)
	page := os.Getpagesize()
	for name, hold := range map[string]func(t *testing.T, p *Pool, handed *os.File) (letGo func()){
		"descriptor": func(t *testing.T, _ *Pool, handed *os.File) func() {
			fd, err := unix.Dup(int(handed.Fd()))
			require.NoError(t, err)
			return func() { require.NoError(t, unix.Close(fd)) }
		},
		"mapping alone": func(t *testing.T, _ *Pool, handed *os.File) func() {
			data, err := unix.Mmap(int(handed.Fd()), 0, page, unix.PROT_READ, unix.MAP_SHARED)
			require.NoError(t, err)
			return func() { require.Equal(t, byte(9), data[0]); require.NoError(t, unix.Munmap(data)) }
		},
		"private mapping": func(t *testing.T, _ *Pool, handed *os.File) func() {
			data, err := unix.Mmap(int(handed.Fd()), 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
			require.NoError(t, err)
			return func() { require.NoError(t, unix.Munmap(data)) }
		},
		"opened again": func(t *testing.T, _ *Pool, handed *os.File) func() {
			again, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", handed.Fd()))
			require.NoError(t, err)
			return func() { require.NoError(t, again.Close()) }
		},
		"in a message that nobody reads": func(t *testing.T, _ *Pool, handed *os.File) func() {
			ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			require.NoError(t, err)
			require.NoError(t, unix.Sendmsg(ends[0], []byte{1}, unix.UnixRights(int(handed.Fd())), nil, 0))
			return func() { require.NoError(t, errors.Join(unix.Close(ends[0]), unix.Close(ends[1]))) }
		},
		"imported by this process": func(t *testing.T, p *Pool, handed *os.File) func() {
			h := driver.Handle{Kind: driver.Memfd, Device: p.Info().UUID, Bytes: int64(page), File: handed}
			mem, err := p.Import(h, driver.ImportOptions{})
			require.NoError(t, err)
			return func() { require.NoError(t, mem.Close()) }
		},
		"a process that is killed": func(t *testing.T, _ *Pool, handed *os.File) func() {
			cmd := exec.Command("sleep", "1000")
			cmd.ExtraFiles = []*os.File{handed}
			require.NoError(t, cmd.Start())
			return func() { require.NoError(t, cmd.Process.Kill()); _ = cmd.Wait() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := openPool(t, PoolOptions{})
			first := allocPool(t, p, int64(page), 9)
			at := address(first)
			handed := handOver(t, first)
			letGo := hold(t, p, handed)
			require.NoError(t, handed.Close())
			require.NoError(t, first.Close())
			second := allocPool(t, p, int64(page), 1)
			require.NotSame(t, at, address(second))
			letGo()
			third := allocPool(t, p, int64(page), 2)
			require.Same(t, at, address(third), "nobody has it any more")
			require.NoError(t, second.Close())
			require.NoError(t, third.Close())
		})
	}
}

// Memory of a pool can only be mapped for reading, whatever its receiver tries.
func TestPoolMemoryIsNotWritable(t *testing.T) {
	drivertest.Leaks(t)
	p := openPool(t, PoolOptions{})
	m := allocPool(t, p, 100, 3)
	handed := handOver(t, m)
	defer handed.Close()
	_, err := unix.Mmap(int(handed.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.Error(t, err)
	again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", handed.Fd()), os.O_RDWR, 0)
	if err == nil { // the same user
		_, err = unix.Mmap(int(again.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		require.ErrorIs(t, err, unix.EPERM)
		require.NoError(t, again.Close())
	}
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(handed.Fd()), &st))
	require.Zero(t, st.Mode&0o077, "another user cannot open it again")
	h := driver.Handle{Kind: driver.Memfd, Device: p.Info().UUID, Bytes: 100, File: handed}
	theirs, err := p.Import(h, driver.ImportOptions{})
	require.NoError(t, err)
	reusable := func(m driver.Memory) bool {
		d, err := m.Describe()
		require.NoError(t, err)
		return d.Reusable
	}
	require.True(t, reusable(theirs), "the receiver knows that it may be used again")
	require.True(t, reusable(m))
	plain, err := p.Device.Alloc(100)
	require.NoError(t, err)
	require.False(t, reusable(plain))
	require.NoError(t, errors.Join(theirs.Close(), plain.Close(), m.Close()))
}

// Memory that must not be reused is freed when it is closed.
func TestPoolMemoryThatMustNotComeBack(t *testing.T) {
	drivertest.Leaks(t)
	for name, spoil := range map[string]func(t *testing.T, m *memory){
		"exported before it was frozen": func(t *testing.T, m *memory) {
			h, err := m.Export()
			require.NoError(t, err)
			require.NoError(t, h.Close())
		},
		"sealed": func(t *testing.T, m *memory) { require.NoError(t, m.Seal()) },
	} {
		t.Run(name, func(t *testing.T) {
			p := openPool(t, PoolOptions{})
			m := allocPool(t, p, 100, 3)
			spoil(t, m)
			require.NoError(t, m.Close())
			require.Empty(t, p.kept)
		})
	}
	t.Run("pinned", func(t *testing.T) {
		p := openPool(t, PoolOptions{})
		m := allocPool(t, p, 100, 3)
		_, unpin, err := m.Pin(false)
		require.NoError(t, err)
		require.NoError(t, m.Close())
		require.Empty(t, p.kept, "it is in use")
		unpin()
		require.Len(t, p.kept, 1)
	})
}

// Memory that became unreachable without Close is never reused.
func TestPoolMemoryThatIsForgotten(t *testing.T) {
	p := openPool(t, PoolOptions{})
	lost := make(chan driver.Leak, 1)
	driver.OnLeak(func(l driver.Leak) { lost <- l })
	defer driver.OnLeak(nil)
	func() { _ = allocPool(t, p, 100, 3) }()
	var leak driver.Leak
	require.Eventually(t, func() bool {
		runtime.GC()
		select {
		case leak = <-lost:
			return true
		default:
			return false
		}
	}, time.Minute, 10*time.Millisecond)
	require.True(t, leak.Kept, "a slice of it was handed out")
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Empty(t, p.kept)
}

func TestPoolIsBounded(t *testing.T) {
	drivertest.Leaks(t)
	page := int64(os.Getpagesize())
	p := openPool(t, PoolOptions{Bytes: 8 * page})
	var all []*memory
	for range 12 {
		all = append(all, allocPool(t, p, page, 1))
	}
	for _, m := range all {
		require.NoError(t, m.Close())
		require.LessOrEqual(t, p.bytes, 8*page)
	}
	require.Len(t, p.kept, 8)
	large := allocPool(t, p, 9*page, 1)
	require.NoError(t, large.Close())
	require.Len(t, p.kept, 8, "what is more than all is not kept")
	require.NoError(t, allocPool(t, p, 7*page, 1).Close())
	require.Len(t, p.kept, 2)

	require.True(t, p.RetryAfterReclaim(1, driver.ErrOutOfMemory), "memory is refused")
	require.Empty(t, p.kept)
	require.False(t, p.RetryAfterReclaim(1, driver.ErrOutOfMemory))

	m := allocPool(t, p, page, 1)
	handed := handOver(t, m)
	require.NoError(t, m.Close())
	require.Zero(t, p.Trim(), "others have it: nothing is freed")
	require.NoError(t, handed.Close())
	for range poolSlabs + 3 {
		p.opts.Bytes = 1 << 30
		all = append(all, allocPool(t, p, page, 1))
	}
	for _, m := range all {
		require.NoError(t, m.Close())
	}
	require.Len(t, p.kept, poolSlabs)
}

func TestPoolGivesUpWhatNobodyAsksFor(t *testing.T) {
	drivertest.Leaks(t)
	p := openPool(t, PoolOptions{Idle: 50 * time.Millisecond})
	require.NoError(t, allocPool(t, p, 100, 1).Close())
	require.NoError(t, allocPool(t, p, 10_000, 1).Close())
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.kept) == 0 && p.bytes == 0 && p.sweep == nil
	}, time.Minute, time.Millisecond)
}

// Writers fill reused memory while readers compare what they received: no byte changes under a reader, and memory with
// two users would be detected by its pattern.
func TestPoolUnderLoad(t *testing.T) {
	drivertest.Leaks(t)
	p := openPool(t, PoolOptions{})
	before := driver.Pools()
	const size, writers, rounds = 3 << 12, 4, 300
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			for round := range rounds {
				fill := byte(w<<6 | round&63)
				mem, err := p.AllocUninitialized(size)
				if !assert.NoError(t, err) {
					return
				}
				m := mem.(*memory)
				data := m.Data()
				for i := range data {
					data[i] = fill
				}
				if !assert.NoError(t, m.Freeze()) {
					return
				}
				h, err := m.Export()
				if !assert.NoError(t, err) {
					return
				}
				seen, err := unix.Mmap(int(h.File.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
				assert.NoError(t, errors.Join(err, h.Close()))
				if random.IntN(2) == 0 {
					assert.Equal(t, size, bytes.Count(data, []byte{fill}), "it has one writer")
				}
				assert.NoError(t, m.Close())
				stay := time.Duration(random.IntN(300)) * time.Microsecond
				all.Go(func() {
					time.Sleep(stay)
					assert.Equal(t, size, bytes.Count(seen, []byte{fill}), "bytes changed under a reader")
					assert.NoError(t, unix.Munmap(seen))
				})
			}
		})
	}
	all.Wait()
	require.Positive(t, driver.Pools().Reused-before.Reused)
}

// BenchmarkPool measures allocating and closing.
func BenchmarkPool(b *testing.B) {
	dev, err := Open()
	require.NoError(b, err)
	pool := NewPool(dev, PoolOptions{})
	defer pool.Close()
	for _, size := range []int64{1 << 20, 64 << 20} {
		for name, alloc := range map[string]func(int64) (driver.Memory, error){"fresh": dev.Alloc, "zeroed": pool.Alloc, "uninitialized": pool.AllocUninitialized} {
			b.Run(fmt.Sprintf("%s/MiB=%d", name, size>>20), func(b *testing.B) {
				for b.Loop() {
					mem, err := alloc(size)
					if err != nil {
						b.Fatal(err)
					}
					mem.Close()
				}
			})
		}
	}
}
