package wire

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// busyPoll decides whether a read that found nothing looks again for a while before it sleeps. To sleep and be woken
// costs a small call more than all the rest of it, once on each side, while the answer of a peer that is awake takes a
// few microseconds.
//
// It must cost little where it does not help. It lasts about as long as the sleep that it saves would have cost, so at
// worst it doubles that; after a miss it is skipped for the next reads, for twice as many after each miss in a row; and
// few goroutines of a process do it at a time, none where there is one processor, which the peer needs.
type busyPoll struct {
	limit   time.Duration
	misses  uint8 // polls in a row that found nothing, as one less than a power of two
	skips   uint8 // reads that are still to be skipped
	batched bool  // the last read brought several frames: the next one gets more of them if it is late
	yielded uint8 // polls in a row, up to sharedAfter, that found something as soon as they had yielded
}

// sharedAfter is how many polls in a row have to end with a yield until the peer is taken to wait for this very
// processor. Then a poll begins with a yield: until that the peer could not run, and each side would look in vain for
// as long as it looks between two yields.
const sharedAfter = 2

// How often a goroutine looks before it lets others have the processor: the peer may be waiting for that very one,
// where the kernel likes to put it. To yield each time would cost more than a look does, which is a system call at a
// socket and a load at a ring. The clock, which takes as long as some dozen loads, is asked as often as batch says.
var (
	lookAtSocket = looking{batch: 1, yield: 8}
	lookAtRing   = looking{batch: 32, yield: 32}
)

// looking is how often a goroutine looks between two looks at the clock, and how many of these there are between two
// yields.
type looking struct{ batch, yield int }

// maxMisses bounds how many reads are left out, and so how late it is noticed that a peer has become quick.
const maxMisses = 63

// polling is how many goroutines of this process are looking.
var polling atomic.Int32

// missesInARow counts polls of this process, on any connection, that found nothing since one found something. A process
// with many connections, on each of which little happens, would else poll each of them several times before it knows.
var missesInARow atomic.Int32

// fewMisses is how many misses in a row say nothing about other connections yet.
const fewMisses = 8

// pollers is how many may. Where they could keep the peers, or this process's other work, from running there are none.
var pollers = sync.OnceValue(func() int32 {
	n := min(runtime.GOMAXPROCS(0), runtime.NumCPU())
	if n == 1 {
		return 0
	}
	return int32(max(1, n/4))
})

// until looks again and again until look is true, as long as that seems worth while, and returns what look said last.
// It began with false.
func (p *busyPoll) until(look func() bool, how looking) bool {
	if p.skips > 0 {
		p.skips--
		return false
	}
	if p.batched || p.limit <= 0 || polling.Load() >= pollers() {
		return false
	}
	polling.Add(1)
	defer polling.Add(-1)
	start := time.Now()
	yielded := p.yielded == sharedAfter
	if yielded {
		yield()
	}
	for n := 1; time.Since(start) < p.limit; n++ {
		for range how.batch {
			if look() {
				p.found(yielded)
				if missesInARow.Load() > 0 {
					missesInARow.Store(0)
				}
				return true
			}
			yielded = false
		}
		if n%how.yield == 0 {
			yield()
			yielded = true
		}
	}
	p.yielded = 0
	p.misses = min(2*p.misses+1, maxMisses)
	if missesInARow.Add(1) > fewMisses {
		p.misses = maxMisses
	}
	p.skips = p.misses
	return false
}

// found notes that a poll found something, and whether it did so as soon as it had yielded.
func (p *busyPoll) found(yielded bool) {
	p.misses = 0
	if !yielded {
		p.yielded = 0
	} else if p.yielded < sharedAfter {
		p.yielded++
	}
}

// yield lets others have this processor. The call tells Go's scheduler nothing, like those in recvmsg_unsafe_linux.go.
// Tests put another one in its place.
var yield = func() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
