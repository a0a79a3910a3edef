package admission

import (
	"fmt"
	"io"
	"time"
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

// Reader returns a reader of r that fails with ErrSlow if its sender is below the rate.
func (r Rate) Reader(from io.Reader) io.Reader { return &meteredReader{from, NewMeter(r)} }

type meteredReader struct {
	r     io.Reader
	meter *Meter
}

// Read implements io.Reader.
func (m *meteredReader) Read(p []byte) (int, error) {
	begin := time.Now()
	n, err := m.r.Read(p)
	if err == nil {
		err = m.meter.Add(n, time.Since(begin))
	}
	return n, err
}
