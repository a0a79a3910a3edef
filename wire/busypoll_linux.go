package wire

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// busyPoll decides whether a read that found nothing polls for a while before it sleeps. Sleeping and waking costs a
// small call more than everything else, once on each side. A peer that is awake answers within a few microseconds.
//
// Polling must cost little if it does not help. It lasts about as long as the sleep that it avoids, so it at most
// doubles that cost. After a miss the next reads skip it; consecutive misses double the number of skipped reads. Few
// goroutines of a process poll at a time, and none on a single processor, which the peer needs.
type busyPoll struct {
	limit   time.Duration
	misses  uint8 // consecutive polls that found nothing, as a power of two minus one
	skips   uint8 // number of reads to skip
	batched bool  // the last read returned several frames: a late read returns more
	yielded uint8 // consecutive polls, up to sharedAfter, that found data right after a yield
}

// sharedAfter is the number of consecutive polls that ended with a yield after which the peer is assumed to wait for
// this processor. Polls then start with a yield. Otherwise the peer could not run, and each side would poll in vain
// between two yields.
const sharedAfter = 2

// The number of polls between yields. The kernel often places the peer on this processor, so polls must yield. A yield
// costs more than a poll, which is a system call for a socket and a load for a ring. The clock costs some dozen loads
// and is read once per batch.
var (
	lookAtSocket = looking{batch: 1, yield: 8}
	lookAtRing   = looking{batch: 32, yield: 32}
)

// looking holds the number of polls between two readings of the clock, and the number of such batches between two
// yields.
type looking struct{ batch, yield int }

// maxMisses limits the number of skipped reads, and thereby the time until a faster peer is noticed.
const maxMisses = 63

// polling counts the goroutines of this process that poll.
var polling atomic.Int32

// missesInARow counts consecutive polls in vain on all connections of this process. Without it, a process with many
// quiet connections would poll each of them several times.
var missesInARow atomic.Int32

// fewMisses is the number of consecutive misses that does not affect other connections yet.
const fewMisses = 8

// pollers limits the number of polling goroutines. It is 0 if polling could keep peers or other work of this process
// from running.
var pollers = sync.OnceValue(func() int32 {
	n := min(runtime.GOMAXPROCS(0), runtime.NumCPU())
	if n == 1 {
		return 0
	}
	return int32(max(1, n/4))
})

// until polls look until it returns true or polling is no longer worthwhile. It returns the last result. look has
// returned false before the call.
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

// found records a poll that found data. yielded reports whether it did so right after a yield.
func (p *busyPoll) found(yielded bool) {
	p.misses = 0
	if !yielded {
		p.yielded = 0
	} else if p.yielded < sharedAfter {
		p.yielded++
	}
}

// yield releases this processor. Like the calls in recvmsg_unsafe_linux.go it does not notify Go's scheduler. Tests
// replace it.
var yield = func() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
