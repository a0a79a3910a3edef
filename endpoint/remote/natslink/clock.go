package natslink

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// clockAge is the time after which a Clock reads the server's time again. Clocks of two hosts drift by milliseconds in
// that time.
const clockAge = time.Minute

// Clock is the clock of the server that stores a stream. Ages of messages are measured with it, because the clock of a
// client may be wrong. Its methods are safe for concurrent use.
type Clock struct {
	stream jetstream.Stream

	mu     sync.Mutex
	server time.Time // the server's time; zero before the first reading
	read   time.Time // when it was read, on the monotonic clock of this process
}

// NewClock returns the clock of a stream's server.
func NewClock(stream jetstream.Stream) *Clock { return &Clock{stream: stream} }

// Since returns how long ago t was, for a t of the server. It requests the server's time at most once a minute.
func (c *Clock) Since(ctx context.Context, t time.Time) (time.Duration, error) {
	c.mu.Lock()
	server, read := c.server, c.read
	c.mu.Unlock()
	if server.IsZero() || time.Since(read) > clockAge {
		now, err := c.Now(ctx)
		return now.Sub(t), err
	}
	return server.Add(time.Since(read)).Sub(t), nil
}

// Now requests the server's time. The result is at most one round trip old.
func (c *Clock) Now(ctx context.Context) (now time.Time, err error) {
	err = Ask(ctx, func(ctx context.Context) error {
		info, err := c.stream.Info(ctx)
		if err == nil {
			now = info.TimeStamp
		}
		return err
	})
	if err != nil {
		return time.Time{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server, c.read = now, time.Now()
	return now, nil
}
