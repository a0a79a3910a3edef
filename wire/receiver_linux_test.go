package wire

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// caller is a minimal client over a Receiver: it assigns answers by ID.
type caller struct {
	conn     *Conn
	receiver *Receiver
	events   chan Frame

	mu      sync.Mutex
	answers map[uint64]chan Frame
}

func newCaller(c *Conn) *caller {
	cl := &caller{conn: c, events: make(chan Frame, 100), answers: map[uint64]chan Frame{}}
	cl.receiver = NewReceiver(c, cl.dispatch)
	return cl
}

var errUnknownAnswer = errors.New("an answer that nobody waits for")

func (c *caller) dispatch(f Frame) error {
	if f.Kind == KindEvent {
		c.events <- f
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	answer := c.answers[f.ID]
	if answer == nil {
		return errUnknownAnswer
	}
	delete(c.answers, f.ID)
	answer <- f
	return nil
}

// run is the receiving goroutine of a client.
func (c *caller) run() error {
	err := c.receiver.Run()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, answer := range c.answers {
		close(answer)
	}
	return err
}

func (c *caller) call(ctx context.Context, id uint64, answer chan Frame) (Frame, bool, error) {
	c.mu.Lock()
	c.answers[id] = answer
	c.mu.Unlock()
	if err := c.conn.Send(KindRequest, id, body48); err != nil {
		return Frame{}, false, err
	}
	return c.receiver.Wait(ctx, answer)
}

// startCaller returns a caller and the connection of its peer.
func startCaller(t *testing.T) (*caller, *Conn, <-chan error) {
	a, b := pipe(t, Limits{})
	c := newCaller(a)
	ended := make(chan error, 1)
	var running sync.WaitGroup
	running.Go(func() { ended <- c.run() })
	t.Cleanup(func() {
		a.Close()
		running.Wait()
	})
	return c, b, ended
}

func echo(c *Conn) {
	for {
		f, err := c.Receive()
		if err != nil || c.SendLater(KindResponse, f.ID, f.Body) != nil {
			return
		}
	}
}

func TestReceiverAnswersEveryCaller(t *testing.T) {
	requireSameDescriptors(t)
	c, peer, _ := startCaller(t)
	var all sync.WaitGroup
	var echoing sync.WaitGroup
	echoing.Go(func() { echo(peer) })
	for i := range uint64(20) {
		all.Go(func() {
			answer := make(chan Frame, 1)
			for n := range uint64(100) {
				ctx, cancel := context.WithCancel(context.Background())
				f, ok, err := c.call(ctx, i<<32|n, answer)
				cancel()
				if !ok || err != nil || f.ID != i<<32|n {
					t.Error(f, ok, err)
					return
				}
			}
		})
	}
	all.Wait()
	require.NoError(t, c.conn.Close())
	echoing.Wait()
}

// Events arrive while there are no waiters, while a caller waits, and behind answers.
func TestReceiverPassesEvents(t *testing.T) {
	c, peer, _ := startCaller(t)
	event := func() {
		t.Helper()
		select {
		case <-c.events:
		case <-time.After(waitLong):
			t.Fatal("no event")
		}
	}
	require.NoError(t, peer.Send(KindEvent, 1, body48))
	event()
	for range 3 {
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, ok, err := c.call(context.Background(), 5, make(chan Frame, 1)); !ok || err != nil {
				t.Error(ok, err)
			}
		})
		f, err := peer.Receive()
		require.NoError(t, err)
		require.NoError(t, peer.Send(KindEvent, 1, body48))
		event()
		require.NoError(t, peer.SendLater(KindResponse, f.ID, body48))
		require.NoError(t, peer.Send(KindEvent, 1, body48))
		wg.Wait()
		event()
	}
	require.NoError(t, peer.Send(KindEvent, 1, body48))
	event()
}

// A caller that stops waiting passes the token on. The connection and other callers continue, and a partly read frame
// is not lost.
func TestReceiverWaitEndsWithContext(t *testing.T) {
	c, peer, _ := startCaller(t)
	for n := range uint64(20) {
		ctx, cancel := context.WithCancelCause(context.Background())
		var patient, hasty sync.WaitGroup
		for i := range uint64(2) {
			id := n<<8 | i
			hasty.Go(func() {
				if _, ok, err := c.call(ctx, id, make(chan Frame, 1)); ok || !errors.Is(err, io.ErrNoProgress) {
					t.Error(ok, err)
				}
			})
		}
		patient.Go(func() {
			if _, ok, err := c.call(context.Background(), n<<8|7, make(chan Frame, 1)); !ok || err != nil {
				t.Error(ok, err)
			}
		})
		for range 3 {
			_, err := peer.Receive()
			require.NoError(t, err)
		}
		frame := frameBytes(KindResponse, 0, n<<8|7, item(40))
		_, err := peer.conn.Write(frame[:n+1])
		require.NoError(t, err)
		cancel(io.ErrNoProgress)
		hasty.Wait()
		_, err = peer.conn.Write(frame[n+1:])
		require.NoError(t, err)
		patient.Wait()
	}
}

func TestReceiverEnds(t *testing.T) {
	t.Run("closed", func(t *testing.T) {
		c, peer, ended := startCaller(t)
		require.NoError(t, peer.Close())
		require.ErrorIs(t, <-ended, io.EOF)
		require.NotNil(t, c)
	})
	t.Run("closed while waiting", func(t *testing.T) {
		c, peer, ended := startCaller(t)
		var wg sync.WaitGroup
		for i := range uint64(5) {
			wg.Go(func() {
				if _, ok, err := c.call(context.Background(), i, make(chan Frame, 1)); ok || err != nil {
					t.Error(ok, err)
				}
			})
		}
		for range 5 {
			_, err := peer.Receive()
			require.NoError(t, err)
		}
		require.NoError(t, peer.Close())
		wg.Wait()
		require.ErrorIs(t, <-ended, io.EOF)
	})
	t.Run("dispatch", func(t *testing.T) {
		_, peer, ended := startCaller(t)
		require.NoError(t, peer.Send(KindResponse, 99, body48))
		require.ErrorIs(t, <-ended, errUnknownAnswer)
	})
}

// If the answer and the token are available at the same time, the answer must win. Otherwise the waiter would wait for
// a frame that may never arrive.
func TestReceiverPrefersAnAnswerToTheTurn(t *testing.T) {
	for range 200 {
		a, b, err := Pipe(Limits{})
		require.NoError(t, err)
		r := NewReceiver(a, func(Frame) error { return nil })
		answer := make(chan Frame, 1)
		answer <- Frame{ID: 7}
		<-r.readToken
		done := make(chan uint64)
		go func() {
			f, _, _ := r.read(context.Background(), answer)
			done <- f.ID
		}()
		select {
		case id := <-done:
			require.EqualValues(t, 7, id)
		case <-time.After(10 * time.Second):
			require.Fail(t, "the answer was there and was not taken")
		}
		a.Close()
		b.Close()
	}
}

// With listeners, an event that arrives shortly after an answer is seen sooner than without.
func TestReceiverHurriesForListeners(t *testing.T) {
	c, peer, _ := startCaller(t)
	seen := func(id uint64) time.Duration {
		var answering sync.WaitGroup
		answering.Go(func() {
			_, err := peer.Receive()
			if err != nil || peer.Send(KindResponse, id, body48) != nil {
				t.Error(err)
			}
		})
		_, _, err := c.call(context.Background(), id, make(chan Frame, 1))
		require.NoError(t, err)
		answering.Wait()
		start := time.Now()
		require.NoError(t, peer.Send(KindEvent, 1, body48))
		<-c.events
		return time.Since(start)
	}
	const turns = 11
	var idle, listening []time.Duration
	for id := range uint64(turns) {
		idle = append(idle, seen(id<<1))
		c.receiver.Listen(1)
		listening = append(listening, seen(id<<1|1))
		c.receiver.Listen(-1)
	}
	slices.Sort(idle)
	slices.Sort(listening)
	require.Less(t, listening[turns/2], idle[turns/2])
	t.Logf("%v, with listeners %v", idle, listening)
}

// While a caller waits for a slow answer, Run does not take the token. Otherwise every second answer would have to pass
// through Run.
func TestReceiverLeavesTheTurnToWhoWaits(t *testing.T) {
	c, peer, _ := startCaller(t)
	inARow := 0
	for id := range uint64(20) {
		var answering sync.WaitGroup
		answering.Go(func() {
			_, err := peer.Receive()
			time.Sleep(5 * quietTime)
			if err != nil || peer.Send(KindResponse, id, body48) != nil {
				t.Error(err)
			}
		})
		_, _, err := c.call(context.Background(), id, make(chan Frame, 1))
		free := len(c.receiver.readToken) > 0
		require.NoError(t, err)
		answering.Wait()
		if inARow++; !free { // Run reads at first, and again if this test was suspended
			inARow = 0
		}
		if inARow == 2 {
			return
		}
	}
	require.Fail(t, "Run takes the token behind each answer")
}
