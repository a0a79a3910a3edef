package ring

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// memory returns one memory mapped separately by two sides.
func memory(t testing.TB, each int) (maker, taker *Memory) {
	t.Helper()
	maker, file, err := New(each)
	require.NoError(t, err)
	defer file.Close()
	taker, err = Open(int(file.Fd()))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, maker.Close())
		require.NoError(t, taker.Close())
	})
	return maker, taker
}

func TestBothDirections(t *testing.T) {
	maker, taker := memory(t, MinBytes)
	for _, ends := range []struct {
		p *Producer
		c *Consumer
	}{{maker.Producer(Second), taker.Consumer(Second)}, {taker.Producer(First), maker.Consumer(First)}} {
		n, err := ends.c.Available()
		require.NoError(t, err)
		require.Zero(t, n)
		require.False(t, ends.c.Ready())
		done, err := ends.p.Put([]byte("head"), []byte("body"), 16)
		require.NoError(t, err)
		require.True(t, done)
		require.True(t, ends.c.Ready())
		n, err = ends.c.Available()
		require.NoError(t, err)
		require.Equal(t, 8, n)
		got := make([]byte, 6)
		ends.c.Peek(2, got)
		require.Equal(t, "adbody", string(got))
		ends.c.Take(8)
		require.False(t, ends.c.Ready())
		free, err := ends.p.Free()
		require.NoError(t, err)
		require.Equal(t, MinBytes, free)
	}
}

func TestFullRingTakesNothing(t *testing.T) {
	maker, taker := memory(t, MinBytes)
	p, c := maker.Producer(Second), taker.Consumer(Second)
	put := func(n, keep int) bool {
		done, err := p.Put(make([]byte, n), nil, keep)
		require.NoError(t, err)
		return done
	}
	require.False(t, put(MinBytes-15, 16))
	require.True(t, put(MinBytes-16, 16))
	require.False(t, put(1, 16))
	require.True(t, put(16, 0))
	require.False(t, put(1, 0))
	n, err := c.Available()
	require.NoError(t, err)
	require.Equal(t, MinBytes, n)
	c.Take(1)
	require.True(t, put(1, 0))
	require.False(t, put(1, 0))
}

// Random puts and takes by two goroutines that share only the memory transfer all bytes in order.
func TestRandomSizes(t *testing.T) {
	for _, each := range []int{MinBytes, 4 * MinBytes} {
		maker, taker := memory(t, each)
		p, c := taker.Producer(First), maker.Consumer(First)
		const total = 1 << 20
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		go func() {
			rng, next := rand.New(rand.NewPCG(seed, 1)), byte(0)
			for sent := 0; sent < total; {
				a := make([]byte, rng.IntN(40))
				b := make([]byte, rng.IntN(1<<rng.IntN(12)))
				for _, part := range [][]byte{a, b} {
					for i := range part {
						part[i] = next
						next++
					}
				}
				for {
					done, err := p.Put(a, b, rng.IntN(17))
					if err != nil {
						t.Error(err)
						return
					}
					if done {
						break
					}
					runtime.Gosched()
				}
				sent += len(a) + len(b)
			}
		}()
		rng, next := rand.New(rand.NewPCG(seed, 2)), byte(0)
		for got := 0; got < total; {
			n, err := c.Available()
			require.NoError(t, err)
			if n == 0 {
				runtime.Gosched()
				continue
			}
			part := make([]byte, 1+rng.IntN(n))
			c.Peek(0, part)
			c.Take(len(part))
			for _, b := range part {
				if b != next {
					t.Fatalf("byte %d is %d, not %d", got, b, next)
				}
				next++
				got++
			}
		}
	}
}

// A consumer never sleeps unnoticed while data is available.
func TestWakeIsNeverLost(t *testing.T) {
	maker, taker := memory(t, MinBytes)
	p, c := taker.Producer(First), maker.Consumer(First)
	bell := make(chan struct{}, 1<<16)
	const total = 20_000
	var slept, rung atomic.Int64
	go func() {
		for n := uint64(0); n < total; {
			done, err := p.Put(binary.NativeEndian.AppendUint64(nil, n), nil, 0)
			if err != nil {
				t.Error(err)
				return
			}
			if !done {
				runtime.Gosched()
				continue
			}
			n++
			if p.MustWake() {
				rung.Add(1)
				bell <- struct{}{}
			}
			if n%7 == 0 {
				runtime.Gosched()
			}
		}
	}()
	for n := uint64(0); n < total; n++ {
		for !c.Ready() {
			if c.Sleep() {
				slept.Add(1)
				<-bell // a lost signal ends at the test's time limit
				require.True(t, c.Signalled())
				c.Wake()
			}
			for len(bell) > 0 {
				<-bell
				require.True(t, c.Signalled())
			}
		}
		_, err := c.Available()
		require.NoError(t, err)
		var b [8]byte
		c.Peek(0, b[:])
		c.Take(8)
		require.Equal(t, n, binary.NativeEndian.Uint64(b[:]))
	}
	t.Logf("slept %d times, rung %d times", slept.Load(), rung.Load())
}

// TestSleepAndPutAtTheSameTime tries all interleavings of a consumer that goes to sleep (check, announce, check again)
// and a producer that puts and then asks whether to wake.
func TestSleepAndPutAtTheSameTime(t *testing.T) {
	put := func(p *Producer) {
		done, err := p.Put([]byte{1}, nil, 0)
		require.NoError(t, err)
		require.True(t, done)
	}
	for name, one := range map[string]struct {
		steps func(p *Producer, c *Consumer) (woken bool)
		slept bool
	}{
		"put and asked before it says that it sleeps": {steps: func(p *Producer, _ *Consumer) bool { put(p); return p.MustWake() }},
		"put before, asked after": {steps: func(p *Producer, c *Consumer) bool {
			put(p)
			c.asleep.Store(1) // as Sleep does before it checks again
			return p.MustWake()
		}},
		"put and asked when it has looked again": {slept: true, steps: func(p *Producer, c *Consumer) bool {
			require.True(t, c.Sleep())
			put(p)
			return p.MustWake()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			maker, taker := memory(t, MinBytes)
			p, c := taker.Producer(First), maker.Consumer(First)
			require.False(t, c.Ready())
			woken := one.steps(p, c)
			if one.slept {
				require.True(t, woken, "it sleeps, and nobody wakes it")
				return
			}
			require.False(t, c.Sleep(), "it would sleep, and something is there")
			require.False(t, p.MustWake())
		})
	}
}

func TestSignalsAreOneForEachSleep(t *testing.T) {
	maker, taker := memory(t, MinBytes)
	p, c := taker.Producer(First), maker.Consumer(First)
	require.False(t, c.Signalled(), "it never slept")
	require.True(t, c.Sleep())
	require.False(t, p.MustWake(), "nothing was put")
	_, err := p.Put([]byte{1}, nil, 0)
	require.NoError(t, err)
	require.True(t, p.MustWake())
	require.False(t, p.MustWake())
	c.Wake()
	require.Equal(t, 1, c.Due())
	require.True(t, c.Signalled())
	require.False(t, c.Signalled(), "the second signal for one sleep")
	require.False(t, c.Sleep(), "something is there")
	require.Zero(t, c.Due())

	// A consumer that always claims to sleep is woken once per put.
	_, err = p.Put([]byte{1}, nil, 0)
	require.NoError(t, err)
	woken := 0
	for range 1000 {
		c.asleep.Store(1)
		if p.MustWake() {
			woken++
		}
	}
	require.Equal(t, 1, woken)
}

func TestEndOfTheProducer(t *testing.T) {
	maker, taker := memory(t, MinBytes)
	p, c := taker.Producer(First), maker.Consumer(First)
	put := func() { _, err := p.Put([]byte("12345678"), nil, 0); require.NoError(t, err) }
	put()
	require.NoError(t, c.End())
	put() // after the end
	n, err := c.Available()
	require.NoError(t, err)
	require.Equal(t, 8, n)
	c.Take(8)
	require.False(t, c.Ready())
	n, err = c.Available()
	require.NoError(t, err)
	require.Zero(t, n)
}

// Indices are validated against the bounds of the ring.
func TestHostileIndices(t *testing.T) {
	const written = 100
	for _, tail := range []uint64{0, written - 1, 50 + MinBytes + 1, 1 << 63, ^uint64(0)} {
		maker, taker := memory(t, MinBytes)
		p, c := taker.Producer(First), maker.Consumer(First)
		_, err := p.Put(make([]byte, written), nil, 0)
		require.NoError(t, err)
		n, err := c.Available()
		require.NoError(t, err)
		require.Equal(t, written, n)
		c.Take(50)
		p.shared.tail.Store(tail)
		n, err = c.Available()
		require.NoError(t, err, "what was believed before stands")
		require.Equal(t, 50, n)
		require.True(t, c.Ready())
		if tail == written-1 || tail == 0 {
			require.NoError(t, err)
		}
		c.Take(50)
		require.True(t, c.Ready())
		if tail <= written+MinBytes && tail > written {
			continue // now so many bytes fit
		}
		_, err = c.Available()
		require.ErrorIs(t, err, ErrCorrupt, "tail %d", tail)
	}
	for _, head := range []uint64{written + 1, 1 << 63, ^uint64(0), 9} {
		maker, taker := memory(t, MinBytes)
		p, c := taker.Producer(First), maker.Consumer(First)
		_, err := p.Put(make([]byte, written), nil, 0)
		require.NoError(t, err)
		c.shared.head.Store(10)
		_, err = p.Free()
		require.NoError(t, err)
		c.shared.head.Store(head)
		_, err = p.Free()
		require.ErrorIs(t, err, ErrCorrupt, "head %d", head)
		_, err = p.Put(make([]byte, MinBytes), nil, 0)
		require.ErrorIs(t, err, ErrCorrupt)
	}
}

func TestRingMemoryIsSealedAndNotExecutable(t *testing.T) {
	made, file, err := New(MinBytes)
	require.NoError(t, err)
	defer func() { require.NoError(t, made.Close()) }()
	defer file.Close()
	var stat unix.Stat_t
	require.NoError(t, unix.Fstat(int(file.Fd()), &stat))
	require.EqualValues(t, 0o600, stat.Mode&0o7777)
	have, err := unix.FcntlInt(file.Fd(), unix.F_GET_SEALS, 0)
	require.NoError(t, err)
	require.Equal(t, seals|unix.F_SEAL_SEAL, have&(seals|unix.F_SEAL_SEAL))
	require.Error(t, unix.Ftruncate(int(file.Fd()), 1))
	if fd, err := unix.MemfdCreate("probe", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL); err == nil { // since Linux 6.3
		require.NoError(t, unix.Close(fd))
		require.NotZero(t, have&unix.F_SEAL_EXEC)
	}
}

func TestMemoryThatIsNoRing(t *testing.T) {
	make := func(size int64, seal int) *os.File {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		require.NoError(t, err)
		f := os.NewFile(uintptr(fd), "test")
		t.Cleanup(func() { f.Close() })
		require.NoError(t, f.Truncate(size))
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seal)
		require.NoError(t, err)
		return f
	}
	good := int64(Bytes(MinBytes))
	_, err := Open(int(make(good, seals).Fd()))
	require.NoError(t, err)
	for _, size := range []int64{0, pageBytes, good - 1, good + 1, int64(Bytes(3 * MinBytes)), int64(Bytes(2 * MaxBytes)), 1 << 40} {
		_, err := Open(int(make(size, seals).Fd()))
		require.ErrorIs(t, err, ErrRefused, "%d bytes", size)
	}
	for _, seal := range []int{0, unix.F_SEAL_SHRINK, unix.F_SEAL_GROW} {
		_, err := Open(int(make(good, seal).Fd()))
		require.ErrorIs(t, err, ErrRefused, "seals %x", seal)
	}
	plain, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer plain.Close()
	require.NoError(t, plain.Truncate(good))
	_, err = Open(int(plain.Fd()))
	require.ErrorIs(t, err, ErrRefused, "a file of a file system")
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	_, err = Open(int(r.Fd()))
	require.ErrorIs(t, err, ErrRefused, "a pipe")

	// Memory without write permission cannot be mapped. This is not the peer's fault.
	_, err = Open(int(make(good, seals|unix.F_SEAL_FUTURE_WRITE).Fd()))
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrRefused)
}

func TestMakersMemoryKeepsItsSize(t *testing.T) {
	m, file, err := New(MinBytes)
	require.NoError(t, err)
	defer m.Close()
	defer file.Close()
	require.Error(t, file.Truncate(0))
	require.Error(t, file.Truncate(1<<20))
	_, err = unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)
	require.Error(t, err)
}

func TestFit(t *testing.T) {
	for n, want := range map[int]int{-5: MinBytes, 0: MinBytes, MinBytes: MinBytes, MinBytes + 1: 2 * MinBytes, 32 << 10: 32 << 10, 1 << 40: MaxBytes} {
		require.Equal(t, want, Fit(n))
	}
}

// FuzzMemory lets a peer write anything anywhere between two steps of this side. This side must not access bytes
// outside the memory, wait, or report more bytes than the ring holds.
func FuzzMemory(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Add([]byte("\x05\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02"))
	all, err := unix.Mmap(-1, 0, Bytes(MinBytes)+256, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON) // with a guard area behind it
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, unix.Munmap(all)) })
	f.Fuzz(func(t *testing.T, program []byte) {
		clear(all)
		fence := all[Bytes(MinBytes):]
		m := &Memory{data: all[:Bytes(MinBytes):Bytes(MinBytes)], bytes: MinBytes}
		p, c := m.Producer(Second), m.Consumer(First)
		next := func() (b byte) {
			if len(program) > 0 {
				b, program = program[0], program[1:]
			}
			return b
		}
		number := func() uint64 {
			var b [8]byte
			for i := range b {
				b[i] = next()
			}
			return binary.LittleEndian.Uint64(b[:])
		}
		for len(program) > 0 {
			switch next() % 9 {
			case 0:
				if n, err := c.Available(); err == nil {
					require.LessOrEqual(t, n, MinBytes)
					require.GreaterOrEqual(t, n, 0)
					k := min(n, int(next())*16)
					c.Peek(0, make([]byte, k))
					c.Take(k)
				}
			case 1:
				_, _ = p.Put(make([]byte, next()), make([]byte, int(next())*20), 16)
			case 2:
				if free, err := p.Free(); err == nil {
					require.LessOrEqual(t, free, MinBytes)
					require.GreaterOrEqual(t, free, 0)
				}
			case 3:
				c.Sleep()
			case 4:
				c.Wake()
				require.GreaterOrEqual(t, c.Due(), 0)
			case 5:
				p.MustWake()
			case 6: // the peer writes an index
				words := []*atomic.Uint64{c.shared.tail, c.shared.head, p.shared.tail, p.shared.head}
				words[next()%4].Store(number())
			case 7: // or a value slightly above the previous one
				words := []*atomic.Uint64{c.shared.tail, p.shared.head}
				words[next()%2].Add(uint64(next()) << (next() % 8))
				c.asleep.Store(uint32(next()))
				p.asleep.Store(uint32(next()))
			case 8:
				_ = c.End()
			}
		}
		for _, b := range fence {
			require.Zero(t, b)
		}
	})
}
