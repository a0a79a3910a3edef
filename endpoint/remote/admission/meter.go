package admission

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
)

// ErrSlow reports that a client sends too slowly.
var ErrSlow = NewError(Slow, "the sender is below the minimum rate")

// Rate is the minimum rate of senders. The zero Rate accepts any.
type Rate struct {
	// Bytes is the minimum rate per second. 0 means none.
	Bytes int64
	// Grace is the maximum time without a byte. A sender starts with this allowance and extends it with the bytes that
	// it sends.
	Grace time.Duration
}

// Meter measures one sender. It counts only time in which the receiver waits for the sender. A Meter is not safe for
// concurrent use.
type Meter struct {
	rate Rate
	left time.Duration
}

// NewMeter returns the meter of a sender that starts now.
func NewMeter(rate Rate) *Meter { return &Meter{rate: rate, left: rate.Grace} }

// Left returns how long the receiver waits for the next byte.
func (m *Meter) Left() time.Duration { return max(m.left, 0) }

// Add records that n bytes arrived after the receiver had waited for them. It returns ErrSlow if the sender is below
// the minimum rate.
func (m *Meter) Add(n int, waited time.Duration) error {
	if m.rate.Bytes <= 0 {
		return nil // only silence ends the transfer: Left always returns Grace
	}
	if m.left -= waited; m.left <= 0 {
		return m.rate.slow()
	}
	m.left = min(m.rate.Grace, m.left+m.rate.earned(n))
	return nil
}

func (r Rate) slow() error {
	return fmt.Errorf("%w of %d bytes a second: see --min-rate", ErrSlow, r.Bytes)
}

// Extend returns the next deadline of a sender that had the given deadline and has sent n bytes. Each byte adds time,
// up to Grace from now.
func (r Rate) Extend(deadline, now time.Time, n int) time.Time {
	latest := now.Add(r.Grace)
	if r.Bytes <= 0 {
		return latest
	}
	if deadline = deadline.Add(r.earned(n)); deadline.After(latest) {
		return latest
	}
	return deadline
}

func (r Rate) earned(n int) time.Duration {
	return time.Duration(float64(n) / float64(r.Bytes) * float64(time.Second))
}

// BodyReader reads the body of an HTTP request with a timeout for each read. Without a timeout, a slow sender would hold
// its slot forever. A single deadline for the whole body would fail large bodies on slow connections. BodyReader uses a
// timer instead of the connection's read deadline, which would cost more than reading a small request.
type BodyReader struct {
	r     io.Reader
	rate  Rate
	meter *Meter
	timer *time.Timer
	armed time.Time
	cut   func()
	bytes int64
	ended bool
}

// NewBodyReader returns a reader of r, the body of the request that w answers. Reading fails if nothing arrives for the
// grace of the rate, and with ErrSlow if the sender is slower than the rate.
func NewBodyReader(w http.ResponseWriter, r io.Reader, rate Rate) *BodyReader {
	control := http.NewResponseController(w)
	return &BodyReader{r: r, rate: rate, meter: NewMeter(rate), cut: func() {
		_ = control.SetReadDeadline(time.Unix(1, 0)) // in the past: a blocked read fails
	}}
}

// Read implements io.Reader.
func (b *BodyReader) Read(p []byte) (int, error) {
	now := time.Now()
	switch {
	case b.timer == nil:
		b.timer, b.armed = contain.After(b.rate.Grace, b.cut, nil), now
	case now.Sub(b.armed) > b.rate.Grace/4:
		b.timer.Reset(b.rate.Grace)
		b.armed = now
	}
	n, err := b.r.Read(p)
	b.bytes += int64(n)
	b.ended = b.ended || err == io.EOF //nolint:errorlint // as io.Reader has it
	if err == nil {
		if err = b.meter.Add(n, time.Since(now)); err != nil {
			b.cut()
		}
	}
	return n, err
}

// Ended reports whether a body of length bytes was read in full. -1 means that the length is unknown.
func (b *BodyReader) Ended(length int64) bool { return b.ended || length >= 0 && b.bytes == length }

// Release ends the timeout. If the body was not read in full, Release also stops waiting for the rest, and the
// connection closes after the response.
func (b *BodyReader) Release(read bool) {
	if b.timer != nil {
		b.timer.Stop()
	}
	if !read {
		b.cut()
	}
}
