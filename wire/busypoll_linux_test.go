package wire

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// requirePollers skips a test if polling is disabled.
func requirePollers(t *testing.T) {
	t.Helper()
	drivertest.Needs(t, "processors", pollers() > 0, "with one processor nobody may look again and again")
}

func TestBusyPollFindsWhatComesSoon(t *testing.T) {
	requirePollers(t)
	p := busyPoll{limit: time.Minute, misses: 7}
	n := 0
	require.True(t, p.until(func() bool { n++; return n == 3*lookAtSocket.yield }, lookAtSocket))
	require.Equal(t, 3*lookAtSocket.yield, n)
	require.Zero(t, p.misses)
	require.Zero(t, polling.Load())
}

func TestBusyPollIsRareWhereItIsInVain(t *testing.T) {
	requirePollers(t)
	p := busyPoll{limit: 200 * time.Microsecond}
	looked := 0
	const reads = 1000
	for range reads {
		before := looked
		require.False(t, p.until(func() bool { looked++; time.Sleep(time.Millisecond); return false }, lookAtSocket))
		require.LessOrEqual(t, looked-before, 1)
	}
	require.LessOrEqual(t, looked, 7+reads/maxMisses)
	require.GreaterOrEqual(t, p.misses, uint8(maxMisses))
	require.Zero(t, polling.Load())
	for p.skips > 0 {
		p.until(func() bool { return false }, lookAtSocket)
	}
	require.True(t, (&busyPoll{limit: time.Minute}).until(func() bool { return true }, lookAtSocket))
}

// If the peer waits for the same processor, its data arrives with a yield. Polls then start with a yield until data
// arrives during a poll.
func TestBusyPollYieldsToThePeer(t *testing.T) {
	requirePollers(t)
	yields, looks := 0, 0
	defer func(before func()) { yield = before }(yield)
	yield = func() { yields++ }
	p := busyPoll{limit: time.Minute}
	poll := func(look func() bool) (yielded, looked int) {
		yields, looks = 0, 0
		require.True(t, p.until(func() bool { looks++; return look() }, lookAtRing))
		return yields, looks
	}
	afterYield := func() bool { return yields > 0 }
	atOnce := func() bool { return true }
	between := lookAtRing.batch * lookAtRing.yield
	for range sharedAfter {
		yielded, looked := poll(afterYield)
		require.Equal(t, 1, yielded)
		require.Equal(t, between+1, looked)
	}
	for range 5 {
		yielded, looked := poll(afterYield)
		require.Equal(t, 1, yielded)
		require.Equal(t, 1, looked, "it yields before it looks")
	}
	poll(func() bool { return looks > 1 })
	yielded, looked := poll(atOnce)
	require.Zero(t, yielded, "the peer has a processor of its own again")
	require.Equal(t, 1, looked)
}

// A process with many quiet connections does not relearn this on each of them. After some consecutive misses, one miss
// is enough to skip the next reads of a connection. Data on any connection ends this.
func TestBusyPollOfManyConnections(t *testing.T) {
	requirePollers(t)
	before := missesInARow.Swap(0)
	defer missesInARow.Store(before)
	// leftOut reads in vain on a new connection and counts the following reads that do not poll.
	leftOut := func() (n int) {
		p := busyPoll{limit: time.Millisecond}
		looked := false
		vain := func() bool { looked = true; time.Sleep(2 * time.Millisecond); return false }
		require.False(t, p.until(vain, lookAtSocket))
		require.True(t, looked, "a new connection looks")
		for looked = false; n <= maxMisses; n++ {
			if p.until(vain, lookAtSocket); looked {
				break
			}
		}
		return n
	}
	require.Equal(t, 1, leftOut(), "a connection by itself tries again soon")
	for int(missesInARow.Load()) < fewMisses {
		leftOut()
	}
	for range 3 {
		require.Equal(t, maxMisses, leftOut(), "no connection does")
	}
	require.True(t, (&busyPoll{limit: time.Minute}).until(func() bool { return true }, lookAtSocket))
	require.Equal(t, 1, leftOut(), "after one has found something they do again")
	require.Zero(t, polling.Load())
}

func TestBusyPollIsLeftOut(t *testing.T) {
	never := func() bool { t.Error("it looked"); return true }
	require.False(t, (&busyPoll{limit: -1}).until(never, lookAtSocket), "by the limit")
	require.False(t, (&busyPoll{limit: time.Minute, batched: true}).until(never, lookAtSocket), "where frames come together")
	polling.Add(pollers())
	defer polling.Add(-pollers())
	require.False(t, (&busyPoll{limit: time.Minute}).until(never, lookAtSocket), "where others do it")
}

// A connection whose peer answers quickly polls between frames. An idle one sleeps.
func TestReceiveLooksAgainBeforeItSleeps(t *testing.T) {
	requirePollers(t)
	requireSameDescriptors(t)
	a, b := pipe(t, Limits{BusyPoll: time.Minute})
	go func() {
		for polling.Load() == 0 {
			runtime.Gosched()
		}
		b.Send(KindRequest, 1, body48)
	}()
	_, err := a.Receive()
	require.NoError(t, err)
	require.Zero(t, a.reader.src.poll.misses)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// After several frames in one read, the next read sleeps at once, so that more frames arrive together.
func TestReceiveSleepsAtOnceAfterACrowd(t *testing.T) {
	a, b := pipe(t, Limits{BusyPoll: time.Minute})
	require.NoError(t, b.SendLater(KindRequest, 1, body48))
	require.NoError(t, b.Send(KindRequest, 2, body48))
	for range 2 {
		_, err := a.Receive()
		require.NoError(t, err)
	}
	require.NoError(t, a.SetReadDeadline(time.Now().Add(time.Millisecond)))
	_, err := a.Receive()
	require.Error(t, err)
	require.True(t, a.reader.src.poll.batched)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}
