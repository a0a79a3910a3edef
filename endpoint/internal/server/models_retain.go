package server

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// expiry frees superseded versions when they reach the age of their retention.
type expiry struct {
	ages atomic.Bool // a retention has an age

	mu     sync.Mutex
	timer  *time.Timer // nil if no version expires
	closed bool
}

// needed reports whether versions may expire: the server or a publication so far limits the age.
func (x *expiry) needed(of catalog.Retention, name *catalog.Retention) bool {
	if of.Age > 0 || name != nil && name.Age > 0 {
		x.ages.Store(true)
	}
	return x.ages.Load()
}

// expire frees the versions that have expired, and starts the timer for the next one.
func (m *Models) expire() {
	x := &m.expiry
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return
	}
	next := m.Catalog.Expire()
	if x.timer != nil {
		x.timer.Stop()
		x.timer = nil
	}
	if !next.IsZero() {
		x.timer = time.AfterFunc(max(time.Until(next), time.Millisecond), m.expire)
	}
}

// close stops the timer.
func (x *expiry) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed = true
	if x.timer != nil {
		x.timer.Stop()
	}
}

// retentionOf decodes the retention of a publication; nil for none.
func retentionOf(in *message.Retention) (*catalog.Retention, error) {
	if in == nil {
		return nil, nil
	}
	if in.Versions > math.MaxInt32 || in.Bytes > math.MaxInt64 {
		return nil, fmt.Errorf("%w: a retention of %d versions and %d bytes", status.ErrInvalid, in.Versions, in.Bytes)
	}
	r := &catalog.Retention{Versions: int(in.Versions), Age: in.Age, Bytes: int64(in.Bytes)}
	if err := r.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", status.ErrInvalid, err)
	}
	return r, nil
}

// encodeRetention is the opposite of retentionOf, for valid retentions.
func encodeRetention(r *catalog.Retention) *message.Retention {
	if r == nil {
		return nil
	}
	return &message.Retention{Versions: uint64(r.Versions), Age: r.Age, Bytes: uint64(r.Bytes)}
}
